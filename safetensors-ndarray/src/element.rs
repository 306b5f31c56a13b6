//! [`ArrayElement`]: the Rust types that arrays of a file's tensors can have as elements.

use ndarray::ArrayD;
use safetensors_core::element::Element;

use crate::DynArray;
use crate::dtype::for_each_array_dtype;

/// A type that an array read from a file, or written to one, can have as its elements.
///
/// These are `bool`, the integers from 8 to 64 bits, `f32`, `f64`, [`half::f16`], [`half::bf16`],
/// [`float8::F8E4M3`], [`float8::F8E5M2`], `Complex<f32>`, and the byte-sized newtypes of
/// [`safetensors_core::element`]. The packed sub-byte types are not among them: one value of those
/// is a byte, not an element, so no array of them has the tensor's shape. Like [`Element`], it is
/// sealed.
pub trait ArrayElement: Element {
    /// The array as one of run-time dtype, moved.
    #[doc(hidden)]
    fn wrap(array: ArrayD<Self>) -> DynArray;

    /// The array inside, if these are its elements.
    #[doc(hidden)]
    fn borrow(array: &DynArray) -> Option<&ArrayD<Self>>;

    /// The array inside, moved, if these are its elements.
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
