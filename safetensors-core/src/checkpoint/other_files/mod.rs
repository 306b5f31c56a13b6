//! [`OtherFiles`]: a model's files that have no tensors.

mod equal;
mod secret;

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use equal::Equal;
use secret::is_secret;

use super::Checkpoint;
use super::names::is_plain;
use super::open::siblings::{Siblings, copy, is_refused};
use super::store::{FileKind, StoreEntry, is_not_found};
use crate::file::hash::{MANIFEST, signed_name};
use crate::file::io::hidden::is_temporary_name;
use crate::file::io::{FileSource, ReadAt, next_to};
use crate::format::error::{Error, Result};

/// The ends of names of files that hold tensors, or name files that do.
const TENSORS: [&str; 31] = [
    ".bin",
    ".bpk",
    ".ckpt",
    ".distcp",
    ".engine",
    ".ggml",
    ".gguf",
    ".h5",
    ".hdf5",
    ".index.json",
    ".jit",
    ".joblib",
    ".keras",
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

/// Files that name the newest checkpoint in the same directory.
#[doc(hidden)]
pub const NEWEST: [&str; 2] = ["latest", "latest_checkpointed_iteration.txt"];

/// Settings that only the directory of a model has.
const OF_MODEL: [&str; 7] = [
    "adapter_config.json",
    "config.json",
    MODEL_INDEX,
    MODULES,
    "open_clip_config.json",
    "params.json",
    "tokenizer_config.json",
];

const FOLDERS: [&str; 3] = ["additional_chat_templates", "custom_generate", "tokenizer"];

/// Names the folders of a pipeline of diffusers.
const MODEL_INDEX: &str = "model_index.json";

/// Names the folders of a sentence-transformers model's layers.
const MODULES: &str = "modules.json";

const MOST_SETTINGS: u64 = 1 << 20;

/// The most bytes of a file: ten times the largest tokenizers.
const MOST: u64 = 256 << 20;

const MOST_TOGETHER: u64 = 1 << 30;

const MOST_FILES: usize = 1000;

const MOST_FOLDERS: usize = 2;

/// The files next to a checkpoint that belong to its model, such as `config.json`, tokenizers and
/// licences. Names are relative to its directory, with `/` between their parts.
///
/// The checkpoint must be opened by its directory, which has an index, or settings such as
/// `config.json`. Folders go along if transformers saves them, or `modules.json` or
/// `model_index.json` names them. There are at most 1,000 files with 1 GiB, each with 256 MiB.
///
/// Skipped are other tensors, signatures, manifests, hidden and special files, credentials, and
/// links that lead out of the directory.
#[derive(Clone, Default)]
#[doc(hidden)]
pub struct OtherFiles {
    store: Option<Arc<Siblings>>,
    home: PathBuf,
    is_on_disk: bool,
    files: Vec<String>,
    left_out: Vec<PathBuf>,
    missing: Vec<PathBuf>,
    is_refused: bool,
}

impl OtherFiles {
    /// Lists the files; none if `destination` is the directory itself. A file that cannot be read
    /// is an error now.
    pub fn new<S: ReadAt>(checkpoint: &Checkpoint<S>, destination: &Path) -> Result<Self> {
        let about = &checkpoint.about;
        let (Some(store), Some(home), true) = (&about.siblings, &about.home, about.is_of_directory)
        else {
            return Ok(Self::default());
        };
        // An address has no canonical path.
        if home == destination && home.to_str().is_some_and(|home| home.contains("://")) {
            return Ok(Self::default());
        }
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
            folders: FOLDERS.map(|name| (name.to_owned(), false)).into(),
            bytes: 0,
            found: Self {
                store: Some(Arc::clone(store)),
                home: home.to_owned(),
                // Nothing on the disk has the path of a directory in another store.
                is_on_disk: home.is_dir(),
                ..Self::default()
            },
        };
        listing.home(checkpoint.index_path().is_some())?;
        listing.found.left_out.sort_unstable();
        Ok(listing.found)
    }

    /// Returns `true` for the name of a file that belongs to a model.
    pub fn belongs(name: &str) -> bool {
        may_belong(name) && !is_of_tensors(&name.to_ascii_lowercase())
    }

    /// Returns the names of the files.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }

    /// Returns the skipped files and directories.
    pub fn left_out(&self) -> &[PathBuf] {
        &self.left_out
    }

    /// Returns the skipped files and folders that the model's settings name.
    pub fn missing(&self) -> &[PathBuf] {
        &self.missing
    }

    /// Returns `true` if the store denies a listing, so that files may be missing.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Skips files by their names.
    pub fn leave(&mut self, mut is_left: impl FnMut(&str) -> bool) {
        let left = self.files.extract_if(.., |name| is_left(name)).map(PathBuf::from);
        self.left_out.extend(left);
        self.left_out.sort_unstable();
    }

    /// Removes files that a directory of the disk has with equal bytes from the list.
    pub fn remove_equal(&mut self, directory: &Path) {
        let mut files = std::mem::take(&mut self.files);
        files.retain(|name| !self.is_equal(name, &directory.join(name)));
        self.files = files;
    }

    /// Removes a file, which is written in another way, from the list.
    pub fn remove(&mut self, name: &str) {
        self.files.retain(|file| file != name);
    }

    /// Writes the bytes of a file, and returns its permissions if it is on the disk.
    pub fn write_to(&self, name: &str, out: &mut dyn Write) -> Result<Option<Permissions>> {
        let path = self.home.join(name);
        let missing = || Error::io(io::ErrorKind::NotFound.into(), &path);
        if !self.is_on_disk {
            self.store.as_ref().ok_or_else(missing)?.copy(&path, out)?;
            return Ok(None);
        }
        let file = next_to::open(&self.home, name)?.ok_or_else(missing)?;
        copy(&file, &path, out)?;
        let found = file.file().metadata().map_err(|error| Error::io(error, &path))?;
        Ok(Some(found.permissions()))
    }

    fn is_equal(&self, name: &str, path: &Path) -> bool {
        let Ok(there) = FileSource::open_now(path) else { return false };
        let mut equal = Equal::new(&there);
        self.write_to(name, &mut equal).is_ok() && equal.is_whole()
    }
}

