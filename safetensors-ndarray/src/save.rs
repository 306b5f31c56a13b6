//! Saves maps of [`DynArray`]s, and arrays and views of any type, dimension and layout.

use std::path::Path;

use ndarray::{ArrayBase, ArrayRef, ArrayViewD, Data, Dimension};
use safetensors_core::checkpoint::SavedShards;
use safetensors_core::save::{PieceSink, Sink};
use safetensors_core::tied::Storage;
use safetensors_core::{Dtype, Result, SaveOptions, ShardOptions, TensorSource, framework};

use crate::{ArrayElement, DynArray, Ndarray, strided};

/// Saves tensors to one file, atomically. Afterwards the path has either the complete new file or
/// its previous content.
///
/// `tensors` is anything that yields names and tensors, such as a `&BTreeMap<String, DynArray>`.
/// Arrays in C order are written directly from their memory. Other arrays pass through buffers: two
/// per thread of 2 to 8 MiB each. With [`SaveOptions::digests`], a buffer has up to 32
/// MiB if 64 rows need as much.
///
/// To save arrays that are not [`DynArray`]s, pass [`array_source`]s to
/// [`safetensors_core::save()`].
///
/// With [`SaveOptions::tied`], an array that appears under several names is saved once.
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
/// Those of [`safetensors_core::save()`]. Each names the file, and the tensor if it concerns one.
/// After an error the path has its previous content.
pub fn save<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a DynArray)>,
    options: &SaveOptions,
) -> Result<()> {
    framework::save::<Ndarray>(path, tensors, options)
}

/// Saves arrays to a directory, as a checkpoint of one file or several shards. See
/// [`safetensors_core::save_sharded`] for the names and sizes of the files.
///
/// It accepts the same tensors as [`save`] and copies no more than [`save`] does.
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
/// Those of [`safetensors_core::save_sharded`]. Each names the file or the directory, and the
/// tensor if it concerns one.
pub fn save_sharded<'a>(
    directory: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a DynArray)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    framework::save_sharded::<Ndarray>(directory, tensors, options)
}

/// Borrows an array of any memory layout as a source to be saved. Transposed, sliced, reversed and
/// broadcast arrays are written in C order of their logical elements. No array is copied whole.
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
/// // Boxes put sources of different element types into one list.
/// let tensors: [(&str, Box<dyn TensorSource>); 2] =
///     [("weight", Box::new(array_source(&transposed))), ("steps",
///   Box::new(array_source(&reversed)))];
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

impl<'a, T: ArrayElement> ArraySource<'a, T> {
    /// Borrows an array of any memory layout.
    pub(crate) fn of<D: Dimension>(array: &'a ArrayRef<T, D>) -> Self {
        Self(array.view().into_dyn())
    }
}

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

    fn write_pieces(&self, sink: &mut PieceSink<'_>) -> Result<()> {
        strided::write_pieces(self.0.view(), sink)
    }

    /// The memory of the elements, if they lie in C order. Two such sources with the same address
    /// and length are the same.
    ///
    /// Returns `None` for another layout, which is then tied to no other tensor: ndarray does not
    /// tell which allocation a view is a part of.
    fn storage(&self) -> Option<Storage> {
        let elements = self.0.as_slice()?;
        Some(Storage::whole(elements.as_ptr().addr() as u64, size_of_val(elements) as u64))
    }
}
