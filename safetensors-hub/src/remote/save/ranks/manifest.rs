//! [`Manifest`]: what the first rank of an attempt finds, and all others rely on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Serialize};

use crate::remote::object::version_of;
use crate::remote::save::directory::{Directory, Files, Put};

/// The name of the object that describes an attempt.
pub(super) const MANIFEST: &str = "attempt.json";

/// The most bytes of that object. A directory of 100,000 files needs 10 MB.
const MOST: u64 = 64 << 20;

/// What `attempt.json` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// A number that no other attempt has, not even one of the same name.
    pub(super) id: String,
    /// The digest of what all ranks have in common.
    pub(super) digest: String,
    /// The version of the index that was in place.
    pub(super) index: Option<String>,
    /// The files that the earlier checkpoint may consist of, with their versions.
    pub(super) files: BTreeMap<String, String>,
    /// The attempts that began before. They may be completed before this one, but not after it.
    pub(super) earlier: Attempts,
}

/// Directories, and the ids of the attempts whose objects lie in each.
pub(in crate::remote::save) type Attempts = BTreeMap<String, BTreeSet<String>>;

impl Manifest {
    /// The id of an attempt. `None` without a manifest, and for one that no save has written.
    pub(super) fn id_in(objects: &Directory) -> io::Result<Option<String>> {
        match Self::read(objects) {
            Ok(found) => Ok(found.map(|manifest| manifest.id)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the manifest of an attempt; `None` if there is none.
    pub(super) fn read(objects: &Directory) -> io::Result<Option<Self>> {
        let Some((_, json)) = objects.get(MANIFEST, MOST)? else { return Ok(None) };
        serde_json::from_slice(&json).map(Some).map_err(|error| {
            let message = format!("{MANIFEST} is malformed: {error}");
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }

    /// Writes the manifest of an attempt that begins. Returns the one that counts: that of another
    /// rank, if it came first.
    pub(super) fn begin(self, objects: &Directory) -> io::Result<Self> {
        match objects.put(MANIFEST, &serde_json::to_vec(&self)?, None)? {
            Put::Done(_) => Ok(self),
            Put::Overtaken => Self::read(objects)?.ok_or_else(|| {
                let message = format!("{MANIFEST} was written and removed by others meanwhile");
                io::Error::other(message)
            }),
        }
    }

    /// The name of a file of the earlier checkpoint that is no longer what it was.
    pub(super) fn changed(&self, now: &Files) -> Option<&str> {
        // A file that is gone was removed by the clean-up of an earlier attempt.
        let is_same = |name: &str, version: &str| {
            now.get(name).is_none_or(|meta| version_of(meta) == version)
        };
        let mut files = self.files.iter();
        files.find(|(name, version)| !is_same(name, version)).map(|(name, _)| name.as_str())
    }
}
