//! [`Existing`]: the files that an output replaces or hides.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use safetensors_core::Limits;
use safetensors_core::checkpoint::store::Store;
use safetensors_core::checkpoint::{CheckpointFile, CheckpointPath, FilePattern, NEWEST};
use safetensors_core::io::next_to;
use safetensors_formats::Format;
use serde_json::Value;

use crate::input::kind::Judge;
use crate::input::{self, Checkpoint, Opening, address};
use crate::terminal::text;

/// The most bytes of a file that names the newest checkpoint.
const LONGEST_NAME: u64 = 4096;

#[derive(Debug, Default)]
pub(crate) struct Existing {
    pub(super) path: PathBuf,
    /// The directory of new files; `None` at an address.
    pub(super) directory: Option<PathBuf>,
    /// The files that are replaced or removed.
    pub(super) files: Vec<PathBuf>,
    /// Their content in words.
    pub(super) held: String,
    pub(super) hidden: Option<Hidden>,
    pub(super) shard: Option<Shard>,
}

/// The checkpoint that the directory opens as, until it opens as the output.
#[derive(Debug)]
pub(super) struct Hidden {
    pub(super) name: String,
    /// `None` if ranks have saved it.
    pub(super) files: Vec<PathBuf>,
}

/// The checkpoint that the output is a shard of.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) index: PathBuf,
    pub(super) names: BTreeSet<String>,
}

impl Existing {
    pub(crate) fn at_file(path: &Path) -> Self {
        let files: Vec<_> = path.exists().then(|| path.to_owned()).into_iter().collect();
        let held = held(path, &files);
        let hides = files.is_empty()
            && path.file_name() == Some(FilePattern::default().file_name(0, 1).as_ref());
        let hidden = if hides { opens_as(directory(path)) } else { None };
        // A link is followed.
        let place = if path.is_symlink() { identity(path) } else { path.into() };
        let directory = Some(directory(&place).to_owned());
        Self { path: path.into(), directory, files, held, hidden, shard: shard(path) }
    }

    /// Returns the files of these names in a directory.
    pub(crate) fn in_directory(path: &Path, is_new: impl Fn(&str) -> bool) -> Self {
        Self::of_files(path, named(path, is_new))
    }

    fn of_files(path: &Path, files: Vec<PathBuf>) -> Self {
        let held = held(path, &files);
        Self { path: path.into(), directory: Some(path.into()), files, held, ..Self::default() }
    }

    /// The files of the checkpoint in a directory, and of these names, which may be below.
    pub(crate) fn of_checkpoint(path: &Path, pattern: &FilePattern, others: &[&str]) -> Self {
        let mut files = named(path, |name| {
            pattern.matches(name) || name == pattern.index_name() || others.contains(&name)
        });
        let below = others.iter().filter(|name| name.contains('/')).map(|name| path.join(name));
        files.extend(below.filter(|path| path.symlink_metadata().is_ok()));
        Self::of_files(path, files)
    }

    /// Fails if ranks have saved the hidden one.
    pub(crate) fn hiding(mut self) -> anyhow::Result<Self> {
        let Some(hidden) = opens_as(&self.path) else { return Ok(self) };
        anyhow::ensure!(
            !hidden.files.is_empty(),
            "{}: OUT, the last argument, has files that the ranks of a training have saved, which \
             the output would hide, also with --force; choose another directory, or move them away",
            input::shown(&self.path)
        );
        if !hidden.files.iter().any(|file| self.files.contains(file)) {
            self.hidden = Some(hidden);
        }
        Ok(self)
    }

    /// Returns the replaced files of a checkpoint at an address, and others of these names.
    pub(crate) fn at_address(path: &Path, address: &str, others: &[&str]) -> Self {
        let (mut files, mut held) = match address::find(address) {
            Ok(None) => (Vec::new(), String::new()),
            Ok(Some(found)) => (listed(&found).map(Path::to_owned).collect(), totals(&found)),
            Err(why) => (vec![path.to_owned()], format!("data that cannot be read ({why:#})")),
        };
        let others = listed_at(address, others);
        if files.is_empty() {
            held = counted(&others);
        }
        files.extend(others);
        Self { path: path.into(), files, held, ..Self::default() }
    }

    pub(crate) fn has_any(&self, files: &HashSet<PathBuf>) -> bool {
        self.files.iter().any(|file| files.contains(&identity(file)))
    }
}

/// Returns the files of a checkpoint and its index, under their real paths.
pub(crate) fn files_of(checkpoint: &Checkpoint) -> HashSet<PathBuf> {
    let mut files: HashSet<_> = listed(checkpoint).map(identity).collect();
    if input::is_in_parts(checkpoint) {
        // One path, of the index or a pattern, represents all files.
        let parts = listed(checkpoint).flat_map(|it| files_in(directory(it)));
        let is_part = |path: &PathBuf| path.extension().is_some_and(|it| it == "safetensors");
        files.extend(parts.filter(is_part).map(|it| identity(&it)));
    }
    files
}

