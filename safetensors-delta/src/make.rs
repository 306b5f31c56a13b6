//! [`make`]: the delta of two checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors_core::checkpoint::store::LocalStore;
use safetensors_core::error::{IndexProblem, Mismatch};
use safetensors_core::framework::in_parallel;
use safetensors_core::shape;
use safetensors_core::{
    Checkpoint, ErrorKind as CoreKind, LazyTensor, Limits, ReadAt, SaveOptions, TensorSource, save,
};
use serde_json::{Value, json};

use crate::compare::{Change, Compared, Worker, compare};
use crate::delta::Delta;
use crate::destination::{New, refuse_inside};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    BASE_DIGEST, BASE_VERSION, CHECKSUM, COMPRESSION, ENCODING, Encoding, RESULT_DIGEST, VERSION,
    ZSTD,
};
use crate::options::Options;
use crate::patch::LARGEST;
use crate::sums::digest_of;

/// The most bytes of a file, unless one tensor has more. It is what the Hub recommends.
const MAX_SHARD_SIZE: u64 = 5_000_000_000;

/// The name of a delta's index.
const INDEX: &str = "model.safetensors.index.json";

/// Saves what changed between two checkpoints as a delta, in a new directory.
///
/// `new` are the tensors of the newer checkpoint in any order: of an open one, or of a program that
/// trains. They have the names, dtypes and shapes of those of `old`; how either is divided into
/// files makes no difference, nor does their metadata. Values are compared bit by bit.
///
/// Each tensor that differs is compressed by zstd at its first level, independent of the others.
/// The index has a digest of each whole checkpoint, by which another base is found when the delta
/// is applied: the BLAKE3 of one line for each tensor, in the order of their names, such as
/// `["w","F32",[2],"…"]` with the BLAKE3 of the tensor's bytes. The same checkpoints and options
/// give the same files.
///
/// Several tensors are compared at a time, and none is held in memory. The directory appears once
/// it is complete and on the disk. [`Delta`] has an example.
///
/// # Errors
///
/// [`Mismatches`](CoreKind::Mismatches) with all differences between the names, dtypes and shapes;
/// [`FileExists`](CoreKind::FileExists) if the directory has files and [`Options::overwrite`] is
/// off; [`ErrorKind::TooLargeToOverwrite`] and [`ErrorKind::NotForReader`]; the errors of reading,
/// of [`save`](safetensors_core::save()) and of
/// [`AtomicDirectory::commit`](safetensors_core::save::AtomicDirectory::commit).
pub fn make<S: ReadAt, N: AsRef<str>, T: TensorSource>(
    old: &Checkpoint<S>,
    new: impl IntoIterator<Item = (N, T)>,
    directory: impl AsRef<Path>,
    options: &Options,
) -> Result<Delta> {
    make_if(old, new, directory.as_ref(), options, || Ok(()))?;
    Delta::open_in(LocalStore, directory, &Limits::default())
}

/// [`make`] with a check, which is called when the delta is complete and not in its place.
pub(crate) fn make_if<S: ReadAt, N: AsRef<str>, T: TensorSource>(
    old: &Checkpoint<S>,
    new: impl IntoIterator<Item = (N, T)>,
    directory: &Path,
    options: &Options,
    check: impl FnOnce() -> Result<()>,
) -> Result<()> {
    options.check_reader()?;
    options.check_destination(directory, New::Delta)?;
    refuse_inside(directory, old, old.is_of_directory())?;
    let pairs = pairs(old, new).map_err(|error| old.in_first_path(error))?;
    if options.encoding == Encoding::Overwrite {
        pairs.iter().try_for_each(|(old, _)| check_positions(old))?;
    }
    let target = options.create(directory)?;
    let compared = compare_all(&pairs, target.path(), options);
    let compared = compared.map_err(|error| target.locate(error))?;
    let digest = |of: fn(&Compared) -> blake3::Hash| {
        let compared = pairs.iter().zip(&compared);
        let lines = compared.map(|((old, _), it)| (old.name(), old.dtype(), old.shape(), of(it)));
        digest_of(lines).to_hex().to_string()
    };
    let digests = [digest(|it| it.old), digest(|it| it.new)];
    let names = pairs.iter().map(|(old, _)| old.name());
    let changes: Vec<_> = names
        .zip(&compared)
        .filter_map(|(name, compared)| Some((name, compared.change.as_ref()?)))
        .collect();
    let saved = save_files(&changes, target.path(), options, digests);
    saved.map_err(|error| target.locate(error))?;
    // Some systems cannot move a directory with open files in it.
    drop(changes);
    drop(compared);
    check()?;
    old.check_unchanged()?;
    target.commit()
}

