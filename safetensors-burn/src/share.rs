//! Loads `TensorData` without a copy, from a file that is in memory or mapped.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{AllocationProperty, Bytes, TensorData};
use safetensors_core::framework::Framework;
use safetensors_core::{Checkpoint, Dtype, LazyTensor, Result, TensorView, Widening};

use crate::{Burn, dtype, load};

/// Loads a tensor that shares the bytes of a checkpoint in memory, such as a mapped one or
/// [`bytes::Bytes`], and keeps the checkpoint alive.
///
/// burn copies shared bytes before it first writes to them. These tensors are copied at once:
///
/// - misaligned tensors, because burn's backends could not read them;
/// - tensors without elements, and tensors that are widened;
/// - on a big-endian target, tensors with elements wider than a byte.
///
/// ```
/// use burn::tensor::TensorData;
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, Widening, serialize};
/// use std::sync::Arc;
///
/// let values = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
/// let file = bytes::Bytes::from(serialize([("values", values)], &SaveOptions::new())?);
///
/// // `Checkpoint::mmap` maps the files of a path.
/// let checkpoint = Arc::new(Checkpoint::from_source(file, "bytes in memory")?);
/// let values = safetensors_burn::share_tensor(&checkpoint, "values", Widening::Lossless)?;
/// assert_eq!(values, TensorData::from([1.0_f32, 2.0]));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::TensorNotFound`](safetensors_core::ErrorKind::TensorNotFound);
/// [`ErrorKind::InvalidBool`](safetensors_core::ErrorKind::InvalidBool);
/// [`ErrorKind::WouldWiden`](safetensors_core::ErrorKind::WouldWiden);
/// [`ErrorKind::Quantization`](safetensors_core::ErrorKind::Quantization) for a quantised weight,
/// which [`load_with`](crate::load_with) reads as numbers or as codes.
pub fn share_tensor<S>(
    checkpoint: &Arc<Checkpoint<S>>,
    name: &str,
    widening: Widening,
) -> Result<TensorData>
where
    S: AsRef<[u8]> + Send + Sync + 'static,
{
    let tensor = checkpoint.tensor(name)?;
    share_lazy(&tensor, widening, |range| part(&file_bytes(checkpoint, tensor.file_index()), range))
}

/// Loads every tensor of a checkpoint in memory like [`share_tensor`]. Returns pairs of name and
/// tensor, in the order of [`Checkpoint::tensors`], without [aliases](Checkpoint::aliases).
///
/// Bytes are shared, names are borrowed, and no map is built.
///
/// ```
/// use burn::tensor::TensorData;
/// use safetensors_core::{Checkpoint, SaveOptions, Widening};
/// use std::sync::Arc;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let (bias, weight) = (TensorData::from([1.0_f32, 2.0]), TensorData::from([[3.0_f32]]));
/// safetensors_burn::save(
///     &path,
///     [("bias", &bias), ("weight", &weight)],
///     &SaveOptions::new(),
/// )?;
///
/// // SAFETY: nothing changes this file while it is mapped.
/// let checkpoint = Arc::new(unsafe { Checkpoint::mmap(&path) }?);
/// let shared = safetensors_burn::share_checkpoint(&checkpoint, Widening::Lossless)?;
/// assert_eq!(shared, [("bias", bias), ("weight", weight)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn share_checkpoint<S>(
    checkpoint: &Arc<Checkpoint<S>>,
    widening: Widening,
) -> Result<Vec<(&str, TensorData)>>
where
    S: AsRef<[u8]> + Send + Sync + 'static,
{
    let files: Vec<_> =
        (0..checkpoint.files().len()).map(|index| file_bytes(checkpoint, index)).collect();
    let mut shared = Vec::with_capacity(checkpoint.len());
    for tensor in checkpoint.tensors() {
        let data = share_lazy(&tensor, widening, |range| part(&files[tensor.file_index()], range))?;
        shared.push((tensor.name(), data));
    }
    Ok(shared)
}

fn share_lazy<S: AsRef<[u8]> + Send + Sync>(
    tensor: &LazyTensor<'_, S>,
    widening: Widening,
    lend: impl FnOnce(Range<usize>) -> bytes::Bytes,
) -> Result<TensorData> {
    tensor.refuse_codes()?;
    let start = tensor.file_offset() as usize;
    let lent = lend(start..start + tensor.byte_len() as usize);
    share_bytes(tensor.dtype(), tensor.shape(), lent, widening)
        .map_err(|error| tensor.locate(error))
}

/// Returns a range of a file, or nothing.
// An `AsRef` may lend fewer bytes at each call. The wrong length is then an error.
fn part(file: &bytes::Bytes, range: Range<usize>) -> bytes::Bytes {
    if range.end <= file.len() { file.slice(range) } else { bytes::Bytes::new() }
}

/// Returns a file's bytes, which keep the checkpoint alive.
fn file_bytes<S>(checkpoint: &Arc<Checkpoint<S>>, index: usize) -> bytes::Bytes
where
    S: AsRef<[u8]> + Send + Sync + 'static,
{
    bytes::Bytes::from_owner(FileBytes { checkpoint: Arc::clone(checkpoint), index })
}

struct FileBytes<S> {
    checkpoint: Arc<Checkpoint<S>>,
    index: usize,
}

impl<S: AsRef<[u8]>> AsRef<[u8]> for FileBytes<S> {
    fn as_ref(&self) -> &[u8] {
        self.checkpoint.files()[self.index].safetensors().source().as_ref()
    }
}

/// Shares the bytes of a tensor, or copies them if they cannot be shared.
// Length, alignment and BOOL values are checked on `lent`: the source's `AsRef` may lend other
// bytes at the next call.
fn share_bytes(
    from: Dtype,
    shape: &[usize],
    lent: bytes::Bytes,
    widening: Widening,
) -> Result<TensorData> {
    let view = TensorView::new(from, shape, &lent)?;
    let aligned = lent.as_ptr().addr().is_multiple_of(from.alignment());
    let native = cfg!(target_endian = "little") || from.bits() == 8;
    match dtype::to_burn(from) {
        Some(to) if aligned && native && !lent.is_empty() => {
            if to.is_bool() {
                // This checks that each byte is 0 or 1. No later step checks it.
                view.as_slice::<bool>()?;
            }
            // A clone of `Bytes` is the same memory.
            let lent = Bytes::from_shared(lent.clone(), AllocationProperty::File);
            load::from_bytes(lent, shape.to_vec(), to)
        }
        _ => Burn::from_view(&view, &(), widening),
    }
}
