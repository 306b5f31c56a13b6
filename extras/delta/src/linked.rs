//! Deltas with their base in the same directory, as a second name of its file.

use std::fs;
#[cfg(unix)]
use std::fs::Metadata;
use std::io;
use std::path::{Component, Path, PathBuf};

#[cfg(not(unix))]
use safetensors_core::ReadAt;
use safetensors_core::io::FileSource;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Checkpoint, ErrorKind as CoreKind, Limits};

use crate::chain::Chain;
use crate::delta::Delta;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{BASE_VERSION, FILE, INDEX};
use crate::make::DeltaPlan;
use crate::options::Options;

/// Saves the difference of a file from an older one, in a new directory with the older file in it.
///
/// The older file, the base, gets a hard link `VERSION/model.safetensors`, with the base version of
/// the [options](Options::versions). So it stays on disk, once, until the last delta that needs it
/// is deleted. The delta is [`make`](crate::make())'s, with the new file's metadata. The new file
/// can then be deleted.
///
/// Returns `false`, without a directory, if the delta is not smaller than the new file, if it
/// [cannot be made](ErrorKind::TooExpanded), or if the base cannot be linked: no hard links,
/// another file system, or a replaced base.
///
/// Open checkpoints of the base stay readable, except on Unix if the base had one name when it was
/// opened and has one again, since all deltas were deleted: reading fails as if the file had
/// changed.
///
/// A program that writes into the base under any name breaks the delta. This library replaces such
/// a file instead.
///
/// ```
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
/// use safetensors_delta::{Options, make_linked, open_linked};
///
/// let dir = tempfile::tempdir()?;
/// let path = |name: &str| dir.path().join(name);
/// let mut values = vec![0.25_f32; 4096];
/// for (name, value) in [("1.safetensors", 0.5), ("2.safetensors", 0.75)] {
///     values[7] = value;
///     save(path(name), [("w", TensorView::from_slice(&[4096], &values)?)], &SaveOptions::new())?;
/// }
/// let options = Options::new().versions("1", "2");
/// assert!(make_linked(path("1.safetensors"), path("2.safetensors"), path("2"), &options)?);
///
/// // The delta needs neither.
/// std::fs::remove_file(path("1.safetensors"))?;
/// std::fs::remove_file(path("2.safetensors"))?;
/// let (base, chain) = open_linked(path("2"))?;
/// chain.apply(&base, path("whole"), &Options::new())?;
/// let whole = Checkpoint::open(path("whole"))?;
/// assert_eq!(whole.tensor("w")?.read()?.as_slice::<f32>()?, values);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`BadField`](ErrorKind::BadField) if the base version cannot name a directory;
/// [`NotAFile`](CoreKind::NotAFile) if the base is a directory or an index; like
/// [`make`](crate::make()).
pub fn make_linked(
    base: impl AsRef<Path>,
    new: impl AsRef<Path>,
    directory: impl AsRef<Path>,
    options: &Options,
) -> Result<bool> {
    let base = base.as_ref();
    let directory = directory.as_ref();
    options.check_reader()?;
    check_name(&options.base_version).map_err(|error| error.in_path(directory))?;
    let new = Checkpoint::open(new)?;
    let base = Base::open(base)?;
    let target = AtomicDirectory::create(directory)?.durable(options.durable);
    let written = write(&base.checkpoint, &new, target.path(), options);
    let is_smaller = written.map_err(|error| target.locate(error))?;
    new.check_unchanged()?;
    let link = target.path().join(&options.base_version).join(FILE);
    // The link comes last, once the delta is known to be smaller: each name that comes or goes
    // moves the time of the base's last change, by which a reader that has it open finds a write.
    if !is_smaller || !base.link_to(&link)? {
        return Ok(false);
    }
    target.commit()?;
    Ok(true)
}

