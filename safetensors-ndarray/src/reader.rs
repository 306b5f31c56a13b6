//! [`Reader`]: reads the arrays of a file by name, and borrows views of them.

use std::path::Path;

use ndarray::{Array, ArrayView, ArrayViewMut, Dimension, IxDyn, SliceArg};
use safetensors_core::checkpoint::{Assembled, Computed};
use safetensors_core::framework::prepare;
use safetensors_core::header::attributes;
use safetensors_core::load::QuantizedWeights;
use safetensors_core::{Checkpoint, LazyTensor, Limits, LoadOptions, Metadata, ReadAt, Result};

use crate::array::array_from_buf;
use crate::error::dimension;
use crate::slice::ArraySlice;
use crate::{ArrayElement, DynArray, FileBytes, InMemory, Ndarray, ReadArrayExt, ViewArrayExt};

/// The arrays of a file, or of a directory with several files.
///
/// | to | use | `S` |
/// |---|---|---|
/// | read arrays, or parts of them, on demand | [`open`](Reader::open) | [`Assembled`] |
/// | borrow views without `unsafe` | [`open_in_memory`](Reader::open_in_memory) | [`FileBytes`] |
/// | use bytes that are already in memory | [`from_bytes`](Reader::from_bytes) | any owner of bytes |
/// | map a file, or read from another source | [`new`](Reader::new) with any [`Checkpoint`] | `Mmap`, … |
///
/// ```
/// use ndarray::{Ix1, Ix2, array, s};
/// use safetensors_ndarray::{Reader, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("wind.safetensors");
/// # let w = Writer::create(&path)?;
/// # w.add("u", &array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
/// # w.add("grid/x", &array![0.0_f32, 0.5, 1.0, 1.5])?;
/// # w.add("grid/y", &array![0.0_f32, 2.0])?;
/// # w.attribute("u", "units", "m/s")?;
/// # w.finish()?;
/// let r = Reader::open(&path)?;
/// let u = r.read::<f64, Ix2>("u")?;
/// assert_eq!(u.dim(), (2, 3));
/// assert_eq!(r.attribute("u", "units"), Some("m/s"));
/// // A slice reads only its bytes; `read_as` converts to another element type.
/// assert_eq!(r.slice::<f64, _>("u", s![.., ..;-2])?, array![[3.0, 1.0], [6.0, 4.0]]);
/// assert_eq!(r.read_as::<f32, Ix2>("u")?.sum(), 21.0);
///
/// // All arrays with a prefix.
/// for (name, array) in r.with_prefix("grid/") {
///     println!("{name}: {} {:?}", array.dtype(), array.shape());
/// }
/// assert!(r.names().eq(["u", "grid/x", "grid/y"]));
///
/// // Errors say what was expected and what was found.
/// assert!(r.read::<f64, Ix1>("u").unwrap_err().to_string().ends_with(
///     r#"tensor "u": ndarray: expected 1 dimension, found 2: shape [2, 3]"#
/// ));
/// assert!(
///     r.read::<f32, Ix2>("u").unwrap_err().to_string().ends_with("expected dtype F32, found F64")
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reader<S = Assembled> {
    checkpoint: Checkpoint<S>,
    options: LoadOptions,
}

impl Reader {
    /// Opens a file, or a directory with the files of a data set. Only headers are read now.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Checkpoint::open(path).map(Self::new)
    }
}

impl Reader<FileBytes> {
    /// Reads a file, or several, into memory. [Views](Reader::view) then borrow from there.
    ///
    /// ```
    /// use ndarray::{Ix2, array};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("wind.safetensors");
    /// # let w = Writer::create(&path)?;
    /// # w.add("u", &array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// # w.finish()?;
    /// let r = Reader::open_in_memory(&path)?;
    /// // The view lives as long as the reader.
    /// let u = r.view::<f64, Ix2>("u")?;
    /// assert_eq!(u.row(1).sum(), 15.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TooLargeForMemory`](safetensors_core::ErrorKind::TooLargeForMemory); otherwise like
    /// [`open`](Reader::open).
    pub fn open_in_memory(path: impl AsRef<Path>) -> Result<Self> {
        Checkpoint::open_by(path, &Limits::default(), FileBytes::read).map(Self::new)
    }
}

