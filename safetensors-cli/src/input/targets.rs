//! [`Target`]: one of several files or checkpoints of a command.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io, slice};

use safetensors_core::checkpoint::{CheckpointPath, FilePattern};
use safetensors_core::error::RankProblem;
use safetensors_core::io::FileSource;
use safetensors_core::{Error, ErrorKind, Limits};

use crate::input::address;
use crate::input::discover::FoundPaths;
use crate::input::{self, Checkpoint, Opening, delta, other};
use crate::terminal::text::{self, Natural};

/// One file or checkpoint, or a path where there is none.
#[derive(Debug)]
pub(crate) struct Target {
    /// Named by the user, or found below a directory.
    path: PathBuf,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Named,
    Found,
    /// Why there is nothing to open.
    Failed(io::ErrorKind, String),
}

pub(crate) struct Targets {
    pub(crate) targets: Vec<Target>,
    /// Files of other formats by their names, which are opened only if they are named.
    pub(crate) others: Vec<PathBuf>,
}

impl Target {
    pub(crate) fn named(path: &Path) -> Self {
        Self { path: path.into(), origin: Origin::Named }
    }

    /// Returns the unescaped name for headings and JSON.
    pub(crate) fn name(&self) -> String {
        match address::in_path(&self.path) {
            _ if input::is_stdin(&self.path) => input::name(&self.path),
            Some(address) => address::shown(address),
            None => text::lossy(&self.path),
        }
    }

    /// The path may be `-`. Fails if there is nothing to open.
    pub(crate) fn path(&self) -> anyhow::Result<&Path> {
        match &self.origin {
            Origin::Named | Origin::Found => Ok(&self.path),
            Origin::Failed(kind, why) => {
                Err(Error::from(io::Error::new(*kind, why.clone())).in_path(&self.path).into())
            }
        }
    }

    /// Refuses a FIFO that was found and not named: opening it could wait for ever.
    pub(crate) fn open(&self) -> anyhow::Result<Checkpoint> {
        self.open_with(Opening::default())
    }

    /// [`open`](Target::open) with `opening` for other formats.
    pub(crate) fn open_with(&self, opening: Opening) -> anyhow::Result<Checkpoint> {
        match &self.origin {
            Origin::Found => input::open_file(&self.path, opening),
            Origin::Named | Origin::Failed(..) => input::open_with(self.path()?, opening),
        }
    }

    /// Files with parts of tensors, as stored: with their index, or each as a separate checkpoint.
    pub(crate) fn parts(&self, checkpoint: &Checkpoint) -> anyhow::Result<Vec<Checkpoint>> {
        match address::in_path(&self.path) {
            _ if !input::is_in_parts(checkpoint) => Ok(Vec::new()),
            Some(address) => address::parts(address),
            None => input::parts(&self.path),
        }
    }

    /// Returns the [parts](Target::parts), or the checkpoint itself without any.
    pub(crate) fn stored<'a>(
        checkpoint: &'a Checkpoint,
        parts: &'a [Checkpoint],
    ) -> &'a [Checkpoint] {
        if parts.is_empty() { slice::from_ref(checkpoint) } else { parts }
    }

    /// Returns the shards of an index, each alone.
    pub(crate) fn shards(&self) -> Vec<Self> {
        let files = if self.is_index() { files_of(&self.path) } else { Vec::new() };
        files.iter().map(|file| Self::named(file)).collect()
    }

    /// Returns the errors of all shards, if opening failed because of one.
    pub(crate) fn faults(&self, error: anyhow::Error) -> Vec<anyhow::Error> {
        let faults = if error.is::<Error>() { input::faults(&self.path) } else { Vec::new() };
        if faults.is_empty() {
            return vec![error];
        }
        faults.into_iter().map(anyhow::Error::from).collect()
    }

    /// Returns `true` if a found file is gone.
    // A save removes the files that it replaces, also between the search and the check.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.origin, Origin::Found) && is_missing(&self.path)
    }

    /// Returns `true` if a found file has parts of tensors, and its directory opens without it.
    // A save for ranks puts its files in place before their index.
    pub(crate) fn is_unused_part(&self, error: &anyhow::Error) -> bool {
        let opens = |directory: &Path| safetensors_core::Checkpoint::open(directory).is_ok();
        matches!(self.origin, Origin::Found)
            && error.downcast_ref().is_some_and(is_of_parts)
            && self.path.parent().is_some_and(opens)
    }

    fn is_index(&self) -> bool {
        !matches!(self.origin, Origin::Failed(..))
            && self.path.extension().is_some_and(|extension| extension == "json")
    }
}

