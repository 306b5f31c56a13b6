//! [`EditPlan`]: the content of a file after an edit.

use std::collections::{HashMap, HashSet};

use super::{Edit, Edited, digests};
use crate::file::hash::{self, Change, Note, forget};
use crate::file::io::identity::links;
use crate::file::save::layout::Layout;
use crate::file::save::spec::Spec;
use crate::file::save::{Order, SaveOptions};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{Header, Metadata, TensorInfo, rename_attributes};

pub(super) struct EditPlan<'e> {
    pub(super) layout: Layout,
    specs: Vec<Spec<'e>>,
    /// The tensors of the file that stay, first in `specs`.
    kept: Vec<TensorInfo<'e>>,
    metadata: Metadata,
    pub(super) change: Change,
    pub(super) notes: Vec<Note>,
    /// The new header fills the space of the old one.
    pub(super) data_stays: bool,
}

/// Bytes to copy. Offsets count from the start of each file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) len: u64,
}

impl<'e> EditPlan<'e> {
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
        let appended = edit.appended.iter().map(|(name, source)| Spec::new(name, source));
        let specs: Vec<_> = specs.chain(appended).collect();
        let metadata = followed(edit, &names, &removed);
        let layout = Layout::plan(&specs, &options(edit, &metadata))?;
        let change = if names.is_empty() { Change::Header } else { Change::Names };
        let mut plan =
            Self { layout, specs, kept, metadata, change, notes: Vec::new(), data_stays: false };
        if !plan.keeps_data(edit) {
            plan.change = Change::Data;
            let mut gone = forget(&mut plan.metadata, plan.change);
            // Recorded digests have only a known length before the new file is written.
            let later = edit.recorded.iter().filter(|(key, _)| gone.contains(&key.as_str()));
            plan.metadata.extend(later.map(|(key, value)| (key.clone(), value.clone())));
            plan.metadata.extend(edit.set.clone());
            gone.retain(|key| !plan.metadata.contains_key(*key));
            plan.notes.extend(gone.into_iter().map(|key| Note::Removed { key }));
            plan.layout = Layout::plan(&plan.specs, &options(edit, &plan.metadata))?;
        }
        plan.fill_header(edit);
        if plan.data_stays && edit.in_place {
            let names = links(edit.archive.source().file())?;
            plan.notes.extend((names > 1).then_some(Note::SeveralNames { names }));
        }
        Ok(plan)
    }

    /// Returns `true` if recorded digests depend on changed data.
    pub(super) fn records_later(&self, edit: &Edit<'_>) -> bool {
        self.change == Change::Data && !edit.recorded.is_empty()
    }

    /// The entries are as long as the planned ones.
    pub(super) fn prefix_with(&self, edit: &Edit<'_>, entries: Metadata) -> Result<Vec<u8>> {
        let mut metadata = self.metadata.clone();
        metadata.extend(entries);
        metadata.extend(edit.set.clone());
        Ok(Layout::plan(&self.specs, &options(edit, &metadata))?.prefix)
    }

    fn fill_header(&mut self, edit: &Edit<'_>) {
        let start = edit.header().data_start() as usize;
        let text = self.layout.prefix.trim_ascii_end().len();
        // A new file aligns data that is not aligned at all.
        let is_placed = edit.in_place || start.is_multiple_of(8);
        self.data_stays = is_placed && text <= start && self.keeps_data(edit);
        if self.data_stays {
            self.layout.move_data_to(start);
        }
    }

    pub(super) fn outcome(&self, edit: &Edit<'_>) -> Edited {
        if self.keeps_data(edit) && self.keeps_header(edit.header()) {
            return Edited::Unchanged;
        }
        let has_several_names =
            self.notes.iter().any(|note| matches!(note, Note::SeveralNames { .. }));
        match self.data_stays && edit.in_place && !has_several_names {
            true => Edited::InPlace,
            false => Edited::Rewritten,
        }
    }

    /// Sorts by the place in the new file, and joins neighbours.
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

    /// Returns the number of each appended tensor and its range in the new file, in file order.
    pub(super) fn appended(&self) -> impl Iterator<Item = (usize, &std::ops::Range<u64>)> {
        self.layout
            .places
            .iter()
            .filter_map(|(i, place)| Some((i.checked_sub(self.kept.len())?, place)))
    }

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

/// Maps old names to new ones. Fails for missing names, and names used twice.
fn new_names<'e>(edit: &'e Edit<'_>) -> Result<HashMap<&'e str, &'e str>> {
    let mut names = HashMap::new();
    for (old, new) in &edit.renamed {
        if names.insert(old.as_str(), new.as_str()).is_some() {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(old));
        }
    }
    let removed = edit.removed.iter().map(String::as_str);
    // In the order of the calls, so that equal edits fail with equal errors.
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

fn options(edit: &Edit<'_>, metadata: &Metadata) -> SaveOptions {
    let mut options = SaveOptions::new().order(Order::Given).durable(edit.durable);
    options.align = alignment(edit.header().data_start());
    options.as_is = metadata.clone();
    options
}

fn followed(edit: &Edit<'_>, renamed: &HashMap<&str, &str>, removed: &HashSet<&str>) -> Metadata {
    let mut metadata = edit.metadata.clone();
    metadata.extend(edit.recorded.clone());
    rename_attributes(&mut metadata, &mut |name| {
        if removed.contains(name) && !edit.appended.iter().any(|(added, _)| added == name) {
            return None;
        }
        Some((*renamed.get(name).unwrap_or(&name)).to_owned())
    });
    let added = edit.appended.iter().map(|(name, _)| name.as_str());
    let added: Vec<_> = added.filter(|_| edit.recorded.contains_key(hash::KEY)).collect();
    digests::follow(&mut metadata, renamed, removed, &added);
    metadata.extend(edit.set.clone());
    metadata
}

/// Returns the largest power of two from 8 to 4096 that divides the offset of the data.
fn alignment(data_start: u64) -> usize {
    1 << data_start.trailing_zeros().clamp(3, 12)
}