impl std::fmt::Debug for OtherFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtherFiles").field("home", &self.home).finish_non_exhaustive()
    }
}

struct Listing {
    own: HashSet<String>,
    /// All files of tensors may be its own.
    has_all: bool,
    /// An index may be its own.
    has_index: bool,
    /// Canonical, if the directory exists.
    destination: Option<PathBuf>,
    folders: BTreeMap<String, bool>,
    bytes: u64,
    found: OtherFiles,
}

impl Listing {
    /// Files come first, and so within the bounds.
    fn home(&mut self, has_index: bool) -> Result<()> {
        let mut entries = self.entries("")?;
        entries.sort_by_key(|entry| entry.kind == FileKind::Directory);
        let is_of_model = |entry: &StoreEntry| OF_MODEL.contains(&&*entry.name);
        if !has_index && !entries.iter().any(is_of_model) {
            entries.iter().for_each(|entry| self.leave(entry.name.clone()));
            return Ok(());
        }
        for entry in &entries {
            self.name_folders(&entry.name)?;
        }
        entries.into_iter().try_for_each(|entry| self.entry("", &entry, false))
    }

    fn name_folders(&mut self, name: &str) -> Result<()> {
        let Some(store) =
            self.found.store.as_ref().filter(|_| [MODEL_INDEX, MODULES].contains(&name))
        else {
            return Ok(());
        };
        let path = self.found.home.join(name);
        let Some(text) = store.read(&path, false, MOST_SETTINGS)? else { return Ok(()) };
        match serde_json::from_slice(&text) {
            Ok(Value::Array(modules)) => {
                let paths = modules.iter().filter_map(|module| module["path"].as_str());
                let folders = paths.filter_map(|path| path.split('/').next());
                self.folders.extend(folders.map(|folder| (folder.to_owned(), true)));
            }
            Ok(Value::Object(parts)) => {
                self.folders.extend(parts.into_iter().map(|(part, _)| (part, false)));
            }
            _ => {}
        }
        Ok(())
    }

    fn folder(&mut self, path: &str, keeps_tensors: bool) -> Result<()> {
        let entries = self.entries(path)?;
        let has_tensors = |it: &StoreEntry| is_of_tensors(&it.name.to_ascii_lowercase());
        if !keeps_tensors && !self.has_own_below(path) && entries.iter().any(has_tensors) {
            let is_named = !self.has_all && !FOLDERS.contains(&path);
            self.found.missing.extend(is_named.then(|| path.into()));
            self.found.left_out.extend((!self.has_all).then(|| path.into()));
            return Ok(());
        }
        entries.into_iter().try_for_each(|entry| self.entry(path, &entry, keeps_tensors))
    }

