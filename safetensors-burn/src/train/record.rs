//! A record of burn as a safetensors file.
//!
//! | metadata key | value |
//! |---|---|
//! | `safetensors_bridge.record` | the version of this layout |
//! | `safetensors_bridge.param_ids` | the ids of the parameters by the names of tensors |
//! | `safetensors_bridge.path_ids` | the ids of the parameters by the paths that names begin with |
//! | `safetensors_bridge.scalars` | numbers and booleans by name, each with its type |
//! | `safetensors_bridge.dtypes` | burn's dtypes by tensor, if the file's dtype does not determine them |
//! | `safetensors_bridge.texts` | other texts of the record by name |
//!
//! All values except the first are JSON objects. Empty ones are skipped.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use burn::optim::OptimizerRecord;
use burn::tensor::DType;
use burn::train::checkpoint::Checkpoint as Record;
use burn_store::burn_pack::Scalar;
use safetensors_core::digest::TensorDigests;
use safetensors_core::framework::{
    PARAM_IDS_KEY as PARAM_IDS, RecordScalar, SCALARS_KEY as SCALARS, in_parallel, synced_later,
};
use safetensors_core::header::Metadata;
use safetensors_core::io::FileSource;
use safetensors_core::{Checkpoint, Error, LazyTensor, Result, SaveOptions, TensorSource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EpochError;
use super::container::{self, Content, Described};
use super::error::of_record;
use super::names::{Ids, NewIds, check_owners};
use super::reading::{Job, threads_for};
use super::states;
use super::unpacked::Unpacked;
use crate::dtype;
use crate::store::pack::PackSource;

const RECORD: &str = "safetensors_bridge.record";
const PATH_IDS: &str = "safetensors_bridge.path_ids";
const DTYPES: &str = "safetensors_bridge.dtypes";
const TEXTS: &str = "safetensors_bridge.texts";

const VERSION: &str = "1";

/// Does not synchronise the file. Returns the number of tensors.
pub(super) fn save(mut record: Unpacked, path: &Path) -> Result<usize> {
    write(&mut record, path).map_err(|error| record.locate(error))
}

fn write(record: &mut Unpacked, path: &Path) -> Result<usize> {
    let (ids, mut named) = Ids::separate(&record.content);
    let mut tensors = Vec::with_capacity(named.tensors.len());
    let mut dtypes = BTreeMap::new();
    for (name, described) in &named.tensors {
        let tensor = record.tensors.remove(&ids.in_record(name).0);
        let no_tensor = || EpochError::Record(format!("it has no tensor {name:?}"));
        let mut tensor = tensor.ok_or_else(no_tensor)?;
        tensor.name.clone_from(name);
        let source = PackSource::new(tensor, tensors.len() as u64)?;
        // burn has several booleans and packed dtypes for one dtype of the format.
        if dtype::to_burn(source.dtype()) != Some(described.dtype) {
            dtypes.insert(name.clone(), described.dtype);
        }
        tensors.push((name.clone(), source));
    }
    named.lay_out()?;
    let (text, _) = record.content.lay_out()?;
    container::check_limits(&named, text.len())?;

    let scalars: BTreeMap<_, _> =
        named.scalars.iter().map(|(name, scalar)| (name, saved_scalar(*scalar))).collect();
    let ids_key = match &ids {
        Ids::OfTensors(_) => PARAM_IDS,
        Ids::OfPaths(_) => PATH_IDS,
    };
    let entries = [
        Some((RECORD, VERSION.to_owned())),
        entry(ids_key, ids.all())?,
        entry(SCALARS, &scalars)?,
        entry(DTYPES, &dtypes)?,
        entry(TEXTS, &named.metadata)?,
        // transformers asks for it.
        Some(("format", "pt".to_owned())),
    ];
    // The epoch is synchronised as a whole.
    let options = synced_later(SaveOptions::new().digests(true));
    safetensors_core::save(path, tensors, &options.metadata(entries.into_iter().flatten()))?;
    Ok(named.tensors.len())
}

fn entry<K: Serialize, V: Serialize>(
    key: &'static str,
    map: &BTreeMap<K, V>,
) -> Result<Option<(&'static str, String)>> {
    if map.is_empty() {
        return Ok(None);
    }
    let text = serde_json::to_string(map);
    let text = text.map_err(|error| EpochError::Record(error.to_string()))?;
    Ok(Some((key, text)))
}

#[derive(Debug)]
pub(super) struct RecordFile {
    checkpoint: Checkpoint<FileSource>,
    /// The content under the names of the file.
    named: Content,
    pub(super) ids: Ids,
    pub(super) new_ids: NewIds,
    digests: TensorDigests,
}

impl RecordFile {
    /// Reads the header of an open file. `path` is for messages.
    pub(super) fn new(file: File, path: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::from_source(FileSource::from_file(file, path)?, path)?;
        Self::parse(checkpoint).map_err(|error| error.in_path(path))
    }

    fn parse(checkpoint: Checkpoint<FileSource>) -> Result<Self> {
        let metadata = checkpoint.metadata();
        // Another version may mean the same keys in another way, so it is not even looked into.
        if metadata.get(RECORD).is_none_or(|version| version != VERSION) {
            return Err(not_a_record(RECORD, format!("{VERSION:?}")));
        }
        let ids = if metadata.contains_key(PATH_IDS) {
            Ids::OfPaths(map(metadata, PATH_IDS)?)
        } else {
            Ids::OfTensors(map(metadata, PARAM_IDS)?)
        };
        let dtypes: BTreeMap<String, DType> = map(metadata, DTYPES)?;
        let saved: BTreeMap<String, RecordScalar> = map(metadata, SCALARS)?;
        let scalars = saved.into_iter().map(|(name, scalar)| (name, burns_scalar(scalar)));
        let scalars = scalars.collect();
        let mut tensors = BTreeMap::new();
        for tensor in checkpoint.tensors() {
            // The metadata may be wrong about a dtype, and the bytes would be read as another one.
            let found = dtypes.get(tensor.name()).copied();
            let found = found.or_else(|| dtype::to_burn(tensor.dtype()));
            let fitting =
                found.filter(|found| dtype::to_file(*found).is_ok_and(|it| it == tensor.dtype()));
            let Some(dtype) = fitting else {
                let expected = format!("a dtype saved as {}", tensor.dtype());
                return Err(tensor.locate(not_a_record(DTYPES, expected)));
            };
            tensors.insert(tensor.name().into(), Described::new(dtype, tensor.shape(), None));
        }
        let named = Content { tensors, scalars, metadata: map(metadata, TEXTS)? };
        let digests = TensorDigests::from_metadata(metadata)?.unwrap_or_default();
        Ok(Self { named, ids, new_ids: NewIds::default(), digests, checkpoint })
    }

    /// Returns the tensors under the names of the file.
    pub(super) fn tensors(&self) -> impl Iterator<Item = LazyTensor<'_, FileSource>> {
        self.checkpoint.tensors()
    }

    /// Returns the content under burn's names, with the saved ids.
    pub(super) fn content(&self) -> Content {
        self.ids.join(self.named.clone())
    }

    /// Reads into one block of memory, and compares digests.
    pub(super) fn read<R: Record>(self) -> Result<R> {
        let (mut content, names) = self.adapted()?;
        let container = container::build(&mut content, |content, mut rest| {
            let mut jobs = Vec::with_capacity(content.tensors.len());
            let mut at = 0;
            // The tensors are in the order of their names, so the memory is cut front to back.
            for (name, tensor) in &content.tensors {
                let (start, end) = tensor.data_offsets;
                let (_, after_gap) = rest.split_at_mut((start - at) as usize);
                let (memory, after) = after_gap.split_at_mut((end - start) as usize);
                (rest, at) = (after, end);
                jobs.push((self.job(&names, name, tensor)?, memory));
            }
            let bytes = jobs.iter().map(|(_, memory)| memory.len()).sum();
            in_parallel(jobs, threads_for(bytes), |(job, memory), _: &mut ()| job.fill(memory))?;
            Ok(())
        })?;
        R::checkpoint_from_bytes(container).map_err(of_record)
    }

    /// Reads each tensor into separate memory if burn accepts that.
    pub(super) fn read_optimizer(self) -> Result<OptimizerRecord> {
        let (content, names) = self.adapted()?;
        check_owners(&content)?;
        if !states::are_known(&content) {
            return self.read();
        }
        // Without the container in between, each tensor is held once instead of twice.
        let mut jobs = Vec::with_capacity(content.tensors.len());
        for (name, tensor) in &content.tensors {
            jobs.push((name, self.job(&names, name, tensor)?));
        }
        let bytes = jobs.iter().map(|(_, job)| job.tensor.byte_len() as usize).sum();
        let tensors = in_parallel(jobs, threads_for(bytes), |(name, job), _: &mut ()| {
            Ok((name.clone(), job.read()?))
        })?;
        states::make(&content, tensors)
    }

    /// Returns the content for burn, and its names in the file.
    fn adapted(&self) -> Result<(Content, BTreeMap<String, &str>)> {
        let saved = self.content();
        let Self { named, ids, new_ids, .. } = self;
        // Two tensors with paths that give them one name would be one tensor of the record.
        if saved.tensors.len() != named.tensors.len() {
            return Err(not_a_record(PATH_IDS, "paths that give each tensor a name".into()));
        }
        let mut names = BTreeMap::new();
        for name in named.tensors.keys() {
            if let Some(in_record) = new_ids.rename(&ids.in_record(name).0) {
                names.insert(in_record, name.as_str());
            }
        }
        Ok((new_ids.apply(saved), names))
    }

    fn job(
        &self,
        names: &BTreeMap<String, &str>,
        name: &str,
        tensor: &Described,
    ) -> Result<Job<'_>> {
        let name = names.get(name).copied().unwrap_or(name);
        let lazy = self.checkpoint.tensor(name)?;
        Ok(Job { tensor: lazy, digest: self.digests.get(name).copied(), dtype: tensor.dtype })
    }
}

