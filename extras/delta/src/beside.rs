//! [`Beside`]: the files next to a base that are copied into the directory of the result.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors_core::framework::{is_temporary_name, signed_name};
use safetensors_core::io::{FileSource, beside};
use safetensors_core::{Checkpoint, ReadAt};

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

/// The files next to a base on the disk, other than its own. Paths are relative to its directory.
///
/// A base that is stored elsewhere has no such directory. One that was opened by the name of its
/// file has neighbours of which nothing is known.
#[derive(Default)]
pub(crate) struct Beside {
    from: PathBuf,
    files: Vec<PathBuf>,
    pub(crate) left_out: Vec<PathBuf>,
}

impl Beside {
    /// Lists the files to copy. Tensors next to the base are old ones, and signatures are of the old
    /// files, so neither is copied, nor is anything hidden, such as the history of `git`. `own` are
    /// the base's own files. A file that the destination has already stays as it is. Nothing is listed
    /// if the destination is the directory itself, where all of it stays.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](safetensors_core::ErrorKind::Io).
    pub(crate) fn new<B: ReadAt>(
        base: &Checkpoint<B>,
        own: &[String],
        destination: &Path,
    ) -> Result<Self> {
        let first = base.files().first().map(|file| file.path());
        let home = base.index_path().or(first).and_then(Path::parent);
        let home = home.map(|home| if home.as_os_str().is_empty() { Path::new(".") } else { home });
        let home = home.filter(|home| base.is_of_directory() && home.is_dir());
        let destination = destination.canonicalize().ok();
        let Some(from) = home else { return Ok(Self::default()) };
        if destination.is_some() && from.canonicalize().ok() == destination {
            return Ok(Self::default());
        }
        let index = base.index_path().and_then(Path::file_name).map(PathBuf::from);
        let mut listing = Listing {
            own: own.iter().map(PathBuf::from).chain(index).collect(),
            destination,
            found: Self { from: from.to_owned(), ..Self::default() },
        };
        listing.directory(Path::new(""))?;
        let Listing { destination, mut found, .. } = listing;
        if let Some(destination) = destination {
            let is_there = |name: &mut PathBuf| destination.join(name).symlink_metadata().is_ok();
            found.left_out.extend(found.files.extract_if(.., is_there));
            found.left_out.sort_unstable();
        }
        Ok(found)
    }

    /// Opens the files to copy, each with its name.
    pub(crate) fn files(&self) -> impl Iterator<Item = Result<(&Path, FileSource)>> {
        let open = |name| Some(beside::open(&self.from, name).transpose()?.map(|it| (name, it)));
        self.files.iter().map(PathBuf::as_path).filter_map(open)
    }
}

struct Listing {
    own: HashSet<PathBuf>,
    /// The canonical path of the directory that is written to, if it is there.
    destination: Option<PathBuf>,
    found: Beside,
}

impl Listing {
    /// Lists a directory. One below that has tensors is another checkpoint, and skipped.
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
        let from = self.found.from.join(&path);
        let is_directory = fs::symlink_metadata(&from).is_ok_and(|found| found.is_dir());
        if is_left_out(name) || !is_directory && !is_file_below(&self.found.from, &path) {
            self.found.left_out.push(path);
        } else if !is_directory {
            self.found.files.push(path);
        } else if self.destination.is_none() || from.canonicalize().ok() != self.destination {
            return self.directory(&path);
        }
        Ok(())
    }
}

/// Whether a file that is none of the base's own is not copied, by its name.
pub(crate) fn is_left_out(name: &OsStr) -> bool {
    let is_hidden = name.as_encoded_bytes().starts_with(b".");
    is_hidden || name.to_str().is_none() || ends_in(name, &TENSORS) || is_signature(name)
}

/// Whether this is the name of a signature, which is of the old files.
fn is_signature(name: &OsStr) -> bool {
    signed_name(&name.to_string_lossy().to_ascii_lowercase()).is_some()
}

/// Returns `true` for a regular file below a directory of the disk, and for a link to one that may be
/// copied, too. A link must not lead out of the directory: its target may be secret.
pub(crate) fn is_file_below(home: &Path, path: &Path) -> bool {
    let Ok(Some(target)) = beside::find(home, path) else { return false };
    let is_left_out =
        |home: PathBuf| target.strip_prefix(home).is_ok_and(|name| name.iter().any(is_left_out));
    target.is_file() && !home.canonicalize().is_ok_and(is_left_out)
}

/// Whether a name ends in one of these, in upper or lower case.
fn ends_in(name: &OsStr, ends: &[&str]) -> bool {
    let name = name.to_string_lossy().to_ascii_lowercase();
    ends.iter().any(|end| name.ends_with(end))
}
