//! Saving to a file.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::atomic::AtomicFile;
use super::layout::Layout;
use super::memory::write_exactly;
use super::{SaveOptions, TensorSource};
use crate::{Error, ErrorKind, Result};

/// More threads than this gain nothing on local disks.
const MAX_THREADS: usize = 8;

/// Saves tensors to one file, atomically: afterwards the path has either the complete new file or what it had before.
///
/// Tensors that are contiguous in memory are written from where they lie, several at a time. The file's mode follows the
/// umask, and a link is followed. The same tensors and options give the same bytes.
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
/// Those of [`serialize`](super::serialize); [`ErrorKind::Io`]; [`ErrorKind::NotAFile`] if the path has something else than a
/// regular file. Whatever the error, the path has what it had before and no temporary file stays behind; only if the
/// directory cannot be synchronised after the new file has taken its place is it the new one.
pub fn save<N: AsRef<str>, S: TensorSource>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
) -> Result<()> {
    let path = path.as_ref();
    // Sources need not be `Send`: they stay where they are and are shared. Names are borrowed out of their types for that.
    let (names, tensors): (Vec<N>, Vec<S>) = tensors.into_iter().unzip();
    let tensors: Vec<(&str, S)> = names.iter().map(AsRef::as_ref).zip(tensors).collect();
    let write = || {
        let layout = Layout::plan(&tensors, options)?;
        let destination = AtomicFile::create(path)?;
        write_all(destination.file(), &layout, &tensors)?;
        destination.commit(options.durable).map_err(|error| Error::io(error, path))
    };
    write().map_err(|error| error.in_path(path))
}

fn write_all<S: TensorSource>(file: &File, layout: &Layout, tensors: &[(&str, S)]) -> Result<()> {
    // The length first: a file system that cannot hold it says so before any work is done, and the writers find their places.
    file.set_len(layout.file_len()).map_err(ErrorKind::Io)?;
    write_all_at(file, &layout.prefix, 0).map_err(ErrorKind::Io)?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some((i, range)) = layout.places.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (name, tensor) = &tensors[*i];
            let written = write_exactly(tensor, range.end - range.start, &mut |offset, bytes| {
                Ok(write_all_at(file, bytes, range.start + offset).map_err(ErrorKind::Io)?)
            });
            if let Err(error) = written {
                // Nothing is left for the other threads to do.
                next.store(layout.places.len(), Ordering::Relaxed);
                return Err(error.in_tensor(name));
            }
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(tensors.len());
    thread::scope(|scope| {
        // The calling thread is one of them.
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut result = work();
        for other in others {
            let theirs = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(theirs);
        }
        result
    })
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
