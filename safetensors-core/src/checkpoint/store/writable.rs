//! [`WritableDirectory`]: a directory of a store that a checkpoint can be saved to.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{self, Write};
use std::path::PathBuf;

use super::Store;
use crate::checkpoint::FilePattern;
use crate::file::save::SaveOptions;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::tensor::TensorSource;

/// The files of a directory that a save may replace, by name.
pub type Versions<V> = BTreeMap<String, V>;

/// Writes the bytes of a file, and returns its permissions if it is on the disk.
#[doc(hidden)]
pub type CopyFile<'c> = dyn Fn(&mut dyn Write) -> Result<Option<Permissions>> + 'c;

/// A directory of a [`Store`] that a checkpoint of several files can be saved to with
/// [`save_sharded_to`](crate::checkpoint::save_sharded_to).
///
/// Several files cannot take their places at once, so a save goes in steps. After each of them the
/// directory opens as the earlier checkpoint or as the new one. This trait is what the steps need.
/// Locks and conditional writes do the same for them: a place needs one of the two, so that a save
/// notices another.
///
/// The names are those of files, without a directory. All methods block.
///
/// The local disk is `LocalDirectory`, memory is
/// [`MemoryStore`](super::MemoryStore), and `safetensors-hub` has buckets. A place that is always
/// new, such as an archive, needs only [`store`](Self::store), [`path`](Self::path),
/// [`write`](Self::write), [`place`](Self::place) and [`replace`](Self::replace): the other methods
/// are called for a directory with earlier files.
pub trait WritableDirectory {
    /// What tells one file from another of the same name. Two are equal if no other writer has
    /// replaced the file in between.
    type Version: Clone + PartialEq;
    /// The store of the directory.
    type Store: Store;

    /// The store, to read the earlier checkpoint.
    fn store(&self) -> &Self::Store;

    /// The path of the directory in the store. Errors show it.
    fn path(&self) -> PathBuf;

    /// Writes a file of tensors. No reader finds it before [`place`](Self::place).
    ///
    /// # Errors
    ///
    /// The errors of [`write_to`](crate::save::write_to), and those of the store.
    fn write<N: AsRef<str>, T: TensorSource>(
        &mut self,
        name: &str,
        tensors: impl IntoIterator<Item = (N, T)>,
        options: &SaveOptions,
    ) -> Result<()>;

    /// Writes a file that has no tensors. No reader finds it before [`place`](Self::place).
    ///
    /// # Errors
    ///
    /// The errors of `copy` and of the store. By default, no such files can be written.
    #[doc(hidden)]
    fn write_other(&mut self, name: &str, copy: &CopyFile<'_>) -> Result<()> {
        let _ = (name, copy);
        Err(ErrorKind::Io(io::ErrorKind::Unsupported.into()).into())
    }

    /// Begins to change the directory: all new files are written. Takes the lock, if there is one,
    /// and fails if something is in the way. Returns what [`files`](Self::files) does.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    fn begin(&mut self, pattern: &FilePattern, new: &[&str]) -> Result<Versions<Self::Version>> {
        let _ = new;
        self.files(pattern)
    }

    /// The index and the files that the pattern [matches](FilePattern::matches). Others may be
    /// among them.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    fn files(&self, pattern: &FilePattern) -> Result<Versions<Self::Version>>;

    /// The version of a file; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    fn version_of(&self, name: &str) -> Result<Option<Self::Version>>;

    /// Gives a written file its name, in place of an older file, if other files still have these
    /// versions: [`check_versions`](Self::check_versions) is asked as late as possible before.
    /// Returns the version; `None` if the store does not say.
    ///
    /// # Errors
    ///
    /// The errors of `check_versions` and of the store.
    fn place(
        &mut self,
        name: &str,
        others: &[(&str, Option<&Self::Version>)],
    ) -> Result<Option<Self::Version>>;

    /// Fails if a file does not have its version any more; `None` stands for no file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Overtaken`]; the errors of the store.
    fn check_versions(&self, files: &[(&str, Option<&Self::Version>)]) -> Result<()> {
        for &(name, version) in files {
            if self.version_of(name)?.as_ref() != version {
                let overtaken = Error::from(ErrorKind::Overtaken { file: name.into() });
                return Err(overtaken.in_path(self.path()));
            }
        }
        Ok(())
    }

    /// Takes the name of a [placed](Self::place) file away, if it still has this version. A store
    /// that keeps the file can place it again; by default it is removed.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    fn take_back(&mut self, name: &str, version: &Self::Version) -> Result<()> {
        self.remove(name, version)
    }

    /// Gives files second names, as pairs of a name and a second name, which is free: all of them
    /// or, after an error, none.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    fn duplicate(&mut self, names: &[(String, String)]) -> Result<()>;

    /// Replaces a small file by these bytes, if it still has a version, or still does not exist.
    /// Returns the new version; `None` if the file has changed, and then it stays.
    ///
    /// # Errors
    ///
    /// The errors of the store. It may then have the old file or the new one.
    fn replace(
        &mut self,
        name: &str,
        bytes: Vec<u8>,
        before: Option<&Self::Version>,
    ) -> Result<Option<Self::Version>>;

    /// Removes a file if it still has this version.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LeftBehind`](crate::ErrorKind::LeftBehind) if the file has lost its name, and
    /// is still there. After any other error it is where it was.
    fn remove(&mut self, name: &str, version: &Self::Version) -> Result<()>;

    /// Waits until all changes of names last, also after a power cut.
    ///
    /// # Errors
    ///
    /// The errors of the store.
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether a call that failed does nothing later either. A request over a network may still
    /// reach the store, so by default it is not certain.
    fn is_certain(&self) -> bool {
        false
    }

    /// Ends what [`begin`](Self::begin) has begun, whether the commit has succeeded or not. The
    /// directory may begin again.
    fn release(&mut self) {}

    /// Is called at the end, when the new checkpoint is in place.
    ///
    /// # Errors
    ///
    /// The errors of the store. The save returns [`ErrorKind::Io`](crate::ErrorKind::Io) as
    /// [`ErrorKind::NotDurable`](crate::ErrorKind::NotDurable).
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
