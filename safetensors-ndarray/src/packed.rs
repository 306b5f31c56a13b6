//! [`Packed`]: a tensor of a sub-byte dtype, kept as packed bytes.

use safetensors_core::TensorBuf;

/// A tensor of F4, F6_E2M3 or F6_E3M2, with elements that share bytes, which ndarray cannot index.
///
/// The bytes stay unchanged. [`safetensors_core::convert::widen`] converts them to F16 exactly.
///
/// ```
/// use safetensors_core::element::F4Packed;
/// use safetensors_core::{Dtype, TensorBuf, convert};
/// use safetensors_ndarray::DynArray;
///
/// // Four elements in two bytes, the first in the low half: 1.0, -1.0, 0.5, 6.0.
/// let buf = TensorBuf::from_vec(vec![2, 2], vec![F4Packed(0xa2), F4Packed(0x71)])?;
/// let DynArray::Packed(packed) = DynArray::from_buf(buf)? else { panic!("F4 is packed") };
/// assert_eq!(packed.buf().bytes(), [0xa2, 0x71]);
///
/// let halves = DynArray::from_buf(convert::widen(packed.buf().clone(), Dtype::F16)?)?;
/// let halves = halves.into_array::<half::f16, ndarray::IxDyn>()?;
/// assert_eq!(halves.mapv(f32::from), ndarray::array![[1.0, -1.0], [0.5, 6.0]].into_dyn());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Packed(pub(crate) TensorBuf);

impl Packed {
    /// Returns the buffer, with the shape in elements and the packed bytes in C order.
    pub fn buf(&self) -> &TensorBuf {
        &self.0
    }
}

impl PartialEq for Packed {
    fn eq(&self, other: &Self) -> bool {
        self.0.dtype() == other.0.dtype()
            && self.0.shape() == other.0.shape()
            && self.0.bytes() == other.0.bytes()
    }
}

impl Eq for Packed {}
