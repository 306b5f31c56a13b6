//! [`OtherFiles`]: the files next to a checkpoint that belong to its model.
//!
//! Only this module decides which files go along when a model is converted, copied or made of
//! deltas.

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Checkpoint;
use super::names::is_plain;
use super::siblings::{Siblings, copy};
use super::store::{FileKind, StoreEntry};
use crate::file::hash::signed_name;
use crate::file::io::hidden::is_temporary_name;
use crate::file::io::{FileSource, ReadAt, beside};
use crate::format::error::{Error, Result};

/// The ends of names of files, in any format, that hold tensors or name files that do.
const TENSORS: [&str; 29] = [
    ".bin",
    ".bpk",
    ".ckpt",
    ".distcp",
    ".engine",
    ".ggml",
    ".gguf",
    ".h5",
    ".index.json",
    ".jit",
    ".joblib",
    ".mpk",
    ".msgpack",
    ".npy",
    ".npz",
    ".onnx",
    ".onnx.data",
    ".onnx_data",
    ".ot",
    ".pb",
    ".pdparams",
    ".pickle",
    ".pkl",
    ".pt",
    ".pth",
    ".safetensors",
    ".tflite",
    ".uqff",
    ".znn",
];

/// Files of trainers that name the newest checkpoint in the same directory.
const NEWEST: [&str; 2] = ["latest", "latest_checkpointed_iteration.txt"];

/// The most bytes of a file that goes along. The largest tokenizers have a tenth of it; a larger
/// file has data.
const MOST: u64 = 256 << 20;

/// The files next to a checkpoint that belong to its model, such as `config.json`, tokenizers, chat
/// templates and licences. Names are relative to its directory, with `/` between their parts.
///
/// Only a checkpoint that was opened by its directory has such files. Other files of tensors next
/// to it belong to other models, and signatures belong to the old files. So both are skipped, and
/// so are hidden files, special files, links that lead out of the directory, and directories with
/// tensors below, which are other checkpoints. [`left_out`](Self::left_out) lists all of these.
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct OtherFiles {
    store: Option<Arc<dyn Siblings>>,
    home: PathBuf,
    is_on_disk: bool,
    files: Vec<String>,
    left_out: Vec<PathBuf>,
}

impl OtherFiles {
    /// Lists the files. There are none if they are to be written to the directory itself, where all
    /// of them stay.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io), also for a file that cannot be read.
    pub fn new<S: ReadAt>(checkpoint: &Checkpoint<S>, destination: &Path) -> Result<Self> {
        let about = &checkpoint.about;
        let (Some(store), Some(home), true) = (&about.siblings, &about.home, about.is_of_directory)
        else {
            return Ok(Self::default());
        };
        let destination = destination.canonicalize().ok();
        if destination.is_some() && home.canonicalize().ok() == destination {
            return Ok(Self::default());
        }
        let files = checkpoint.files().iter().map(|file| file.path());
        let own = files.chain(checkpoint.index_path()).filter_map(|path| slashed(path, home));
        let mut listing = Listing {
            own: own.collect(),
            has_all: about.is_joined || checkpoint.files().iter().any(|it| it.path() == home),
            has_index: checkpoint.index_path().is_none() && checkpoint.files().len() > 1,
            destination,
            found: Self {
                store: Some(Arc::clone(store)),
                home: home.to_owned(),
                // Nothing on the disk has the path of a directory in another store.
                is_on_disk: home.is_dir(),
                ..Self::default()
            },
        };
        listing.directory("")?;
        listing.found.left_out.sort_unstable();
        Ok(listing.found)
    }

    /// Returns `true` for the name of a file that goes along with a model.
    pub fn belongs(name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        !name.starts_with('.')
            && is_plain(name)
            && !is_of_tensors(&lower)
            && signed_name(&lower).is_none()
            && !NEWEST.contains(&name)
    }

    /// Returns `true` for a regular file below a directory of the disk, and for a link to one that
    /// [belongs](Self::belongs), too. A link must not lead out of the directory: its target may be
    /// secret.
    pub fn is_file_below(home: &Path, name: &Path) -> bool {
        let Ok(Some(target)) = beside::find(home, name) else { return false };
        let belongs = |part: &std::ffi::OsStr| part.to_str().is_some_and(Self::belongs);
        let leads_to_other = |home: PathBuf| {
            target.strip_prefix(home).is_ok_and(|target| !target.iter().all(belongs))
        };
        target.is_file() && !home.canonicalize().is_ok_and(leads_to_other)
    }

    /// Returns the names of the files.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }

    /// Returns the skipped files and directories.
    pub fn left_out(&self) -> &[PathBuf] {
        &self.left_out
    }

    /// Skips files by their names.
    pub fn leave(&mut self, mut is_left: impl FnMut(&str) -> bool) {
        let left = self.files.extract_if(.., |name| is_left(name)).map(PathBuf::from);
        self.left_out.extend(left);
        self.left_out.sort_unstable();
    }

    /// Removes the files from the list that a directory of the disk has with equal bytes.
    pub fn remove_equal(&mut self, directory: &Path) {
        let mut files = std::mem::take(&mut self.files);
        files.retain(|name| !self.is_equal(name, &directory.join(name)));
        self.files = files;
    }

    /// Removes a file from the list, because it is written in another way.
    pub fn remove(&mut self, name: &str) {
        self.files.retain(|file| file != name);
    }