impl<B: AsRef<[u8]> + Send + Sync> Reader<B> {
    /// Opens a file with bytes in memory, for example in a `Vec<u8>`, a `&[u8]`, a `bytes::Bytes`
    /// or a `Mmap`.
    ///
    /// [Views](Reader::view) need bytes at an aligned address, as in a `Mmap` and [`FileBytes`],
    /// but not always in a `Vec<u8>`.
    pub fn from_bytes(bytes: B) -> Result<Self> {
        Checkpoint::from_source(bytes, "bytes in memory").map(Self::new)
    }
}

impl<S: ReadAt> Reader<S> {
    /// Reads an array of elements `T` and dimension `D`: `IxDyn` for any number of dimensions,
    /// `Ix0` for a single number. The compiler can infer both:
    ///
    /// ```
    /// use ndarray::{Array0, Array2, arr0, array};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("wind.safetensors");
    /// let w = Writer::create(&path)?;
    /// w.add("u", &array![[1.0, 2.0]])?;
    /// w.add("step", &arr0(7_i64))?;
    /// w.finish()?;
    ///
    /// let r = Reader::open(&path)?;
    /// let u: Array2<f64> = r.read("u")?;
    /// let step: Array0<i64> = r.read("step")?;
    /// assert_eq!((u.dim(), step.into_scalar()), ((1, 2), 7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TensorNotFound`](safetensors_core::ErrorKind::TensorNotFound);
    /// [`Quantization`](safetensors_core::ErrorKind::Quantization) for a [quantised
    /// weight](Reader::quantized), as from every method that reads; otherwise like
    /// [`ReadArrayExt::read_array`].
    pub fn read<T: ArrayElement, D: Dimension>(&self, name: &str) -> Result<Array<T, D>> {
        self.readable(name)?.read_array()
    }

    /// Reads an array and converts its elements to `T`, for example halves to `f32`.
    ///
    /// Floats are rounded to the nearest; too large ones become infinity, or NaN in a type without
    /// infinity. For integers, a fraction, NaN or a number that is too large is an error.
    /// [`ReadArrayExt::read_array_as`] has options for floats.
    pub fn read_as<T: ArrayElement, D: Dimension>(&self, name: &str) -> Result<Array<T, D>> {
        let array = self.checkpoint.tensor(name)?;
        let options = self.options.clone().all_as(T::DTYPE);
        let buf = dimension::<D>(array.shape()).and_then(|_| array.read_with(&options));
        buf.and_then(array_from_buf).map_err(|error| array.locate(error))
    }

    /// Reads an array with the element type and the shape in the file.
    pub fn read_any(&self, name: &str) -> Result<DynArray> {
        let array = self.readable(name)?;
        DynArray::from_buf(array.read()?).map_err(|error| array.locate(error))
    }

    /// Reads an array into an existing array, directly if that is in C order.
    ///
    /// # Errors
    ///
    /// [`WrongShape`](safetensors_core::ErrorKind::WrongShape) if the shapes differ; otherwise like
    /// [`read`](Reader::read). After an error of reading, some elements may have changed.
    pub fn read_into<T: ArrayElement, D: Dimension>(
        &self,
        name: &str,
        array: ArrayViewMut<'_, T, D>,
    ) -> Result<()> {
        let tensor = self.readable(name)?;
        let all = vec![ndarray::SliceInfoElem::from(..); tensor.shape().len()];
        ArraySlice::new(&tensor, &all[..])?.read_into(array.into_dyn())
    }

    /// Reads a part of an array, given by `s![]`, or by a `&[SliceInfoElem]`. Only its bytes are
    /// read, and gaps of at most 512 bytes between them.
    ///
    /// Indices can count from the end, steps can be negative, and there can be new axes, as for an
    /// array in memory.
    ///
    /// ```
    /// use ndarray::{Array3, NewAxis, s};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("run.safetensors");
    /// let u = Array3::from_shape_fn((10, 4, 6), |(t, y, x)| (100 * t + 10 * y + x) as f64);
    /// # let w = Writer::create(&path)?;
    /// # w.add("u", &u)?;
    /// # w.finish()?;
    ///
    /// let r = Reader::open(&path)?;
    /// // One point over all steps; the last step; every other column backwards, with a new axis.
    /// assert_eq!(r.slice::<f64, _>("u", s![.., 2, 3])?, u.slice(s![.., 2, 3]));
    /// assert_eq!(r.slice::<f64, _>("u", s![-1, .., ..])?, u.slice(s![-1, .., ..]));
    /// let columns = r.slice::<f64, _>("u", s![0, NewAxis, .., ..;-2])?;
    /// assert_eq!(columns, u.slice(s![0, NewAxis, .., ..;-2]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Framework`](safetensors_core::ErrorKind::Framework) with a [`WrongNdim`](crate::WrongNdim)
    /// if the array has another number of axes than the slice;
    /// [`IndexOutOfBounds`](safetensors_core::ErrorKind::IndexOutOfBounds), where ndarray panics;
    /// [`SliceInsideByte`](safetensors_core::ErrorKind::SliceInsideByte); otherwise like
    /// [`read`](Reader::read).
    pub fn slice<T: ArrayElement, I: SliceArg<IxDyn>>(
        &self,
        name: &str,
        slice: I,
    ) -> Result<Array<T, I::OutDim>> {
        self.lazy_slice(name, slice)?.read()
    }

