//! Saves candle tensors of any device and memory layout.

use std::path::Path;
use std::ptr;

use candle_core::{CpuStorage, Device, Layout, Storage, StridedBlocks, Tensor};
use safetensors_core::checkpoint::SavedShards;
use safetensors_core::framework::write_native;
use safetensors_core::save::Sink;
use safetensors_core::tied::Storage as Memory;
use safetensors_core::{
    Dtype, ErrorKind, Result, SaveOptions, ShardOptions, TensorSource, framework, shape,
};

use crate::Candle;
use crate::dtype::{from_candle_dtype, storage_bytes};
use crate::error::from_candle_error;

/// The most bytes of a strided tensor that are gathered for a write.
const GATHERED: usize = 256 << 10;

/// The most bytes of a copy from another device.
const BROUGHT: usize = 16 << 20;

/// Saves tensors to one file, atomically. `tensors` yields names and tensors, such as a
/// `&HashMap<String, Tensor>`.
///
/// Contiguous tensors on the CPU are written from their memory, without a copy. A tensor is locked
/// while it is written: other threads may read but not change it. On another device it is locked
/// for one part at a time, so no thread should change it during the save.
///
/// With [`SaveOptions::tied`], tensors that share a storage are saved once.
/// [`Views`](safetensors_core::tied::Views) decides about reshaped, narrowed and transposed
/// tensors.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use safetensors_core::SaveOptions;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let weight = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
/// let options = SaveOptions::new().metadata([("format", "pt")]);
/// safetensors_candle::save(
///     &path,
///     [("weight", &weight), ("transposed", &weight.t()?)],
///     &options,
/// )?;
///
/// let saved = safetensors_candle::load(&path, &Device::Cpu)?;
/// assert_eq!(saved["transposed"].dims(), [3, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// - Like [`safetensors_core::save()`].
/// - [`ErrorKind::UnsupportedFrameworkType`] if the format lacks the dtype of a tensor.
/// - [`ErrorKind::Framework`] if candle or the device fails.
/// - [`ErrorKind::DataLength`] if a storage has another length than its tensor needs.
/// - One of the last two for an F4 or F6 tensor that is a part of its storage or not contiguous.
pub fn save<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a Tensor)>,
    options: &SaveOptions,
) -> Result<()> {
    framework::save::<Candle>(path, tensors, options)
}

/// Saves tensors to a directory, like [`safetensors_core::save_sharded`], as a single file or
/// several shards.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use safetensors_core::{SaveOptions, ShardOptions, tied::Tied};
///
/// let dir = tempfile::tempdir()?;
/// let embedding = Tensor::ones((8, 2), DType::F32, &Device::Cpu)?;
/// let norm = Tensor::ones(8, DType::F32, &Device::Cpu)?;
/// let tensors = [
///     ("embed.weight", &embedding),
///     ("norm.weight", &norm),
///     ("lm_head.weight", &embedding.clone()),
/// ];
///
/// let options = ShardOptions::new()
///     .max_shard_size(64.into())
///     .save_options(SaveOptions::new().tied(Tied::new()));
/// let saved = safetensors_candle::save_sharded(dir.path(), tensors, &options)?;
/// assert_eq!((saved.files.len(), saved.total_size), (2, 64 + 32));
///
/// let loaded = safetensors_candle::load(dir.path(), &Device::Cpu)?;
/// assert_eq!(loaded["lm_head.weight"].dims(), [8, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Shards are filled in the given order. A `HashMap` has another order each time.
pub fn save_sharded<'a>(
    directory: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a Tensor)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    framework::save_sharded::<Candle>(directory, tensors, options)
}

/// Locks the storage only while the tensor is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandleSource<'a> {
    tensor: &'a Tensor,
    dtype: Dtype,
}

impl<'a> CandleSource<'a> {
    /// Borrows the tensor, and waits for the device's work of the calling thread.
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Self> {
        let dtype = from_candle_dtype(tensor.dtype())?;
        // A save writes from several threads. candle's CUDA devices have one stream of work per
        // thread, and the streams do not wait for each other. Without this call, a writer could
        // copy elements that are still being computed.
        tensor.device().synchronize().map_err(from_candle_error)?;
        Ok(Self { tensor, dtype })
    }
}

