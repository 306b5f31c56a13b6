//! [`save_sharded`]: several files and their index.

mod commit;
pub(super) mod commit_parts;
mod current;
pub(super) mod destination;
pub(super) mod local_directory;
pub(super) mod options;
mod placed_files;
pub(super) mod size;
pub(super) mod split;
pub(super) mod staged;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use crate::checkpoint::index::Index;
use crate::checkpoint::store::WritableDirectory;
use crate::checkpoint::{ShardOptions, Split, split_into_shards};
use crate::file::hash::{Change, forget};
use crate::file::save::SaveOptions;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{FORMAT_KEY, Metadata};
use crate::format::tensor::{Named, TensorSource, named, shape};
use crate::format::tied;
use local_directory::LocalDirectory;
use staged::{SavedShards, StagedShards, unless_refused};

/// Saves tensors to a directory as a checkpoint in one file, or in several files with an index.
///
/// The tensors are divided in the given order. All files of earlier saves with the same pattern are
/// replaced; other files stay. Links are replaced, not followed. A new file gets the permissions of
/// the file that it replaces, otherwise the strictest among the earlier checkpoint's files.
///
/// At every moment the directory opens as the complete earlier checkpoint or as the complete new
/// one, so the disk needs space for both. After an interruption the earlier files may have other
/// names, until the next save. Next to a checkpoint under names of another pattern, the new one may
/// open only by the path of its file or index.
///
/// Saves to one directory at the same time do not mix;
/// [`Contention`](crate::checkpoint::Contention) sets how the second one reacts. Where locks do not
/// reach other machines, a save fails with [`ErrorKind::Overtaken`] if another one was done first.
///
/// ```
/// use safetensors_core::{Checkpoint, ShardOptions, TensorView, save_sharded};
///
/// let dir = tempfile::tempdir()?;
/// let values = [1.0_f32, 2.0];
/// let tensors =
///     ["a", "b", "c"].map(|name| (name, TensorView::from_slice(&[2], &values).unwrap()));
/// let saved =
///     save_sharded(dir.path(), tensors, &ShardOptions::new().max_shard_size(16.into()))?;
/// assert_eq!(
///     saved.files,
///     ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
/// );
/// assert_eq!(Checkpoint::open(dir.path())?.len(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As for [`save`](crate::save()); [`ErrorKind::BadIndex`] if the index would exceed the default
/// [`Limits`](crate::Limits); [`ErrorKind::NotAFile`] and [`ErrorKind::ReadOnlyFile`] for a file in
/// the way; [`RankProblem::HidesParts`](crate::error::RankProblem::HidesParts);
/// [`ErrorKind::DirectoryBusy`]; [`ErrorKind::Io`] also if the earlier checkpoint cannot be read.
///
/// After [`ErrorKind::NotDurable`] and [`ErrorKind::LeftBehind`] the directory opens as the new
/// checkpoint, after [`ErrorKind::Overtaken`] as the other writer's or, if that has failed, the new
/// one, or as a mixture if both have changed files at the very same time. After other errors it
/// opens as before.
pub fn save_sharded<N: AsRef<str>, S: TensorSource>(
    directory: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    let mut directory = LocalDirectory::create(directory, options)?;
    stage_sharded_to(&mut directory, tensors, options)?.commit()
}

/// Saves like [`save_sharded`], to a directory of any store, which decides its own
/// [`Contention`](crate::checkpoint::Contention).
///
/// ```
/// use safetensors_core::checkpoint::save_sharded_to;
/// use safetensors_core::checkpoint::store::MemoryStore;
/// use safetensors_core::{Checkpoint, Limits, ShardOptions, TensorView};
///
/// let values = [1_u8, 2];
/// let tensors = ["a", "b"].map(|name| (name, TensorView::from_slice(&[2], &values).unwrap()));
/// let mut store = MemoryStore::default();
/// let options = ShardOptions::new().max_shard_size(2.into());
/// let saved = save_sharded_to(&mut store, tensors, &options)?;
/// assert_eq!(saved.files.len(), 2);
/// assert_eq!(Checkpoint::open_in(store, "", &Limits::default())?.len(), 2);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub fn save_sharded_to<D: WritableDirectory, N: AsRef<str>, S: TensorSource>(
    directory: &mut D,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    stage_sharded_to(directory, tensors, options)?.commit()
}

/// Writes all files that [`save_sharded_to`] puts in place. No reader finds them before the commit.
#[doc(hidden)]
pub fn stage_sharded_to<'d, D: WritableDirectory, N: AsRef<str>, S: TensorSource>(
    directory: &'d mut D,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &ShardOptions,
) -> Result<StagedShards<'d, D>> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    stage_named(directory, named(&tensors), options)
}

