//! Saving: maps of [`DynArray`]s, and arrays and views of any type, dimension and layout.

use std::path::Path;

use ndarray::{ArrayBase, ArrayViewD, Data, Dimension};
use safetensors_core::checkpoint::SavedShards;
use safetensors_core::save::Sink;
use safetensors_core::tied::Storage;
use safetensors_core::{Dtype, Result, SaveOptions, ShardOptions, TensorSource, framework};

use crate::{ArrayElement, DynArray, Ndarray, strided};

/// Saves tensors to one file, atomically: afterwards the path has either the complete new file or
/// what it had before.
///
/// Takes anything that yields names and tensors, such as a `&BTreeMap<String, DynArray>`. Arrays in
/// C order are written from where they lie; others go through a buffer of at most 1 MiB a thread.
///
/// To save arrays that are not [`DynArray`]s, give [`array_source`]s to
/// [`safetensors_core::save()`].
///
/// With [`SaveOptions::tied`], an array that is given under several names is saved once.
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
/// Those of [`safetensors_core::save()`]; each names the file and, if it is about one, the tensor.
/// The path then has what it had before.
pub fn save<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a DynArray)>,
    options: &SaveOptions,
) -> Result<()> {
    framework::save::<Ndarray>(path, tensors, options)
}

/// Saves arrays to a directory, as a checkpoint of as many files as they need: see
/// [`safetensors_core::save_sharded`].
///
/// Takes and copies what [`save`] does.
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
/// Those of [`safetensors_core::save_sharded`]; each names the file or the directory and, if it is
/// about one, the tensor.
pub fn save_sharded<'a>(
    directory: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a DynArray)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    framework::save_sharded::<Ndarray>(directory, tensors, options)
}

/// An array of any memory layout as something to save: transposed, sliced, reversed or broadcast
/// arrays are written as they look, in C order, and never copied whole.
///
/// ```
/// use ndarray::{Ix1, array, s};
/// use safetensors_core::{SafeTensors, SaveOptions, TensorSource, serialize};
/// use safetensors_ndarray::{ViewArrayExt, array_source};
///
/// let weight = array![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let steps = array![1_i64, 2, 3];
/// let (transposed, reversed) = (weight.t(), steps.slice(s![..;-1]));
///
/// // Sources of several types go into one list boxed.
/// let tensors: [(&str, Box<dyn TensorSource>); 2] =
///     [("weight", Box::new(array_source(&transposed))), ("steps", Box::new(array_source(&reversed)))];
/// let file = serialize(tensors, &SaveOptions::new())?;
///
/// let file = SafeTensors::parse(file)?;
/// assert_eq!(file.view("weight")?.as_slice::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// assert_eq!(file.view("steps")?.as_array::<i64, Ix1>()?, array![3, 2, 1]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub fn array_source<S, D>(array: &ArrayBase<S, D>) -> ArraySource<'_, S::Elem>
where
    S: Data<Elem: ArrayElement>,
    D: Dimension,
{
    ArraySource(array.view().into_dyn())
}

/// A [`TensorSource`] that borrows an array of any memory layout. Made by [`array_source`].
#[derive(Clone, Debug)]
pub struct ArraySource<'a, T>(ArrayViewD<'a, T>);

impl<T: ArrayElement> TensorSource for ArraySource<'_, T> {
    fn dtype(&self) -> Dtype {
        T::DTYPE
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        strided::write(self.0.view(), sink)
    }

    /// The elements, if they lie in C order: two such sources that begin at one address and have
    /// one length are the same.
    ///
    /// Of what allocation a view is a part ndarray does not say, so one in another layout is tied
    /// to none.
    fn storage(&self) -> Option<Storage> {
        let elements = self.0.as_slice()?;
        Some(Storage::whole(elements.as_ptr().addr() as u64, size_of_val(elements) as u64))
    }
}
