//! [`TensorBuf`]: a tensor that owns its elements.

use alloc::vec::Vec;
use core::ops::Range;

use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::tensor::boolean::{check_bools, invalid_bool};
#[cfg(feature = "std")]
use crate::format::tensor::hugepage::Pages;
use crate::format::tensor::view::refuse_big_endian;
use crate::format::tensor::words::AlignedVec;
use crate::format::tensor::{Element, TensorView, shape};

/// A tensor that owns its elements, aligned for typed use.
///
/// The elements are in one `Vec`. [`into_vec`](TensorBuf::into_vec) hands it over without a copy,
/// so a framework that owns `Vec`s takes the elements as they were read. A BOOL buffer holds only
/// the bytes 0 and 1.
///
/// ```
/// use safetensors_core::{Dtype, TensorBuf};
///
/// let buf = TensorBuf::from_vec(vec![2, 2], vec![1_i64, 2, 3, 4])?;
/// assert_eq!(buf.dtype(), Dtype::I64);
/// assert_eq!(buf.into_vec::<i64>()?, [1, 2, 3, 4]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorBuf {
    dtype: Dtype,
    shape: Vec<usize>,
    words: AlignedVec,
}

/// Zeros of at most this size may come from memory that has to be cleared by hand. More than that,
/// allocators mostly get from the system, which gives it zeroed.
pub(crate) const CLEARED_BY_HAND: usize = 256 << 10;

impl TensorBuf {
    /// Makes a tensor from these values. They are moved, not copied.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DataLength`] if the number of values does not match the shape;
    /// [`ErrorKind::ShapeOverflow`] and [`ErrorKind::PartialByte`], see [`shape::byte_len`].
    pub fn from_vec<T: Element>(shape: Vec<usize>, values: Vec<T>) -> Result<Self> {
        let expected = shape::memory_len(T::DTYPE, &shape)?;
        let found = size_of_val(values.as_slice());
        if expected != found {
            return Err(data_length(T::DTYPE, shape, expected, found));
        }
        Ok(Self { dtype: T::DTYPE, shape, words: AlignedVec::from_vec(values) })
    }

    /// Makes an owned, aligned copy of a view. On a big-endian target this swaps the bytes of each
    /// element.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidBool`] if the view is BOOL and a byte is neither 0 nor 1.
    pub fn from_view(view: &TensorView<'_>) -> Result<Self> {
        Self::filled_by(view.dtype(), view.shape().to_vec(), |bytes| {
            bytes.copy_from_slice(view.data());
            Ok(())
        })
    }

    /// Makes a tensor and has `read` fill in its bytes, little-endian as in a file. The buffer is
    /// zeroed before `read` is called.
    ///
    /// # Errors
    ///
    /// Any error that `read` returns; [`ErrorKind::TooLargeForMemory`]; [`ErrorKind::InvalidBool`]
    /// if the dtype is BOOL and a byte is neither 0 nor 1; for the shape see [`shape::byte_len`].
    pub fn filled_by(
        dtype: Dtype,
        shape: Vec<usize>,
        read: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        let mut buf = Self::zeroed(dtype, shape)?;
        read(buf.bytes_mut())?;
        buf.finish_reading()?;
        Ok(buf)
    }

    /// Makes a tensor of zeros. Large ones take no memory until they are written to.
    pub(crate) fn zeroed(dtype: Dtype, shape: Vec<usize>) -> Result<Self> {
        let len = shape::memory_len(dtype, &shape)?;
        let words = AlignedVec::zeroed(dtype, len)
            .ok_or(ErrorKind::TooLargeForMemory { bytes: len as u64 })?;
        #[cfg(feature = "std")]
        Pages::of([words.room()]).advise();
        Ok(Self { dtype, shape, words })
    }

    /// Reserves the memory of a tensor without touching it. The tensor has no elements until
    /// [`bytes_mut`](TensorBuf::bytes_mut) is called, which makes it a tensor of zeros.
    ///
    /// Untouched memory has no pages yet. So huge pages can still be asked for, and the page faults
    /// are spread over the threads that fill the tensors.
    pub(crate) fn reserved(dtype: Dtype, shape: Vec<usize>) -> Result<Self> {
        let len = shape::memory_len(dtype, &shape)?;
        let words = if len > CLEARED_BY_HAND {
            AlignedVec::zeroed(dtype, len)
        } else {
            AlignedVec::reserved(dtype, len)
        };
        Ok(Self {
            dtype,
            shape,
            words: words.ok_or(ErrorKind::TooLargeForMemory { bytes: len as u64 })?,
        })
    }

