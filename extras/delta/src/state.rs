//! [`StateFile`]: the version of a follower's directory.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::io::next_to;
use safetensors_core::save::AtomicFile;
use safetensors_core::{ErrorKind, SaveOptions};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::plan::LocalVersion;

/// Hidden, so that no copy of the checkpoint has it.
pub(crate) const STATE: &str = ".safetensors-follow.json";

/// In bytes. The file names each file of a version.
const MOST: u64 = 100_000_000;

/// Present once a follower has written to the directory, even without a version.
pub(crate) struct StateFile {
    here: Option<LocalVersion>,
}

/// Name, length and time of a file: distinguishes a new file from an old one.
type Stamp = (String, u64, String);

impl StateFile {
    /// Fails if the state's version was changed since, or is a stranger's file.
    pub(crate) fn check_free(directory: &Path, overwrites: bool) -> Result<()> {
        let path = directory.join(STATE);
        match fs::symlink_metadata(&path) {
            Ok(_) if !overwrites => Err(Error::from(ErrorKind::FileExists).in_path(path)),
            _ => Ok(()),
        }
    }

    pub(crate) fn here(&self) -> Option<&LocalVersion> {
        self.here.as_ref()
    }

    /// `None` without a state of a follower. During a replacement the files decide the version.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let Some(text) = next_to::read(directory, STATE, MOST)? else { return Ok(None) };
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

    /// `files` are in `staging`.
    pub(crate) fn changing(
        here: Option<&LocalVersion>,
        next: &LocalVersion,
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

    pub(crate) fn settle(directory: &Path, changing: &str, state: &LocalVersion) -> Result<()> {
        let path = directory.join(STATE);
        if next_to::read(directory, STATE, MOST)?.as_deref() != Some(changing.as_bytes()) {
            return Ok(());
        }
        let mut file = AtomicFile::create(&path, &SaveOptions::new())?;
        file.file().write_all(format!("{}\n", json_of(state)).as_bytes())?;
        file.commit()
    }
}

fn json_of(state: &LocalVersion) -> Value {
    json!({ "version": state.version, "fingerprint": state.fingerprint })
}

fn version_of(state: &Value) -> Option<LocalVersion> {
    let fingerprint = state["fingerprint"].as_str()?.to_owned();
    Some(LocalVersion { version: state["version"].as_u64()?, fingerprint })
}

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
