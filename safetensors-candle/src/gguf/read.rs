//! How the blocks of a file become tensors of candle: [`one`] and [`all`].

use std::borrow::Cow;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use safetensors_core::framework::in_parallel;
use safetensors_core::{ErrorKind, LazyTensor, LoadOptions, ReadAt, Result};
use safetensors_formats::TensorFile;

use crate::error::from_candle_error;

/// The buffers of all threads may have this many bytes for each of them.
const BUFFER: u64 = 32 << 20;

/// They may have this part of the bytes that are read, if that is more. Models with larger tensors
/// read more of them.
const PART: u64 = 32;

/// The most threads for a source with calls that wait, unless the caller sets more. It divides the
/// bytes of a large tensor itself.
const FAR_THREADS: usize = 8;

/// The bytes of a tensor that a thread reads at once, if several threads read it.
const PIECE: usize = 4 << 20;

/// Reads one tensor.
pub(super) fn one(tensor: &LazyTensor<'_, TensorFile>, device: &Device) -> Result<QTensor> {
    Job::new(*tensor)?.read(device, &mut Vec::new(), 0, |_| Ok(()))
}

/// Reads tensors, in the order given, by the threads of the options, and reports their progress.
/// Checks first that candle has their types.
pub(super) fn all(
    tensors: &[LazyTensor<'_, TensorFile>],
    device: &Device,
    options: &LoadOptions,
) -> Result<Vec<QTensor>> {
    let jobs = tensors.iter().map(|tensor| Job::new(*tensor)).collect::<Result<Vec<_>>>()?;
    let source = tensors.first().map(|tensor| tensor.source());
    let threads = options.threads_for(source, FAR_THREADS);
    let bytes = tensors.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.byte_len()));
    let most = (bytes / PART / threads as u64).max(BUFFER);
    // Bytes that are lent need no buffer.
    let (small, large): (Vec<_>, Vec<_>) = jobs
        .into_iter()
        .enumerate()
        .partition(|(_, job)| job.tensor.byte_len() <= most || lent(&job.tensor).is_some());

    // Each thread uses its buffer again, because fresh memory costs more than copying: the system
    // clears each page.
    let meter = options.meter(bytes);
    let read = |(index, job): (usize, Job<'_>), buffer: &mut Vec<u32>, threads: usize| {
        let done = |bytes| meter.add(bytes, job.tensor.name());
        Ok((index, job.read(device, buffer, threads, done)?))
    };
    let mut tensors = in_parallel(small, threads, |job, buffer| read(job, buffer, 1))?;
    let mut buffer = Vec::new();
    for job in large {
        tensors.push(read(job, &mut buffer, threads)?);
    }
    tensors.sort_unstable_by_key(|(index, _)| *index);
    Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
}

/// Returns the bytes of a tensor from a source that has them in memory, as candle can take them.
fn lent<'a>(tensor: &LazyTensor<'a, TensorFile>) -> Option<&'a [u8]> {
    let start = tensor.file_offset();
    let bytes = tensor.source().lend(start..start + tensor.byte_len())?;
    // candle panics on blocks that are not aligned, which is to 4 bytes at most.
    bytes.as_ptr().cast::<u32>().is_aligned().then_some(bytes)
}

/// A tensor that candle has the type of.
struct Job<'a> {
    tensor: LazyTensor<'a, TensorFile>,
    dtype: GgmlDType,
    shape: &'a [usize],
}

impl<'a> Job<'a> {
    fn new(tensor: LazyTensor<'a, TensorFile>) -> Result<Self> {
        let stored = tensor.source().stored(tensor.name());
        // The dtype of a plain tensor has the name of its type.
        let (name, shape) = match stored {
            Some(stored) => (stored.type_name.as_str(), stored.shape.as_slice()),
            None => (tensor.dtype().name(), tensor.shape()),
        };
        match ggml_dtype(name).filter(|dtype| byte_len(*dtype, shape) == Some(tensor.byte_len())) {
            Some(dtype) => Ok(Self { tensor, dtype, shape }),
            None => {
                let problem = format!("candle has no quantised tensors of {name}");
                Err(tensor.locate(from_candle_error(candle_core::Error::msg(problem))))
            }
        }
    }

