//! [`Beside`]: what lies beside a base, and is copied into the directory of the result.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors_core::framework::{is_temporary_name, signed_name};
use safetensors_core::{Checkpoint, ErrorKind, ReadAt};

use crate::error::{Error, Result};

/// How the names of files end that hold tensors or name files that do, whatever the format.
const TENSORS: [&str; 28] = [
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
    ".znn",
];

/// What lies in the directory of a base on the disk, but for the base's own files. Paths are
/// relative to the directory.
///
/// A base that lies elsewhere has no such directory. One that was opened by the name of its file
/// has neighbours of which nothing is known.
#[derive(Default)]
pub(crate) struct Beside {
    from: PathBuf,
    files: Vec<PathBuf>,
    left_out: Vec<PathBuf>,
}

impl Beside {
    /// Lists what will be copied. Tensors beside the base are old ones, and signatures are of the
    /// old files, so neither is; nor is what is hidden, such as the history of `git`. `own` are the
    /// base's own files, and `destination` is what may be replaced.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`]; [`ErrorKind::Io`].
    pub(crate) fn of<B: ReadAt>(
        base: &Checkpoint<B>,
        own: &[PathBuf],
        destination: &Path,
    ) -> Result<Self> {
        let first = base.files().first().map(|file| file.path());
        let home = base.index_path().or(first).and_then(Path::parent);
        let home = home.filter(|home| base.is_of_directory() && home.is_dir());
        let Some(from) = home else { return Ok(Self::default()) };
        let index = base.index_path().and_then(Path::file_name).map(PathBuf::from);
        Self::in_directory(from, own.iter().cloned().chain(index).collect(), destination)
    }

    /// [`of`](Beside::of) for a directory of which no file is opened.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotAFile`]; [`ErrorKind::Io`].
    pub(crate) fn in_directory(
        from: &Path,
        own: HashSet<PathBuf>,
        destination: &Path,
    ) -> Result<Self> {
        let mut listing = Listing {
            own,
            destination: destination.canonicalize().ok(),
            found: Self { from: from.to_owned(), ..Self::default() },
        };
        listing.directory(Path::new(""))?;
        Ok(listing.found)
    }

    /// Copies the files to another directory, except those that are there already. Returns the paths
    /// of what is left out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`].
    pub(crate) fn copy(self, to: &Path) -> Result<Vec<PathBuf>> {
        for name in &self.files {
            let (from, to) = (self.from.join(name), to.join(name));
            if to.exists() {
                continue;
            }
            let folder = to.parent().map_or(Ok(()), fs::create_dir_all);
            let copied = folder.and_then(|()| fs::copy(&from, &to));
            copied.map_err(|error| Error::from(error).in_path(&from))?;
        }
        Ok(self.left_out)
    }
}

struct Listing {
    own: HashSet<PathBuf>,
    /// The directory that is replaced, if there is one.
    destination: Option<PathBuf>,
    found: Beside,
}

impl Listing {
    /// Lists what is in a directory. One below that has tensors is another checkpoint, and left
    /// out.
    fn directory(&mut self, path: &Path) -> Result<()> {
        let from = self.found.from.join(path);
        let list = || -> std::io::Result<Vec<_>> {
            fs::read_dir(&from)?.map(|entry| Ok(entry?.file_name())).collect()
        };
        let mut names = list().map_err(|error| Error::from(error).in_path(&from))?;
        names.sort_unstable();
        let is_top = path.as_os_str().is_empty();
        let is_own = |name| self.own.contains(&path.join(name));
        if !is_top && !names.iter().any(is_own) && names.iter().any(|it| ends_in(it, &TENSORS)) {
            self.found.left_out.push(path.into());
            return Ok(());
        }
        names.iter().try_for_each(|name| self.entry(path.join(name), name))
    }

    fn entry(&mut self, path: PathBuf, name: &OsStr) -> Result<()> {
        if self.own.contains(&path) || is_temporary_name(name) {
            return Ok(());
        }
        if is_left_out(name) {
            self.found.left_out.push(path);
            return Ok(());
        }
        let from = self.found.from.join(&path);
        let failed = |error: std::io::Error| Error::from(error).in_path(&from);
        // Links to files are followed: the Hub's cache has such. One to a directory may lead back.
        let kind = fs::metadata(&from).map_err(failed)?;
        if kind.is_file() {
            self.found.files.push(path);
            Ok(())
        } else if kind.is_dir() && !fs::symlink_metadata(&from).map_err(failed)?.is_symlink() {
            if self.destination.is_some() && from.canonicalize().ok() == self.destination {
                return Ok(());
            }
            self.directory(&path)
        } else {
            let found = "a special file, or a link to a directory";
            Err(Error::from(ErrorKind::NotAFile { found }).in_path(&from))
        }
    }
}

/// Whether a file that is none of the base's own is not copied.
pub(crate) fn is_left_out(name: &OsStr) -> bool {
    let is_hidden = name.as_encoded_bytes().starts_with(b".");
    is_hidden || ends_in(name, &TENSORS) || is_signature(name)
}

/// Whether this is the name of a signature, which is of the old files.
fn is_signature(name: &OsStr) -> bool {
    signed_name(&name.to_string_lossy().to_ascii_lowercase()).is_some()
}

/// Whether a name ends in one of these, in upper or lower case.
fn ends_in(name: &OsStr, ends: &[&str]) -> bool {
    let name = name.to_string_lossy().to_ascii_lowercase();
    ends.iter().any(|end| name.ends_with(end))
}
