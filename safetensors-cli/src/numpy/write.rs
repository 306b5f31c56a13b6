//! Tensors as arrays in NumPy's files.

use std::io::{Seek, Write};
use std::mem::ManuallyDrop;

use anyhow::Context;
use safetensors_core::{Error, ErrorKind, TensorSource, shape};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::header::header;
use crate::text;

/// What comes before a tensor's bytes in a `.npy` file. `instead` says what to do if NumPy has no
/// type for it.
pub(crate) fn header_of(
    name: &str,
    tensor: &impl TensorSource,
    instead: &str,
) -> anyhow::Result<Vec<u8>> {
    header(tensor.dtype(), tensor.shape()).ok_or_else(|| {
        let (name, dtype) = (text::name(name), tensor.dtype());
        anyhow::anyhow!("tensor {name}: NumPy has no type for {dtype}; {instead}")
    })
}

/// Writes one array. `done` is called with the number of bytes of each piece.
pub(crate) fn write_npy(
    out: &mut impl Write,
    name: &str,
    tensor: &impl TensorSource,
    done: &dyn Fn(u64),
) -> anyhow::Result<()> {
    out.write_all(&header_of(name, tensor, super::CONVERT)?)?;
    copy(name, tensor, out, done)
}

/// Writes an archive of arrays, not compressed, as `numpy.savez` does: so it can be read at once.
pub(crate) fn write_npz<'a, S: TensorSource + 'a>(
    out: &mut (impl Write + Seek),
    tensors: impl Iterator<Item = (&'a str, &'a S)>,
    done: &dyn Fn(u64),
) -> anyhow::Result<()> {
    // An archive that is given up would try to write its end, and tell on standard error if that
    // fails too: it is not dropped then.
    let mut zip = ManuallyDrop::new(ZipWriter::new(out));
    let options =
        SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    for (name, tensor) in tensors {
        zip.start_file(format!("{name}.npy"), options)
            .with_context(|| format!("tensor {}", text::name(name)))?;
        write_npy(&mut *zip, name, tensor, done)?;
    }
    ManuallyDrop::into_inner(zip).finish()?;
    Ok(())
}

/// Writes the bytes of a tensor and nothing else.
///
/// # Errors
///
/// Those of the tensor, which name it; those of `out`, as they are.
pub(crate) fn copy(
    name: &str,
    tensor: &impl TensorSource,
    out: &mut impl Write,
    done: &dyn Fn(u64),
) -> anyhow::Result<()> {
    let (mut found, mut failed) = (0, None);
    let given = tensor.write_to(&mut |bytes| {
        out.write_all(bytes).map_err(|error| {
            let kind = error.kind();
            failed = Some(error);
            ErrorKind::Io(kind.into())
        })?;
        found += bytes.len() as u64;
        done(bytes.len() as u64);
        Ok(())
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    let checked = given.and_then(|()| match shape::byte_len(tensor.dtype(), tensor.shape())? {
        expected if expected == found => Ok(()),
        expected => Err(Error::from(ErrorKind::SourceLength { expected, found })),
    });
    Ok(checked.map_err(|error| error.in_tensor(name))?)
}
