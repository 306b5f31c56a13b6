//! Saving: the bytes of a candle tensor, wherever and however it lies.

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

/// The most bytes of a strided tensor that are gathered before they are written.
const GATHERED: usize = 256 << 10;

/// The most bytes that are brought at once from a device that is not the CPU.
const BROUGHT: usize = 16 << 20;

/// Saves tensors to one file, atomically: afterwards the path has either the complete new file or
/// what it had before.
///
/// Takes anything that yields names and tensors, such as a `&HashMap<String, Tensor>`. Contiguous
/// tensors on the CPU are written from where they lie; of a tensor that covers a part of a larger
/// storage, only that part. A tensor on the CPU is locked while it is being written, so other
/// threads may read it, but not change it; on another device it is locked part by part, so nothing
/// should change the tensor meanwhile.
///
/// With [`SaveOptions::tied`], tensors that share candle's storage are saved once: clones and
/// detached tensors of one, for example. Reshaped, narrowed or transposed ones share it too, but
/// are other tensors: [`Views`](safetensors_core::tied::Views) says what becomes of them.
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
/// Each names the file, and the tensor if it is about one.
///
/// - Those of [`safetensors_core::save()`].
/// - [`ErrorKind::UnsupportedFrameworkType`] if the format has no dtype for a tensor's.
/// - [`ErrorKind::DataLength`] if a storage is not as long as dtype and shape ask for.
/// - [`ErrorKind::Framework`] if candle or the device reports an error.
/// - One of the last two if an F4 or F6 tensor is but a part of its storage or not contiguous:
///   candle's layouts cannot tell the packed elements of these apart.
pub fn save<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a Tensor)>,
    options: &SaveOptions,
) -> Result<()> {
    framework::save::<Candle>(path, tensors, options)
}

/// Saves tensors to a directory, as a checkpoint of as many files as they need: see
/// [`safetensors_core::save_sharded`].
///
/// Takes and copies what [`save()`] does.
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
/// # Errors
///
/// Those of [`safetensors_core::save_sharded`], and those of [`save()`] for tensors.
pub fn save_sharded<'a>(
    directory: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a Tensor)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    framework::save_sharded::<Candle>(directory, tensors, options)
}

/// A candle tensor as a [`TensorSource`]. Its storage is locked for as long as a write takes, not
/// for as long as this lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandleSource<'a> {
    tensor: &'a Tensor,
    dtype: Dtype,
}

impl<'a> CandleSource<'a> {
    /// The tensor, to be saved. Waits until its device has done what the calling thread asked of
    /// it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedFrameworkType`] if the format has no dtype for the tensor's;
    /// [`ErrorKind::Framework`] if the device reports an error.
    pub(crate) fn new(tensor: &'a Tensor) -> Result<Self> {
        let dtype = from_candle_dtype(tensor.dtype())?;
        // A save writes from several threads. candle's CUDA devices have a stream of work for each
        // thread, and none waits for another: without this, a writer could copy elements that are
        // still being computed.
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
        // The lock is free again: what follows takes it, and taking it twice on one thread can wait
        // forever.
        write_in_parts(self.tensor, BROUGHT, sink)
    }

    /// The storage that candle's tensors share, told by its address, which is in main memory on
    /// every device.
    ///
    /// Not known, so that nothing is tied, are packed tensors and those on other devices than the
    /// CPU unless they are contiguous from the start of their storage on; and tensors whose storage
    /// is too short for them.
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
            // How long the storage is, candle does not say. Tensors of one length that begin where
            // it begins are the same.
            _ => (layout.is_contiguous() && layout.start_offset() == 0)
                .then(|| Memory::whole(id, byte_len)),
        }
    }
}

/// The elements of its storage that a tensor which is not empty lies between: the first, and the
/// one after the last.
fn elements(layout: &Layout) -> Option<(u64, u64)> {
    let start = layout.start_offset();
    let mut last = start;
    for (&dim, &stride) in layout.dims().iter().zip(layout.stride()) {
        last = last.checked_add(dim.checked_sub(1)?.checked_mul(stride)?)?;
    }
    Some((start as u64, last.checked_add(1)? as u64))
}

/// Writes the elements of a tensor on any device by copying parts of at most `limit` bytes to the
/// CPU, one after another.
///
/// The parts are made contiguous on the device first, because bringing a view brings all of the
/// storage that it is a part of.
fn write_in_parts(tensor: &Tensor, limit: usize, sink: &mut Sink<'_>) -> Result<()> {
    let size = tensor.dtype().size_in_bytes();
    if size == 0 {
        // Packed elements, which candle cannot take apart: it may still be able to bring all of
        // them.
        return write_brought(&tensor.to_device(&Device::Cpu).map_err(from_candle_error)?, sink);
    }
    // A contiguous tensor stays where it is here; another one is copied once, on its device.
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

/// Writes the elements of a tensor that was brought to the CPU.
fn write_brought(tensor: &Tensor, sink: &mut Sink<'_>) -> Result<()> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => write_storage(tensor, storage, sink),
        Storage::Cuda(_) | Storage::Metal(_) => Err(from_candle_error(candle_core::Error::msg(
            "candle left on its device what should have come to the CPU",
        ))),
    }
}

/// Writes the elements of a tensor on the CPU, whose storage is `storage`. It has at least one.
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

/// Writes packed elements. candle counts offsets and strides in elements, which for these are not
/// whole bytes, so only the whole storage is a tensor for certain.
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

/// The bytes of a storage, from which a tensor's blocks of contiguous elements are taken.
struct Blocks<'a> {
    tensor: &'a Tensor,
    dtype: Dtype,
    bytes: &'a [u8],
    /// The bytes of one element.
    size: usize,
}

impl<'a> Blocks<'a> {
    /// `len` elements from the element `start` on. A tensor can be made of a storage that is too
    /// short for it: that is an error.
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

    /// Writes blocks of `len` elements: long ones from where they lie, short ones gathered in a
    /// buffer.
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
            // The length of single elements is spelled out, which makes the copy a move of one
            // register.
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
