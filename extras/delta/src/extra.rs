//! [`Extra`]: additions to the shared format. [`Change`]: the change of a tensor.
//!
//! The index's metadata has texts only, so a list is lines of JSON, such as `["name","F32",[2,3]]`,
//! as in the digest of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use safetensors_core::error::IndexProblem;
use safetensors_core::{Dtype, ErrorKind as CoreKind, Limits, Metadata, shape};
use serde_json::json;

use crate::error::{Error, ErrorKind, Result};
use crate::format::{ADDED, METADATA, REMOVED, REPLACED};

/// The change of a tensor by a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a tensor's dtype and shape afterwards")]
pub enum Change<'a> {
    /// Some bytes change. The delta has the difference.
    Changed,
    /// The base lacks the tensor. The delta has all of it.
    Added { dtype: Dtype, shape: &'a [usize] },
    /// Dtype or shape changes, or the difference is larger than the tensor. The delta has all of
    /// it.
    Replaced { dtype: Dtype, shape: &'a [usize] },
    /// The result lacks the tensor.
    Removed,
}

impl<'a> Change<'a> {
    /// Returns dtype and shape if the delta has the entire tensor.
    #[must_use]
    pub fn whole(self) -> Option<(Dtype, &'a [usize])> {
        match self {
            Self::Added { dtype, shape } | Self::Replaced { dtype, shape } => Some((dtype, shape)),
            Self::Changed | Self::Removed => None,
        }
    }

    /// Returns the word that the command prints.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Added { .. } => "added",
            Self::Replaced { .. } => "replaced",
            Self::Removed => "removed",
        }
    }
}

pub(crate) type Form<'a> = (Dtype, &'a [usize]);

/// The additions of a delta. Its encoding makes other readers refuse it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    pub(crate) added: BTreeMap<String, (Dtype, Vec<usize>)>,
    pub(crate) replaced: BTreeMap<String, (Dtype, Vec<usize>)>,
    pub(crate) removed: BTreeSet<String>,
    pub(crate) metadata: Option<Metadata>,
}

impl Extra {
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'static str, String)> {
        let tensors =
            |tensors: &BTreeMap<String, (Dtype, Vec<usize>)>| {
                lines(tensors.iter().map(|(name, (dtype, shape))| {
                    json!([name, dtype.to_string(), shape]).to_string()
                }))
            };
        let removed = lines(self.removed.iter().map(|name| json!(name).to_string()));
        // Added and replaced tensors are separate lists, so that a delta on another base is an
        // error before anything is read.
        let lists = [
            (ADDED, tensors(&self.added)),
            (REPLACED, tensors(&self.replaced)),
            (REMOVED, removed),
        ];
        let metadata = self.metadata.as_ref().map(|metadata| {
            (METADATA, lines(metadata.iter().map(|entry| json!(entry).to_string())))
        });
        // Metadata without entries says that there is none.
        lists.into_iter().filter(|(_, list)| !list.is_empty()).chain(metadata)
    }

    /// Applies the limits of headers.
    pub(crate) fn read(index: &Metadata, is_allowed: bool, limits: &Limits) -> Result<Self> {
        let mut keys = [ADDED, REPLACED, REMOVED, METADATA].into_iter();
        if let (false, Some(key)) = (is_allowed, keys.find(|key| index.contains_key(*key))) {
            let expected = "absent unless the encoding is xor-or-whole or overwrite-or-whole";
            return Err(
                ErrorKind::BadField { key, expected, found: index.get(key).cloned() }.into()
            );
        }
        let extra = Self {
            added: tensors(index, ADDED, limits)?,
            replaced: tensors(index, REPLACED, limits)?,
            removed: removed(index, limits)?,
            metadata: metadata(index, limits)?,
        };
        extra.refuse_two_changes()?;
        Ok(extra)
    }

    fn refuse_two_changes(&self) -> Result<()> {
        let two = |name: &str, one, other| {
            Err(Error::from(ErrorKind::TwoChanges { one, other }).in_tensor(name))
        };
        if let Some(name) = self.added.keys().find(|name| self.replaced.contains_key(*name)) {
            return two(name, "added", "replaced");
        }
        for name in &self.removed {
            if self.added.contains_key(name) || self.replaced.contains_key(name) {
                return two(name, self.change(name).name(), "removed");
            }
        }
        Ok(())
    }

    pub(crate) fn change(&self, name: &str) -> Change<'_> {
        match (self.added.get(name), self.replaced.get(name)) {
            (Some((dtype, shape)), _) => Change::Added { dtype: *dtype, shape },
            (_, Some((dtype, shape))) => Change::Replaced { dtype: *dtype, shape },
            (None, None) => Change::Changed,
        }
    }

    pub(crate) fn check_names(&self, has_bytes: &BTreeSet<&str>) -> Result<()> {
        let error = |name: &str, kind: ErrorKind| Err(Error::from(kind).in_tensor(name));
        for name in self.added.keys().chain(self.replaced.keys()) {
            if !has_bytes.contains(name.as_str()) {
                return error(name, ErrorKind::NoBytes { change: self.change(name).name() });
            }
        }
        match self.removed.iter().find(|name| has_bytes.contains(name.as_str())) {
            Some(name) => error(name, ErrorKind::TwoChanges { one: "changed", other: "removed" }),
            None => Ok(()),
        }
    }
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    lines.collect::<Vec<_>>().join("\n")
}