/// Opens a delta of [`make_linked`] and its base. [`Chain::apply`] makes the new file of both.
///
/// # Errors
///
/// Like [`Delta::open`] and [`Checkpoint::open`]. The path shows whether the delta or the base is
/// missing.
pub fn open_linked(directory: impl AsRef<Path>) -> Result<(Checkpoint, Chain)> {
    let delta = Delta::open(directory)?;
    // The name comes from the index, and could lead elsewhere.
    check_name(delta.base_version()).map_err(|error| error.in_path(delta.path()))?;
    let base = delta.path().with_file_name(delta.base_version()).join(FILE);
    Ok((Checkpoint::open(base)?, Chain::new([delta])?))
}

fn check_name(version: &str) -> Result<()> {
    let mut parts = Path::new(version).components();
    let name = parts.next().filter(|part| matches!(part, Component::Normal(_)));
    if name.is_some_and(|name| name.as_os_str() == version) && parts.next().is_none() {
        return Ok(());
    }
    let expected = "the name of a directory";
    let found = Some(version.into());
    Err(ErrorKind::BadField { key: BASE_VERSION, expected, found }.into())
}

struct Base<'a> {
    checkpoint: Checkpoint,
    path: &'a Path,
    /// Where it leads: a second name of a symbolic link would lead to nothing without the base.
    file: PathBuf,
}

impl<'a> Base<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let not_a_file = |found| Err(Error::from(CoreKind::NotAFile { found }).in_path(path));
        let file = path.canonicalize().map_err(|error| Error::from(error).in_path(path))?;
        if file.is_dir() {
            return not_a_file("a directory");
        }
        let checkpoint = Checkpoint::open(path)?;
        match checkpoint.stored_files()? {
            [only] if only.path() == path => Ok(Self { checkpoint, path, file }),
            _ => not_a_file("the index of several"),
        }
    }

    fn link_to(&self, link: &Path) -> Result<bool> {
        link.parent().map_or(Ok(()), fs::create_dir)?;
        match fs::hard_link(&self.file, link) {
            Ok(()) => Ok(self.is_at(link)?),
            // It has been deleted.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Error::from(error).in_path(self.path))
            }
            // Each system has another error for a file that it cannot link.
            // A copy of the base and the delta would take more space than the new file.
            Err(_) => Ok(false),
        }
    }

    /// Another file may have replaced the one that was read.
    fn is_at(&self, link: &Path) -> io::Result<bool> {
        let files = self.checkpoint.files().iter();
        let mut sources = files.flat_map(|file| file.safetensors().source().sources());
        sources.try_fold(true, |is_it, source| Ok(is_it && is_same(source, link)?))
    }
}

#[cfg(unix)]
fn is_same(source: &FileSource, link: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;

    let place = |metadata: Metadata| (metadata.dev(), metadata.ino());
    Ok(place(source.file().metadata()?) == place(fs::symlink_metadata(link)?))
}

/// Other systems only show whether the base's path still leads to it.
#[cfg(not(unix))]
fn is_same(source: &FileSource, _: &Path) -> io::Result<bool> {
    source.is_replaced().map(|is_replaced| !is_replaced)
}

fn write(base: &Checkpoint, new: &Checkpoint, directory: &Path, options: &Options) -> Result<bool> {
    let options = options.clone().metadata(new.metadata().clone());
    let tensors = new.tensors().map(|tensor| (tensor.name(), tensor));
    let written = DeltaPlan::new(base, tensors, &options)?.write(directory);
    if let Err(error) = &written
        && matches!(error.other(), Some(ErrorKind::TooExpanded { .. }))
    {
        return Ok(false);
    }
    written?;
    base.check_unchanged()?;
    let len = |path: &Path| match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.len()),
        Err(error) => Err(Error::from(error).in_path(path)),
    };
    let index = len(&directory.join(INDEX))?;
    // Long metadata may fit a header, and the index of a delta not.
    if index > Limits::default().index_bytes {
        return Ok(false);
    }
    let delta = Delta::open(directory)?;
    let bytes = delta.files().files().iter().map(|file| len(file.path()));
    let bytes = bytes.sum::<Result<u64>>()? + index;
    let whole = new.stored_files()?.iter().map(|file| len(file.path())).sum::<Result<u64>>()?;
    Ok(bytes < whole)
}
