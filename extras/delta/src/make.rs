//! [`make`]: the delta of two checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors_core::checkpoint::store::LocalStore;
use safetensors_core::digest::remove_record;
use safetensors_core::framework::in_parallel;
use safetensors_core::shape;
use safetensors_core::{
    Checkpoint, ErrorKind as CoreKind, LazyTensor, Limits, Metadata, ReadAt, SaveOptions,
    TensorSource, save,
};
use serde_json::{Value, json};

use crate::compare::{Compared, Difference, Pair, Worker, compare};
use crate::delta::Delta;
use crate::destination::{Destination, New};
use crate::error::{Error, ErrorKind, Result};
use crate::extra::Extra;
use crate::format::{
    BASE_DIGEST, BASE_VERSION, CHECKSUM, COMPRESSION, ENCODING, Encoding, INDEX, RESULT_DIGEST,
    VERSION, ZSTD,
};
use crate::options::Options;
use crate::patch::LARGEST;
use crate::patched::check_expansion;
use crate::sums::digest_of;

/// The Hub recommends this limit. One tensor may have more.
const MAX_SHARD_SIZE: u64 = 5_000_000_000;

/// Saves the difference of two checkpoints as a delta, in a directory.
///
/// `new` has the newer checkpoint's tensors, in any order, from an open checkpoint or a training
/// program. Values are compared bit by bit. If names, dtypes, shapes and [`Options::metadata`] are
/// equal, the delta has the format of slime, miles and ModelExpress. Otherwise these refuse it, and
/// tensors smaller than their difference are stored entirely.
///
/// The index has the [`digest()`](crate::digest()) of both checkpoints. Equal checkpoints and
/// options give equal files. No tensor is held in memory. The files take their places together,
/// once all are complete and on disk. See the example of [`Delta`].
///
/// # Errors
///
/// [`Mismatches`](CoreKind::Mismatches) if the delta is [for](Options::for_slime) a program that
/// cannot read the differences; [`FileExists`](CoreKind::FileExists) if the directory has a delta
/// and [`Options::overwrite`] is off; [`NotADelta`](CoreKind::NotADelta) if it has a checkpoint;
/// [`ErrorKind::TooLargeToOverwrite`], [`ErrorKind::TooExpanded`], [`ErrorKind::NotForReader`].
pub fn make<S: ReadAt, N: AsRef<str>, T: TensorSource>(
    old: &Checkpoint<S>,
    new: impl IntoIterator<Item = (N, T)>,
    directory: impl AsRef<Path>,
    options: &Options,
) -> Result<Delta> {
    let target = options.create(directory.as_ref(), New::Delta)?;
    write(old, new, target, options)?.commit(Some(old))?;
    Delta::open_in(LocalStore, directory, &Limits::default())
}

pub(crate) fn write<S: ReadAt, N: AsRef<str>, T: TensorSource>(
    old: &Checkpoint<S>,
    new: impl IntoIterator<Item = (N, T)>,
    mut target: Destination,
    options: &Options,
) -> Result<Destination> {
    let plan = DeltaPlan::new(old, new, options)?;
    target.set_main(INDEX, &[])?;
    // No reader has other limits by default.
    let written = plan.write(target.staging()).and_then(|()| Delta::open(target.staging()));
    written.map_err(|error| target.locate(error))?;
    old.check_unchanged()?;
    Ok(target)
}

pub(crate) struct DeltaPlan<'a, S, T> {
    pairs: Vec<Pair<'a, S, T>>,
    options: Options,
    metadata: Option<Metadata>,
}