/// Returns each file once, and shards as part of their index.
pub(crate) fn search(paths: &[PathBuf]) -> Targets {
    let mut others = Vec::new();
    let mut targets: Vec<_> = paths.iter().flat_map(|path| expand(path, &mut others)).collect();
    let mut seen = BTreeSet::new();
    if targets.len() > 1 {
        for index in targets.iter().filter(|target| target.is_index()) {
            seen.extend(files_of(&index.path).iter().map(|file| identity(file)));
        }
    }
    let missing = missing_indexes(&targets, &seen);
    seen.extend(other_parts(&targets));
    for (shard, missing) in missing {
        let at = targets.iter().position(|target| target.path == shard).unwrap_or(targets.len());
        targets.insert(at, missing);
    }
    targets.retain(|target| seen.insert(identity(&target.path)));
    others.retain(|path| seen.insert(identity(path)));
    Targets { targets, others }
}

/// Returns the files that are checked with their index, or none if it cannot be read.
fn files_of(index: &Path) -> Vec<PathBuf> {
    if let Some(address) = address::in_path(index) {
        let opened = address::open(address).ok();
        let paths = |it: Checkpoint| it.files().iter().map(|it| it.path().into()).collect();
        return opened.map(paths).unwrap_or_default();
    }
    match CheckpointPath::Index(index.into()).files() {
        Err(error) if matches!(error.kind(), ErrorKind::IsDelta { .. }) => delta::files(index),
        files => files.unwrap_or_default(),
    }
}

/// Parts of split GGUF files, except the first, which opens with them.
fn other_parts(targets: &[Target]) -> BTreeSet<PathBuf> {
    let mut others = BTreeSet::new();
    let is_part = |target: &&Target| {
        targets.len() > 1
            && address::in_path(&target.path).is_none()
            && other::may_be_part(&target.path)
    };
    for target in targets.iter().filter(is_part) {
        let first = identity(&target.path);
        if others.contains(&first) {
            continue;
        }
        // One that cannot be opened is reported when it is checked.
        if let Ok(checkpoint) = target.open() {
            let files = checkpoint.files().iter().map(|file| identity(file.path()));
            others.extend(files.filter(|file| *file != first));
        }
    }
    others
}

/// Returns the missing indexes of found shards by their names, each with its first shard. `seen`
/// are shards with an index.
fn missing_indexes(targets: &[Target], seen: &BTreeSet<PathBuf>) -> Vec<(PathBuf, Target)> {
    let mut missing = BTreeMap::new();
    for target in targets.iter().filter(|target| matches!(target.origin, Origin::Found)) {
        let name = target.path.file_name().and_then(|name| name.to_str());
        let Some((pattern, _, shards)) = name.and_then(FilePattern::from_shard_name) else {
            continue;
        };
        let index = target.path.with_file_name(pattern.index_name());
        // A save of shards puts their index in place before it removes an old single file, and a
        // save of a single file puts that in place before it removes an old index. So this order
        // counts.
        let single = target.path.with_file_name(pattern.file_name(0, 1));
        let has_none = is_missing(&single)
            && is_missing(&index)
            && is_missing(&single)
            && !is_missing(&target.path);
        if has_none && !seen.contains(&identity(&target.path)) {
            missing.entry((index, shards)).or_insert_with(Vec::new).push(&target.path);
        }
    }
    let of_shards = |((index, shards), there): ((PathBuf, usize), Vec<&PathBuf>)| {
        let first = there[0].clone();
        let why = format!(
            "missing: {} and the other numbered shards are no checkpoint without an index; {} of {} \
             are there",
            text::short(&first.file_name().unwrap_or_default().to_string_lossy()),
            text::count(there.len() as u64),
            text::count(shards as u64),
        );
        (first, Target { path: index, origin: Origin::Failed(io::ErrorKind::NotFound, why) })
    };
    missing.into_iter().map(of_shards).collect()
}

fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns the targets in and below a directory, or the one of another path. Adds files of other
/// formats to `others`.
fn expand(path: &Path, others: &mut Vec<PathBuf>) -> Vec<Target> {
    if input::is_stdin(path) || !path.is_dir() {
        return vec![Target::named(path)];
    }
    let mut found = FoundPaths::below(path);
    take_parts_together(&mut found.paths);
    others.append(&mut found.others);
    let files = found.paths.into_iter().map(|path| Target { path, origin: Origin::Found });
    let failed = |(path, error): (PathBuf, io::Error)| Target {
        path,
        origin: Origin::Failed(error.kind(), error.to_string()),
    };
    let mut targets: Vec<_> = files.chain(found.unreadable.into_iter().map(failed)).collect();
    if targets.is_empty() {
        let why = "no *.safetensors file or index in this directory or below it".into();
        let origin = Origin::Failed(io::ErrorKind::NotFound, why);
        targets.push(Target { path: path.into(), origin });
    }
    targets.sort_by(|a, b| by_name(&a.path).cmp(by_name(&b.path)));
    targets
}

/// Compares parts of a path, numbers by their value.
fn by_name(path: &Path) -> impl Iterator<Item = Natural<'_>> {
    path.iter().map(|part| Natural(part.to_string_lossy()))
}

/// Replaces files with parts of the same tensors by their directory.
fn take_parts_together(paths: &mut Vec<PathBuf>) {
    let mut directories: BTreeSet<_> = paths.iter().filter_map(|path| path.parent()).collect();
    for path in paths.iter() {
        let is_index = path.extension().is_some_and(|extension| extension == "json");
        if is_index || path.file_name().is_some_and(|name| name == "model.safetensors") {
            // The directory opens as this one.
            path.parent().map(|directory| directories.remove(directory));
        }
    }
    directories.retain(|directory| has_parts(directory));
    let divided: BTreeSet<PathBuf> = directories.into_iter().map(Path::to_owned).collect();
    let is_in_divided =
        |path: &Path| path.parent().is_some_and(|directory| divided.contains(directory));
    paths.retain(|path| !(is_in_divided(path) && has_parts(path)));
    paths.extend(divided);
}

/// Returns `true` if a file has parts of tensors, or a directory opens as their whole tensors.
pub(crate) fn has_parts(path: &Path) -> bool {
    // Sources that lend their bytes are refused for tensors in parts, before these are joined.
    let open = |path: &Path| FileSource::open(path);
    safetensors_core::Checkpoint::open_by(path, &Limits::default(), open)
        .is_err_and(|error| is_of_parts(&error))
}

/// Returns `true` if a file did not open because its tensors are parts.
pub(crate) fn is_of_parts(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Ranks { problem: RankProblem::PartsOfTensors })
}

/// Returns the same for all paths to an entry of a directory, and all spellings if case does not
/// count. Two links to a file are two entries, as are two revisions in the Hub's cache.
fn identity(path: &Path) -> PathBuf {
    let canonical = || {
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
            && let Ok(canonical) = fs::canonicalize(path)
        {
            return Some(canonical);
        }
        let directory = path
            .parent()
            .filter(|directory| !directory.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        Some(fs::canonicalize(directory).ok()?.join(path.file_name()?))
    };
    // `-` is standard input, not a file in the current directory.
    if input::is_stdin(path) { path.into() } else { canonical().unwrap_or_else(|| path.into()) }
}
