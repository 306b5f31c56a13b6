//! [`AlignedVec`]: memory of a tensor.

use alloc::vec::Vec;
use core::ops::Range;

use bytemuck::Pod;
use bytemuck::allocation::{try_cast_vec, try_zeroed_vec};

use crate::format::dtype::Dtype;

/// Memory for elements of any dtype. Casts to a `Vec` of elements and back are free, because
/// alignment and capacity stay the same.
#[derive(Clone, Debug)]
pub enum AlignedVec {
    /// Alignment 1.
    W8(Vec<u8>),
    /// Alignment 2.
    W16(Vec<u16>),
    /// Alignment 4.
    W32(Vec<u32>),
    /// Alignment 8.
    W64(Vec<u64>),
}

macro_rules! with_words {
    ($words:expr, $vec:ident => $body:expr) => {
        match $words {
            AlignedVec::W8($vec) => $body,
            AlignedVec::W16($vec) => $body,
            AlignedVec::W32($vec) => $body,
            AlignedVec::W64($vec) => $body,
        }
    };
}

impl AlignedVec {
    /// `None` if the allocation fails. Large memory is taken when it is touched.
    pub(crate) fn zeroed(dtype: Dtype, bytes: usize) -> Option<Self> {
        match dtype.alignment() {
            1 => try_zeroed_vec(bytes).map(Self::W8).ok(),
            2 => try_zeroed_vec(bytes / 2).map(Self::W16).ok(),
            4 => try_zeroed_vec(bytes / 4).map(Self::W32).ok(),
            _ => try_zeroed_vec(bytes / 8).map(Self::W64).ok(),
        }
    }

    /// Reserves untouched memory. `None` if the allocation fails.
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

    pub(crate) fn fill_up(&mut self, bytes: usize) {
        fn fill_up<T: Pod>(vec: &mut Vec<T>, bytes: usize) {
            vec.resize(bytes / size_of::<T>(), T::zeroed());
        }
        with_words!(self, vec => fill_up(vec, bytes));
    }

    /// Returns the addresses of the entire capacity.
    pub(crate) fn room(&self) -> Range<*const u8> {
        fn room<T>(vec: &Vec<T>) -> Range<*const u8> {
            let start = vec.as_ptr();
            start.cast()..start.wrapping_add(vec.capacity()).cast()
        }
        with_words!(self, vec => room(vec))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        with_words!(self, vec => bytemuck::cast_slice(vec))
    }

    pub(crate) fn as_bytes_mut(&mut self) -> &mut [u8] {
        with_words!(self, vec => bytemuck::cast_slice_mut(vec))
    }

    pub(super) fn into_pod_vec<T: Pod>(self) -> Result<Vec<T>, Self> {
        match self {
            Self::W8(vec) => try_cast_vec(vec).map_err(|(_, vec)| Self::W8(vec)),
            Self::W16(vec) => try_cast_vec(vec).map_err(|(_, vec)| Self::W16(vec)),
            Self::W32(vec) => try_cast_vec(vec).map_err(|(_, vec)| Self::W32(vec)),
            Self::W64(vec) => try_cast_vec(vec).map_err(|(_, vec)| Self::W64(vec)),
        }
    }
}