fn lines_of<'i>(
    index: &'i Metadata,
    key: &str,
    limit: usize,
) -> Result<impl Iterator<Item = &'i str> + use<'i>> {
    let text = index.get(key).map_or("", String::as_str);
    // Counted before memory is taken for them.
    if text.lines().nth(limit).is_some() {
        let problem = IndexProblem::TooManyEntries { limit };
        return Err(CoreKind::BadIndex { problem }.into());
    }
    Ok(text.lines())
}

fn bad_line(key: &'static str, expected: &'static str, found: &str) -> Error {
    ErrorKind::BadField { key, expected, found: Some(found.into()) }.into()
}

fn tensors(
    index: &Metadata,
    key: &'static str,
    limits: &Limits,
) -> Result<BTreeMap<String, (Dtype, Vec<usize>)>> {
    let mut found = BTreeMap::new();
    for line in lines_of(index, key, limits.index_entries)? {
        let bad = || bad_line(key, "lines of [name, dtype, shape] in JSON", line);
        let dimensions = line.rsplit_once('[').map_or(0, |(_, shape)| shape.split(',').count());
        if dimensions > limits.ndim {
            return Err(CoreKind::TooManyDimensions { limit: limits.ndim }.into());
        }
        let (name, dtype, shape): (String, String, Vec<usize>) =
            serde_json::from_str(line).map_err(|_| bad())?;
        let form = || {
            let dtype: Dtype = dtype.parse()?;
            shape::byte_len(dtype, &shape)?;
            Ok(dtype)
        };
        let dtype = form().map_err(|error: Error| error.in_tensor(&name))?;
        if let Some(_two) = found.insert(name.clone(), (dtype, shape)) {
            return Err(Error::from(CoreKind::DuplicateTensor).in_tensor(&name));
        }
    }
    Ok(found)
}

fn removed(index: &Metadata, limits: &Limits) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for line in lines_of(index, REMOVED, limits.index_entries)? {
        let name: String = serde_json::from_str(line)
            .map_err(|_| bad_line(REMOVED, "lines of names in JSON", line))?;
        if let Some(name) = found.replace(name) {
            return Err(Error::from(CoreKind::DuplicateTensor).in_tensor(&name));
        }
    }
    Ok(found)
}

fn metadata(index: &Metadata, limits: &Limits) -> Result<Option<Metadata>> {
    if !index.contains_key(METADATA) {
        return Ok(None);
    }
    let mut found = Metadata::new();
    for line in lines_of(index, METADATA, limits.metadata_entries)? {
        let (key, value): (String, String) = serde_json::from_str(line)
            .map_err(|_| bad_line(METADATA, "lines of [key, value] in JSON", line))?;
        if let Some(_two) = found.insert(key.clone(), value) {
            return Err(CoreKind::DuplicateMetadataKey { key }.into());
        }
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(index: &Metadata) -> Result<Extra> {
        Extra::read(index, true, &Limits::default())
    }

    #[test]
    fn additions_survive_writing_and_reading() {
        let shapes = [vec![], vec![2, 3], vec![0], vec![1 << 20; 2]];
        let added = shapes.into_iter().enumerate();
        let extra = Extra {
            added: added
                .map(|(i, shape)| (format!("a\n[{i}\""), (Dtype::F4, shape)))
                .skip(1)
                .collect(),
            replaced: BTreeMap::from([("r".into(), (Dtype::F64, vec![7]))]),
            removed: ["", "x\u{2028}y", "[]"].map(String::from).into(),
            metadata: Some(Metadata::from([("k\n".into(), "v\r\n".into())])),
        };
        let index: Metadata = extra.entries().map(|(key, text)| (key.into(), text)).collect();
        assert_eq!(index.len(), 4);
        assert_eq!(read(&index).unwrap(), extra);
        let none = Extra { metadata: Some(Metadata::new()), ..Extra::default() };
        let index: Metadata = none.entries().map(|(key, text)| (key.into(), text)).collect();
        assert_eq!(read(&index).unwrap(), none);
        assert_eq!(read(&Metadata::new()).unwrap(), Extra::default());
    }
}