fn stage_named<'d, D: WritableDirectory>(
    directory: &'d mut D,
    mut tensors: Vec<Named<'_>>,
    options: &ShardOptions,
) -> Result<StagedShards<'d, D>> {
    let plan = plan(&mut tensors, options).map_err(|error| error.in_path(directory.path()))?;
    if !options.overwrites() {
        // The commit checks this again. Here it comes before hours of writing.
        unless_refused(directory, &directory.files(options.pattern())?, options, &[])?;
    }
    write_others(directory, options)?;
    let ShardPlan { split, files, each, index, .. } = plan;
    for (file, positions) in files.iter().zip(&split.shards) {
        let shard = positions.iter().map(|&position| tensors[position]);
        let written = directory.write(file, shard, &each);
        written.map_err(|error| error.in_path(directory.path().join(file)))?;
    }
    let saved = SavedShards { files, total_size: split.total_size };
    Ok(StagedShards::new(directory, options, index, saved))
}

// Before the tensors, so that an error comes early.
pub(crate) fn write_others<D: WritableDirectory>(
    directory: &mut D,
    options: &ShardOptions,
) -> Result<()> {
    options.others.names().try_for_each(|name| {
        let written = directory.write_other(name, &|out| options.others.write_to(name, out));
        written.map_err(|error| error.in_path(directory.path().join(name)))
    })
}

#[derive(Debug)]
pub(crate) struct ShardPlan {
    pub(crate) split: Split,
    pub(crate) files: Vec<String>,
    pub(crate) each: SaveOptions,
    pub(crate) aliases: BTreeMap<String, String>,
    index: Index,
}

pub(crate) fn plan(tensors: &mut Vec<Named<'_>>, options: &ShardOptions) -> Result<ShardPlan> {
    options.check_beside()?;
    refuse_dcp(options)?;
    let aliases = match &options.save_options.tied {
        Some(tied) => tied::drop_copies(tensors, tied)?,
        None => BTreeMap::new(),
    };
    let mut split = split_into_shards(sizes(tensors)?, options.max_shard_size);
    if split.shards.is_empty() {
        // Without tensors there is still one file.
        split.shards.push(Vec::new());
    }
    let Recorded { each, metadata } = record(&split, &aliases, &options.save_options)?;
    let names: Vec<&str> = tensors.iter().map(|&(name, _)| name).collect();
    refuse_duplicates(&names)?;
    let mut index = Index { total_size: Some(split.total_size), metadata, ..Index::default() };
    let count = split.shards.len();
    let mut files = Vec::with_capacity(count);
    for (shard, positions) in split.shards.iter().enumerate() {
        let file = options.file_pattern.file_name(shard, count);
        let names = positions.iter().map(|&position| names[position].to_owned());
        index.shards.insert(file.clone(), names.collect());
        files.push(file);
    }
    // One file has no index.
    if count > 1 {
        index.check()?;
    }
    Ok(ShardPlan { split, files, each, aliases, index })
}

fn refuse_dcp(options: &ShardOptions) -> Result<()> {
    if !options.dcp {
        return Ok(());
    }
    let problem = "only ranks save files of PyTorch's distributed checkpoints: use RankSaver or \
                   Rewrite::save_ranks";
    let unsupported = std::io::Error::new(std::io::ErrorKind::Unsupported, problem);
    Err(ErrorKind::Io(unsupported).into())
}

struct Recorded {
    each: SaveOptions,
    metadata: Metadata,
}

fn record(
    split: &Split,
    aliases: &BTreeMap<String, String>,
    options: &SaveOptions,
) -> Result<Recorded> {
    // Progress counts the bytes of all files together.
    let progress = options.progress.for_total(split.total_size);
    let mut each = SaveOptions { tied: None, progress, ..options.clone() };
    let mut metadata = std::mem::take(&mut each.metadata);
    // An index has no place for the records of a single file.
    forget(&mut metadata, Change::File);
    let format = metadata.remove(FORMAT_KEY).unwrap_or_else(|| "pt".into());
    each.metadata.insert(FORMAT_KEY.into(), format);
    if split.shards.len() == 1 {
        each.metadata.append(&mut metadata);
        tied::record(&mut each.metadata, aliases.clone())?;
    } else {
        // The index writes its own number under this key. With the key taken, a tied tensor of that
        // name is an error here.
        metadata.insert("total_size".into(), split.total_size.to_string());
        tied::record(&mut metadata, aliases.clone())?;
    }
    Ok(Recorded { each, metadata })
}

// The header of a file finds only duplicates in the file.
fn refuse_duplicates(names: &[&str]) -> Result<()> {
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(**name)) {
        Some(twice) => Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(twice)),
        None => Ok(()),
    }
}

// Tensors that share storage are written once for each name.
fn sizes(tensors: &[Named<'_>]) -> Result<Vec<(u64, Option<()>)>> {
    let mut total = 0_u64;
    let sizes = tensors.iter().map(|(name, tensor)| {
        let size = shape::byte_len(tensor.dtype(), tensor.shape()).and_then(|size| {
            let overflow = || ErrorKind::ShapeOverflow { shape: tensor.shape().into() };
            total = total.checked_add(size).ok_or_else(overflow)?;
            Ok((size, None))
        });
        size.map_err(|kind| Error::from(kind).in_tensor(name))
    });
    sizes.collect()
}
