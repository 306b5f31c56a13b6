//! Saving to a file.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::spec::Spec;
use super::stream::StreamWriter;
use super::{SaveOptions, TensorSource};
use crate::{Result, tied};

/// More threads than this gain nothing on local disks.
const MAX_THREADS: usize = 8;

/// Fewer bytes than this are not worth a thread of their own.
const WORTH_A_THREAD: u64 = 1 << 20;

/// Saves tensors to one file, atomically: afterwards the path has either the complete new file or what it had before.
///
/// Tensors that are contiguous in memory are written from where they lie, several at a time. The file's mode follows the
/// umask, and a link is followed. The same tensors and options give the same bytes. Where the file system can reserve space, a
/// disk without room for the file is found before anything is written.
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
/// Those of [`serialize`](super::serialize); [`ErrorKind::Io`](crate::ErrorKind::Io);
/// [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile) if the path has something else than a regular file. Whatever the error, the
/// path has what it had before and no temporary file stays behind; only if the directory cannot be synchronised after the
/// new file has taken its place is it the new one.
pub fn save<N: AsRef<str>, S: TensorSource>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
) -> Result<()> {
    let path = path.as_ref();
    let mut tensors: Vec<(N, S)> = tensors.into_iter().collect();
    let options = tied::apply(&mut tensors, options).map_err(|error| error.in_path(path))?;
    // Sources need not be `Send`: they stay where they are and are shared. Names are left behind for that.
    let (names, tensors): (Vec<N>, Vec<S>) = tensors.into_iter().unzip();
    let specs: Vec<_> = names.iter().zip(&tensors).map(|(name, tensor)| Spec::of(name.as_ref(), tensor)).collect();
    let writer = StreamWriter::create_for(path, &specs, &options)?;
    write_all(&writer, &tensors)?;
    writer.finish()
}

/// Writes every tensor, front to back, several at a time.
fn write_all<S: TensorSource>(writer: &StreamWriter, tensors: &[S]) -> Result<()> {
    let order = writer.order();
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            // If this fails, nothing is left for the other threads to do.
            writer.at(i).write_from(&tensors[i]).inspect_err(|_| next.store(order.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    let worth = writer.tensors().map(|tensor| tensor.byte_len()).sum::<u64>() / WORTH_A_THREAD;
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(MAX_THREADS)
        .min(tensors.len())
        .min(usize::try_from(worth).unwrap_or(MAX_THREADS));
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