fn saved_scalar(scalar: Scalar) -> RecordScalar {
    match scalar {
        Scalar::UInt(number) => RecordScalar::U64(number),
        Scalar::Int(number) => RecordScalar::I64(number),
        Scalar::Bool(value) => RecordScalar::Bool(value),
        Scalar::Float(number) => RecordScalar::F64(number),
    }
}

fn burns_scalar(saved: RecordScalar) -> Scalar {
    match saved {
        RecordScalar::U64(number) => Scalar::UInt(number),
        RecordScalar::I64(number) => Scalar::Int(number),
        RecordScalar::Bool(value) => Scalar::Bool(value),
        RecordScalar::F64(number) => Scalar::Float(number),
    }
}

fn map<K: DeserializeOwned + Ord, V: DeserializeOwned>(
    metadata: &Metadata,
    key: &'static str,
) -> Result<BTreeMap<K, V>> {
    let Some(text) = metadata.get(key) else { return Ok(BTreeMap::new()) };
    serde_json::from_str(text)
        .map_err(|error| not_a_record(key, format!("a JSON object of its kind ({error})")))
}

fn not_a_record(key: &'static str, expected: String) -> Error {
    EpochError::NotARecord { key, expected }.into()
}

#[cfg(test)]
pub(super) fn saved(record: Unpacked) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("record.safetensors");
    save(record, &path).unwrap();
    std::fs::read(path).unwrap()
}