impl<'a, S: ReadAt, T: TensorSource> DeltaPlan<'a, S, T> {
    pub(crate) fn new<N: AsRef<str>>(
        old: &'a Checkpoint<S>,
        new: impl IntoIterator<Item = (N, T)>,
        options: &Options,
    ) -> Result<Self> {
        let pairs = pairs(old, new).map_err(|error| old.in_first_path(error))?;
        let metadata = other_metadata(old, options);
        let mismatches: Vec<_> = pairs.iter().filter_map(Pair::mismatch).collect();
        let mut options = options.clone();
        options.whole |= !mismatches.is_empty() || metadata.is_some();
        let checked = options.check_extra(mismatches, metadata.as_ref());
        checked.map_err(|error| old.in_first_path(error))?;
        if options.encoding == Encoding::Overwrite && !options.whole {
            pairs.iter().filter_map(|pair| pair.old.as_ref()).try_for_each(check_positions)?;
        }
        Ok(Self { pairs, options, metadata })
    }

    /// Closes all files: some systems cannot move a directory with open ones.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        let compared = self.compare(directory)?;
        self.check_expansion(&compared)?;
        self.save_files(&compared, directory)
    }

    fn check_expansion(&self, compared: &[Compared]) -> Result<()> {
        let olds = self.pairs.iter().filter_map(|pair| pair.old.as_ref());
        let base = olds.map(LazyTensor::byte_len).fold(0, u64::saturating_add);
        let mut compressed = 0_u64;
        let mut expanded = 0_u64;
        for (pair, compared) in self.pairs.iter().zip(compared) {
            if let (Some(whole), Some(new)) = (&compared.difference, &pair.new)
                && whole.is_whole
            {
                compressed = compressed.saturating_add(whole.compressed.len());
                expanded = expanded.saturating_add(shape::byte_len(new.dtype(), new.shape())?);
            }
        }
        check_expansion(base, compressed, expanded)
    }

    /// The largest first, so that no thread ends with a large one.
    fn compare(&self, directory: &Path) -> Result<Vec<Compared>> {
        let mut order: Vec<usize> = (0..self.pairs.len()).collect();
        order.sort_by_key(|&number| std::cmp::Reverse(self.pairs[number].byte_len()));
        let compared =
            in_parallel(&order, self.options.threads, |&number, worker: &mut Worker| {
                compare(&self.pairs[number], worker, directory, &self.options)
            })?;
        let mut by_number: Vec<_> = order.into_iter().zip(compared).collect();
        by_number.sort_unstable_by_key(|(number, _)| *number);
        Ok(by_number.into_iter().map(|(_, compared)| compared).collect())
    }

    fn save_files(&self, compared: &[Compared], directory: &Path) -> Result<()> {
        let options = &self.options;
        let names = self.pairs.iter().map(|pair| pair.name.as_str());
        let differences: Vec<_> = names
            .zip(compared)
            .filter_map(|(name, compared)| Some((name, compared.difference.as_ref()?)))
            .collect();
        let shards = divide(&differences, MAX_SHARD_SIZE);
        let mut weight_map = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            let file = format!("model-{number:05}-of-{:05}.safetensors", shards.len());
            let checksums = shard.iter().map(|(name, it)| (*name, it.checksum.as_str()));
            let each = SaveOptions::new().metadata(checksums).durable(options.durable);
            let tensors = shard.iter().map(|(name, it)| (name, &it.compressed));
            save(directory.join(&file), tensors, &each)?;
            weight_map.extend(shard.iter().map(|(name, _)| (*name, Value::from(file.as_str()))));
        }
        // Computed, because bytes may have changed since a file recorded a digest. With XOR the
        // digest of the result would do, but the digest of the base checks a chain link by link,
        // and a wrong base is not taken for a damaged delta.
        let [base, result] = self.digests(compared);
        let mut entries = BTreeMap::from([
            (VERSION, options.version.clone()),
            (BASE_VERSION, options.base_version.clone()),
            (ENCODING, options.encoding.word(options.whole).into()),
            (COMPRESSION, ZSTD.into()),
            (CHECKSUM, options.checksums.name().into()),
            (BASE_DIGEST, base),
            (RESULT_DIGEST, result),
        ]);
        entries.extend(self.extra(compared).entries());
        let index = json!({ "metadata": entries, "weight_map": weight_map });
        let path = directory.join(INDEX);
        fs::write(&path, format!("{index:#}\n")).map_err(|error| Error::from(error).in_path(path))
    }

    fn digests(&self, compared: &[Compared]) -> [String; 2] {
        let both = || self.pairs.iter().zip(compared);
        let old = digest_of(both().filter_map(|(pair, compared)| {
            let old = pair.old.as_ref()?;
            Some((old.name(), old.dtype(), old.shape(), compared.old?))
        }));
        let new = digest_of(both().filter_map(|(pair, compared)| {
            let new = pair.new.as_ref()?;
            Some((pair.name.as_str(), new.dtype(), new.shape(), compared.new?))
        }));
        [old, new].map(|digest| digest.to_hex().to_string())
    }

    fn extra(&self, compared: &[Compared]) -> Extra {
        let mut extra = Extra { metadata: self.metadata.clone(), ..Extra::default() };
        for (pair, compared) in self.pairs.iter().zip(compared) {
            let name = pair.name.clone();
            let Some(new) = &pair.new else {
                extra.removed.insert(name);
                continue;
            };
            let form = (new.dtype(), new.shape().to_vec());
            let is_whole = compared.difference.as_ref().is_some_and(|it| it.is_whole);
            match &pair.old {
                None => _ = extra.added.insert(name, form),
                Some(_) if is_whole => _ = extra.replaced.insert(name, form),
                Some(_) => {}
            }
        }
        extra
    }
}

