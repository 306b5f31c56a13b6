//! [`Writer`]: tensors and metadata as a GGUF file.

mod blocks;
mod value;

use std::collections::HashSet;
use std::{fmt, io};

use safetensors_core::convert::{ConvertOptions, Converted, Overflow};
use safetensors_core::framework::write_exactly;
use safetensors_core::save::{AtomicFile, Sink};
use safetensors_core::{self as core, Dtype, TensorSource, shape};
pub use value::Value;

use super::Type;
use crate::error::{Error, ErrorKind, Result};
use crate::places::write_placed;

/// Of the data and of each tensor.
const ALIGNMENT: u64 = 32;

/// Bytes of a name, and dimensions, that ggml takes.
const MOST_NAME: usize = 63;
const MOST_DIMS: usize = 4;

/// A planned GGUF file: metadata, and tensors with their types.
///
/// Numbers are read while the file is written, several tensors at once. Equal input gives equal
/// bytes.
///
/// ```
/// use safetensors_core::save::AtomicFile;
/// use safetensors_core::{SaveOptions, TensorView};
/// use safetensors_formats::{Options, gguf};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// let numbers: Vec<f32> = (0..64).map(|i| i as f32 - 32.0).collect();
/// let mut writer = gguf::Writer::new();
/// writer.metadata("general.architecture", "llama");
/// let weight = TensorView::from_slice(&[2, 32], &numbers)?;
/// writer.add("token_embd.weight", gguf::Type::Q8_0, weight)?;
///
/// let mut file = AtomicFile::create(&path, &SaveOptions::new())?;
/// writer.write(&file, |_| ())?;
/// file.commit()?;
///
/// let checkpoint = safetensors_formats::open(&path, &Options::new().dequantize(true))?;
/// let read = checkpoint.tensor("token_embd.weight")?.read()?.into_vec::<f32>()?;
/// assert!(read.iter().zip(&numbers).all(|(read, number)| (read - number).abs() < 0.13));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct Writer<'a> {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor<'a>>,
    names: HashSet<String>,
}

struct Tensor<'a> {
    name: String,
    source_name: String,
    shape: Vec<usize>,
    kind: Type,
    byte_len: u64,
    /// Of a plain type's dtype, or F32.
    numbers: Box<dyn TensorSource + Send + 'a>,
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("metadata", &self.metadata.len())
            .field("tensors", &self.tensors.len())
            .finish()
    }
}

