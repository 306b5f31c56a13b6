//! Saves to a file.

use std::path::Path;

use super::atomic::{AtomicFile, directory};
use super::directories::NewDirectories;
use super::gather::{Gathered, runs, write_run};
use super::spec::Spec;
use super::stream::StreamWriter;
use super::{SaveOptions, ties};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::parallel::in_parallel;
use crate::format::tensor::{Named, TensorSource, named};

// Starting threads takes longer.
const WORTH_SEVERAL_THREADS: u64 = 2 << 20;

/// Saves tensors to one file, atomically: the path has the complete new file or, after an error,
/// still the old one.
///
/// Writes several tensors at a time, and contiguous ones without a copy. The file gets the mode of
/// the file that it replaces, or one by the umask. Follows links, and creates missing directories.
/// Equal tensors and options give equal bytes. Finds a full disk first, where space can be
/// reserved.
///
/// ```
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
///
/// let path = tempfile::tempdir()?.keep().join("model.safetensors");
/// save(&path, [("w", TensorView::from_slice(&[2], &[1_u8, 2])?)], &SaveOptions::new())?;
/// assert_eq!(Checkpoint::open(&path)?.len(), 1);
/// # std::fs::remove_dir_all(path.parent().unwrap())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As for [`serialize`](super::serialize) and for
/// [`AtomicFile::create`](super::AtomicFile::create). The path keeps the old file, and no temporary
/// file stays. After [`ErrorKind::NotDurable`](crate::ErrorKind::NotDurable) it has the new file.
pub fn save<N: AsRef<str>, S: TensorSource>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
) -> Result<()> {
    let path = path.as_ref();
    let made = NewDirectories::create_all(directory(path));
    let made = made.map_err(|error| Error::io(error, path))?;
    // The sources are dropped before the disk is waited for.
    let file = stage(path, tensors, options)?;
    finish(file, &made, path, options)
}

fn finish(
    mut file: AtomicFile,
    made: &NewDirectories,
    path: &Path,
    options: &SaveOptions,
) -> Result<()> {
    file.commit()?;
    if options.durable {
        made.sync().map_err(|error| Error::from(ErrorKind::NotDurable(error)).in_path(path))?;
    }
    Ok(())
}

/// Writes the file of [`save`], which gets its path at the commit.
pub(crate) fn stage<N: AsRef<str>, S: TensorSource>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
) -> Result<AtomicFile> {
    stage_named(path, named(&tensors.into_iter().collect::<Vec<_>>()), options)
}

fn stage_named(
    path: &Path,
    mut tensors: Vec<Named<'_>>,
    options: &SaveOptions,
) -> Result<AtomicFile> {
    let options = ties::apply(&mut tensors, options).map_err(|error| error.in_path(path))?;
    let writer = StreamWriter::create_for(path, &Spec::of_all(&tensors), &options)?;
    write_all(&writer, &tensors)?;
    writer.stage()
}

fn write_all(writer: &StreamWriter, tensors: &[Named<'_>]) -> Result<()> {
    let bytes: u64 = writer.tensors().map(|tensor| tensor.byte_len()).sum();
    // Linux lets one thread at a time write to a file. Several still help if tensors are converted,
    // gathered or fetched from a device.
    // 0 is the default number.
    let threads = if bytes < WORTH_SEVERAL_THREADS { 1 } else { 0 };
    let write = |run: &[usize], gathered: &mut Gathered| write_run(writer, run, tensors, gathered);
    in_parallel(runs(writer), threads, write)?;
    Ok(())
}
