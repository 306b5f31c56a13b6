//! Loads checkpoints as [`DynArray`]s, and single tensors as typed arrays.

use std::collections::BTreeMap;
use std::path::Path;

use ndarray::{Array, Dimension};
#[cfg(doc)]
use safetensors_core::Checkpoint;
use safetensors_core::load::LazySlice;
use safetensors_core::{
    ConvertOptions, Dtype, LazyTensor, LoadOptions, ReadAt, Result, TensorSource, framework,
};

use crate::array::{array_from_buf, wrong_dtype};
use crate::error::dimension;
use crate::{ArrayElement, DynArray, Ndarray};

/// Loads every tensor of a checkpoint by name, in parallel. The path is a file, an index of shards,
/// or the directory of either.
///
/// Arrays take over the memory that was read into. Only BOOL is copied once.
///
/// ```
/// use ndarray::array;
/// use safetensors_core::{SaveOptions, save};
/// use safetensors_ndarray::{DynArray, array_source, load};
///
/// let dir = tempfile::tempdir()?;
/// let bias = array![1.0_f64, 2.0];
/// save(
///     dir.path().join("model.safetensors"),
///     [("bias", array_source(&bias))],
///     &SaveOptions::new(),
/// )?;
///
/// let tensors = load(dir.path())?;
/// assert_eq!(tensors["bias"], DynArray::from(bias));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Like [`Checkpoint::open`] and [`framework::load`], for example
/// [`Quantization`](safetensors_core::ErrorKind::Quantization) for [quantised
/// weights](LoadOptions::quantized).
pub fn load(path: impl AsRef<Path>) -> Result<BTreeMap<String, DynArray>> {
    load_with(path, &LoadOptions::new())
}

/// Loads like [`load`], with options.
///
/// ```
/// use half::f16;
/// use ndarray::array;
/// use safetensors_core::{Dtype, LoadOptions, SaveOptions, save};
/// use safetensors_ndarray::{DynArray, array_source, load_with};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(&path, [("bias", array_source(&array![f16::ONE]))], &SaveOptions::new())?;
///
/// let tensors = load_with(&path, &LoadOptions::new().floats_as(Dtype::F32))?;
/// assert_eq!(tensors["bias"], DynArray::from(array![1.0_f32]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`NoConversion`](safetensors_core::ErrorKind::NoConversion) if a requested conversion does not
/// exist; otherwise like [`load`].
pub fn load_with(
    path: impl AsRef<Path>,
    options: &LoadOptions,
) -> Result<BTreeMap<String, DynArray>> {
    framework::load_path::<Ndarray>(path, &(), options)
}

