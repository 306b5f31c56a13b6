//! [`Element`]: the Rust type of each [`Dtype`].

use alloc::vec::Vec;

use bytemuck::allocation::try_cast_vec;
use bytemuck::{CheckedBitPattern, NoUninit, Pod, Zeroable};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use num_complex::Complex;

use super::words::AlignedVec;
use crate::format::dtype::Dtype;

mod sealed {
    use alloc::vec::Vec;

    use crate::format::tensor::words::AlignedVec;

    #[doc(hidden)]
    pub trait Sealed: Sized {
        /// Returns the words unchanged for `bool`, which is checked and copied.
        fn vec_from_words(words: AlignedVec) -> Result<Vec<Self>, AlignedVec> {
            Err(words)
        }

        /// `None` for `bool`, because not every byte is one.
        fn bytes_mut(_: &mut [Self]) -> Option<&mut [u8]> {
            None
        }
    }
}

/// A Rust type that holds the elements of a [`Dtype`].
///
/// Implemented for `bool`, the integers from 8 to 64 bits, [`half::f16`], [`half::bf16`],
/// [`float8::F8E4M3`], [`float8::F8E5M2`], `f32`, `f64`, `Complex<f32>` and this module's newtypes.
/// Sealed, because the list of dtypes is closed.
///
/// For sub-byte dtypes one value is one *byte* of packed elements.
pub trait Element:
    sealed::Sealed + CheckedBitPattern + NoUninit + Zeroable + Send + Sync + 'static
{
    /// The dtype that this type holds.
    const DTYPE: Dtype;
}

impl AlignedVec {
    pub(crate) fn from_vec<T: Element>(values: Vec<T>) -> Self {
        match T::DTYPE.alignment() {
            1 => Self::W8(cast_vec(values)),
            2 => Self::W16(cast_vec(values)),
            4 => Self::W32(cast_vec(values)),
            _ => Self::W64(cast_vec(values)),
        }
    }
}

/// Copies the values if the capacity is not a multiple of a word.
fn cast_vec<T: NoUninit, W: Pod>(values: Vec<T>) -> Vec<W> {
    try_cast_vec(values)
        .unwrap_or_else(|(_, values)| bytemuck::cast_slice::<T, W>(&values).to_vec())
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {
            fn vec_from_words(words: AlignedVec) -> Result<Vec<Self>, AlignedVec> {
                words.into_pod_vec()
            }

            fn bytes_mut(values: &mut [Self]) -> Option<&mut [u8]> {
                Some(bytemuck::cast_slice_mut(values))
            }
        }
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        }
        // Files align tensors by the dtype table, so no type may need a larger alignment. A smaller
        // one is fine: 64-bit numbers have it on 32-bit x86.
        const _: () = assert!(align_of::<$type>() <= Dtype::$dtype.alignment());
        const _: () = assert!(
            size_of::<$type>() * 8 == Dtype::$dtype.bits() as usize
                || Dtype::$dtype.is_sub_byte() && size_of::<$type>() == 1
        );
    )*};
}

macro_rules! byte_newtypes {
    ($($(#[$doc:meta])* $type:ident => $dtype:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
            #[repr(transparent)]
            pub struct $type(
                /// The byte as it is in the file.
                pub u8,
            );
        )*
        elements! { $($type => $dtype),* }
    };
}

byte_newtypes! {
    /// A power of two, `2^(bits - 127)`; 0xFF is NaN.
    F8E8M0 => F8_E8M0;
    /// The bits of an `F8_E4M3FNUZ`.
    F8E4M3Fnuz => F8_E4M3FNUZ;
    /// The bits of an `F8_E5M2FNUZ`.
    F8E5M2Fnuz => F8_E5M2FNUZ;
    /// A byte of packed `F4`: two elements, the first in the low half.
    F4Packed => F4;
    /// A byte of packed `F6_E2M3`: four elements fill three bytes, lowest bits first.
    F6E2M3Packed => F6_E2M3;
    /// A byte of packed `F6_E3M2`: four elements fill three bytes, lowest bits first.
    F6E3M2Packed => F6_E3M2;
}

elements! {
    u8 => U8, i8 => I8, F8E5M2 => F8_E5M2, F8E4M3 => F8_E4M3,
    i16 => I16, u16 => U16, f16 => F16, bf16 => BF16,
    i32 => I32, u32 => U32, f32 => F32, Complex<f32> => C64,
    f64 => F64, i64 => I64, u64 => U64,
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: Dtype = Dtype::BOOL;
}