    fn entries(&mut self, path: &str) -> Result<Vec<StoreEntry>> {
        let Some(store) = &self.found.store else { return Ok(Vec::new()) };
        let from = self.found.home.join(path);
        let mut entries = match store.list(&from) {
            // Credentials may be good for some files only.
            Err(error) if !self.found.is_on_disk && is_refused(&error) => {
                self.found.is_refused = true;
                return Ok(Vec::new());
            }
            // Nothing on the disk has the path of files that a function opened.
            Err(error) if !self.found.is_on_disk && is_not_found(&error) => return Ok(Vec::new()),
            listed => listed.map_err(|error| error.in_path(&from))?,
        };
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if self.found.is_on_disk {
            let listed = fs::read_dir(&from).map_err(|error| Error::io(error, &from))?;
            let names = listed.flatten().map(|entry| entry.file_name());
            let others = names.filter(|name| name.to_str().is_none());
            self.found.left_out.extend(others.map(|name| Path::new(path).join(name)));
        }
        Ok(entries)
    }

    fn entry(&mut self, directory: &str, entry: &StoreEntry, keeps_tensors: bool) -> Result<()> {
        let path = below(directory, &entry.name);
        if self.own.contains(&path) || is_temporary_name(entry.name.as_ref()) {
            return Ok(());
        }
        let from = self.found.home.join(&path);
        let is_link = fs::symlink_metadata(&from).is_ok_and(|found| found.is_symlink());
        let belongs = if keeps_tensors { may_belong } else { OtherFiles::belongs };
        if !belongs(&entry.name) {
            self.leave(path);
        } else if entry.kind == FileKind::Directory && !is_link {
            let keeps_tensors = match directory {
                "" => self.folders.get(&path).copied(),
                _ => (path.split('/').count() <= MOST_FOLDERS).then_some(keeps_tensors),
            };
            match keeps_tensors {
                _ if self.destination.is_some() && from.canonicalize().ok() == self.destination => {
                }
                Some(keeps_tensors) => return self.folder(&path, keeps_tensors),
                None => self.leave(path),
            }
        } else if self.found.files.len() < MOST_FILES
            && let Some(bytes) = self.byte_len(&path, belongs)?
            && bytes <= MOST.min(MOST_TOGETHER - self.bytes)
        {
            self.bytes += bytes;
            self.found.files.push(path);
        } else {
            self.found.missing.extend(keeps_tensors.then(|| PathBuf::from(&path)));
            self.leave(path);
        }
        Ok(())
    }

    // Opens the file, so that an error comes now and not after hours.
    fn byte_len(&self, path: &str, belongs: fn(&str) -> bool) -> Result<Option<u64>> {
        let home = &self.found.home;
        if let (Some(store), false) = (&self.found.store, self.found.is_on_disk) {
            return store.byte_len(&home.join(path)).map(Some);
        }
        if !is_file_below(home, Path::new(path), belongs) {
            return Ok(None);
        }
        Ok(next_to::open(home, path)?.map(|file| file.byte_len()))
    }

    fn leave(&mut self, path: String) {
        let lower = path.to_ascii_lowercase();
        let is_own = self.own.contains(&path)
            || self.has_all && is_of_tensors(&lower)
            || self.has_index && lower.ends_with(".index.json")
            || self.has_own_below(&path);
        self.found.left_out.extend((!is_own).then(|| path.into()));
    }

    fn has_own_below(&self, folder: &str) -> bool {
        let own = self.own.iter().filter_map(|own| own.strip_prefix(folder));
        own.into_iter().any(|rest| rest.starts_with('/'))
    }
}

fn may_belong(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    !name.starts_with('.')
        && is_plain(name)
        && signed_name(&lower).is_none()
        && lower != MANIFEST
        && !NEWEST.contains(&name)
        && !is_secret(&lower)
}

/// A link must not lead out of the directory, where a file may be secret.
fn is_file_below(home: &Path, name: &Path, belongs: fn(&str) -> bool) -> bool {
    let Ok(Some(target)) = next_to::find(home, name) else { return false };
    let belongs = |part: &OsStr| part.to_str().is_some_and(belongs);
    let leads_to_other =
        |home: PathBuf| target.strip_prefix(home).is_ok_and(|target| !target.iter().all(belongs));
    target.is_file() && !home.canonicalize().is_ok_and(leads_to_other)
}

/// The name is in lower case.
fn is_of_tensors(name: &str) -> bool {
    TENSORS.iter().any(|end| name.ends_with(end))
}

fn below(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.into() } else { format!("{directory}/{name}") }
}

fn slashed(path: &Path, home: &Path) -> Option<String> {
    let path = path.strip_prefix(home).unwrap_or(path);
    let parts: Option<Vec<_>> = path.iter().map(|part| part.to_str()).collect();
    Some(parts?.join("/"))
}

#[cfg(test)]
mod tests;
