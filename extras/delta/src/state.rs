//! [`StateFile`]: the version that the directory of a follower has.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::io::beside;
use safetensors_core::save::AtomicFile;
use safetensors_core::{ErrorKind, SaveOptions};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::plan::State;

/// The file in the directory of a follower that records its version. It is hidden, so that no copy
/// of the checkpoint has it.
pub(crate) const STATE: &str = ".safetensors-follow.json";

/// The most bytes of that file, which names each file of a version.
const MOST: u64 = 100_000_000;

/// The content of that file. A follower has written to the directory, also if there is no version
/// yet.
pub(crate) struct StateFile {
    here: Option<State>,
}

/// The name of a file, its length, and the time of its last change: enough to distinguish a new
/// file from an old one of its name.
type Stamp = (String, u64, String);

impl StateFile {
    /// Fails if there is a state that must not be replaced: of a version that was changed since, or
    /// a file of somebody else.
    pub(crate) fn check_free(directory: &Path, overwrites: bool) -> Result<()> {
        let path = directory.join(STATE);
        match fs::symlink_metadata(&path) {
            Ok(_) if !overwrites => Err(Error::from(ErrorKind::FileExists).in_path(path)),
            _ => Ok(()),
        }
    }

    /// Returns the version that is in the directory.
    pub(crate) fn here(&self) -> Option<&State> {
        self.here.as_ref()
    }

    /// Reads the state of a directory. `None` if there is none, or if no follower has written it.
    /// While one version replaces another, the files decide which one it is.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let Some(text) = beside::read(directory, STATE, MOST)? else { return Ok(None) };
        let state: Value = serde_json::from_slice(&text).unwrap_or_default();
        let before = version_of(&state);
        let Some(next) = version_of(&state["next"]) else {
            return Ok(before.map(|here| Self { here: Some(here) }));
        };
        let expected: Vec<Stamp> =
            serde_json::from_value(state["next"]["files"].clone()).unwrap_or_default();
        let is_next = stamps_of_opened(directory).is_some_and(|found| found == expected);
        Ok(Some(Self { here: if is_next { Some(next) } else { before } }))
    }

    /// Returns the text of the file while files with these names, which are in the directory
    /// `staging`, replace the version that is here.
    pub(crate) fn changing(
        here: Option<&State>,
        next: &State,
        staging: &Path,
        files: &[String],
    ) -> Result<String> {
        let stamps = files.iter().map(|name| stamp(staging, name));
        let stamps = stamps.collect::<io::Result<Vec<_>>>();
        let stamps = stamps.map_err(|error| Error::from(error).in_path(staging))?;
        let mut state = here.map_or_else(|| json!({}), json_of);
        state["next"] = json_of(next);
        state["next"]["files"] = json!(stamps);
        Ok(format!("{state}\n"))
    }

    /// Says that the new version is here, unless another follower has written since.
    pub(crate) fn settle(directory: &Path, changing: &str, state: &State) -> Result<()> {
        let path = directory.join(STATE);
        if beside::read(directory, STATE, MOST)?.as_deref() != Some(changing.as_bytes()) {
            return Ok(());
        }
        let mut file = AtomicFile::create(&path, &SaveOptions::new())?;
        file.file().write_all(format!("{}\n", json_of(state)).as_bytes())?;
        file.commit()
    }
}

fn json_of(state: &State) -> Value {
    json!({ "version": state.version, "fingerprint": state.fingerprint })
}

fn version_of(state: &Value) -> Option<State> {
    let fingerprint = state["fingerprint"].as_str()?.to_owned();
    Some(State { version: state["version"].as_u64()?, fingerprint })
}

/// Returns the stamps of the files that a directory opens as, sorted.
fn stamps_of_opened(directory: &Path) -> Option<Vec<Stamp>> {
    let mut names = Vec::new();
    for file in CheckpointPath::find(directory).ok()?.files().ok()? {
        names.push(file.strip_prefix(directory).ok()?.to_str()?.to_owned());
    }
    names.sort_unstable();
    names.iter().map(|name| stamp(directory, name).ok()).collect()
}

fn stamp(directory: &Path, name: &str) -> io::Result<Stamp> {
    let found = fs::metadata(directory.join(name))?;
    let time = found.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((name.into(), found.len(), time.as_nanos().to_string()))
}