impl TensorSource for CandleSource<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.tensor.dims()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        if self.tensor.elem_count() == 0 {
            return Ok(());
        }
        {
            let (storage, _) = self.tensor.storage_and_layout();
            if let Storage::Cpu(storage) = &*storage {
                return write_storage(self.tensor, storage, sink);
            }
        }
        // The lock must be free here, because `write_in_parts` takes it again. Taking it twice on
        // one thread can wait forever.
        write_in_parts(self.tensor, BROUGHT, sink)
    }

    /// Returns the address of candle's `Storage`, which is in main memory for every device.
    // Tied to no other: packed tensors and tensors off the CPU that are not contiguous from offset
    // 0, and tensors on the CPU that are empty, or have a storage that is too short.
    fn storage(&self) -> Option<Memory> {
        let (storage, layout) = self.tensor.storage_and_layout();
        let id = ptr::from_ref(&*storage).addr() as u64;
        let byte_len = shape::byte_len(self.dtype, self.tensor.dims()).ok()?;
        match &*storage {
            Storage::Cpu(storage) if !self.dtype.is_sub_byte() => {
                let len = storage_bytes(storage).1.len() as u64;
                let (start, end) = elements(layout)?;
                let size = u64::from(self.dtype.bits() / 8);
                let range = start.checked_mul(size)?..end.checked_mul(size)?;
                let contiguous = layout.is_contiguous();
                (range.end <= len).then_some(Memory { id, byte_len: len, range, contiguous })
            }
            // candle does not give the length of this storage. Contiguous tensors of equal length
            // that both begin at offset 0 are the same.
            _ => (layout.is_contiguous() && layout.start_offset() == 0)
                .then(|| Memory::whole(id, byte_len)),
        }
    }
}

/// Returns the spanned range of storage elements. `None` for an empty tensor, or if a number
/// overflows.
fn elements(layout: &Layout) -> Option<(u64, u64)> {
    let start = layout.start_offset();
    let mut last = start;
    for (&dim, &stride) in layout.dims().iter().zip(layout.stride()) {
        last = last.checked_add(dim.checked_sub(1)?.checked_mul(stride)?)?;
    }
    Some((start as u64, last.checked_add(1)? as u64))
}

/// Writes parts of at most `limit` bytes.
// Copying a view to the CPU copies its entire storage, so each part is made contiguous on the
// device first.
fn write_in_parts(tensor: &Tensor, limit: usize, sink: &mut Sink<'_>) -> Result<()> {
    let size = tensor.dtype().size_in_bytes();
    if size == 0 {
        // candle cannot split packed elements into parts. It may still be able to copy the whole
        // tensor.
        return write_brought(&tensor.to_device(&Device::Cpu).map_err(from_candle_error)?, sink);
    }
    // Flattening does not copy a contiguous tensor. Any other tensor is copied once, on its device.
    let flat = tensor.detach().flatten_all().map_err(from_candle_error)?;
    let count = flat.elem_count();
    let step = (limit / size).max(1);
    for start in (0..count).step_by(step) {
        let part = flat
            .narrow(0, start, step.min(count - start))
            .and_then(|part| part.force_contiguous())
            .and_then(|part| part.to_device(&Device::Cpu))
            .map_err(from_candle_error)?;
        write_brought(&part, sink)?;
    }
    Ok(())
}

fn write_brought(tensor: &Tensor, sink: &mut Sink<'_>) -> Result<()> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => write_storage(tensor, storage, sink),
        Storage::Cuda(_) | Storage::Metal(_) => Err(from_candle_error(candle_core::Error::msg(
            "candle did not copy the tensor from its device to the CPU",
        ))),
    }
}