/// Reads a [`LazyTensor`], or its part, a [`LazySlice`], as an array.
///
/// Element type and dimension are compared with the header before any data is read. The array takes
/// over the memory that was read into. Only BOOL is copied once.
///
/// ```
/// use ndarray::{Array2, Ix1, Ix2};
/// use safetensors_core::{Checkpoint, SaveOptions, save};
/// use safetensors_ndarray::{ReadArrayExt, array_source};
///
/// let dir = tempfile::tempdir()?;
/// save(
///     dir.path().join("model.safetensors"),
///     [("weight", array_source(&Array2::<f32>::eye(3)))],
///     &SaveOptions::new(),
/// )?;
///
/// let checkpoint = Checkpoint::open(dir.path())?;
/// let weight: Array2<f32> = checkpoint.tensor("weight")?.read_array()?;
/// assert_eq!(weight, Array2::<f32>::eye(3));
/// assert!(checkpoint.tensor("weight")?.read_array::<f32, Ix1>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ReadArrayExt {
    /// Reads the tensor as an array of elements `T` and dimension `D`.
    ///
    /// # Errors
    ///
    /// [`WrongDtype`](safetensors_core::ErrorKind::WrongDtype) if the dtype is not `T`'s;
    /// [`Framework`](safetensors_core::ErrorKind::Framework) with a
    /// [`WrongNdim`](crate::WrongNdim); an error of [`LazyTensor::read`]. Codes of quantised
    /// weights are no error: the caller has named their type.
    fn read_array<T: ArrayElement, D: Dimension>(&self) -> Result<Array<T, D>>;

    /// Reads the tensor and converts it to elements `T`, by the rules of
    /// [`convert`](safetensors_core::convert). Memory holds at most one piece per thread in the
    /// tensor's own dtype.
    ///
    /// ndarray has no arithmetic for half-precision and 8-bit floats. It has arithmetic for `f32`:
    ///
    /// ```
    /// use half::bf16;
    /// use ndarray::{Ix2, array};
    /// use safetensors_core::{Checkpoint, ConvertOptions, SaveOptions, save};
    /// use safetensors_ndarray::{ReadArrayExt, array_source};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("model.safetensors");
    /// let weight = array![[1.0_f32, 2.0], [3.0, 4.0]].mapv(bf16::from_f32);
    /// save(&path, [("weight", array_source(&weight))], &SaveOptions::new())?;
    ///
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let weight =
    ///     checkpoint.tensor("weight")?.read_array_as::<f32, Ix2>(&ConvertOptions::new())?;
    /// assert_eq!(weight.dot(&array![1.0, 0.5]), array![2.0, 5.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An error of [`LazyTensor::read_with`], such as
    /// [`Quantization`](safetensors_core::ErrorKind::Quantization) for codes of a quantised weight,
    /// which [`Reader::quantized`](crate::Reader::quantized) reads as numbers;
    /// [`Framework`](safetensors_core::ErrorKind::Framework) with a
    /// [`WrongNdim`](crate::WrongNdim).
    fn read_array_as<T: ArrayElement, D: Dimension>(
        &self,
        options: &ConvertOptions,
    ) -> Result<Array<T, D>>;

    /// Reads the tensor in its own dtype and shape.
    ///
    /// # Errors
    ///
    /// [`Quantization`](safetensors_core::ErrorKind::Quantization) for codes of a quantised weight;
    /// [`Io`](safetensors_core::ErrorKind::Io), also if the file has changed since it was opened;
    /// [`InvalidBool`](safetensors_core::ErrorKind::InvalidBool);
    /// [`TooLargeForMemory`](safetensors_core::ErrorKind::TooLargeForMemory).
    fn read_any(&self) -> Result<DynArray>;
}

/// Tensors of more bytes than this are read by several threads.
const LARGE: u64 = 4 << 20;

macro_rules! read_arrays {
    ($lazy:ident, $locate:expr) => {
        impl<S: ReadAt> ReadArrayExt for $lazy<'_, S> {
            fn read_array<T: ArrayElement, D: Dimension>(&self) -> Result<Array<T, D>> {
                let fits = check::<T, D>(self.dtype(), self.shape());
                let buf = fits.and_then(|()| match self.byte_len() {
                    LARGE.. => self.read_with(&LoadOptions::new()),
                    _ => self.read(),
                });
                buf.and_then(array_from_buf).map_err(|error| $locate(self, error))
            }

            fn read_array_as<T: ArrayElement, D: Dimension>(
                &self,
                options: &ConvertOptions,
            ) -> Result<Array<T, D>> {
                let options = LoadOptions::new().convert_options(*options).all_as(T::DTYPE);
                let fits = check::<T, D>(T::DTYPE, self.shape());
                let buf = fits.and_then(|()| self.read_with(&options));
                buf.and_then(array_from_buf).map_err(|error| $locate(self, error))
            }

            fn read_any(&self) -> Result<DynArray> {
                // Nobody has named the type of the elements, so they must be numbers.
                self.refuse_codes()?;
                DynArray::from_buf(self.read()?).map_err(|error| $locate(self, error))
            }
        }
    };
}

read_arrays!(LazyTensor, LazyTensor::locate);
read_arrays!(LazySlice, |slice: &LazySlice<'_, S>, error| slice.tensor().locate(error));

/// Refuses another dtype or number of dimensions than expected, before reading.
pub(crate) fn check<T: ArrayElement, D: Dimension>(dtype: Dtype, shape: &[usize]) -> Result<()> {
    if dtype != T::DTYPE {
        return Err(wrong_dtype::<T>(dtype));
    }
    dimension::<D>(shape).map(drop)
}