impl<'a> Writer<'a> {
    /// Creates a writer without tensors and metadata.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key of the metadata, replacing an earlier value.
    pub fn metadata(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let key = key.into();
        let value = value.into();
        match self.metadata.iter_mut().find(|(other, _)| *other == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key, value)),
        }
    }

    /// Adds a tensor with elements of `kind`: F32, F16 or BF16, rounded once to nearest even, or
    /// Q8_0 or Q4_0, with the bits of the Python package `gguf`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotForGguf`] for another type, integers, incomplete blocks, a name or a shape
    /// that ggml does not take; errors of the core for a duplicate name, or scales that cannot be
    /// applied.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        kind: Type,
        source: impl TensorSource + Send + 'a,
    ) -> Result<()> {
        let name = name.into();
        self.add_from(&name.clone(), name, kind, source)
    }

    /// [`add`](Self::add) with another name for errors.
    pub(in crate::gguf) fn add_from(
        &mut self,
        source_name: &str,
        name: String,
        kind: Type,
        source: impl TensorSource + Send + 'a,
    ) -> Result<()> {
        let located = |error: Error| error.in_tensor(source_name);
        let tensor = Tensor::new(source_name, name, kind, source).map_err(located)?;
        if !self.names.insert(tensor.name.clone()) {
            return Err(located(core::ErrorKind::DuplicateTensor.into()));
        }
        self.tensors.push(tensor);
        Ok(())
    }

    pub(in crate::gguf) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns names, types and shapes, outermost dimension first, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, Type, &[usize])> + Clone {
        self.tensors.iter().map(|tensor| (&*tensor.name, tensor.kind, &*tensor.shape))
    }

    /// Returns the bytes of all tensors, without the header.
    pub fn total_size(&self) -> u64 {
        self.tensors.iter().fold(0, |all, tensor| all.saturating_add(tensor.byte_len))
    }

    /// Writes everything to an empty file, which the caller then commits. `written` gets the bytes
    /// of each piece, from any thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotQuantisable`] for NaN, infinity and numbers beyond a type's scales;
    /// [`DoesNotFit`](core::ErrorKind::DoesNotFit) for finite numbers beyond F16; errors of
    /// reading; [`Io`](core::ErrorKind::Io).
    pub fn write(&self, file: &AtomicFile, written: impl Fn(u64) + Sync) -> Result<()> {
        let (header, places) = self.layout()?;
        file.write_all_at(&header, 0)?;
        let ranges = places.windows(2).map(|pair| pair[0]..pair[1]);
        write_placed(file, self.tensors.iter().zip(ranges), written, |tensor, sink| {
            tensor.write_to(sink).map_err(|error| error.in_tensor(&tensor.source_name))
        })
    }

    /// Returns the header, the start of each tensor, and the end of the file.
    fn layout(&self) -> Result<(Vec<u8>, Vec<u64>)> {
        let mut header = b"GGUF\x03\0\0\0".to_vec();
        for count in [self.tensors.len(), self.metadata.len()] {
            header.extend_from_slice(&(count as u64).to_le_bytes());
        }
        for (key, value) in &self.metadata {
            if key == "general.alignment" && *value != Value::U32(ALIGNMENT as u32) {
                let problem = format!("general.alignment is always {ALIGNMENT} here");
                return Err(ErrorKind::NotForGguf { problem }.into());
            }
            value::encode_text(key, &mut header);
            value.encode(&mut header);
        }
        let mut offset = 0_u64;
        let mut places = vec![0];
        for tensor in &self.tensors {
            value::encode_text(&tensor.name, &mut header);
            header.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
            // The innermost dimension comes first.
            for &dim in tensor.shape.iter().rev() {
                header.extend_from_slice(&(dim as u64).to_le_bytes());
            }
            header.extend_from_slice(&tensor.kind.id().to_le_bytes());
            header.extend_from_slice(&offset.to_le_bytes());
            let end = offset.checked_add(tensor.byte_len);
            let next = end.and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
            offset = next.ok_or_else(|| {
                let error = Error::from(core::ErrorKind::Io(io::ErrorKind::FileTooLarge.into()));
                error.in_tensor(&tensor.name)
            })?;
            places.push(offset);
        }
        header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
        let start = header.len() as u64;
        places.iter_mut().for_each(|place| *place = place.saturating_add(start));
        Ok((header, places))
    }
}

impl<'a> Tensor<'a> {
    fn new(
        source_name: &str,
        name: String,
        kind: Type,
        source: impl TensorSource + Send + 'a,
    ) -> Result<Self> {
        let problem = |problem: String| Err(ErrorKind::NotForGguf { problem }.into());
        let shape = source.shape().to_vec();
        if name.len() > MOST_NAME {
            return problem(format!("a name has {MOST_NAME} bytes at most"));
        }
        if shape.len() > MOST_DIMS {
            return problem(format!("it has {} dimensions, over {MOST_DIMS}", shape.len()));
        }
        if !source.dtype().is_float() {
            return problem(format!("its elements are {}, not floats", source.dtype()));
        }
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(kind.block_len()) {
            return problem(format!(
                "rows of {row} elements are not whole blocks of {kind}, which have {}",
                kind.block_len()
            ));
        }
        if !Type::WRITTEN.contains(&kind) {
            return problem(format!("{kind} cannot be written"));
        }
        let dtype = kind.dtype().unwrap_or(Dtype::F32);
        let options = ConvertOptions::new().overflow(Overflow::Error);
        let numbers = Converted::new(source, dtype, &options)?;
        // No more bytes than the elements have; `Converted` has checked their number.
        let byte_len =
            shape::element_count(&shape)? / kind.block_len() as u64 * kind.block_bytes() as u64;
        let source_name = source_name.to_owned();
        let numbers = Box::new(numbers);
        Ok(Self { name, source_name, shape, kind, byte_len, numbers })
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let Some(quantize) = blocks::quantizer(self.kind) else {
            return write_exactly(&*self.numbers, self.byte_len, sink);
        };
        let count = self.byte_len / self.kind.block_bytes() as u64 * self.kind.block_len() as u64;
        blocks::write_blocks(&*self.numbers, count, self.kind, quantize, sink)
    }
}
