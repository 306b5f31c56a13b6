//! Plain weights as candle's quantised tensors: [`load`] makes blocks of them while it reads.
//!
//! candle's own quantiser makes the blocks, so they equal `QTensor::quantize` of a loaded tensor,
//! bit for bit. A thread reads a tensor as F32, quantises it, and drops the numbers. So memory
//! holds the blocks, and one tensor of F32 for each thread. The module `gguf`, with the feature of
//! that name, reads the blocks of a GGUF file unchanged.
//!
//! ```
//! use candle_core::quantized::{GgmlDType, QMatMul};
//! use candle_core::{DType, Device, Module, Tensor};
//! use safetensors_candle::{Checkpoint, LoadOptions, SaveOptions, quantize, save};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.safetensors");
//! let up = Tensor::rand(-1_f32, 1., (512, 256), &Device::Cpu)?.to_dtype(DType::BF16)?;
//! let norm = Tensor::ones(256, DType::BF16, &Device::Cpu)?;
//! save(&path, [("up_proj.weight", &up), ("norm.weight", &norm)], &SaveOptions::new())?;
//!
//! let checkpoint = Checkpoint::open(&path)?;
//! let tensors = quantize::load(&checkpoint, &Device::Cpu, &LoadOptions::new(), |tensor| {
//!     quantize::linear_layers(tensor, GgmlDType::Q4K)
//! })?;
//! assert_eq!(tensors["up_proj.weight"].dtype(), GgmlDType::Q4K);
//! assert_eq!(tensors["norm.weight"].dtype(), GgmlDType::BF16);
//! let up = QMatMul::from_arc(tensors["up_proj.weight"].clone())?;
//! assert_eq!(up.forward(&Tensor::ones((1, 256), DType::F32, &Device::Cpu)?)?.dims(), [1, 512]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Models of candle-transformers
//!
//! `QMatMul::from_arc` and the layers of `quantized_nn` take the tensors. A
//! `quantized_var_builder::VarBuilder` needs the bytes of a GGUF file, which candle can write:
//!
//! ```ignore
//! let named: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), &**tensor)).collect();
//! let mut file = std::io::Cursor::new(Vec::new());
//! candle_core::quantized::gguf_file::write(&mut file, &[], &named)?;
//! let builder = VarBuilder::from_gguf_buffer(file.get_ref(), &Device::Cpu)?;
//! ```
//!
//! The bytes and the builder each hold a copy of the blocks, so drop `tensors` and the bytes as
//! soon as possible. Models with a function `from_gguf` need the names and the metadata of
//! llama.cpp, which `safetensors convert MODEL OUT.gguf` writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QTensor};
use safetensors_core::framework::{Framework, add_aliases, in_parallel, into_view};
use safetensors_core::header::TensorInfo;
use safetensors_core::quantized::LinearLayers;
use safetensors_core::{Checkpoint, Dtype, LoadOptions, ReadAt, Result, TensorBuf};

use crate::Candle;
use crate::error::from_candle_error;

/// The most threads for a source with calls that wait, unless the caller sets more. Each holds a
/// tensor of F32.
const FAR_THREADS: usize = 8;

