//! Saving to memory.

use alloc::vec::Vec;

use super::layout::Layout;
use super::{SaveOptions, TensorSource};
use crate::{Error, ErrorKind, Result};

/// The bytes of a file with these tensors. The same tensors and options give the same bytes.
///
/// ```
/// use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
///
/// let scale = TensorView::from_slice(&[], &[0.5_f64])?;
/// let file = serialize([("scale", scale)], &SaveOptions::new().metadata([("format", "pt")]))?;
/// assert_eq!(SafeTensors::parse(&file)?.metadata()["format"], "pt");
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// What could not be read back is refused: [`ErrorKind::ReservedName`], [`ErrorKind::DuplicateTensor`],
/// [`ErrorKind::HeaderTooLarge`], [`ErrorKind::SourceLength`] and the errors of [`shape::byte_len`](crate::shape::byte_len). Also
/// [`ErrorKind::BadAlignment`], and whatever a source fails with.
pub fn serialize<N: AsRef<str>, S: TensorSource>(
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
) -> Result<Vec<u8>> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    let layout = Layout::plan(&tensors, options)?;
    let bytes = layout.file_len();
    let len = usize::try_from(bytes).map_err(|_| ErrorKind::TooLargeForMemory { bytes })?;
    let mut file = layout.prefix;
    file.try_reserve_exact(len - file.len()).map_err(|_| ErrorKind::TooLargeForMemory { bytes })?;
    for (i, range) in layout.places {
        let (name, tensor) = &tensors[i];
        write_exactly(tensor, range.end - range.start, &mut |_, bytes| {
            file.extend_from_slice(bytes);
            Ok(())
        })
        .map_err(|error| error.in_tensor(name.as_ref()))?;
    }
    Ok(file)
}

/// Has a source write its bytes, gives each piece to `sink` with its place in the tensor, and holds the source to `expected`
/// bytes: none over that reaches `sink`.
pub(super) fn write_exactly(
    tensor: &impl TensorSource,
    expected: u64,
    sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut written = 0;
    tensor.write_to(&mut |bytes| {
        let found = written + bytes.len() as u64;
        if found > expected {
            return Err(ErrorKind::SourceLength { expected, found }.into());
        }
        sink(written, bytes)?;
        written = found;
        Ok(())
    })?;
    if written != expected {
        return Err(Error::from(ErrorKind::SourceLength { expected, found: written }));
    }
    Ok(())
}