    /// Has candle copy the blocks: as they are lent, or from a buffer that they are read into.
    /// `done` gets the number of bytes of each piece.
    fn read(
        &self,
        device: &Device,
        buffer: &mut Vec<u32>,
        threads: usize,
        done: impl Fn(u64) -> Result<()> + Sync,
    ) -> Result<QTensor> {
        let bytes = match lent(&self.tensor) {
            Some(bytes) => done(self.tensor.byte_len()).map(|()| bytes),
            None => self.fetch(buffer, threads, done),
        };
        let tensor = bytes.and_then(|bytes| self.to_device(bytes, device));
        tensor.map_err(|error| self.tensor.locate(error))
    }

    /// Reads the blocks into the buffer.
    fn fetch<'b>(
        &self,
        buffer: &'b mut Vec<u32>,
        threads: usize,
        done: impl Fn(u64) -> Result<()> + Sync,
    ) -> Result<&'b [u8]> {
        let bytes = self.tensor.byte_len();
        let len = isize::try_from(bytes).map_err(|_| ErrorKind::TooLargeForMemory { bytes })?;
        let len = len.unsigned_abs();
        let words = len.div_ceil(size_of::<u32>());
        if buffer.len() < words {
            // Fresh memory is zero already, so that nothing is copied or cleared.
            *buffer = vec![0; words];
        }
        let bytes = &mut bytemuck::cast_slice_mut(buffer)[..len];
        let source = self.tensor.source();
        fill(source, bytes, self.tensor.file_offset(), threads, done)?;
        source.check_unchanged().map_err(ErrorKind::Io)?;
        Ok(bytes)
    }

    fn to_device(&self, bytes: &[u8], device: &Device) -> Result<QTensor> {
        // candle copies. To read into a `Vec` of its blocks would need `unsafe` that is sound only
        // while candle keeps their layout: they implement none of bytemuck's traits. A
        // `QuantizedType` of this crate would have to multiply, and candle's kernels take slices of
        // its own blocks.
        let storage = QStorage::from_data(Cow::Borrowed(bytes), device, self.dtype);
        let tensor = storage.and_then(|storage| QTensor::new(storage, self.shape));
        let tensor = tensor.map_err(from_candle_error)?;
        // Each thread has a separate CUDA stream, and any thread may use the tensor.
        device.synchronize().map_err(from_candle_error)?;
        Ok(tensor)
    }
}

/// Fills `bytes` from `offset` on, in pieces if they are many, by this many threads; 0 for the
/// default. A source with calls that wait divides them itself. `done` gets the number of bytes of
/// each piece.
pub(super) fn fill(
    source: &dyn ReadAt,
    bytes: &mut [u8],
    offset: u64,
    threads: usize,
    done: impl Fn(u64) -> Result<()> + Sync,
) -> Result<()> {
    let is_whole = bytes.len() < 2 * PIECE || source.requests().is_some();
    let pieces = bytes.chunks_mut(if is_whole { usize::MAX } else { PIECE }).enumerate();
    let read = in_parallel(pieces, threads, |(index, piece), _: &mut ()| {
        let at = offset + (index * PIECE) as u64;
        source.read_exact_at(piece, at).map_err(ErrorKind::Io)?;
        done(piece.len() as u64)
    });
    read.map(drop)
}

/// Returns the bytes of a tensor of this type and shape.
fn byte_len(dtype: GgmlDType, shape: &[usize]) -> Option<u64> {
    let elements = shape.iter().try_fold(1_u64, |all, &dim| all.checked_mul(dim as u64))?;
    (elements / dtype.block_size() as u64).checked_mul(dtype.type_size() as u64)
}

/// Returns candle's type of blocks, without `Q8_1`: its blocks have 36 bytes, and 40 in files.
fn ggml_dtype(name: &str) -> Option<GgmlDType> {
    Some(match name {
        "F32" => GgmlDType::F32,
        "F16" => GgmlDType::F16,
        "BF16" => GgmlDType::BF16,
        "Q4_0" => GgmlDType::Q4_0,
        "Q4_1" => GgmlDType::Q4_1,
        "Q5_0" => GgmlDType::Q5_0,
        "Q5_1" => GgmlDType::Q5_1,
        "Q8_0" => GgmlDType::Q8_0,
        "Q2_K" => GgmlDType::Q2K,
        "Q3_K" => GgmlDType::Q3K,
        "Q4_K" => GgmlDType::Q4K,
        "Q5_K" => GgmlDType::Q5K,
        "Q6_K" => GgmlDType::Q6K,
        "Q8_K" => GgmlDType::Q8K,
        _ => return None,
    })
}
