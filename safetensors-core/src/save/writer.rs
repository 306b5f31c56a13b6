//! Saving to a file.

use std::path::Path;

use super::spec::Spec;
use super::stream::StreamWriter;
use super::{SaveOptions, ties};
use crate::error::Result;
use crate::parallel::in_parallel;
use crate::tensor::TensorSource;

/// Fewer bytes than this are written faster by one thread than others are started.
const WORTH_SEVERAL_THREADS: u64 = 2 << 20;

/// Saves tensors to one file, atomically: afterwards the path has either the complete new file or
/// what it had before.
///
/// Tensors that are contiguous in memory are written from where they lie, several at a time. The
/// file has the mode of the one that it replaces, else what the umask leaves. A link is followed. The same tensors and options give the
/// same bytes. Where the file system can reserve space, a disk without room for the file is found
/// before anything is written.
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
/// [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile) if the path has something else than a
/// regular file; [`ErrorKind::ReadOnlyFile`](crate::ErrorKind::ReadOnlyFile). After these the path
/// has what it had before, and no temporary file stays behind. After
/// [`ErrorKind::NotDurable`](crate::ErrorKind::NotDurable) it has the new file.
pub fn save<N: AsRef<str>, S: TensorSource>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
) -> Result<()> {
    save_if(path.as_ref(), tensors, options, || Ok(()))
}

/// [`save`], unless `check` fails, which is called when the file is complete and not yet in place.
pub(crate) fn save_if<N: AsRef<str>, S: TensorSource>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
    check: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut tensors: Vec<(N, S)> = tensors.into_iter().collect();
    let options = ties::apply(&mut tensors, options).map_err(|error| error.in_path(path))?;
    // Sources need not be `Send`: they stay where they are and are shared. Names are left behind
    // for that.
    let (names, tensors): (Vec<N>, Vec<S>) = tensors.into_iter().unzip();
    let specs: Vec<_> =
        names.iter().zip(&tensors).map(|(name, tensor)| Spec::of(name.as_ref(), tensor)).collect();
    let writer = StreamWriter::create_for(path, &specs, &options)?;
    write_all(&writer, &tensors)?;
    writer.finish_if(check)
}

/// Writes every tensor, front to back, several at a time.
fn write_all<S: TensorSource>(writer: &StreamWriter, tensors: &[S]) -> Result<()> {
    let bytes: u64 = writer.tensors().map(|tensor| tensor.byte_len()).sum();
    // 0 is as many as are usual.
    let threads = if bytes < WORTH_SEVERAL_THREADS { 1 } else { 0 };
    in_parallel(writer.order(), threads, |&i, _: &mut ()| writer.at(i).write_from(&tensors[i]))?;
    Ok(())
}
