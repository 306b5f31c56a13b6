//! [`save_sharded`]: a checkpoint of several files and their index.

use std::collections::BTreeMap;
use std::path::Path;

use super::index::Index;
use super::staging::Staging;
use super::{ShardOptions, Split, split_into_shards};
use crate::error::{Error, ErrorKind, Result};
use crate::header::FORMAT_KEY;
use crate::save::SaveOptions;
use crate::tensor::{TensorSource, shape};
use crate::tied;

/// The files of a saved checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedShards {
    /// The names of the files, without the index's, in order.
    pub files: Vec<String>,
    /// The bytes of all tensors.
    pub total_size: u64,
}

/// Saves tensors to a directory as a checkpoint of one file, or of several with an index if they do
/// not fit one.
///
/// The tensors are divided in the given order, each counted with the bytes
/// that it has in the file. What the directory has of the same file pattern is replaced: afterwards
/// there are no files of an earlier save besides the new ones. Other files are left alone. Links
/// are replaced, not followed.
///
/// At every moment the directory opens as the complete earlier checkpoint or as the complete new
/// one, also after an interruption; the space for both is needed. The earlier one may then have
/// other file names than before, until the next save. A directory that has yet another checkpoint,
/// under names of another pattern, may open as that one or, if neither has the names
/// `model{suffix}.safetensors`, as none: such a checkpoint is opened by the path of its file or
/// index.
///
/// Saves to one directory at the same time, of this process and of others, do not mix:
/// [`Contention`](crate::checkpoint::Contention) says what happens to the second. On file systems
/// of networks, where locks may not reach other machines, a save whose files were replaced by
/// another fails with [`ErrorKind::Overtaken`]. Whatever another writer has put into the directory
/// meanwhile stays there.
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
/// Those of [`save`](crate::save()), for each file; [`ErrorKind::DuplicateTensor`];
/// [`ErrorKind::NotAFile`] if a name of the new files is that of something else;
/// [`ErrorKind::DirectoryBusy`] and [`ErrorKind::Overtaken`]; [`ErrorKind::Io`] also if the earlier
/// checkpoint cannot be read. After [`ErrorKind::NotDurable`] and [`ErrorKind::LeftBehind`] the new
/// checkpoint is in its place, else what was there before.
pub fn save_sharded<N: AsRef<str>, S: TensorSource>(
    directory: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    save_sharded_if(directory.as_ref(), tensors, options, || Ok(()))
}

/// [`save_sharded`], unless `check` fails, which is called when all files are written and none is
/// in place.
pub(crate) fn save_sharded_if<N: AsRef<str>, S: TensorSource>(
    directory: &Path,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &ShardOptions,
    check: impl FnOnce() -> Result<()>,
) -> Result<SavedShards> {
    let mut tensors: Vec<_> = tensors.into_iter().collect();
    let ShardPlan { split, each, index, files, .. } =
        plan(&mut tensors, options).map_err(|error| error.in_path(directory))?;
    let staging = Staging::create(directory, options)?;
    for (file, positions) in files.iter().zip(&split.shards) {
        let shard = positions.iter().map(|&position| (&tensors[position].0, &tensors[position].1));
        let path = staging.path(file);
        crate::save::save(&path, shard, &each)
            .map_err(|error| error.moved(&path, &staging.destination(file)))?;
    }
    staging.commit(&index, check)?;
    Ok(SavedShards { files, total_size: split.total_size })
}

/// What a sharded save will write.
pub(crate) struct ShardPlan {
    /// Which tensors each file has.
    pub(crate) split: Split,
    /// The names of the files.
    pub(crate) files: Vec<String>,
    /// How each file is saved.
    pub(crate) each: SaveOptions,
    /// Each dropped name, with the name of the tensor that is saved for it.
    pub(crate) aliases: BTreeMap<String, String>,
    index: Index,
}

/// Leaves the tensors that are to be saved, and decides which file each goes to.
pub(crate) fn plan<N: AsRef<str>, S: TensorSource>(
    tensors: &mut Vec<(N, S)>,
    options: &ShardOptions,
) -> Result<ShardPlan> {
    let ShardOptions { max_shard_size, file_pattern, save_options, .. } = options;
    let mut aliases = BTreeMap::new();
    if let Some(tied) = &save_options.tied {
        aliases = tied::drop_copies(tensors, tied)?;
    }
    let mut total = 0_u64;
    let sizes = tensors.iter().map(|(name, tensor)| {
        let size = shape::byte_len(tensor.dtype(), tensor.shape()).and_then(|size| {
            let overflow = || ErrorKind::ShapeOverflow { shape: tensor.shape().into() };
            total = total.checked_add(size).ok_or_else(overflow)?;
            Ok(size)
        });
        // What shares a storage here is written once for each name, so each counts.
        size.map(|size| (size, None::<()>))
            .map_err(|kind| Error::from(kind).in_tensor(name.as_ref()))
    });
    let mut split = split_into_shards(sizes.collect::<Result<Vec<_>>>()?, *max_shard_size);
    if split.shards.is_empty() {
        // No tensors: one file that says so.
        split.shards.push(Vec::new());
    }
    let shards = split.shards.len();

    // The progress is that of all files together.
    let progress = save_options.progress.for_total(split.total_size);
    let mut each = SaveOptions { tied: None, progress, ..save_options.clone() };
    let mut metadata = std::mem::take(&mut each.metadata);
    let format = metadata.remove(FORMAT_KEY).unwrap_or_else(|| "pt".into());
    each.metadata.insert(FORMAT_KEY.into(), format);
    if shards == 1 {
        each.metadata.append(&mut metadata);
        tied::record(&mut each.metadata, aliases.clone())?;
    } else {
        // The index has a number under this name, which stands in the way of a tensor of this name
        // too.
        metadata.insert("total_size".into(), split.total_size.to_string());
        tied::record(&mut metadata, aliases.clone())?;
    }

    let mut index = Index { total_size: Some(split.total_size), metadata, ..Index::default() };
    let mut names = std::collections::HashSet::new();
    let mut files = Vec::with_capacity(shards);
    for (shard, positions) in split.shards.iter().enumerate() {
        let file = file_pattern.file_name(shard, shards);
        let name_of = |&position: &usize| tensors[position].0.as_ref();
        // Within a file the header's own rules see to this, and across files nothing else does.
        if let Some(twice) = positions.iter().map(name_of).find(|name| !names.insert(*name)) {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(twice));
        }
        index
            .shards
            .insert(file.clone(), positions.iter().map(|i| name_of(i).to_owned()).collect());
        files.push(file);
    }
    Ok(ShardPlan { split, files, each, aliases, index })
}