fn other_metadata<S: ReadAt>(old: &Checkpoint<S>, options: &Options) -> Option<Metadata> {
    let mut before = old.metadata().clone();
    remove_record(&mut before);
    options.metadata.clone().filter(|metadata| *metadata != before)
}

fn pairs<S: ReadAt, N: AsRef<str>, T: TensorSource>(
    old: &Checkpoint<S>,
    new: impl IntoIterator<Item = (N, T)>,
) -> Result<Vec<Pair<'_, S, T>>> {
    let mut by_name: BTreeMap<String, Pair<'_, S, T>> = BTreeMap::new();
    for old in old.tensors() {
        let name = old.name().to_owned();
        by_name.insert(name.clone(), Pair { name, old: Some(old), new: None });
    }
    for (name, tensor) in new {
        let name = name.as_ref();
        let size = shape::byte_len(tensor.dtype(), tensor.shape());
        size.map_err(|kind| Error::from(kind).in_tensor(name))?;
        let pair = by_name.entry(name.to_owned());
        let pair = pair.or_insert_with(|| Pair { name: name.to_owned(), old: None, new: None });
        if pair.new.replace(tensor).is_some() {
            return Err(Error::from(CoreKind::DuplicateTensor).in_tensor(name));
        }
    }
    Ok(by_name.into_values().collect())
}

/// Fails if positions do not fit 32 bits. Other writers then write wrong ones.
fn check_positions<S: ReadAt>(old: &LazyTensor<'_, S>) -> Result<()> {
    let found = shape::byte_len(old.dtype(), old.shape())?;
    if found <= LARGEST {
        return Ok(());
    }
    Err(old.locate(ErrorKind::TooLargeToOverwrite { found }.into()))
}

/// Keeps the order. A file has at most `most` bytes.
fn divide<'c, 'n>(
    changes: &'c [(&'n str, &'c Difference)],
    most: u64,
) -> Vec<&'c [(&'n str, &'c Difference)]> {
    let mut shards = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    for (number, (_, change)) in changes.iter().enumerate() {
        let len = change.compressed.len();
        if number > start && bytes + len > most {
            shards.push(&changes[start..number]);
            (start, bytes) = (number, 0);
        }
        bytes += len;
    }
    shards.extend((start < changes.len()).then(|| &changes[start..]));
    shards
}
