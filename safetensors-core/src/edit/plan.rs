//! [`EditPlan`]: what the file will be after an edit, and where its bytes come from.

use std::collections::{HashMap, HashSet};

use super::{Edit, Edited, digests};
use crate::error::{Error, ErrorKind, Result};
use crate::header::{Header, LENGTH_BYTES, Metadata, TensorInfo};
use crate::save::SaveOptions;
use crate::save::layout::Layout;
use crate::save::spec::Spec;

/// What the file will be after an edit.
pub(super) struct EditPlan<'e> {
    pub(super) layout: Layout,
    specs: Vec<Spec<'e>>,
    /// The tensors of the file that stay; the appended ones follow them in `specs`.
    kept: Vec<TensorInfo<'e>>,
    metadata: Metadata,
}

/// Bytes that go from the old file to the new one; offsets count from the start of each.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) len: u64,
}

impl<'e> EditPlan<'e> {
    /// Plans an edit and refuses what cannot be done.
    pub(super) fn new(edit: &'e Edit<'_>) -> Result<Self> {
        let names = new_names(edit)?;
        let removed: HashSet<&str> = edit.removed.iter().map(String::as_str).collect();
        let header = edit.header();
        let kept: Vec<_> =
            header.iter().filter(|tensor| !removed.contains(tensor.name())).collect();
        let specs = kept.iter().map(|tensor| Spec {
            name: names.get(tensor.name()).copied().unwrap_or(tensor.name()),
            dtype: tensor.dtype(),
            shape: tensor.shape(),
        });
        let appended = edit.appended.iter().map(|(name, source)| Spec::of(name, source));
        let specs: Vec<_> = specs.chain(appended).collect();
        let mut options = SaveOptions::new().order(edit.order).durable(edit.durable);
        options.align = edit.align.unwrap_or(alignment(header.data_start()));
        options.metadata = edit.metadata.clone();
        digests::follow(header.metadata(), &mut options.metadata, &names, &removed);
        let layout = Layout::plan(&specs, &options)?;
        let mut plan = Self { layout, specs, kept, metadata: options.metadata.clone() };
        if !plan.keeps_data(edit) && digests::forget_data(header.metadata(), &mut options.metadata)
        {
            plan.layout = Layout::plan(&plan.specs, &options)?;
            plan.metadata = options.metadata;
        }
        Ok(plan)
    }

    /// What the edit takes.
    pub(super) fn outcome(&self, edit: &Edit<'_>) -> Edited {
        let misplaced = edit
            .align
            .is_some_and(|align| !edit.header().data_start().is_multiple_of(align as u64));
        if misplaced || !self.keeps_data(edit) {
            return Edited::Rewritten;
        }
        if self.keeps_header(edit.header()) {
            return Edited::Unchanged;
        }
        let fits = LENGTH_BYTES + self.json().len() <= edit.header().data_start() as usize;
        if fits && edit.in_place { Edited::InPlace } else { Edited::Rewritten }
    }

    /// The header's text without its padding.
    pub(super) fn json(&self) -> &[u8] {
        self.layout.prefix[LENGTH_BYTES..].trim_ascii_end()
    }

    /// The bytes that go from the old file to the new one, in the new one's order, and as few runs
    /// as possible.
    pub(super) fn runs(&self, data_start: u64) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (i, place) in &self.layout.places {
            let Some(tensor) = self.kept.get(*i).filter(|tensor| tensor.byte_len() > 0) else {
                continue;
            };
            let from = data_start + tensor.data_offsets().start;
            match runs.last_mut() {
                Some(last) if last.from + last.len == from && last.to + last.len == place.start => {
                    last.len += tensor.byte_len();
                }
                _ => runs.push(Run { from, to: place.start, len: tensor.byte_len() }),
            }
        }
        runs
    }

    /// Which tensors to write, and where: each with its position among the appended ones.
    pub(super) fn appended(&self) -> impl Iterator<Item = (usize, &std::ops::Range<u64>)> {
        self.layout
            .places
            .iter()
            .filter_map(|(i, place)| Some((i.checked_sub(self.kept.len())?, place)))
    }

    /// Whether all bytes after the header stay what and where they are.
    fn keeps_data(&self, edit: &Edit<'_>) -> bool {
        let header = edit.header();
        let whole = Run {
            from: header.data_start(),
            to: self.layout.prefix.len() as u64,
            len: header.data_len(),
        };
        let runs = self.runs(header.data_start());
        let kept = if header.data_len() == 0 { runs.is_empty() } else { runs == [whole] };
        kept && self.appended().all(|(_, place)| place.is_empty())
    }

    /// Whether the header says what it said, which it may have said in other words.
    fn keeps_header(&self, header: &Header) -> bool {
        let planned = self.layout.places.iter().map(|(i, _)| self.specs[*i]);
        let same = |(spec, tensor): (Spec<'_>, TensorInfo<'_>)| {
            (spec.name, spec.dtype, spec.shape) == (tensor.name(), tensor.dtype(), tensor.shape())
        };
        self.metadata == *header.metadata()
            && self.specs.len() == header.len()
            && planned.zip(header.iter()).all(same)
    }
}

/// From old names to new ones. All that are to be renamed or removed are there, and none is asked
/// for twice.
fn new_names<'e>(edit: &'e Edit<'_>) -> Result<HashMap<&'e str, &'e str>> {
    let mut names = HashMap::new();
    for (old, new) in &edit.renamed {
        if names.insert(old.as_str(), new.as_str()).is_some() {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(old));
        }
    }
    let removed = edit.removed.iter().map(String::as_str);
    // In the order in which they were asked for, so that the same edit fails with the same error.
    let renamed = edit.renamed.iter().map(|(old, _)| old.as_str());
    for name in removed.clone().chain(renamed) {
        if edit.header().get(name).is_none() {
            return Err(Error::from(ErrorKind::TensorNotFound).in_tensor(name));
        }
    }
    for name in removed {
        if names.contains_key(name) {
            return Err(Error::from(ErrorKind::TensorNotFound).in_tensor(name));
        }
    }
    Ok(names)
}

/// The largest power of two up to 4096 that the data begins at a multiple of, but at least 8.
fn alignment(data_start: u64) -> usize {
    1 << data_start.trailing_zeros().clamp(3, 12)
}
