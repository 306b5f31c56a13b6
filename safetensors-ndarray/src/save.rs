//! Saves maps of [`DynArray`]s.

use std::path::Path;

use safetensors_core::checkpoint::SavedShards;
use safetensors_core::{Result, SaveOptions, ShardOptions, framework};

use crate::{DynArray, Ndarray};

/// Saves tensors to one file, atomically. `tensors` yields names and tensors, such as a
/// `&BTreeMap<String, DynArray>`.
///
/// Arrays in C order are written from their memory, others through buffers: two per thread of 2 to
/// 8 MiB each. With [`SaveOptions::digests`], a buffer has up to 32 MiB if 64 rows need that.
///
/// For arrays that are not [`DynArray`]s, pass [`array_source`](crate::array_source)s to
/// [`safetensors_core::save()`]. With [`SaveOptions::tied`], an array under several names is saved
/// once.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use ndarray::array;
/// use safetensors_core::SaveOptions;
/// use safetensors_ndarray::{DynArray, load, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let tensors = BTreeMap::from([("mask".to_string(), DynArray::from(array![true, false]))]);
/// save(&path, &tensors, &SaveOptions::new())?;
/// assert_eq!(load(&path)?, tensors);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`FileExists`](safetensors_core::ErrorKind::FileExists) and
/// [`ReadOnlyFile`](safetensors_core::ErrorKind::ReadOnlyFile), unless the options allow replacing
/// the file; [`DuplicateTensor`](safetensors_core::ErrorKind::DuplicateTensor);
/// [`Io`](safetensors_core::ErrorKind::Io); others of [`safetensors_core::save()`].
pub fn save<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a DynArray)>,
    options: &SaveOptions,
) -> Result<()> {
    framework::save::<Ndarray>(path, tensors, options)
}

/// Saves arrays to a directory, as a single file or several shards. See
/// [`safetensors_core::save_sharded`] for the names and sizes of the files.
///
/// ```
/// use ndarray::Array2;
/// use safetensors_core::ShardOptions;
/// use safetensors_ndarray::{DynArray, load, save_sharded};
///
/// let dir = tempfile::tempdir()?;
/// let arrays = ["a", "b", "c"].map(|name| (name, DynArray::from(Array2::<f32>::eye(2))));
/// let options = ShardOptions::new().max_shard_size(32.into());
/// let saved =
///     save_sharded(dir.path(), arrays.iter().map(|(name, array)| (name, array)), &options)?;
/// assert_eq!((saved.files.len(), saved.total_size), (2, 48));
/// assert_eq!(load(dir.path())?["c"], DynArray::from(Array2::<f32>::eye(2)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ReadOnlyFile`](safetensors_core::ErrorKind::ReadOnlyFile), unless the options allow replacing
/// the file; [`DirectoryBusy`](safetensors_core::ErrorKind::DirectoryBusy);
/// [`DuplicateTensor`](safetensors_core::ErrorKind::DuplicateTensor);
/// [`Io`](safetensors_core::ErrorKind::Io); others of [`safetensors_core::save_sharded`].
pub fn save_sharded<'a>(
    directory: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a DynArray)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    framework::save_sharded::<Ndarray>(directory, tensors, options)
}
