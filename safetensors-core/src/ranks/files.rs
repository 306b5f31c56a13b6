//! [`RankFiles`]: the files of all ranks, which each rank computes from the plan.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use super::plan::{RankPlan, RankTensor};
use crate::checkpoint::{
    Index, PartRecord, Record, SavedShards, ShardOptions, check_alone, check_directory, record_dcp,
    record_parts, split_into_shards,
};
use crate::file::hash::{Change, Digest, forget};
use crate::file::save::SaveOptions;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{ATTEMPT_KEY, FILES_KEY, FORMAT_KEY, Metadata};

pub(super) struct RankFiles<'p> {
    pub(super) plan: &'p RankPlan,
    pub(super) files: Vec<RankFile>,
    total_size: u64,
    pub(super) each: SaveOptions,
    metadata: Metadata,
    // PyTorch's distributed checkpoints have no index.
    pub(super) is_dcp: bool,
}

pub(super) struct RankFile {
    pub(super) name: String,
    pub(super) rank: usize,
    pub(super) tensors: Vec<usize>,
}

pub(super) struct SavedPart<'p> {
    pub(super) tensor: &'p RankTensor,
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    record: Option<PartRecord>,
    offsets: Vec<usize>,
}

impl RankPlan {
    /// Checks that the index of the files that ranks [save](super::RankSaver::save) by this plan
    /// can be opened with the default [`Limits`](crate::Limits). Saving checks this, too.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadIndex`]; [`ErrorKind::DuplicateTensor`] if a tensor has the name of another
    /// tensor's part.
    #[doc(hidden)]
    pub fn check_index(&self, options: &ShardOptions) -> Result<()> {
        RankFiles::new(self, options)?.check_index("")
    }
}

impl<'p> RankFiles<'p> {
    pub(super) fn new(plan: &'p RankPlan, options: &ShardOptions) -> Result<Self> {
        if !options.dcp {
            refuse_ambiguous_names(plan)?;
        }
        let savers = plan.savers();
        let mut ranks = Vec::new();
        let mut total_size = 0_u64;
        for rank in 0..plan.world_size() {
            let mut tensors = Vec::new();
            let mut sizes = Vec::new();
            for (position, (tensor, saver)) in plan.tensors().zip(&savers).enumerate() {
                let (_, is_first) = tensor.division().held(rank, plan.world_size());
                if saver.map_or(is_first, |saver| saver == rank) {
                    tensors.push(position);
                    sizes.push((tensor.byte_len(rank)?, None::<()>));
                }
            }
            let split = split_into_shards(sizes, options.max_shard_size);
            // The plan has checked that the sum of all fits.
            total_size += split.total_size;
            let count = split.shards.len();
            for (number, shard) in split.shards.into_iter().enumerate() {
                let tensors = shard.into_iter().map(|i| tensors[i]).collect::<Vec<_>>();
                ranks.push((rank, tensors, dcp_name(rank, number, count)));
            }
        }
        if ranks.is_empty() {
            // Without tensors there is still one file.
            ranks.push((0, Vec::new(), dcp_name(0, 0, 1)));
        }
        let count = ranks.len();
        let file = |(number, (rank, tensors, dcp_name))| {
            let name = match options.dcp {
                true => dcp_name,
                false => options.pattern().file_name(number, count),
            };
            RankFile { name, rank, tensors }
        };
        let files = ranks.into_iter().enumerate().map(file);
        let files = files.collect();

        let progress = options.save_options.progress.clone();
        let mut each = SaveOptions { tied: None, progress, ..options.save_options.clone() };
        let mut metadata = std::mem::take(&mut each.metadata);
        forget(&mut metadata, Change::File);
        let format = metadata.remove(FORMAT_KEY).unwrap_or_else(|| "pt".into());
        each.metadata.insert(FORMAT_KEY.into(), format);
        Ok(Self { plan, files, total_size, each, metadata, is_dcp: options.dcp })
    }

