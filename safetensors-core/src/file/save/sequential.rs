//! Writes front to back, to memory and to anything that takes bytes.

use alloc::vec::Vec;
#[cfg(feature = "std")]
use std::io::Write;

use super::layout::Layout;
#[cfg(feature = "std")]
use super::recording;
use super::spec::Spec;
use super::{SaveOptions, ties};
#[cfg(feature = "std")]
use crate::file::hash::Digest;
use crate::format::error::{ErrorKind, Result};
#[cfg(feature = "std")]
use crate::format::parallel::progress::PIECE;
use crate::format::tensor::{Named, TensorSource, named, write_exactly};

/// Returns the bytes of a file with these tensors. Equal tensors and options give equal bytes.
///
/// ```
/// use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
///
/// let scale = TensorView::from_slice(&[], &[0.5_f64])?;
/// let file =
///     serialize([("scale", scale)], &SaveOptions::new().metadata([("format", "pt")]))?;
/// assert_eq!(SafeTensors::parse(&file)?.metadata()["format"], "pt");
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// For a file that could not be read back: [`ErrorKind::ReservedName`],
/// [`ErrorKind::DuplicateTensor`], [`ErrorKind::HeaderTooLarge`], [`ErrorKind::SourceLength`] and
/// bad shapes (see [`shape::byte_len`](crate::shape::byte_len)). [`ErrorKind::BadAlignment`];
/// [`ErrorKind::TooLargeForMemory`]; errors of a source.
pub fn serialize<N: AsRef<str>, S: TensorSource>(
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
) -> Result<Vec<u8>> {
    serialize_named(named(&tensors.into_iter().collect::<Vec<_>>()), options)
}

fn serialize_named(mut tensors: Vec<Named<'_>>, options: &SaveOptions) -> Result<Vec<u8>> {
    let options = ties::apply(&mut tensors, options)?;
    let specs = Spec::of_all(&tensors);
    let layout = Layout::plan(&specs, &options)?;
    let bytes = layout.file_len();
    let len = usize::try_from(bytes).map_err(|_| ErrorKind::TooLargeForMemory { bytes })?;
    let mut file = Vec::new();
    file.try_reserve_exact(len).map_err(|_| ErrorKind::TooLargeForMemory { bytes })?;
    write_in_order(&layout, &tensors, &mut |_, bytes| {
        file.extend_from_slice(bytes);
        Ok(())
    })?;
    #[cfg(feature = "std")]
    if options.digests {
        let prefix =
            prefix_with_digests(&specs, &options, recording::of_file(&file, &layout.places))?;
        file[..prefix.len()].copy_from_slice(&prefix);
    }
    Ok(file)
}

/// Writes a file front to back: to a pipe, a socket, a compressor or any other writer. For a path
/// use [`save`](super::save()).
///
/// Asks the sources for their bytes one after the other, and copies no tensor, so a source can
/// compute them. The bytes are those from [`serialize`]. Flushes the writer.
///
/// ```
/// use safetensors_core::save::write_to;
/// use safetensors_core::{SafeTensors, SaveOptions, TensorView};
///
/// let mut pipe = Vec::new();
/// write_to(
///     &mut pipe,
///     [("scale", TensorView::from_slice(&[], &[0.5_f64])?)],
///     &SaveOptions::new(),
/// )?;
/// assert_eq!(SafeTensors::parse(&pipe)?.view("scale")?.as_slice::<f64>()?, [0.5]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// As for [`serialize`], mostly before anything is written; [`ErrorKind::Io`];
/// [`ErrorKind::Cancelled`].
#[cfg(feature = "std")]
pub fn write_to<N: AsRef<str>, S: TensorSource>(
    mut writer: impl Write,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
) -> Result<()> {
    write_named(&mut writer, named(&tensors.into_iter().collect::<Vec<_>>()), options)
}

#[cfg(feature = "std")]
fn write_named(
    writer: &mut dyn Write,
    mut tensors: Vec<Named<'_>>,
    options: &SaveOptions,
) -> Result<()> {
    let options = ties::apply(&mut tensors, options)?;
    let specs = Spec::of_all(&tensors);
    let mut layout = Layout::plan(&specs, &options)?;
    if options.digests {
        layout.prefix = prefix_with_digests(
            &specs,
            &options,
            recording::of_sources(&tensors, &layout.places)?,
        )?;
    }
    let total = layout.places.iter().map(|(_, range)| range.end - range.start).sum();
    let meter = options.progress.for_total(total);
    write_in_order(&layout, &tensors, &mut |tensor, bytes| {
        let piece = if meter.is_watched() { PIECE } else { bytes.len().max(1) };
        for piece in bytes.chunks(piece) {
            writer.write_all(piece)?;
            tensor.map_or(Ok(()), |tensor| meter.add(piece.len() as u64, tensor))?;
        }
        Ok(())
    })?;
    Ok(writer.flush()?)
}

/// Takes bytes in order, a tensor's with its name.
type FileSink<'a> = dyn FnMut(Option<&str>, &[u8]) -> Result<()> + 'a;

fn write_in_order(layout: &Layout, tensors: &[Named<'_>], sink: &mut FileSink<'_>) -> Result<()> {
    sink(None, &layout.prefix)?;
    for (i, range) in &layout.places {
        let (name, tensor) = tensors[*i];
        let mut sink = |bytes: &[u8]| sink(Some(name), bytes);
        write_exactly(tensor, range.end - range.start, &mut sink)
            .map_err(|error| error.in_tensor(name))?;
    }
    Ok(())
}

/// Has the length of the prefix with placeholders.
#[cfg(feature = "std")]
pub(super) fn prefix_with_digests(
    tensors: &[Spec<'_>],
    options: &SaveOptions,
    digests: impl IntoIterator<Item = Digest>,
) -> Result<Vec<u8>> {
    Ok(Layout::plan(tensors, &recording::recorded(tensors, options, digests))?.prefix)
}
