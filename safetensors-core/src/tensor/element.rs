//! [`Element`]: which Rust type stands for which [`Dtype`].

use alloc::vec::Vec;
#[cfg(feature = "std")]
use core::ops::Range;

use bytemuck::allocation::{try_cast_vec, try_zeroed_vec};
use bytemuck::{CheckedBitPattern, NoUninit, Pod, Zeroable};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use num_complex::Complex;

pub use super::boolean::check_bools;
use crate::dtype::Dtype;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that holds the elements of one [`Dtype`].
///
/// Implemented for `bool`, the integers from 8 to 64 bits, [`half::f16`], [`half::bf16`],
/// [`float8::F8E4M3`], [`float8::F8E5M2`], `f32`, `f64`, `Complex<f32>` and this module's newtypes.
/// It is sealed: the format's dtypes are a closed list.
///
/// For the sub-byte dtypes one value is one *byte* of packed elements, so a slice of `T` has as
/// many items as the data has bytes, not as the shape has elements.
pub trait Element:
    sealed::Sealed + CheckedBitPattern + NoUninit + Zeroable + Send + Sync + 'static
{
    /// The dtype whose elements this type holds.
    const DTYPE: Dtype;

    /// Moves the words into a `Vec` of values, or gives them back where only a checked copy can do
    /// that.
    #[doc(hidden)]
    fn vec_from_words(words: Words) -> Result<Vec<Self>, Words> {
        Err(words)
    }
}

/// Owned, aligned storage for the elements of any dtype, by the alignment that the dtype needs.
///
/// Moving a `Vec` between one of these and the element's own type is free: alignment and capacity
/// stay the same.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub enum Words {
    /// For dtypes of alignment 1.
    W8(Vec<u8>),
    /// For dtypes of alignment 2.
    W16(Vec<u16>),
    /// For dtypes of alignment 4.
    W32(Vec<u32>),
    /// For dtypes of alignment 8.
    W64(Vec<u64>),
}

macro_rules! with_words {
    ($words:expr, $vec:ident => $body:expr) => {
        match $words {
            Words::W8($vec) => $body,
            Words::W16($vec) => $body,
            Words::W32($vec) => $body,
            Words::W64($vec) => $body,
        }
    };
}

impl Words {
    /// Zeroed storage of `bytes` bytes for `dtype`; nothing if there is no memory for it. Large
    /// buffers cost nothing until they are touched.
    pub(crate) fn zeroed(dtype: Dtype, bytes: usize) -> Option<Self> {
        match dtype.alignment() {
            1 => try_zeroed_vec(bytes).map(Self::W8).ok(),
            2 => try_zeroed_vec(bytes / 2).map(Self::W16).ok(),
            4 => try_zeroed_vec(bytes / 4).map(Self::W32).ok(),
            _ => try_zeroed_vec(bytes / 8).map(Self::W64).ok(),
        }
    }

    /// Room for `bytes` bytes for `dtype`, empty and untouched; nothing if there is no memory for
    /// it. [`fill_up`](Self::fill_up) makes zeros of it.
    #[cfg(feature = "std")]
    pub(crate) fn reserved(dtype: Dtype, bytes: usize) -> Option<Self> {
        fn room<T>(bytes: usize) -> Option<Vec<T>> {
            let mut room = Vec::new();
            room.try_reserve_exact(bytes / size_of::<T>()).is_ok().then_some(room)
        }
        match dtype.alignment() {
            1 => room(bytes).map(Self::W8),
            2 => room(bytes).map(Self::W16),
            4 => room(bytes).map(Self::W32),
            _ => room(bytes).map(Self::W64),
        }
    }

    /// Adds zeros until there are `bytes` bytes.
    #[cfg(feature = "std")]
    pub(crate) fn fill_up(&mut self, bytes: usize) {
        fn fill_up<T: Pod>(vec: &mut Vec<T>, bytes: usize) {
            vec.resize(bytes / size_of::<T>(), T::zeroed());
        }
        with_words!(self, vec => fill_up(vec, bytes));
    }

    /// The memory that is set aside, whether it is in use or not.
    #[cfg(feature = "std")]
    pub(crate) fn room(&self) -> Range<*const u8> {
        fn room<T>(vec: &Vec<T>) -> Range<*const u8> {
            let start = vec.as_ptr();
            start.cast()..start.wrapping_add(vec.capacity()).cast()
        }
        with_words!(self, vec => room(vec))
    }

    pub(crate) fn from_vec<T: Element>(values: Vec<T>) -> Self {
        match T::DTYPE.alignment() {
            1 => Self::W8(cast_vec(values)),
            2 => Self::W16(cast_vec(values)),
            4 => Self::W32(cast_vec(values)),
            _ => Self::W64(cast_vec(values)),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        with_words!(self, vec => bytemuck::cast_slice(vec))
    }

    pub(crate) fn as_bytes_mut(&mut self) -> &mut [u8] {
        with_words!(self, vec => bytemuck::cast_slice_mut(vec))
    }

    fn into_pod_vec<T: Pod>(self) -> Result<Vec<T>, Self> {
        match self {
            Self::W8(vec) => try_cast_vec(vec).map_err(|(_, vec)| Self::W8(vec)),
            Self::W16(vec) => try_cast_vec(vec).map_err(|(_, vec)| Self::W16(vec)),
            Self::W32(vec) => try_cast_vec(vec).map_err(|(_, vec)| Self::W32(vec)),
            Self::W64(vec) => try_cast_vec(vec).map_err(|(_, vec)| Self::W64(vec)),
        }
    }
}

/// Moves the values where the allocation suits the words exactly, copies them where its capacity
/// does not divide.
fn cast_vec<T: NoUninit, W: Pod>(values: Vec<T>) -> Vec<W> {
    try_cast_vec(values)
        .unwrap_or_else(|(_, values)| bytemuck::cast_slice::<T, W>(&values).to_vec())
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;

            fn vec_from_words(words: Words) -> Result<Vec<Self>, Words> {
                words.into_pod_vec()
            }
        }
        // Files align tensors by the table, so no type may ask for more. 64-bit numbers ask for
        // less on 32-bit x86.
        const _: () = assert!(align_of::<$type>() <= Dtype::$dtype.alignment());
        const _: () = assert!(
            size_of::<$type>() * 8 == Dtype::$dtype.bits() as usize || Dtype::$dtype.is_sub_byte() && size_of::<$type>() == 1
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
                /// The bits as they are in the file.
                pub u8,
            );
        )*
        elements! { $($type => $dtype),* }
    };
}

byte_newtypes! {
    /// A power of two, `2^(bits - 127)`; 0xFF is NaN. One element.
    F8E8M0 => F8_E8M0;
    /// An `F8_E4M3FNUZ` value as its bits. One element.
    F8E4M3Fnuz => F8_E4M3FNUZ;
    /// An `F8_E5M2FNUZ` value as its bits. One element.
    F8E5M2Fnuz => F8_E5M2FNUZ;
    /// One byte of packed `F4` data: two elements, the first in the low half.
    F4Packed => F4;
    /// One byte of packed `F6_E2M3` data: four elements fill three bytes, lowest bits first.
    F6E2M3Packed => F6_E2M3;
    /// One byte of packed `F6_E3M2` data: four elements fill three bytes, lowest bits first.
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