    /// Reads a part of an array and converts its elements to `T`.
    pub fn slice_as<T: ArrayElement, I: SliceArg<IxDyn>>(
        &self,
        name: &str,
        slice: I,
    ) -> Result<Array<T, I::OutDim>> {
        self.lazy_slice(name, slice)?.read_as(&self.options)
    }

    /// Reads a part of an array into an existing array.
    ///
    /// ```
    /// use ndarray::{Array1, Array2, s};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("table.safetensors");
    /// # let w = Writer::create(&path)?;
    /// # w.add("table", &Array2::<f32>::ones((4, 3)))?;
    /// # w.finish()?;
    /// let r = Reader::open(&path)?;
    /// let mut row = Array1::<f32>::zeros(3);
    /// for i in 0..4 {
    ///     r.slice_into("table", s![i, ..], row.view_mut())?;
    ///     assert_eq!(row.sum(), 3.0);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice_into<T: ArrayElement, I: SliceArg<IxDyn>>(
        &self,
        name: &str,
        slice: I,
        array: ArrayViewMut<'_, T, I::OutDim>,
    ) -> Result<()> {
        self.lazy_slice(name, slice)?.read_into(array)
    }

    /// Reads rows of an array by their numbers: positions of the first axis, in any order, and as
    /// often as they are given. Only these rows are read.
    ///
    /// ```
    /// use ndarray::{Array2, Ix2, array};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("table.safetensors");
    /// let w = Writer::create(&path)?;
    /// let table = Array2::from_shape_fn((100, 2), |(row, column)| (10 * row + column) as i32);
    /// w.add("table", &table)?;
    /// w.finish()?;
    ///
    /// let rows = Reader::open(&path)?.rows::<i32, Ix2>("table", &[70, 3, 70])?;
    /// assert_eq!(rows, array![[700, 701], [30, 31], [700, 701]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`read`](Reader::read) and [`LazyTensor::rows`]: for example
    /// [`IndexOutOfBounds`](safetensors_core::ErrorKind::IndexOutOfBounds).
    pub fn rows<T: ArrayElement, D: Dimension>(
        &self,
        name: &str,
        numbers: &[usize],
    ) -> Result<Array<T, D>> {
        self.readable(name)?.rows(numbers)?.read_array()
    }

    /// Borrows an array as a view, in C order, without a copy, from a file in memory, for example
    /// by [`open_in_memory`](Reader::open_in_memory), or mapped. Another reader has nothing to
    /// lend:
    ///
    /// ```compile_fail,E0277
    /// # fn main() -> safetensors_core::Result<()> {
    /// let r = safetensors_ndarray::Reader::open("wind.safetensors")?;
    /// let u = r.view::<f64, ndarray::Ix2>("u")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`TensorNotFound`](safetensors_core::ErrorKind::TensorNotFound);
    /// [`Quantization`](safetensors_core::ErrorKind::Quantization) for the codes of a [quantised
    /// weight](Reader::quantized), which [`array`](Reader::array) borrows with [`ViewArrayExt`];
    /// otherwise like [`ViewArrayExt::as_array`]: for example
    /// [`Misaligned`](safetensors_core::ErrorKind::Misaligned).
    pub fn view<T: ArrayElement, D: Dimension>(&self, name: &str) -> Result<ArrayView<'_, T, D>>
    where
        S: InMemory,
    {
        self.readable(name)?.as_array()
    }

    fn lazy_slice<I: SliceArg<IxDyn>>(
        &self,
        name: &str,
        slice: I,
    ) -> Result<ArraySlice<'_, S, I::OutDim>> {
        ArraySlice::new(&self.readable(name)?, slice)
    }

    /// Returns the array of this name. Its dtype and shape are known, and its elements are read on
    /// demand.
    pub fn array(&self, name: &str) -> Result<LazyTensor<'_, S>> {
        self.checkpoint.tensor(name)
    }

    /// Returns the array of this name, or the error for refused codes.
    pub(crate) fn readable(&self, name: &str) -> Result<LazyTensor<'_, S>> {
        let array = self.checkpoint.tensor(name)?;
        array.dtype_plan(&self.options)?;
        Ok(array)
    }

    /// Sets how [quantised weights](safetensors_core::quantized) are read. By default, reading one
    /// is an error.
    ///
    /// ```
    /// use float8::F8E4M3;
    /// use ndarray::{Array2, array};
    /// use safetensors_core::load::QuantizedWeights;
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// let codes = array![[1.0, 2.0]].mapv(F8E4M3::from_f64);
    /// let w = Writer::create(&path)?;
    /// w.add("weight", &codes)?;
    /// w.add("weight_scale", &array![0.5_f32])?;
    /// w.finish()?;
    ///
    /// assert!(Reader::open(&path)?.read::<F8E4M3, ndarray::Ix2>("weight").is_err());
    /// let numbers = Reader::open(&path)?.quantized(QuantizedWeights::Numbers)?;
    /// let weight: Array2<f32> = numbers.read("weight")?;
    /// assert_eq!(weight, array![[0.5, 1.0]]);
    /// let stored = Reader::open(&path)?.quantized(QuantizedWeights::Stored)?;
    /// assert_eq!(stored.read::<F8E4M3, ndarray::Ix2>("weight")?, codes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`Checkpoint::dequantized`], for [`QuantizedWeights::Numbers`].
    pub fn quantized(self, quantized: QuantizedWeights) -> Result<Reader<Computed<S>>> {
        let options = self.options.quantized(quantized);
        Ok(Reader { checkpoint: prepare(self.checkpoint, &options)?, options })
    }
}

