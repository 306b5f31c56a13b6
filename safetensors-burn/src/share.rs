//! Loading without a copy: `TensorData` that shares the bytes of a file that is in memory, or
//! mapped.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{AllocationProperty, Bytes, TensorData};
use safetensors_core::framework::Framework;
use safetensors_core::{Checkpoint, LazyTensor, Result, SafeTensors, TensorView, Widening};

use crate::{Burn, dtype, load};

/// A tensor of a file that lies in [`bytes::Bytes`], sharing these bytes.
///
/// Nothing is copied as long as the bytes are aligned for the elements; burn copies them before it
/// first writes to them. Copied after all are misaligned tensors, which burn's backends could not
/// read, tensors without elements, tensors that are widened, and, on a big-endian target, elements
/// wider than a byte.
///
/// A mapped file becomes `Bytes` by `bytes::Bytes::from_owner`; [`share_checkpoint`] does it for a
/// whole checkpoint, and [`share_tensor`] for one tensor of it.
///
/// ```
/// use burn::tensor::TensorData;
/// use safetensors_core::{SafeTensors, SaveOptions, TensorView, Widening, serialize};
///
/// let values = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
/// let file = bytes::Bytes::from(serialize([("values", values)], &SaveOptions::new())?);
///
/// let archive = SafeTensors::parse(file)?;
/// let values: TensorData = safetensors_burn::share(&archive, "values", Widening::Lossless)?;
/// assert_eq!(values, TensorData::from([1.0_f32, 2.0]));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::TensorNotFound`](safetensors_core::ErrorKind::TensorNotFound),
/// [`ErrorKind::InvalidBool`](safetensors_core::ErrorKind::InvalidBool),
/// [`ErrorKind::WouldWiden`](safetensors_core::ErrorKind::WouldWiden); each names the tensor.
pub fn share(
    archive: &SafeTensors<bytes::Bytes>,
    name: &str,
    widening: Widening,
) -> Result<TensorData> {
    let view = archive.view(name)?;
    share_view(&view, widening, || archive.source().slice_ref(view.data()))
        .map_err(|error| error.in_tensor(name))
}

/// A tensor of a checkpoint that lends its bytes, such as a mapped one, sharing these bytes; the
/// checkpoint lives as long as the tensor. What [`share`] says of copies holds here too.
///
/// ```
/// use burn::tensor::TensorData;
/// use safetensors_core::{Checkpoint, SaveOptions, Widening};
/// use std::sync::Arc;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let values = TensorData::from([1.0_f32, 2.0]);
/// safetensors_burn::save(&path, [("values", &values)], &SaveOptions::new())?;
///
/// // SAFETY: nothing changes this file while it is mapped.
/// let checkpoint = Arc::new(unsafe { Checkpoint::mmap(&path) }?);
/// assert_eq!(
///     safetensors_burn::share_tensor(&checkpoint, "values", Widening::Lossless)?,
///     values
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Those of [`share`]; each names the file too.
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

/// Every tensor of a checkpoint that lends its bytes, such as a mapped one, as [`share_tensor`]
/// shares one: with its name, in the order of [`Checkpoint::tensors`].
///
/// Sharing costs next to nothing, so neither does this: names are borrowed, and there is no map of
/// them. Each tensor is there once, under its own name; [`Checkpoint::aliases`] has the others. For
/// a map of everything, with aliases, there is [`load`](crate::load()), which reads.
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
///
/// # Errors
///
/// Those of [`share_tensor`].
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

/// One tensor, sharing the bytes of its file, of which `lend` gives a part.
fn share_lazy<S: AsRef<[u8]>>(
    tensor: &LazyTensor<'_, S>,
    widening: Widening,
    lend: impl FnOnce(Range<usize>) -> bytes::Bytes,
) -> Result<TensorData> {
    let start = tensor.file_offset() as usize;
    let lend = || lend(start..start + tensor.byte_len() as usize);
    share_view(&tensor.view()?, widening, lend).map_err(|error| tensor.locate(error))
}

/// A part of a file's bytes. Only an `AsRef` that lends something else at each call does not have
/// it any more; then it is empty, and of the wrong length for whoever makes a tensor of it.
fn part(file: &bytes::Bytes, range: Range<usize>) -> bytes::Bytes {
    if range.end <= file.len() { file.slice(range) } else { bytes::Bytes::new() }
}

/// The bytes of a file of a checkpoint, which they keep alive.
fn file_bytes<S>(checkpoint: &Arc<Checkpoint<S>>, index: usize) -> bytes::Bytes
where
    S: AsRef<[u8]> + Send + Sync + 'static,
{
    bytes::Bytes::from_owner(FileBytes { checkpoint: Arc::clone(checkpoint), index })
}

/// What owns the bytes of one file of a checkpoint.
struct FileBytes<S> {
    checkpoint: Arc<Checkpoint<S>>,
    index: usize,
}

impl<S: AsRef<[u8]>> AsRef<[u8]> for FileBytes<S> {
    fn as_ref(&self) -> &[u8] {
        self.checkpoint.files()[self.index].safetensors().source().as_ref()
    }
}

/// Shares the bytes that `lend` gives, which are those of `view`, or copies them where sharing
/// would not do.
fn share_view(
    view: &TensorView<'_>,
    widening: Widening,
    lend: impl FnOnce() -> bytes::Bytes,
) -> Result<TensorData> {
    let data = view.data();
    let aligned = data.as_ptr().addr().is_multiple_of(view.dtype().alignment());
    let native = cfg!(target_endian = "little") || view.dtype().bits() == 8;
    match dtype::to_burn(view.dtype()) {
        Some(to) if aligned && native && !data.is_empty() => {
            if to.is_bool() {
                // Nothing after this looks whether the bytes are booleans.
                view.as_slice::<bool>()?;
            }
            load::from_bytes(
                Bytes::from_shared(lend(), AllocationProperty::File),
                view.shape().to_vec(),
                to,
            )
        }
        _ => Burn::from_view(view, &(), widening),
    }
}
