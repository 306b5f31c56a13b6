//! NumPy's files: what the command says and shows of them. `safetensors-formats` reads and writes
//! them.

use std::io::{Seek, Write};
use std::path::Path;

use safetensors_core::{Result, Sink, TensorSource};
use safetensors_formats::{Error, ErrorKind, npy, npz};

use crate::progress::Progress;
use crate::text;

/// What to do with a tensor of a dtype that NumPy does not have, while converting.
pub(crate) const CONVERT: &str = "add --dtype f32";

/// What comes before a tensor's bytes in a `.npy` file. `instead` says what to do if NumPy has no
/// type for it.
pub(crate) fn header_of(
    name: &str,
    tensor: &impl TensorSource,
    instead: &str,
) -> anyhow::Result<Vec<u8>> {
    let header = npy::Header::new(tensor.dtype(), tensor.shape()).encode();
    header.map_err(|error| unwritten(name, error, instead))
}

/// Writes one array, and moves the bar on.
pub(crate) fn write_npy(
    out: &mut impl Write,
    name: &str,
    tensor: &impl TensorSource,
    progress: &Progress,
) -> anyhow::Result<()> {
    npy::write(out, &Counted { tensor, progress }).map_err(|error| unwritten(name, error, CONVERT))
}

/// Writes the bytes of a tensor and nothing else, and moves the bar on.
pub(crate) fn write_data(
    out: &mut impl Write,
    name: &str,
    tensor: &impl TensorSource,
    progress: &Progress,
) -> anyhow::Result<()> {
    npy::write_data(out, &Counted { tensor, progress })
        .map_err(|error| unwritten(name, error, CONVERT))
}

/// Writes an archive of arrays, not compressed, and moves the bar on.
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

/// An error of reading a file of NumPy, and what can be done about it.
pub(crate) fn unread(error: Error) -> anyhow::Error {
    let file = error.file().map(|file| text::path(Path::new(file)));
    let member = error.member().map(text::name);
    let problem = match error.into_kind() {
        // It says by itself where it is, and `file::advise` knows it.
        ErrorKind::Core(error) if error.file().is_some() => return error.into(),
        kind => text::printable(&kind.to_string()).to_string(),
    };
    let problem = match member {
        Some(member) => format!("member {member}: {problem}; --drop leaves it out"),
        None => problem,
    };
    match file {
        Some(file) => anyhow::anyhow!("{file}: {problem}"),
        None => anyhow::anyhow!("{problem}"),
    }
}

/// An error of writing a tensor of this name: what the disk says and what the tensor says are given
/// as they are.
fn unwritten(name: &str, error: Error, instead: &str) -> anyhow::Error {
    match error.into_kind() {
        ErrorKind::Core(error) => error.in_tensor(name).into(),
        ErrorKind::Io(error) => error.into(),
        kind @ ErrorKind::NoNumpyType { .. } => {
            anyhow::anyhow!("tensor {}: {kind}; {instead}", text::name(name))
        }
        kind => anyhow::anyhow!("tensor {}: {kind}", text::name(name)),
    }
}

/// A tensor that moves a bar on when its bytes are given away.
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