impl<S> Reader<S> {
    /// Reads the arrays of an open checkpoint, for example a mapped one, or one that is not on the
    /// disk.
    ///
    /// ```
    /// use ndarray::{Ix2, array};
    /// use safetensors_core::Checkpoint;
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("wind.safetensors");
    /// # let w = Writer::create(&path)?;
    /// # w.add("u", &array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])?;
    /// # w.finish()?;
    /// // SAFETY: nothing changes this file while it is mapped.
    /// let r = Reader::new(unsafe { Checkpoint::mmap(&path) }?);
    /// assert_eq!(r.view::<f64, Ix2>("u")?.sum(), 21.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(checkpoint: Checkpoint<S>) -> Self {
        Self { checkpoint, options: LoadOptions::new().for_framework::<Ndarray>() }
    }

    pub(crate) fn options(&self) -> &LoadOptions {
        &self.options
    }

    /// Returns the checkpoint that has the arrays.
    pub fn checkpoint(&self) -> &Checkpoint<S> {
        &self.checkpoint
    }

    /// Returns the names in the order of the file: the order of writing, except that an array that
    /// would misalign others, such as seven `bool`s, comes last.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays().map(|array| array.name())
    }

    /// Returns the arrays in the order of the file. [`ReadArrayExt`] reads their elements.
    pub fn arrays(&self) -> impl Iterator<Item = LazyTensor<'_, S>> + Clone {
        self.checkpoint.tensors()
    }

    /// Returns the arrays with names that begin with `prefix`, each with the rest of its name.
    pub fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&str, LazyTensor<'_, S>)> {
        self.arrays().filter_map(move |array| Some((array.name().strip_prefix(prefix)?, array)))
    }

    /// Returns the metadata of the file, such as a title. `parse` reads a number in it.
    pub fn metadata(&self) -> &Metadata {
        self.checkpoint.metadata()
    }

    /// Returns an attribute of an array, such as its units;
    /// [`attributes`](safetensors_core::header::attributes) lists all.
    pub fn attribute(&self, array: &str, name: &str) -> Option<&str> {
        let mut all = attributes(self.metadata(), array);
        all.find(|(found, _)| *found == name).map(|(_, value)| value)
    }
}
