//! [`ArrayElement`]: the Rust types that the elements of an array can have.

use ndarray::ArrayD;
use safetensors_core::element::Element;

use crate::DynArray;
use crate::dtype::for_each_array_dtype;

/// The type of the elements of an array that is read from a file or written to one.
///
/// The implementing types are `bool`, the integers from 8 to 64 bits, `f32`, `f64`, [`half::f16`],
/// [`half::bf16`], [`float8::F8E4M3`], [`float8::F8E5M2`], `Complex<f32>`, and the byte-sized
/// newtypes of [`safetensors_core::element`]. The packed sub-byte types do not implement it: a
/// value of such a type is a byte and not an element, so an array of them would not have the
/// tensor's shape. Like [`Element`], this trait is sealed.
pub trait ArrayElement: Element {
    /// Moves an array into its variant of [`DynArray`].
    #[doc(hidden)]
    fn wrap(array: ArrayD<Self>) -> DynArray;

    /// Borrows the array inside. `None` if its elements are of another type.
    #[doc(hidden)]
    fn borrow(array: &DynArray) -> Option<&ArrayD<Self>>;

    /// Moves the array out. `None` if its elements are of another type.
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