/// Loads the tensors of a checkpoint as quantised tensors, by name, in parallel. `choose` returns
/// the type of each tensor; a tensor without one is not loaded. [`linear_layers`] is a choice.
///
/// `F32`, `F16` and `BF16` are types, too: the numbers are unchanged, or are rounded once.
/// [Aliases](LoadOptions::aliases) share their tensor. A row must divide into blocks: of 256
/// numbers for the types with a `K`, and of 32 for the others.
///
/// `options` set the threads, the progress in bytes of F32, the layout of
/// [experts](LoadOptions::experts), and how [quantised weights](crate#quantised-weights) are read.
/// Their dtypes have no effect. At most 8 threads read a remote source, unless a number is set.
///
/// # Errors
///
/// - [`ErrorKind::Framework`] for a scalar, and for rows that do not divide into blocks.
/// - Like [`load_from`](crate::load_from).
///
/// These are found before any data is read. Each names the file and the tensor.
///
/// [`ErrorKind::Framework`]: safetensors_core::ErrorKind::Framework
pub fn load(
    checkpoint: &Checkpoint<impl ReadAt>,
    device: &Device,
    options: &LoadOptions,
    choose: impl Fn(TensorInfo<'_>) -> Option<GgmlDType>,
) -> Result<BTreeMap<String, Arc<QTensor>>> {
    let checkpoint = into_view(checkpoint.by_ref(), options)?;
    let chosen = checkpoint.tensors().filter_map(|tensor| Some((tensor, choose(tensor.info())?)));
    let chosen: Vec<_> = chosen.collect();
    let sources = checkpoint.files().iter().map(|file| file.safetensors().source());
    let threads = options.threads_for(sources, FAR_THREADS);
    let options = options.clone().for_framework::<Candle>().all_as(Dtype::F32);
    let mut bytes: u64 = 0;
    for (tensor, dtype) in &chosen {
        let plan = tensor.dtype_plan(&options)?;
        let numbers =
            check(tensor.shape(), *dtype).and_then(|()| plan.byte_len(tensor.shape(), &options));
        bytes = bytes.saturating_add(numbers.map_err(|error| tensor.locate(error))?);
    }
    let options = options.parts_of(bytes).threads(1);
    let read = in_parallel(chosen, threads, |(tensor, dtype), _: &mut ()| {
        let numbers = tensor.read_with(&options)?;
        let quantized = quantize(numbers, dtype, device).map_err(|error| tensor.locate(error))?;
        Ok((tensor.name().to_owned(), Arc::new(quantized)))
    })?;
    let mut loaded = read.into_iter().collect();
    add_aliases(&mut loaded, &checkpoint, &options);
    Ok(loaded)
}

/// Chooses `dtype` for the weights of linear layers, and for the other tensors a type that keeps
/// their numbers: `F16`, `BF16` or `F32`, to which F64 is rounded. Rows that do not divide into
/// blocks of `dtype` become `Q8_0`, or keep their numbers. Integers and scalars have no type, so
/// they are not loaded.
///
/// [`LinearLayers`] finds the layers by their names, without embeddings, norms, heads, routers and
/// stacked experts. [`LoadOptions::experts`] splits a stack.
pub fn linear_layers(tensor: TensorInfo<'_>, dtype: GgmlDType) -> Option<GgmlDType> {
    let row = *tensor.shape().last()?;
    let has_blocks = |dtype: &GgmlDType| row.is_multiple_of(dtype.block_size());
    let is_linear = tensor.shape().len() == 2 && LinearLayers::new().has(tensor.name());
    let blocks = [dtype, GgmlDType::Q8_0].into_iter().find(has_blocks).filter(|_| is_linear);
    match tensor.dtype() {
        from if !from.is_float() => None,
        Dtype::F16 => blocks.or(Some(GgmlDType::F16)),
        Dtype::BF16 => blocks.or(Some(GgmlDType::BF16)),
        _ => blocks.or(Some(GgmlDType::F32)),
    }
}

/// Fails as candle does if rows are not complete blocks.
fn check(shape: &[usize], dtype: GgmlDType) -> Result<()> {
    let block = dtype.block_size();
    let problem = match shape.last() {
        Some(row) if row.is_multiple_of(block) => return Ok(()),
        Some(row) => format!("rows of {row} numbers do not divide into blocks of {block}"),
        None => "a scalar cannot be quantised".to_owned(),
    };
    Err(from_candle_error(candle_core::Error::msg(problem)))
}

fn quantize(numbers: TensorBuf, dtype: GgmlDType, device: &Device) -> Result<QTensor> {
    let numbers = Candle::from_exact(numbers, &Device::Cpu)?;
    let quantized = QTensor::quantize_onto(&numbers, dtype, device).map_err(from_candle_error)?;
    // Each thread has a separate CUDA stream, and any thread may use the tensor.
    device.synchronize().map_err(from_candle_error)?;
    Ok(quantized)
}
