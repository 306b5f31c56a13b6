//! [`Packed`]: a tensor of a sub-byte dtype, kept as packed bytes.

use safetensors_core::{Error, Result, TensorBuf};

use crate::Ndarray;
use crate::dtype::is_packed;

/// A tensor of F4, F6_E2M3 or F6_E3M2, whose elements share bytes.
///
/// ndarray cannot index parts of bytes, so no array has the tensor's shape. The bytes stay as they
/// are in the file, and are saved bit for bit. [`safetensors_core::convert::widen`] converts them
/// to F16 exactly.
///
/// ```
/// use safetensors_core::element::F4Packed;
/// use safetensors_core::{Dtype, TensorBuf, convert};
/// use safetensors_ndarray::{DynArray, Packed};
///
/// // Four elements in two bytes, the first in the low half: 1.0, -1.0, 0.5, 6.0.
/// let packed =
///     Packed::new(TensorBuf::from_vec(vec![2, 2], vec![F4Packed(0xa2), F4Packed(0x71)])?)?;
/// assert_eq!(packed.buf().bytes(), [0xa2, 0x71]);
///
/// let halves = DynArray::from_buf(convert::widen(packed.into_buf(), Dtype::F16)?)?;
/// let halves = halves.into_array::<half::f16, ndarray::IxDyn>()?;
/// assert_eq!(halves.mapv(f32::from), ndarray::array![[1.0, -1.0], [0.5, 6.0]].into_dyn());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Packed(TensorBuf);

impl Packed {
    /// Wraps a buffer of a sub-byte dtype. The buffer is moved.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedDtype`] for a dtype whose elements are whole bytes.
    /// [`DynArray::from_buf`] makes an array of such a buffer.
    ///
    /// [`ErrorKind::UnsupportedDtype`]: safetensors_core::ErrorKind::UnsupportedDtype
    /// [`DynArray::from_buf`]: crate::DynArray::from_buf
    pub fn new(buf: TensorBuf) -> Result<Self> {
        if !is_packed(buf.dtype()) {
            return Err(Error::unsupported_dtype::<Ndarray>(buf.dtype()));
        }
        Ok(Self(buf))
    }

    /// The buffer, borrowed. It has the dtype, the shape in elements, and the packed bytes in C order.
    pub fn buf(&self) -> &TensorBuf {
        &self.0
    }

    /// The buffer, moved.
    pub fn into_buf(self) -> TensorBuf {
        self.0
    }
}

/// Two tensors are equal if they have the same dtype, shape and bits.
impl PartialEq for Packed {
    fn eq(&self, other: &Self) -> bool {
        let (Self(a), Self(b)) = (self, other);
        (a.dtype(), a.shape(), a.bytes()) == (b.dtype(), b.shape(), b.bytes())
    }
}

impl Eq for Packed {}