/// The tensors of both checkpoints by name, which have to be the same.
fn pairs<S: ReadAt, N: AsRef<str>, T: TensorSource>(
    old: &Checkpoint<S>,
    new: impl IntoIterator<Item = (N, T)>,
) -> Result<Vec<(LazyTensor<'_, S>, T)>> {
    let mut by_name: BTreeMap<String, T> = BTreeMap::new();
    for (name, tensor) in new {
        let name = name.as_ref();
        if by_name.insert(name.to_owned(), tensor).is_some() {
            return Err(Error::from(CoreKind::DuplicateTensor).in_tensor(name));
        }
    }
    let mut stored: Vec<_> = old.tensors().collect();
    stored.sort_unstable_by_key(LazyTensor::name);
    let (mut pairs, mut mismatches) = (Vec::with_capacity(stored.len()), Vec::new());
    for old in stored {
        let name = old.name().to_owned();
        let Some(new) = by_name.remove(&name) else {
            mismatches.push(Mismatch::Missing { name });
            continue;
        };
        if new.shape() != old.shape() {
            let (expected, found) = (old.shape().to_vec(), new.shape().to_vec());
            mismatches.push(Mismatch::Shape { name, expected, found });
        } else if new.dtype() != old.dtype() {
            let (expected, found) = (old.dtype(), new.dtype());
            mismatches.push(Mismatch::Dtype { name, expected, found });
        } else {
            pairs.push((old, new));
        }
    }
    mismatches.extend(by_name.into_keys().map(|name| Mismatch::Extra { name }));
    if mismatches.is_empty() { Ok(pairs) } else { Err(CoreKind::Mismatches { mismatches }.into()) }
}

/// Fails for a tensor whose positions do not fit 32 bits. Other writers then write wrong ones.
fn check_positions<S: ReadAt>(old: &LazyTensor<'_, S>) -> Result<()> {
    let found = shape::byte_len(old.dtype(), old.shape())?;
    if found <= LARGEST {
        return Ok(());
    }
    Err(old.locate(ErrorKind::TooLargeToOverwrite { found }.into()))
}

/// Compares all pairs, the largest first, so that no thread is left with a large one at the end.
fn compare_all<S: ReadAt, T: TensorSource>(
    pairs: &[(LazyTensor<'_, S>, T)],
    directory: &Path,
    options: &Options,
) -> Result<Vec<Compared>> {
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    order.sort_by_key(|&number| std::cmp::Reverse(pairs[number].0.byte_len()));
    let compared = in_parallel(&order, options.threads, |&number, worker: &mut Worker| {
        let (old, new) = &pairs[number];
        compare((*old, new), worker, directory, options)
    })?;
    let mut by_number: Vec<_> = order.into_iter().zip(compared).collect();
    by_number.sort_unstable_by_key(|(number, _)| *number);
    Ok(by_number.into_iter().map(|(_, compared)| compared).collect())
}

/// Saves the changes in files, numbered from 0, and the index.
fn save_files(
    changes: &[(&str, &Change)],
    directory: &Path,
    options: &Options,
    [base, result]: [String; 2],
) -> Result<()> {
    let shards = divide(changes, MAX_SHARD_SIZE);
    let mut weight_map = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        let file = format!("model-{number:05}-of-{:05}.safetensors", shards.len());
        let checksums = shard.iter().map(|(name, change)| (*name, change.checksum.as_str()));
        let each = options.of_file(SaveOptions::new().metadata(checksums));
        let tensors = shard.iter().map(|(name, change)| (name, &change.compressed));
        save(directory.join(&file), tensors, &each)?;
        weight_map.extend(shard.iter().map(|(name, _)| (*name, Value::from(file.as_str()))));
    }
    let metadata = BTreeMap::from([
        (VERSION, options.version.as_str()),
        (BASE_VERSION, &options.base_version),
        (ENCODING, options.encoding.name()),
        (COMPRESSION, ZSTD),
        (CHECKSUM, options.checksums.name()),
        (BASE_DIGEST, &base),
        (RESULT_DIGEST, &result),
    ]);
    let index = json!({ "metadata": metadata, "weight_map": weight_map });
    write_index(&directory.join(INDEX), &format!("{index:#}\n"), weight_map.len())
}

fn write_index(path: &Path, index: &str, tensors: usize) -> Result<()> {
    let Limits { index_bytes: limit, index_entries, .. } = Limits::default();
    let problem = match index.len() as u64 {
        found if found > limit => IndexProblem::TooLarge { limit, found },
        _ if tensors > index_entries => IndexProblem::TooManyEntries { limit: index_entries },
        _ => return fs::write(path, index).map_err(|error| Error::from(error).in_path(path)),
    };
    Err(Error::from(CoreKind::BadIndex { problem }).in_path(path))
}

/// Divides the changes into files of at most so many bytes, in their order.
fn divide<'c, 'n>(
    changes: &'c [(&'n str, &'c Change)],
    most: u64,
) -> Vec<&'c [(&'n str, &'c Change)]> {
    let (mut shards, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (number, (_, change)) in changes.iter().enumerate() {
        let len = change.compressed.shape().iter().product::<usize>() as u64;
        if number > start && bytes + len > most {
            shards.push(&changes[start..number]);
            (start, bytes) = (number, 0);
        }
        bytes += len;
    }
    shards.extend((start < changes.len()).then(|| &changes[start..]));
    shards
}
