//! GGUF files as candle's quantised tensors, for the feature `gguf`.
//!
//! A [`GgufFile`] is opened from a path or from any source of bytes, such as a file in a bucket.
//! Its tensors are [`QTensor`]s, which hold the blocks of the file as they are.
//!
//! | to | use |
//! |---|---|
//! | open a file, or bytes from anywhere else | [`GgufFile::open`], [`GgufFile::from_source`] |
//! | read one tensor by its name | [`GgufFile::qtensor`] |
//! | read all, in parallel; with progress, or cancelled | [`GgufFile::load`], [`GgufFile::load_with`] |
//! | multiply by a quantised tensor | `candle_core::quantized::QMatMul::from_qtensor` |
//! | get hyperparameters and the tokenizer | [`GgufFile::content`], which is candle's own type |
//! | build a model of candle-transformers | its `from_gguf`, with [`GgufFile::content`] and [`GgufFile::reader`] |
//! | get numbers instead of blocks | [`QTensor::dequantize`] |
//!
//! ```
//! use candle_core::quantized::{GgmlDType, QMatMul, QTensor, gguf_file};
//! use candle_core::{Device, Module, Tensor};
//! use safetensors_candle::gguf::GgufFile;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.gguf");
//! let weight = Tensor::arange(0_f32, 64., &Device::Cpu)?.reshape((2, 32))?;
//! let weight = QTensor::quantize(&weight, GgmlDType::Q8_0)?;
//! let blocks = gguf_file::Value::U32(1);
//! let mut bytes = std::fs::File::create(&path)?;
//! gguf_file::write(&mut bytes, &[("llama.block_count", &blocks)], &[("fc.weight", &weight)])?;
//!
//! let file = GgufFile::open(&path)?;
//! assert_eq!(file.content()?.metadata["llama.block_count"].to_u32()?, 1);
//! let fc = QMatMul::from_qtensor(file.qtensor("fc.weight", &Device::Cpu)?)?;
//! let output = fc.forward(&Tensor::ones((1, 32), candle_core::DType::F32, &Device::Cpu)?)?;
//! assert_eq!(output.dims(), [1, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Types
//!
//! candle has the types `F32`, `F16`, `BF16`, `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`, `Q2_K`,
//! `Q3_K`, `Q4_K`, `Q5_K`, `Q6_K` and `Q8_K`. A tensor of another type is an error that names the
//! tensor and its type; the other tensors of its file are read. (candle has blocks of `Q8_1`, too,
//! but smaller ones than files have.) `safetensors_formats::open` reads `IQ` and other types as
//! numbers.
//!
//! Blocks are the bytes of the file. A scale of a module, such as `blk.0.ffn_up.scale`, is a
//! separate tensor, by which the model multiplies.
//!
//! candle has no type for weights of GPTQ, AWQ, bitsandbytes and other schemes of safetensors
//! files. They are [read as numbers](crate#quantised-weights), which [`crate::quantize`] makes into
//! blocks.
//!
//! # Split files
//!
//! One part of several (`NAME-00001-of-00003.gguf`) is an error, because candle reads only single
//! files. llama.cpp's `llama-gguf-split --merge` joins all parts. `safetensors_formats::open` reads
//! the parts together, as numbers.
//!
//! # Models of candle-transformers
//!
//! Most quantised models have a function `from_gguf`, which takes candle's description of the file
//! and a reader:
//!
//! ```ignore
//! let file = GgufFile::open("model.gguf")?;
//! let model = ModelWeights::from_gguf(file.content()?, &mut file.reader(), &Device::Cpu)?;
//! ```
//!
//! Such a model reads its tensors one by one. Each is read in parallel, but candle then copies it
//! on one thread. Other models take a `quantized_var_builder::VarBuilder`, which candle makes only
//! from a path or from all bytes of a file. Read the bytes from [`GgufFile::reader`], and pass them
//! to `VarBuilder::from_gguf_buffer`.
//!
//! # Memory
//!
//! candle allocates a quantised tensor itself, and copies the bytes into it. So each thread reads
//! into a buffer, which it reuses for the next tensor. Together the buffers take at most 32 MiB per
//! thread, or 1/32 of the bytes read if that is more. Larger tensors are read one after the other,
//! by all threads.
//!
//! Bytes that are in memory, or mapped, are lent to candle without a buffer. Mapping is fastest, if
//! you can promise that no process changes the file:
//!
//! ```no_run
//! use candle_core::Device;
//! use safetensors_candle::gguf::GgufFile;
//! use safetensors_core::io::Mmap;
//!
//! let path = "model.gguf";
//! // SAFETY: nothing changes or truncates this file while it is mapped.
//! let map = unsafe { Mmap::map(&std::fs::File::open(path)?) }?;
//! let tensors = GgufFile::from_source(map, path)?.load(&Device::Cpu)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod read;
mod reader;

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};
#[cfg(doc)]
use safetensors_core::ErrorKind;
use safetensors_core::io::FileSource;
use safetensors_core::{Checkpoint, LazyTensor, LoadOptions, ReadAt, Result};
use safetensors_formats::{Options, TensorFile};

