//! [`Target`]: a file or checkpoint to check. Each file is checked once.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors_core::Checkpoint;

use super::discover::Found;
use crate::{input, text};

/// One file or checkpoint to check, or a path where there is none.
#[derive(Debug)]
pub(super) struct Target {
    /// The path that was named, or found below a directory that was named.
    pub(super) path: PathBuf,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Named,
    Found,
    /// There is nothing to check, for this reason.
    Failed(String),
}

impl Target {
    /// Opens the file or checkpoint. Refuses a FIFO that was found and not named, because opening
    /// it could wait for ever.
    pub(super) fn open(&self) -> anyhow::Result<Checkpoint> {
        match &self.origin {
            Origin::Named => input::open(&self.path),
            Origin::Found => input::open_file(&self.path),
            Origin::Failed(why) => anyhow::bail!("{}: {why}", text::path(&self.path)),
        }
    }

    fn is_index(&self) -> bool {
        !matches!(self.origin, Origin::Failed(_))
            && self.path.extension().is_some_and(|extension| extension == "json")
    }
}

/// The targets of several paths. Each file is there once, and shards are part of their index.
pub(super) fn of(paths: &[PathBuf]) -> Vec<Target> {
    let mut targets: Vec<_> = paths.iter().flat_map(|path| expand(path)).collect();
    if targets.len() > 1 {
        let mut seen = BTreeSet::new();
        for target in targets.iter().filter(|target| target.is_index()) {
            // An index that cannot be opened is reported when it is checked; its shards are then
            // checked by themselves.
            if let Ok(checkpoint) = Checkpoint::open(&target.path) {
                seen.extend(checkpoint.files().iter().map(|shard| identity(shard.path())));
            }
        }
        targets.retain(|target| seen.insert(identity(&target.path)));
    }
    targets
}

/// The targets of one path. A directory has those in it and below it. Any other path is one target.
fn expand(path: &Path) -> Vec<Target> {
    if input::is_stdin(path) || !path.is_dir() {
        return vec![Target { path: path.into(), origin: Origin::Named }];
    }
    let found = Found::below(path);
    let files = found.paths.into_iter().map(|path| Target { path, origin: Origin::Found });
    let failed = |(path, error): (PathBuf, std::io::Error)| Target {
        path,
        origin: Origin::Failed(error.to_string()),
    };
    let mut targets: Vec<_> = files.chain(found.unreadable.into_iter().map(failed)).collect();
    if targets.is_empty() {
        let why = "no *.safetensors file or index in this directory or below it".into();
        targets.push(Target { path: path.into(), origin: Origin::Failed(why) });
    }
    targets.sort_by(|a, b| a.path.cmp(&b.path));
    targets
}

/// The identity of an entry of a directory, the same for all paths to it. Two links to one file are
/// two entries, as are two revisions in the Hub's cache.
fn identity(path: &Path) -> PathBuf {
    let canonical = || {
        let directory = path
            .parent()
            .filter(|directory| !directory.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        Some(fs::canonicalize(directory).ok()?.join(path.file_name()?))
    };
    // `-` is standard input, not a file in the current directory.
    if input::is_stdin(path) { path.into() } else { canonical().unwrap_or_else(|| path.into()) }
}
