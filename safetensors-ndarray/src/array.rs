//! [`DynArray`], the types of elements, and arrays as sources to be saved.

use std::ptr;

use ndarray::{
    Array, ArrayBase, ArrayD, ArrayRef, ArrayView, ArrayViewD, Data, Dimension, IxDyn, RawData,
};
use safetensors_core::element::Element;
use safetensors_core::save::{PieceSink, Sink};
use safetensors_core::tied::Storage;
use safetensors_core::{Dtype, Error, ErrorKind, Result, TensorBuf, TensorSource, shape};

use crate::dtype::{for_each_array_dtype, is_packed};
use crate::error::{dimension, shape_error};
use crate::{Ndarray, Packed, strided};

macro_rules! define_dyn_array {
    ($($variant:ident($type:ty) = $dtype:ident,)*) => {
        /// An owned tensor with a dtype that is known at run time.
        ///
        /// Match on the variants, or call [`as_array`](DynArray::as_array) with the expected
        /// element type and dimension. `From` moves arrays of any dimension and memory layout.
        ///
        /// Two tensors are equal if dtype, shape and elements are. NaN is not equal to itself.
        ///
        /// ```
        /// use ndarray::{Ix1, Ix2, array};
        /// use safetensors_core::Dtype;
        /// use safetensors_ndarray::DynArray;
        ///
        /// let tensor = DynArray::from(array![[1.0_f32, 2.0], [3.0, 4.0]]);
        /// assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &[2, 2][..]));
        /// assert_eq!(tensor.as_array::<f32, Ix2>()?[[1, 0]], 3.0);
        /// assert!(tensor.as_array::<f64, Ix2>().is_err());
        /// assert!(tensor.as_array::<f32, Ix1>().is_err());
        /// # Ok::<(), safetensors_core::Error>(())
        /// ```
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum DynArray {
            $(
                #[doc = concat!("An array of ", stringify!($dtype), ".")]
                $variant(ArrayD<$type>),
            )*
            /// A tensor of a sub-byte dtype.
            Packed(Packed),
        }

        impl DynArray {
            /// Makes an array of a buffer. The elements are moved, except BOOL, which is copied.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Framework`] if ndarray refuses the shape of an empty tensor: the
            /// product of its non-zero dimensions is over `isize::MAX`.
            pub fn from_buf(buf: TensorBuf) -> Result<Self> {
                match buf.dtype() {
                    $(Dtype::$dtype => Ok(Self::$variant(array_from_buf(buf)?)),)*
                    dtype if is_packed(dtype) => Ok(Self::Packed(Packed(buf))),
                    dtype => Err(Error::unsupported_dtype::<Ndarray>(dtype)),
                }
            }

            /// Returns the type of the elements.
            pub fn dtype(&self) -> Dtype {
                match self {
                    $(Self::$variant(_) => Dtype::$dtype,)*
                    Self::Packed(packed) => packed.buf().dtype(),
                }
            }

            /// Returns the dimensions in elements, outermost first; empty for a scalar.
            pub fn shape(&self) -> &[usize] {
                match self {
                    $(Self::$variant(array) => array.shape(),)*
                    Self::Packed(packed) => packed.buf().shape(),
                }
            }
        }

        impl TensorSource for DynArray {
            fn dtype(&self) -> Dtype {
                Self::dtype(self)
            }

            fn shape(&self) -> &[usize] {
                Self::shape(self)
            }

            fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
                match self {
                    $(Self::$variant(array) => array_source(array).write_to(sink),)*
                    Self::Packed(packed) => packed.buf().write_to(sink),
                }
            }

            fn write_pieces(&self, sink: &mut PieceSink<'_>) -> Result<()> {
                match self {
                    $(Self::$variant(array) => array_source(array).write_pieces(sink),)*
                    Self::Packed(packed) => packed.buf().write_pieces(sink),
                }
            }

            /// Uses the address of this `DynArray` for elements that are not in C order: it alone
            /// owns them.
            fn storage(&self) -> Option<Storage> {
                let elements = match self {
                    $(Self::$variant(array) => array_source(array).storage(),)*
                    Self::Packed(packed) => packed.buf().storage(),
                };
                elements.or_else(|| {
                    let byte_len = shape::byte_len(self.dtype(), self.shape()).ok()?;
                    Some(Storage::whole(ptr::from_ref(self).addr() as u64, byte_len))
                })
            }
        }
    };
}

for_each_array_dtype!(define_dyn_array);

