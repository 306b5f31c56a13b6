//! [`Chain`]: deltas in the order of their versions.

use std::collections::HashMap;

use safetensors_core::io::FileSource;

use crate::delta::Delta;
use crate::error::{Error, ErrorKind, Result};
use crate::format::is_decimal;

/// Deltas in the order in which they are applied; at least one.
#[derive(Debug)]
pub struct Chain<S = FileSource> {
    links: Vec<Delta<S>>,
}

impl<S> Chain<S> {
    /// Orders deltas, so that each begins at the version of the one before. Zeros before a number
    /// do not count, as in slime.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoDelta`], [`ErrorKind::Twice`], [`ErrorKind::Fork`], [`ErrorKind::Cycle`],
    /// [`ErrorKind::Gap`]; [`ErrorKind::OtherBase`] if versions fit and digests do not.
    pub fn new(deltas: impl IntoIterator<Item = Delta<S>>) -> Result<Self> {
        let mut by_base = HashMap::new();
        let mut by_version = HashMap::new();
        let deltas: Vec<_> = deltas.into_iter().collect();
        for (number, delta) in deltas.iter().enumerate() {
            let version = delta.version();
            if by_version.insert(key(version), number).is_some() {
                return Err(located(delta, ErrorKind::Twice { version: version.into() }));
            }
            if let Some(other) = by_base.insert(key(delta.base_version()), number) {
                let one = deltas[other].version().into();
                let other = version.into();
                let base = delta.base_version().into();
                return Err(located(delta, ErrorKind::Fork { base, one, other }));
            }
        }
        let order = order(&deltas, &by_base, &by_version)?;
        let mut deltas: Vec<_> = deltas.into_iter().map(Some).collect();
        let links: Vec<_> = order.into_iter().filter_map(|number| deltas[number].take()).collect();
        links.windows(2).try_for_each(|pair| check_neighbours(&pair[0], &pair[1]))?;
        Ok(Self { links })
    }

    pub(crate) fn empty() -> Self {
        Self { links: Vec::new() }
    }

    /// Returns the deltas in order; at least one.
    pub fn deltas(&self) -> &[Delta<S>] {
        &self.links
    }

    /// Returns `true` if a delta has the digest of a complete checkpoint, so that unchanged tensors
    /// are checked, too.
    pub fn names_digest(&self) -> bool {
        self.links.iter().any(|delta| delta.digests() != [None; 2])
    }

    /// Returns the version that the first delta changes.
    pub fn base_version(&self) -> &str {
        self.links.first().map_or("", Delta::base_version)
    }

    /// Returns the version that the last delta leads to.
    pub fn version(&self) -> &str {
        self.links.last().map_or("", Delta::version)
    }
}

fn key(version: &str) -> &str {
    let is_number = is_decimal(version);
    match version.trim_start_matches('0') {
        "" if is_number => "0",
        number if is_number => number,
        _ => version,
    }
}

fn located<S>(delta: &Delta<S>, kind: ErrorKind) -> Error {
    Error::from(kind).in_path(delta.path())
}

fn order<S>(
    deltas: &[Delta<S>],
    by_base: &HashMap<&str, usize>,
    by_version: &HashMap<&str, usize>,
) -> Result<Vec<usize>> {
    let mut starts = (0..deltas.len())
        .filter(|&number| !by_version.contains_key(key(deltas[number].base_version())));
    let cycle = |delta: &Delta<S>| {
        located(delta, ErrorKind::Cycle { version: delta.base_version().into() })
    };
    let Some(first) = starts.next() else {
        return Err(deltas.first().map_or_else(|| ErrorKind::NoDelta.into(), cycle));
    };
    let next = |&number: &usize| by_base.get(key(deltas[number].version())).copied();
    let order: Vec<_> = std::iter::successors(Some(first), next).collect();
    if let (Some(other), Some(&last)) = (starts.next(), order.last()) {
        let gap = ErrorKind::Gap {
            from: deltas[last].version().into(),
            base: deltas[other].base_version().into(),
            version: deltas[other].version().into(),
        };
        return Err(located(&deltas[other], gap));
    }
    // A version that no start reaches is in a cycle.
    match (0..deltas.len()).find(|number| !order.contains(number)) {
        Some(other) => Err(cycle(&deltas[other])),
        None => Ok(order),
    }
}

fn check_neighbours<S>(one: &Delta<S>, other: &Delta<S>) -> Result<()> {
    match (one.digests()[1], other.digests()[0]) {
        (Some(found), Some(expected)) if found != expected => {
            let kind = ErrorKind::OtherBase {
                version: other.version().into(),
                base: other.base_version().into(),
                expected: expected.to_hex().to_string(),
                found: found.to_hex().to_string(),
            };
            Err(located(other, kind))
        }
        _ => Ok(()),
    }
}