    pub(super) fn of_rank(&self, rank: usize) -> impl Iterator<Item = &RankFile> {
        self.files.iter().filter(move |file| file.rank == rank)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.name.clone()).collect()
    }

    pub(super) fn saved(&self) -> SavedShards {
        SavedShards { files: self.names(), total_size: self.total_size }
    }

    pub(super) fn check(
        &self,
        directory: &Path,
        attempt: &str,
        options: &ShardOptions,
    ) -> Result<()> {
        self.check_index(attempt).map_err(|error| error.in_path(directory))?;
        let names = self.names();
        if self.is_dcp {
            return check_alone(directory, &names, attempt);
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check_directory(directory, options.pattern(), &names, &self.each)
    }

    pub(super) fn data_len(&self, file: &RankFile) -> Result<u64> {
        file.tensors.iter().map(|&position| self.plan.tensors[position].byte_len(file.rank)).sum()
    }

    pub(super) fn parts(&self, file: &RankFile) -> Result<Vec<SavedPart<'p>>> {
        let part = |&position: &usize| {
            let tensor = &self.plan.tensors[position];
            let (name, record) = match self.is_dcp {
                true => (tensor.name().to_owned(), None),
                false => saved_as(tensor, file.rank, self.plan.world_size())?,
            };
            let ranges = tensor.part(file.rank)?.ranges(tensor.shape())?;
            // PyTorch finds a part by its name and its first position, so an empty part must not
            // begin where another one does.
            let begin = |(range, len): (&Range<usize>, &usize)| match range.is_empty() {
                true => *len,
                false => range.start,
            };
            let offsets = ranges.iter().zip(tensor.shape()).map(begin).collect();
            let shape = ranges.iter().map(Range::len).collect();
            Ok(SavedPart { tensor, name, shape, record, offsets })
        };
        file.tensors.iter().map(part).collect()
    }

    /// Adds the record of the parts and, without an index, the metadata of the index.
    pub(super) fn options(&self, parts: &[SavedPart<'_>], attempt: &str) -> SaveOptions {
        let mut options = self.each.clone();
        let records = parts.iter().filter_map(|part| Some((&part.name, part.record.as_ref()?)));
        let records: Record =
            records.map(|(name, record)| (name.clone(), record.clone())).collect();
        if self.files.len() == 1 || self.is_dcp {
            options.metadata.extend(self.metadata.clone());
            options.as_is.insert(ATTEMPT_KEY.into(), attempt.into());
        }
        record_parts(&mut options.metadata, &records);
        if self.is_dcp {
            let parts = parts.iter().map(|part| (part.name.as_str(), part.offsets.clone()));
            record_dcp(&mut options.metadata, parts);
            options.metadata.insert(FILES_KEY.into(), self.files.len().to_string());
        }
        options
    }

    pub(super) fn index(&self, attempt: &str) -> Result<Index> {
        let mut index = Index { total_size: Some(self.total_size), ..Index::default() };
        index.metadata = self.metadata.clone();
        // The index writes its own number under this key.
        index.metadata.remove("total_size");
        index.metadata.insert(ATTEMPT_KEY.into(), attempt.into());
        // First, because it takes long to make the names of millions of parts.
        index.check_entries(self.files.iter().map(|file| file.tensors.len()).sum())?;
        for file in &self.files {
            let names = self.parts(file)?.into_iter().map(|part| part.name).collect();
            index.shards.insert(file.name.clone(), names);
        }
        Ok(index)
    }

    pub(super) fn check_index(&self, attempt: &str) -> Result<()> {
        match self.files.len() {
            0 | 1 => Ok(()),
            _ if self.is_dcp => Ok(()),
            _ => self.index(attempt)?.check(),
        }
    }

    /// Covers everything that the ranks must have in common.
    pub(super) fn digest(&self) -> Digest {
        let mut text = self.plan.to_json();
        for file in &self.files {
            text.push_str(&file.name);
            text.push('\n');
        }
        for (key, value) in self.metadata.iter().chain(&self.each.metadata) {
            text.push_str(&format!("{key:?}={value:?}\n"));
        }
        Digest::compute(text.as_bytes())
    }
}

fn dcp_name(rank: usize, number: usize, count: usize) -> String {
    format!("shard-{:05}-model-{:05}-of-{count:05}.safetensors", rank + 1, number + 1)
}

/// Refuses a tensor with the name of another tensor's part.
fn refuse_ambiguous_names(plan: &RankPlan) -> Result<()> {
    let is_divided = |tensor: &&RankTensor| tensor.division().dim().is_some();
    let divided: HashSet<_> = plan.tensors().filter(is_divided).map(RankTensor::name).collect();
    for tensor in plan.tensors() {
        let Some((whole, number)) = tensor.name().rsplit_once(".part-") else { continue };
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || b"-of".contains(&byte));
        if is_number && divided.contains(whole) {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(tensor.name()));
        }
    }
    Ok(())
}

/// Sorts tensors by position in the plan. Also returns unknown names.
pub(super) fn given<N: AsRef<str>, T>(
    plan: &RankPlan,
    tensors: impl IntoIterator<Item = (N, T)>,
) -> (Vec<Option<T>>, Vec<String>) {
    let positions: HashMap<&str, usize> =
        plan.tensors().enumerate().map(|(position, tensor)| (tensor.name(), position)).collect();
    let mut given: Vec<Option<T>> = plan.tensors().map(|_| None).collect();
    let mut extra = Vec::new();
    for (name, tensor) in tensors {
        match positions.get(name.as_ref()) {
            Some(&position) if given[position].is_none() => given[position] = Some(tensor),
            _ => extra.push(name.as_ref().to_owned()),
        }
    }
    (given, extra)
}

fn saved_as(
    tensor: &RankTensor,
    rank: usize,
    world_size: usize,
) -> Result<(String, Option<PartRecord>)> {
    let parts = tensor.division().parts(world_size);
    let Some(dim) = tensor.division().dim().filter(|_| parts > 1) else {
        return Ok((tensor.name().into(), None));
    };
    let (part, _) = tensor.division().held(rank, world_size);
    let ranges = tensor.part(rank)?.ranges(tensor.shape())?;
    let offset = ranges.get(dim).map_or(0, |range| range.start);
    let record =
        PartRecord { tensor: tensor.name().into(), shape: tensor.shape().to_vec(), dim, offset };
    let name = format!("{}.part-{:05}-of-{parts:05}", tensor.name(), part + 1);
    Ok((name, Some(record)))
}