/// Writes at least one element.
fn write_storage(tensor: &Tensor, storage: &CpuStorage, sink: &mut Sink<'_>) -> Result<()> {
    let (dtype, bytes) = storage_bytes(storage);
    if dtype.is_sub_byte() {
        return write_packed(tensor, dtype, bytes, sink);
    }
    let size = dtype.bits() as usize / 8;
    let blocks = Blocks { tensor, dtype, bytes, size };
    match tensor.strided_blocks() {
        StridedBlocks::SingleBlock { start_offset, len } => {
            write_native(dtype, blocks.get(start_offset, len)?, sink)
        }
        StridedBlocks::UniformBlocks { start_offset, block_len, count, src_stride } => {
            blocks.gather((0..count).map(|i| start_offset + i * src_stride), block_len, sink)
        }
        StridedBlocks::MultipleBlocks { block_start_index, block_len } => {
            blocks.gather(block_start_index, block_len, sink)
        }
    }
}

/// Writes packed elements, but no part of a storage.
// candle counts offsets in elements, and a packed element is not an entire byte.
fn write_packed(tensor: &Tensor, dtype: Dtype, bytes: &[u8], sink: &mut Sink<'_>) -> Result<()> {
    if !tensor.is_contiguous() {
        return Err(from_candle_error(candle_core::Error::RequiresContiguous {
            op: "saving packed F4 and F6 elements",
        }));
    }
    let expected = shape::byte_len(dtype, tensor.dims())?;
    let found = bytes.len() as u64;
    if tensor.layout().start_offset() != 0 || expected != found {
        return Err(
            ErrorKind::DataLength { dtype, shape: tensor.dims().into(), expected, found }.into()
        );
    }
    sink(bytes)
}

struct Blocks<'a> {
    tensor: &'a Tensor,
    dtype: Dtype,
    bytes: &'a [u8],
    size: usize,
}

impl<'a> Blocks<'a> {
    /// Fails if the storage is too short, which candle does not check.
    fn get(&self, start: usize, len: usize) -> Result<&'a [u8]> {
        let end = start.saturating_add(len).saturating_mul(self.size);
        self.bytes.get(start.saturating_mul(self.size)..end).ok_or_else(|| {
            let found = self.bytes.len() as u64;
            ErrorKind::DataLength {
                dtype: self.dtype,
                shape: self.tensor.dims().into(),
                expected: end as u64,
                found,
            }
            .into()
        })
    }

    /// Writes long blocks from the storage, short ones through a buffer.
    fn gather(
        &self,
        starts: impl Iterator<Item = usize>,
        len: usize,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        if len.saturating_mul(self.size) >= GATHERED {
            for start in starts {
                write_native(self.dtype, self.get(start, len)?, sink)?;
            }
            return Ok(());
        }
        let mut buffer = Vec::with_capacity(GATHERED);
        for start in starts {
            let block = self.get(start, len)?;
            if buffer.len() + block.len() > GATHERED {
                write_native(self.dtype, &buffer, sink)?;
                buffer.clear();
            }
            // The patterns spell out the length of a single element. So the compiler copies it as
            // one register instead of calling a function.
            match block {
                &[a, b] => buffer.extend_from_slice(&[a, b]),
                &[a, b, c, d] => buffer.extend_from_slice(&[a, b, c, d]),
                &[a, b, c, d, e, f, g, h] => buffer.extend_from_slice(&[a, b, c, d, e, f, g, h]),
                block => buffer.extend_from_slice(block),
            }
        }
        write_native(self.dtype, &buffer, sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(tensor: &Tensor, limit: usize) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        write_in_parts(tensor, limit, &mut |bytes| {
            parts.push(bytes.to_vec());
            Ok(())
        })
        .unwrap();
        parts
    }

    #[test]
    fn parts_are_bounded_and_cover_the_tensor_alone() {
        let tensor = Tensor::arange(0_u8, 20, &Device::Cpu).unwrap().reshape((4, 5)).unwrap();
        let middle = tensor.narrow(0, 1, 2).unwrap();
        assert_eq!(parts(&middle, 4), [vec![5, 6, 7, 8], vec![9, 10, 11, 12], vec![13, 14]]);
        let column = tensor.narrow(1, 1, 1).unwrap();
        assert_eq!(parts(&column, 3), [vec![1, 6, 11], vec![16]]);
        let scalar = Tensor::new(258_u32, &Device::Cpu).unwrap();
        assert_eq!(parts(&scalar, 1), [vec![2, 1, 0, 0]]);
    }
}