/// Returns nothing if listing is denied: the save replaces no unexpected file.
fn listed_at(address: &str, names: &[&str]) -> Vec<PathBuf> {
    let Ok((store, path)) = address::store(address) else { return Vec::new() };
    let names: BTreeSet<_> = names.iter().map(|name| path.join(name)).collect();
    let directories: BTreeSet<_> = names.iter().filter_map(|file| file.parent()).collect();
    let list = |directory: &Path| {
        let entries = store.list(directory).unwrap_or_default();
        entries.into_iter().map(|entry| directory.join(entry.name)).collect::<Vec<_>>()
    };
    let mut files: Vec<_> = directories.into_iter().flat_map(list).collect();
    files.retain(|file| names.contains(file));
    files
}

fn listed(checkpoint: &Checkpoint) -> impl Iterator<Item = &Path> {
    checkpoint.files().iter().map(CheckpointFile::path).chain(checkpoint.index_path())
}

/// Describes files at `path`, or in the directory there.
fn held(path: &Path, files: &[PathBuf]) -> String {
    let opening = Opening { judge: Judge::ByName, ..Opening::default() };
    let is_replaced = |found: &Checkpoint| {
        let found = files_of(found);
        files.iter().any(|file| found.contains(&identity(file)))
    };
    if let Some(found) = input::open_file(path, opening).ok().filter(is_replaced) {
        return totals(&found);
    }
    let bytes: u64 = files.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum();
    match files {
        [file] if file == path => text::size(bytes),
        files => format!("{}, {}", counted(files), text::size(bytes)),
    }
}

/// Returns the number of files, and some of their names.
fn counted(files: &[PathBuf]) -> String {
    let names = files.iter().filter_map(|file| file.file_name()?.to_str());
    format!("{} ({})", text::counted(files.len() as u64, "file"), text::some(names))
}

fn totals(checkpoint: &Checkpoint) -> String {
    let bytes: u64 = checkpoint.tensors().map(|tensor| tensor.byte_len()).sum();
    format!("{}, {}", text::counted(checkpoint.len() as u64, "tensor"), text::size(bytes))
}

fn opens_as(directory: &Path) -> Option<Hidden> {
    if let Ok(found) = CheckpointPath::find(directory) {
        let (CheckpointPath::File(path) | CheckpointPath::Index(path)) = &found;
        let name = text::path(path.strip_prefix(directory).unwrap_or(path));
        let mut files = found.files_to_copy().unwrap_or_default();
        files.push(path.clone());
        return Some(Hidden { name, files });
    }
    let names = files_in(directory);
    let names = names.iter().filter_map(|path| path.file_name()?.to_str());
    let is_saved_by_ranks = Format::of_directory(names).is_some_and(Format::is_of_directories)
        || NEWEST.iter().any(|name| says_newest(directory, name))
        || safetensors_core::Checkpoint::open(directory).is_ok();
    if is_saved_by_ranks {
        return Some(Hidden { name: "files that ranks have saved".into(), files: Vec::new() });
    }
    // A checkpoint of another format, such as PyTorch's.
    let other = input::open(directory).ok()?;
    let files: Vec<_> = listed(&other).map(Path::to_owned).collect();
    let name = text::some(files.iter().filter_map(|path| path.file_name()?.to_str()));
    Some(Hidden { name, files })
}

/// Returns `true` if the file names a directory next to it, or has its number, as Megatron does.
fn says_newest(path: &Path, name: &str) -> bool {
    let Ok(said) = next_to::read_file(&path.join(name), LONGEST_NAME) else { return false };
    let Ok(said) = String::from_utf8(said) else { return false };
    let said = Path::new(said.trim());
    let is_number = name != NEWEST[0] && said.to_str().is_some_and(|it| it.parse::<u64>().is_ok());
    is_number || said.file_name() == Some(said.as_os_str()) && path.join(said).is_dir()
}

/// Returns the shard that a file is, by an index next to it or next to the target of a link.
fn shard(path: &Path) -> Option<Shard> {
    let real = identity(path);
    for path in [path, &real] {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        for index in files_in(directory(path)) {
            let names = tensors_in(&index, name).unwrap_or_default();
            if !names.is_empty() {
                return Some(Shard { index, names });
            }
        }
    }
    None
}

fn tensors_in(index: &Path, file: &str) -> Option<BTreeSet<String>> {
    let CheckpointPath::Index(_) = CheckpointPath::from_name(index)? else { return None };
    let text = next_to::read_file(index, Limits::default().index_bytes).ok()?;
    let json: Value = serde_json::from_slice(&text).ok()?;
    let tensors = json["weight_map"].as_object()?.iter().filter(|(_, named)| *named == file);
    Some(tensors.map(|(name, _)| name.clone()).collect())
}

/// Returns sorted files and links.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(|it| !it.is_dir()).collect();
    files.sort_unstable();
    files
}

/// Returns the files and links with such names.
fn named(directory: &Path, is_new: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut files = files_in(directory);
    files.retain(|file| file.file_name().and_then(|it| it.to_str()).is_some_and(&is_new));
    files
}

fn directory(file: &Path) -> &Path {
    file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the same for all paths to a file.
pub(crate) fn identity(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.into())
}