impl DynArray {
    /// Borrows the array as a view of elements `T` and dimension `D`, in the memory layout of the
    /// array.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`]; [`ErrorKind::Framework`] with a [`WrongNdim`](crate::WrongNdim).
    pub fn as_array<T: ArrayElement, D: Dimension>(&self) -> Result<ArrayView<'_, T, D>> {
        let array = T::borrow(self).ok_or_else(|| wrong_dtype::<T>(self.dtype()))?;
        of_dimension(array.view())
    }

    /// Converts the tensor into an array of elements `T` and dimension `D`. The elements are moved.
    pub fn into_array<T: ArrayElement, D: Dimension>(self) -> Result<Array<T, D>> {
        let found = self.dtype();
        let array = T::take(self).ok_or_else(|| wrong_dtype::<T>(found))?;
        of_dimension(array)
    }
}

impl<T: ArrayElement, D: Dimension> From<Array<T, D>> for DynArray {
    fn from(array: Array<T, D>) -> Self {
        T::wrap(array.into_dyn())
    }
}

pub(crate) fn array_from_buf<T: ArrayElement, D: Dimension>(buf: TensorBuf) -> Result<Array<T, D>> {
    let dim = dimension::<D>(buf.shape())?;
    Array::from_shape_vec(dim, buf.into_vec::<T>()?).map_err(shape_error)
}

/// Gives an array the dimension that the caller expects, or returns an error with its dtype.
pub(crate) fn of_dimension<S: RawData, D: Dimension>(
    array: ArrayBase<S, IxDyn>,
) -> Result<ArrayBase<S, D>> {
    dimension::<D>(array.shape())?;
    array.into_dimensionality().map_err(shape_error)
}

pub(crate) fn wrong_dtype<T: ArrayElement>(found: Dtype) -> Error {
    ErrorKind::WrongDtype { expected: T::DTYPE, found }.into()
}

/// The type of the elements of an array in a file.
///
/// These are `bool`, the integers from 8 to 64 bits, `f32`, `f64`, [`half::f16`], [`half::bf16`],
/// [`float8::F8E4M3`], [`float8::F8E5M2`], `Complex<f32>`, and the byte-sized newtypes of
/// [`safetensors_core::element`]. Like [`Element`], this trait is sealed. Arrays cannot index
/// sub-byte types.
///
/// The format has no `Complex<f64>`. Save the real and the imaginary part along an additional last
/// axis. NumPy reads such an array `z` as `z.view(numpy.complex128)[..., 0]`.
///
/// ```
/// use ndarray::{Array1, Axis, Ix2, array, stack};
/// use num_complex::Complex;
/// use safetensors_ndarray::{Reader, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("waves.safetensors");
/// let z = array![Complex::new(1.0, 2.0), Complex::new(3.0, -4.0)];
/// let w = Writer::create(&path)?;
/// w.add("z", &stack(Axis(1), &[z.mapv(|z| z.re).view(), z.mapv(|z| z.im).view()])?)?;
/// w.finish()?;
///
/// let parts = Reader::open(&path)?.read::<f64, Ix2>("z")?;
/// let read: Array1<Complex<f64>> = parts.map_axis(Axis(1), |part| Complex::new(part[0], part[1]));
/// assert_eq!(read, z);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "safetensors has no dtype for elements of type `{Self}`",
    note = "it has bool, integers and floats of up to 64 bits, and Complex<f32>",
    note = "a Complex<f64> is stored as two f64: the page of `ArrayElement` shows how"
)]
pub trait ArrayElement: Element {
    /// Moves an array into its variant of [`DynArray`].
    #[doc(hidden)]
    fn wrap(array: ArrayD<Self>) -> DynArray;

    /// Returns `None` for elements of another type.
    #[doc(hidden)]
    fn borrow(array: &DynArray) -> Option<&ArrayD<Self>>;

    /// Returns `None` for elements of another type.
    #[doc(hidden)]
    fn take(array: DynArray) -> Option<ArrayD<Self>>;
}

macro_rules! implement_array_element {
    ($($variant:ident($type:ty) = $dtype:ident,)*) => {$(
        impl ArrayElement for $type {
            fn wrap(array: ArrayD<Self>) -> DynArray {
                DynArray::$variant(array)
            }

            fn borrow(array: &DynArray) -> Option<&ArrayD<Self>> {
                match array {
                    DynArray::$variant(array) => Some(array),
                    _ => None,
                }
            }

            fn take(array: DynArray) -> Option<ArrayD<Self>> {
                match array {
                    DynArray::$variant(array) => Some(array),
                    _ => None,
                }
            }
        }
    )*};
}

for_each_array_dtype!(implement_array_element);

/// Borrows an array of any memory layout as a source to be saved, in C order. No array is copied
/// entirely.
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
    pub(crate) fn new<D: Dimension>(array: &'a ArrayRef<T, D>) -> Self {
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

    /// Returns `None` for another layout than C order: ndarray does not expose the allocation of a
    /// view.
    fn storage(&self) -> Option<Storage> {
        let elements = self.0.as_slice()?;
        Some(Storage::whole(elements.as_ptr().addr() as u64, size_of_val(elements) as u64))
    }
}