    /// Returns the address range of the elements, for advice to the kernel.
    pub(crate) fn room(&self) -> Range<*const u8> {
        self.words.room()
    }

    /// Returns the length of the elements in bytes. A tensor that is only reserved already has its
    /// final length.
    pub(crate) fn byte_len(&self) -> usize {
        // This cannot fail: the same length was computed when the tensor was made.
        shape::memory_len(self.dtype, &self.shape).unwrap_or_default()
    }

    /// Returns the storage, to be filled. After bytes of a file are written to it,
    /// [`TensorBuf::finish_reading`] must be called. Elements in native byte order need no such
    /// call.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.words.fill_up(self.byte_len());
        self.words.as_bytes_mut()
    }

    /// Turns bytes of a file into elements in place: checks BOOL, and swaps bytes on a big-endian
    /// target.
    pub(crate) fn finish_reading(&mut self) -> Result<()> {
        if self.dtype == Dtype::BOOL {
            check_bools(self.bytes(), 0)?;
        }
        swap_on_big_endian(self.dtype, self.words.as_bytes_mut());
        Ok(())
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the bytes of the elements in memory, in C order and native byte order.
    pub fn bytes(&self) -> &[u8] {
        self.words.as_bytes()
    }

    /// Borrows the tensor as a view.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BigEndian`] for elements wider than a byte on a big-endian target, because a
    /// view holds little-endian bytes.
    pub fn view(&self) -> Result<TensorView<'_>> {
        refuse_big_endian(self.dtype, self.bytes())?;
        TensorView::new(self.dtype, &self.shape, self.bytes())
    }

    /// Borrows the elements as values of `T`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] if the dtype is not `T`'s.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_dtype::<T>()?;
        bytemuck::checked::try_cast_slice(self.bytes())
            .map_err(|_| invalid_bool(self.bytes()).into())
    }

    /// Takes the elements out as a `Vec`. They are moved, except for `bool`: its bytes are checked
    /// and copied.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] if the dtype is not `T`'s.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>> {
        self.check_dtype::<T>()?;
        T::vec_from_words(self.words).or_else(|words| {
            let bytes = words.as_bytes();
            let values =
                bytemuck::checked::try_cast_slice(bytes).map_err(|_| invalid_bool(bytes))?;
            Ok(values.to_vec())
        })
    }

    /// Changes the dtype and keeps the bytes. The new dtype must have the same width and alignment,
    /// and every bit pattern must be valid for it.
    pub(crate) fn relabel(self, dtype: Dtype) -> Self {
        debug_assert!(
            dtype.bits() == self.dtype.bits() && dtype.alignment() == self.dtype.alignment()
        );
        debug_assert!(dtype != Dtype::BOOL);
        Self { dtype, ..self }
    }

    /// Changes dtype and shape and keeps the bytes. The new dtype and shape must give the same
    /// length in bytes.
    pub(crate) fn reinterpret(self, dtype: Dtype, shape: Vec<usize>) -> Self {
        debug_assert!(
            shape::byte_len(dtype, &shape).ok() == Some(self.words.as_bytes().len() as u64)
        );
        debug_assert!(dtype.alignment() == self.dtype.alignment() && dtype != Dtype::BOOL);
        Self { dtype, shape, words: self.words }
    }

    fn check_dtype<T: Element>(&self) -> Result<()> {
        if T::DTYPE != self.dtype {
            return Err(ErrorKind::WrongDtype { expected: T::DTYPE, found: self.dtype }.into());
        }
        Ok(())
    }
}

/// Swaps the bytes of each number in `bytes` between the file's order and the machine's.
pub(crate) fn swap_on_big_endian(dtype: Dtype, bytes: &mut [u8]) {
    // A complex element is two numbers that are swapped one by one. The alignment of a dtype is the
    // size of a number.
    let unit = dtype.alignment();
    if cfg!(target_endian = "big") && unit > 1 {
        bytes.chunks_exact_mut(unit).for_each(<[u8]>::reverse);
    }
}

fn data_length(dtype: Dtype, shape: Vec<usize>, expected: usize, found: usize) -> Error {
    ErrorKind::DataLength { dtype, shape, expected: expected as u64, found: found as u64 }.into()
}
