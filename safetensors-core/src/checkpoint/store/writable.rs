//! [`WritableDirectory`]: a directory of a store to save to.

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

/// A directory of a [`Store`] that [`save_sharded_to`](crate::checkpoint::save_sharded_to) saves to
/// in steps. To notice another save, it needs locks or conditional writes.
///
/// Names are file names without a directory. All methods block.
///
/// The local disk is `LocalDirectory`, memory is [`MemoryStore`](super::MemoryStore), and
/// `safetensors-hub` has buckets. A place that is always new, such as an archive, needs only
/// [`store`](Self::store), [`path`](Self::path), [`write`](Self::write), [`place`](Self::place) and
/// [`replace`](Self::replace).
pub trait WritableDirectory {
    /// Equal versions of a name mean that no other writer has replaced the file in between.
    type Version: Clone + PartialEq;
    /// The store of the directory.
    type Store: Store;

    /// Returns the store, to read the earlier checkpoint.
    fn store(&self) -> &Self::Store;

    /// Returns the path of the directory in the store, for errors.
    fn path(&self) -> PathBuf;

    /// Writes a file of tensors. No reader finds it before [`place`](Self::place).
    fn write<N: AsRef<str>, T: TensorSource>(
        &mut self,
        name: &str,
        tensors: impl IntoIterator<Item = (N, T)>,
        options: &SaveOptions,
    ) -> Result<()>;

    /// Writes a file without tensors, which no reader finds before [`place`](Self::place). By
    /// default, this is an error.
    #[doc(hidden)]
    fn write_other(&mut self, name: &str, copy: &CopyFile<'_>) -> Result<()> {
        let _ = (name, copy);
        Err(ErrorKind::Io(io::ErrorKind::Unsupported.into()).into())
    }

    /// Begins to change the directory, when all new files are written: takes the lock, if there is
    /// one, and fails if something is in the way. Returns the [`files`](Self::files).
    fn begin(&mut self, pattern: &FilePattern, new: &[&str]) -> Result<Versions<Self::Version>> {
        let _ = new;
        self.files(pattern)
    }

    /// Returns the index and the files that the pattern [matches](FilePattern::matches), and
    /// perhaps others.
    fn files(&self, pattern: &FilePattern) -> Result<Versions<Self::Version>>;

    /// Returns the version of a file; `None` if there is none.
    fn version_of(&self, name: &str) -> Result<Option<Self::Version>>;

    /// Gives a written file its name if [`check_versions`](Self::check_versions) of `others`
    /// succeeds, as late as possible before. Returns the version; `None` if the store does not know
    /// it.
    fn place(
        &mut self,
        name: &str,
        others: &[(&str, Option<&Self::Version>)],
    ) -> Result<Option<Self::Version>>;

    /// Checks that each file still has its version; `None` means no file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Overtaken`] if it has another one.
    fn check_versions(&self, files: &[(&str, Option<&Self::Version>)]) -> Result<()> {
        for &(name, version) in files {
            if self.version_of(name)?.as_ref() != version {
                let overtaken = Error::from(ErrorKind::Overtaken { file: name.into() });
                return Err(overtaken.in_path(self.path()));
            }
        }
        Ok(())
    }

    /// Takes the name of a [placed](Self::place) file away, if it still has this version. By
    /// default the file is removed.
    fn take_back(&mut self, name: &str, version: &Self::Version) -> Result<()> {
        self.remove(name, version)
    }

    /// Gives files free second names, as pairs of a name and a second name: all of them or, after
    /// an error, none.
    fn duplicate(&mut self, names: &[(String, String)]) -> Result<()>;

    /// Replaces a small file, if it still has the version `before`, or still does not exist.
    /// Returns the new version; `None` if the file has changed, and stays. After an error it may be
    /// the old or the new one.
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
    /// [`ErrorKind::LeftBehind`](crate::ErrorKind::LeftBehind) if it has lost its name, and is
    /// still there. After any other error it is where it was.
    fn remove(&mut self, name: &str, version: &Self::Version) -> Result<()>;

    /// Waits until all changes of names last, even after a power cut.
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns `true` if a failed call has no later effect. `false` by default: a request over a
    /// network may still reach the store.
    fn is_certain(&self) -> bool {
        false
    }

    /// Ends [`begin`](Self::begin), after a commit or a failure. The directory may begin again.
    fn release(&mut self) {}

    /// Runs at the end. An [`ErrorKind::Io`](crate::ErrorKind::Io) becomes
    /// [`ErrorKind::NotDurable`](crate::ErrorKind::NotDurable).
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
