//! Messages and progress for NumPy's files.

use std::io::{Seek, Write};

use safetensors_core::framework::Quoted;
use safetensors_core::save::Sink;
use safetensors_core::{Error, ErrorKind as CoreKind, Result, TensorSource};
use safetensors_formats::{ErrorKind, npy, npz};

use crate::terminal::progress::Progress;

/// The remedy of `convert` for a dtype that NumPy does not have.
pub(crate) const CONVERT: &str = "add --dtype f32";

/// Returns the bytes before a tensor's data in a `.npy` file. `instead` is the remedy for a dtype
/// that NumPy lacks.
pub(crate) fn header_of(
    name: &str,
    tensor: &impl TensorSource,
    instead: &str,
) -> anyhow::Result<Vec<u8>> {
    let header = npy::Header::new(tensor.dtype(), tensor.shape()).encode();
    header.map_err(|error| unwritten(name, error, instead))
}

/// Writes only the bytes of a tensor.
pub(crate) fn write_data(
    out: &mut impl Write,
    name: &str,
    tensor: &impl TensorSource,
    progress: &Progress,
) -> anyhow::Result<()> {
    npy::write_data(out, &Counted { tensor, progress })
        .map_err(|error| unwritten(name, error, CONVERT))
}

/// Writes an uncompressed archive of arrays.
pub(crate) fn write_npz<'a, S: TensorSource + 'a>(
    out: &mut (impl Write + Seek),
    tensors: impl Iterator<Item = (&'a str, &'a S)>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut writer = npz::Writer::new(out);
    for (name, tensor) in tensors {
        writer
            .add(name, &Counted { tensor, progress })
            .map_err(|error| unwritten(name, error, CONVERT))?;
    }
    writer.finish().map_err(|error| unwritten("", error, CONVERT))?;
    Ok(())
}

/// Adds the tensor's name, except to errors of the disk.
fn unwritten(name: &str, error: Error, instead: &str) -> anyhow::Error {
    match (error.other(), error.kind()) {
        (Some(kind @ ErrorKind::NoNumpyType { .. }), _) => {
            anyhow::anyhow!("tensor {}: {kind}; {instead}", Quoted(name))
        }
        (Some(kind), _) => anyhow::anyhow!("tensor {}: {kind}", Quoted(name)),
        // An error of reading the tensor names a file.
        (None, CoreKind::Io(_)) if error.file().is_none() => match error.into_kind() {
            CoreKind::Io(error) => error.into(),
            kind => Error::from(kind).into(),
        },
        (None, _) => error.in_tensor(name).into(),
    }
}

/// A tensor that advances a bar as its bytes are written.
struct Counted<'a, S> {
    tensor: &'a S,
    progress: &'a Progress,
}

impl<S: TensorSource> TensorSource for Counted<'_, S> {
    fn dtype(&self) -> safetensors_core::Dtype {
        self.tensor.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        self.tensor.write_to(&mut |bytes| {
            sink(bytes)?;
            self.progress.add(bytes.len() as u64);
            Ok(())
        })
    }
}
