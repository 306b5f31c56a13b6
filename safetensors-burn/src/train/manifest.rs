//! The manifest of an epoch: its files, and how to check that they are complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::Path;

use safetensors_core::digest::Digest;
use safetensors_core::framework::NameList;
use safetensors_core::io::next_to;
use safetensors_core::{Error, Result};
use serde::{Deserialize, Serialize};

use super::linked::{DeltaOf, Stored};
use super::{EpochError, RecordKind};

/// The name of the manifest.
// The first name of all, so that it goes last where files are removed one by one.
pub(super) const NAME: &str = "manifest.json";

const FORMAT: &str = "safetensors-bridge epoch";

const VERSION: u32 = 1;

/// Releases that cannot read deltas pass over the epoch, and do not delete it.
const VERSION_WITH_DELTAS: u32 = 2;

const VERSIONS: RangeInclusive<u32> =
    VERSION..=if cfg!(feature = "delta") { VERSION_WITH_DELTAS } else { VERSION };

const MOST_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: String,
    version: u32,
    epoch: usize,
    pub(super) files: BTreeMap<String, EpochFile>,
}

/// The part that every version has.
#[derive(Deserialize)]
struct Outline {
    format: String,
    version: u32,
}

/// Allows an epoch of any version, an empty directory, a link, or nothing.
pub(super) fn refuse_foreign(path: &Path) -> Result<()> {
    let found = match found(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        found => found.map_err(|error| Error::io(error, path))?,
    };
    found.map_or(Ok(()), |found| Err(Error::from(EpochError::Foreign { found }).in_path(path)))
}

fn found(path: &Path) -> io::Result<Option<String>> {
    let kind = fs::symlink_metadata(path)?.file_type();
    // Another program may use the directory that a link leads to. A save replaces only the link, so
    // that a link never ends a training.
    if kind.is_symlink() {
        return Ok(None);
    }
    if !kind.is_dir() {
        return Ok(Some("a file".into()));
    }
    let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    let names = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.collect();
    // burn keeps its metrics in directories of the same names, such as `train/epoch-12`.
    if names.is_empty() || is_own(path)? {
        return Ok(None);
    }
    names.sort();
    Ok(Some(format!("a directory with {}", NameList(&names))))
}

/// Returns `true` even if the manifest is broken.
pub(super) fn is_own(directory: &Path) -> io::Result<bool> {
    if fs::symlink_metadata(directory)?.is_symlink() {
        return Ok(false);
    }
    let Ok(Some(text)) = next_to::read(directory, NAME, MOST_BYTES) else { return Ok(false) };
    let outline: Result<Outline, _> = serde_json::from_slice(&text);
    Ok(outline.is_ok_and(|outline| outline.format == FORMAT))
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EpochFile {
    /// The file as it was saved, even if it has become a delta.
    #[serde(flatten)]
    pub(super) stored: Stored,
    pub(super) tensors: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) delta: Option<DeltaOf>,
}

impl EpochFile {
    /// Describes a file that was just saved.
    pub(super) fn describe(path: &Path, tensors: usize) -> Result<Self> {
        Ok(Self { stored: Stored::describe(path)?, tensors, delta: None })
    }

    pub(super) fn check(&self, path: &Path) -> Result<()> {
        match &self.delta {
            Some(delta) => delta.check(path),
            None => self.stored.open(path).map(drop),
        }
    }
}

impl Manifest {
    pub(super) fn new(epoch: usize, files: BTreeMap<String, EpochFile>) -> Self {
        let has_deltas = files.values().any(|file| file.delta.is_some());
        let version = if has_deltas { VERSION_WITH_DELTAS } else { VERSION };
        Self { format: FORMAT.into(), version, epoch, files }
    }

    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(NAME);
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from);
        let written = text.and_then(|text| fs::write(&path, text + "\n"));
        written.map_err(|error| Error::io(error, &path))
    }

    /// Returns the manifest and its digest.
    pub(super) fn read(directory: &Path, epoch: usize) -> Result<(Self, Digest)> {
        let file = next_to::open(directory, NAME)?.ok_or_else(|| {
            Error::from(EpochError::NoManifest { manifest: NAME }).in_path(directory)
        })?;
        let path = directory.join(NAME);
        // A longer one is malformed, which is no failure of the system.
        let mut text = Vec::new();
        let read = file.file().take(MOST_BYTES).read_to_end(&mut text);
        read.map_err(|error| Error::io(error, &path))?;
        let manifest = Self::parse(&text, epoch).map_err(|error| error.in_path(&path))?;
        Ok((manifest, Digest::compute(&text)))
    }

    fn parse(text: &[u8], epoch: usize) -> Result<Self> {
        let bad = |problem: String| Error::from(EpochError::BadManifest { problem });
        // First the part that every version has, so that a newer manifest is reported as newer, not
        // as malformed.
        let outline: Outline =
            serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        if outline.format != FORMAT {
            let found = outline.format;
            return Err(bad(format!("expected the format {FORMAT:?}, found {found:?}")));
        }
        if !VERSIONS.contains(&outline.version) {
            let expected = *VERSIONS.end();
            return Err(EpochError::Version { expected, found: outline.version }.into());
        }
        let manifest: Self =
            serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        // A name with a separator would lead out of the directory.
        let is_path = |name: &&String| Path::new(name).file_name() != Some(name.as_ref());
        let deltas = manifest.files.values().filter_map(|file| file.delta.as_ref());
        let mut names = manifest.files.keys().chain(deltas.flat_map(|delta| delta.files.keys()));
        if let Some(name) = names.find(is_path).cloned() {
            return Err(bad(format!("expected the name of a file, found {name:?}")));
        }
        drop(names);
        if manifest.epoch != epoch {
            return Err(EpochError::OtherEpoch { expected: epoch, found: manifest.epoch }.into());
        }
        for part in RecordKind::ALL {
            if !manifest.files.contains_key(part.file_name()) {
                return Err(manifest.no_record(part));
            }
        }
        Ok(manifest)
    }

    pub(super) fn no_record(&self, part: RecordKind) -> Error {
        let found = self.files.keys().cloned().collect();
        EpochError::NoRecord { name: part.file_name().into(), found }.into()
    }

    pub(super) fn check(&self, directory: &Path) -> Result<()> {
        self.files.iter().try_for_each(|(name, file)| file.check(&directory.join(name)))
    }

    /// Checks the files that it opens, so others may replace them. Deltas are opened as complete
    /// files.
    pub(super) fn open(
        &self,
        directory: &Path,
        made: Option<&BTreeMap<String, File>>,
    ) -> Result<BTreeMap<&str, File>> {
        let mut opened = BTreeMap::new();
        for (name, file) in &self.files {
            let path = directory.join(name);
            let made = made.and_then(|made| made.get(name)).filter(|_| file.delta.is_some());
            let file = match made {
                Some(made) => made.try_clone().map_err(|error| Error::io(error, &path))?,
                None => file.stored.open(&path)?,
            };
            opened.insert(name.as_str(), file);
        }
        Ok(opened)
    }
}