use self::reader::GgufReader;
use crate::error::from_candle_error;

/// An open GGUF file. Its tensors are read as candle's [`QTensor`]s.
///
/// Opening reads the header and checks it: the places of all tensors, and that none overlap.
/// Tensors are read when they are asked for. See [the module](self).
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    checkpoint: Checkpoint<TensorFile>,
}

impl GgufFile {
    /// Opens a file on the disk. Tensors are read by positional reads; the file is not mapped.
    ///
    /// # Errors
    ///
    /// Fails if there is no file, if it has another format or is part of a split file, or if its
    /// header breaks a rule of GGUF. The error names the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let source = FileSource::open(path).map_err(|error| error.in_path(path))?;
        Self::from_source(source, path)
    }

    /// Opens a file that is in memory, in a bucket, or anywhere else. Errors show `path`.
    ///
    /// A file of an address comes from a store of `safetensors-hub`:
    ///
    /// ```ignore
    /// let store = RemoteStore::new("s3://bucket/model.gguf", &RemoteOptions::new())?;
    /// let file = GgufFile::from_source(store.open(&store.path())?, store.path())?;
    /// ```
    pub fn from_source(source: impl ReadAt + 'static, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = TensorFile::from_source(source, path, &Options::new().blocks(true))?;
        if file.format() != safetensors_formats::Format::Gguf {
            let problem = format!("expected a GGUF file, found one of {}", file.format());
            return Err(from_candle_error(candle_core::Error::msg(problem)).in_path(path));
        }
        Ok(Self { path: path.to_owned(), checkpoint: Checkpoint::from_source(file, path)? })
    }

    /// Returns the names of the tensors, in the order of their bytes in the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.checkpoint.tensors().map(|tensor| tensor.name())
    }

    /// Reads one tensor onto a device. Only its bytes are read, in parallel if they are many.
    ///
    /// # Errors
    ///
    /// Each names the file and the tensor:
    ///
    /// - [`ErrorKind::TensorNotFound`], with similar names.
    /// - [`ErrorKind::Framework`] if candle lacks the type, or refuses the shape: a tensor without
    ///   dimensions.
    /// - [`ErrorKind::Io`] if the file cannot be read, or has changed.
    pub fn qtensor(&self, name: &str, device: &Device) -> Result<QTensor> {
        let tensor = self.checkpoint.tensor(name)?;
        read::one(&tensor, device)
    }

    /// Reads all tensors onto a device, in parallel.
    ///
    /// # Errors
    ///
    /// Like [`qtensor`](Self::qtensor). A tensor with a type that candle lacks is found before
    /// anything is read.
    pub fn load(&self, device: &Device) -> Result<BTreeMap<String, QTensor>> {
        self.load_with(device, &LoadOptions::new())
    }

    /// Loads like [`load`](Self::load), with a number of threads, and with a callback for the
    /// progress, which can cancel the load. The other options have no effect, because blocks stay
    /// as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`] if the callback cancels the load; otherwise like
    /// [`load`](Self::load).
    pub fn load_with(
        &self,
        device: &Device,
        options: &LoadOptions,
    ) -> Result<BTreeMap<String, QTensor>> {
        let tensors: Vec<LazyTensor<'_, _>> = self.checkpoint.tensors().collect();
        let names = tensors.iter().map(|tensor| tensor.name().to_owned());
        Ok(names.zip(read::all(&tensors, device, options)?).collect())
    }

    /// Returns candle's description of the file: its keys with their values, and the type, shape
    /// and place of each tensor. candle itself reads the header again for it, from a
    /// [`reader`](Self::reader).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Framework`] if candle refuses the header: it lacks the type of a tensor, or
    /// would read `general.alignment` in another way than the format defines.
    pub fn content(&self) -> Result<Content> {
        let located = |error| from_candle_error(error).in_path(&self.path);
        let mut reader = GgufReader::for_header(self.source(), &self.path);
        // candle makes its own type from the header that was checked. A second parser could differ.
        let content = Content::read(&mut reader).map_err(located)?;
        // candle always uses an alignment of 32 if its type has 64 bits.
        match content.metadata.get("general.alignment") {
            Some(value @ (Value::U64(_) | Value::I64(_))) => {
                let problem = format!("general.alignment should be U32, found {value:?}");
                Err(located(candle_core::Error::msg(problem)))
            }
            _ => Ok(content),
        }
    }

    /// Returns a reader of the whole file, for candle's own functions that take one: see
    /// [models](self#models-of-candle-transformers).
    ///
    /// A large read fills its caller's buffer directly, in parallel. A small one comes from a
    /// window of the file. The last four windows are kept: 256 KiB each of a local file, and at
    /// most 64 MiB each of a file behind a network, where small reads would each wait for a
    /// request.
    pub fn reader(&self) -> impl Read + Seek {
        GgufReader::new(self.source(), &self.path)
    }

    fn source(&self) -> &dyn ReadAt {
        self.checkpoint.files()[0].safetensors().source().source()
    }
}