    /// Writes the bytes of a file, and returns its permissions if it is on the disk.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io), also if the file has changed while it was read.
    pub fn write_to(&self, name: &str, out: &mut dyn Write) -> Result<Option<Permissions>> {
        let path = self.home.join(name);
        let missing = || Error::io(io::ErrorKind::NotFound.into(), &path);
        if !self.is_on_disk {
            self.store.as_ref().ok_or_else(missing)?.copy(&path, out)?;
            return Ok(None);
        }
        let file = beside::open(&self.home, name)?.ok_or_else(missing)?;
        copy(&file, &path, out)?;
        let found = file.file().metadata().map_err(|error| Error::io(error, &path))?;
        Ok(Some(found.permissions()))
    }

    fn is_equal(&self, name: &str, path: &Path) -> bool {
        let Ok(there) = FileSource::open_now(path) else { return false };
        let mut equal = Equal { there: &there, position: 0 };
        self.write_to(name, &mut equal).is_ok() && equal.position == there.byte_len()
    }
}

impl std::fmt::Debug for OtherFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtherFiles").field("home", &self.home).finish_non_exhaustive()
    }
}

/// Compares written bytes with a file. Fails at the first difference.
struct Equal<'f> {
    there: &'f FileSource,
    position: u64,
}

impl Write for Equal<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut there = vec![0; bytes.len()];
        self.there.read_exact_at(&mut there, self.position)?;
        if there != bytes {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Listing {
    /// The files of the checkpoint.
    own: HashSet<String>,
    /// Whether all files of tensors may be its own.
    has_all: bool,
    /// Whether an index may be its own.
    has_index: bool,
    /// The canonical path of the directory that is written to, if it is there.
    destination: Option<PathBuf>,
    found: OtherFiles,
}

impl Listing {
    /// Lists a directory. A directory below that has tensors is another checkpoint, and skipped.
    fn directory(&mut self, path: &str) -> Result<()> {
        let Some(store) = self.found.store.clone() else { return Ok(()) };
        let from = self.found.home.join(path);
        let mut entries = match store.list(&from) {
            // Credentials may be good for some files only.
            Err(_) if !self.found.is_on_disk => return Ok(()),
            listed => listed.map_err(|error| error.in_path(&from))?,
        };
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let has_tensors = |it: &StoreEntry| is_of_tensors(&it.name.to_ascii_lowercase());
        let is_own = |it: &StoreEntry| self.own.contains(&below(path, &it.name));
        if !path.is_empty() && !entries.iter().any(is_own) && entries.iter().any(has_tensors) {
            self.found.left_out.extend((!self.has_all).then(|| path.into()));
            return Ok(());
        }
        if self.found.is_on_disk {
            // A listing has no names that are not UTF-8.
            let listed = fs::read_dir(&from).map_err(|error| Error::io(error, &from))?;
            let names = listed.flatten().map(|entry| entry.file_name());
            let others = names.filter(|name| name.to_str().is_none());
            self.found.left_out.extend(others.map(|name| Path::new(path).join(name)));
        }
        entries.into_iter().try_for_each(|entry| self.entry(below(path, &entry.name), &entry))
    }

    fn entry(&mut self, path: String, entry: &StoreEntry) -> Result<()> {
        if self.own.contains(&path) || is_temporary_name(entry.name.as_ref()) {
            return Ok(());
        }
        let from = self.found.home.join(&path);
        let is_link = fs::symlink_metadata(&from).is_ok_and(|found| found.is_symlink());
        if !OtherFiles::belongs(&entry.name) {
            self.leave(path);
        } else if entry.kind == FileKind::Directory && !is_link {
            if self.destination.is_none() || from.canonicalize().ok() != self.destination {
                return self.directory(&path);
            }
        } else if !self.is_small_file(&path)? {
            self.leave(path);
        } else {
            self.found.files.push(path);
        }
        Ok(())
    }

    /// Returns `true` for a regular file that is not too large. A file that cannot be opened is an
    /// error now, and not after hours.
    fn is_small_file(&self, path: &str) -> Result<bool> {
        let home = &self.found.home;
        if let (Some(store), false) = (&self.found.store, self.found.is_on_disk) {
            return Ok(store.byte_len(&home.join(path))? <= MOST);
        }
        if !OtherFiles::is_file_below(home, Path::new(path)) {
            return Ok(false);
        }
        Ok(beside::open(home, path)?.is_some_and(|file| file.byte_len() <= MOST))
    }

    /// Lists a file or directory as skipped, unless it is the checkpoint's own.
    fn leave(&mut self, path: String) {
        let lower = path.to_ascii_lowercase();
        let is_own = self.has_all && is_of_tensors(&lower)
            || self.has_index && lower.ends_with(".index.json");
        self.found.left_out.extend((!is_own).then(|| path.into()));
    }
}

/// Returns whether a file with this name, in lower case, has tensors.
fn is_of_tensors(name: &str) -> bool {
    TENSORS.iter().any(|end| name.ends_with(end))
}

/// Returns the path of an entry of a directory, relative to the directory of the checkpoint.
fn below(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.into() } else { format!("{directory}/{name}") }
}

/// Returns the path of a file of the checkpoint, relative to that directory.
fn slashed(path: &Path, home: &Path) -> Option<String> {
    let path = path.strip_prefix(home).unwrap_or(path);
    let parts: Option<Vec<_>> = path.iter().map(|part| part.to_str()).collect();
    Some(parts?.join("/"))
}

#[cfg(test)]
mod tests;
