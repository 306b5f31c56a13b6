//! [`DynArray`]: an array whose dtype is known at run time.

use std::ptr;

use ndarray::{Array, ArrayD, ArrayView, ArrayViewD, Dimension, IxDyn};
use safetensors_core::save::{PieceSink, Sink};
use safetensors_core::tied::Storage;
use safetensors_core::{Dtype, Error, ErrorKind, Result, TensorBuf, TensorSource, shape};

use crate::dtype::{for_each_array_dtype, is_packed};
use crate::error::{dimension, shape_error};
use crate::{ArrayElement, Ndarray, Packed, array_source};

/// Declares [`DynArray`] and everything that is the same for each of its arrays.
macro_rules! define_dyn_array {
    ($($variant:ident($type:ty) = $dtype:ident,)*) => {
        /// An owned tensor of any dtype of the format. The dtype is known at run time.
        ///
        /// Match on the variants, or call [`as_array`](DynArray::as_array) with the expected
        /// element type and dimension. `From` accepts arrays of any dimension and any memory
        /// layout, and moves them.
        ///
        /// Two tensors are equal if they have the same dtype and shape and their elements compare
        /// equal. As always with floats, NaN is not equal to itself.
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
            /// Makes an array of a buffer. The elements are moved, except those of BOOL, which are
            /// copied once.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Framework`] if ndarray refuses the shape. It refuses a shape whose
            /// non-zero dimensions have a product over `isize::MAX`. Only an empty tensor can have
            /// such a shape.
            pub fn from_buf(buf: TensorBuf) -> Result<Self> {
                match buf.dtype() {
                    $(Dtype::$dtype => Ok(Self::$variant(array_from_buf(buf)?)),)*
                    dtype if is_packed(dtype) => Ok(Self::Packed(Packed::new(buf)?)),
                    dtype => Err(Error::unsupported_dtype::<Ndarray>(dtype)),
                }
            }

            /// The type of the elements.
            pub fn dtype(&self) -> Dtype {
                match self {
                    $(Self::$variant(_) => Dtype::$dtype,)*
                    Self::Packed(packed) => packed.dtype(),
                }
            }

            /// The dimensions in elements, outermost first; empty for a scalar.
            pub fn shape(&self) -> &[usize] {
                match self {
                    $(Self::$variant(array) => array.shape(),)*
                    Self::Packed(packed) => packed.shape(),
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

            /// The memory of the elements. If they are not in C order, the address of this
            /// `DynArray` identifies them, because no other array owns them.
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
    /// Borrows the array as a view of elements `T` and dimension `D`. The view has the memory
    /// layout of the array, which need not be C order.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::WrongDtype`] if the dtype is not that of `T`.
    /// - [`ErrorKind::Framework`] with a [`WrongNdim`](crate::WrongNdim) if the number of
    ///   dimensions is not that of `D`.
    pub fn as_array<T: ArrayElement, D: Dimension>(&self) -> Result<ArrayView<'_, T, D>> {
        let array = T::borrow(self).ok_or_else(|| wrong_dtype::<T>(self.dtype()))?;
        dimension::<D>(array.shape())?;
        array.view().into_dimensionality().map_err(shape_error)
    }

    /// Borrows the array as a view of elements `T` and any number of dimensions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] if the dtype is not that of `T`.
    pub fn as_array_dyn<T: ArrayElement>(&self) -> Result<ArrayViewD<'_, T>> {
        self.as_array::<T, IxDyn>()
    }

    /// Converts the tensor into an array of elements `T` and dimension `D`. The elements are moved.
    ///
    /// # Errors
    ///
    /// Those of [`as_array`](DynArray::as_array).
    pub fn into_array<T: ArrayElement, D: Dimension>(self) -> Result<Array<T, D>> {
        let found = self.dtype();
        let array = T::take(self).ok_or_else(|| wrong_dtype::<T>(found))?;
        dimension::<D>(array.shape())?;
        array.into_dimensionality().map_err(shape_error)
    }

    /// Converts the tensor into an array of elements `T` and any number of dimensions. The elements
    /// are moved.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] if the dtype is not that of `T`.
    pub fn into_array_dyn<T: ArrayElement>(self) -> Result<ArrayD<T>> {
        self.into_array::<T, IxDyn>()
    }
}

impl<T: ArrayElement, D: Dimension> From<Array<T, D>> for DynArray {
    fn from(array: Array<T, D>) -> Self {
        T::wrap(array.into_dyn())
    }
}

impl From<Packed> for DynArray {
    fn from(packed: Packed) -> Self {
        Self::Packed(packed)
    }
}

/// Moves the elements of a buffer into an array. An error if the buffer has another dtype than `T`
/// or another number of dimensions than `D`.
pub(crate) fn array_from_buf<T: ArrayElement, D: Dimension>(buf: TensorBuf) -> Result<Array<T, D>> {
    let dim = dimension::<D>(buf.shape())?;
    Array::from_shape_vec(dim, buf.into_vec::<T>()?).map_err(shape_error)
}

/// The error for a tensor whose dtype is not that of `T`.
pub(crate) fn wrong_dtype<T: ArrayElement>(found: Dtype) -> Error {
    ErrorKind::WrongDtype { expected: T::DTYPE, found }.into()
}
