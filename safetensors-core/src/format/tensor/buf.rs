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

/// A tensor that owns its elements, in one `Vec` aligned for their type.
///
/// [`into_vec`](TensorBuf::into_vec) hands the `Vec` over without a copy. A BOOL buffer holds only
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

// Larger memory mostly comes from the system, zeroed.
pub(crate) const CLEARED_BY_HAND: usize = 256 << 10;

impl TensorBuf {
    /// Makes a tensor of `values`, without a copy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DataLength`] if the number of values does not fit the shape; also see
    /// [`shape::byte_len`].
    pub fn from_vec<T: Element>(shape: Vec<usize>, values: Vec<T>) -> Result<Self> {
        let expected = shape::memory_len(T::DTYPE, &shape)?;
        let found = size_of_val(values.as_slice());
        if expected != found {
            return Err(data_length(T::DTYPE, shape, expected, found));
        }
        Ok(Self { dtype: T::DTYPE, shape, words: AlignedVec::from_vec(values) })
    }

    /// Copies a view into aligned memory in native byte order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidBool`].
    pub fn from_view(view: &TensorView<'_>) -> Result<Self> {
        Self::filled_by(view.dtype(), view.shape().to_vec(), |bytes| {
            bytes.copy_from_slice(view.data());
            Ok(())
        })
    }

    /// Makes a tensor of bytes that `read` writes, little-endian, into a zeroed buffer.
    ///
    /// # Errors
    ///
    /// Errors of `read`; [`ErrorKind::InvalidBool`]; [`ErrorKind::TooLargeForMemory`]; also see
    /// [`shape::byte_len`].
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

    /// A large tensor takes no memory until it is written to.
    pub(crate) fn zeroed(dtype: Dtype, shape: Vec<usize>) -> Result<Self> {
        let len = shape::memory_len(dtype, &shape)?;
        let words = AlignedVec::zeroed(dtype, len)
            .ok_or(ErrorKind::TooLargeForMemory { bytes: len as u64 })?;
        #[cfg(feature = "std")]
        Pages::behind([words.room()]).advise();
        Ok(Self { dtype, shape, words })
    }

    /// Reserves untouched memory, which [`bytes_mut`](TensorBuf::bytes_mut) fills with zeros.
    // It has no pages yet, so huge pages can be asked for, and threads share the page faults.
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

    pub(crate) fn room(&self) -> Range<*const u8> {
        self.words.room()
    }

    pub(crate) fn byte_len(&self) -> usize {
        // This cannot fail: the same length was computed when the tensor was made.
        shape::memory_len(self.dtype, &self.shape).unwrap_or_default()
    }

    /// Returns the bytes. After a file's, call [`TensorBuf::finish_reading`].
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.words.fill_up(self.byte_len());
        self.words.as_bytes_mut()
    }

    /// Checks BOOL, and swaps bytes on a big-endian target.
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

    /// Returns the bytes in memory, in C order and native byte order.
    pub fn bytes(&self) -> &[u8] {
        self.words.as_bytes()
    }

    /// Borrows the tensor as a view.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BigEndian`] on a big-endian target, for elements wider than a byte.
    pub fn view(&self) -> Result<TensorView<'_>> {
        refuse_big_endian(self.dtype, self.bytes())?;
        TensorView::new(self.dtype, &self.shape, self.bytes())
    }

    /// Borrows the elements.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] if the dtype is not `T`'s.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_dtype::<T>()?;
        bytemuck::checked::try_cast_slice(self.bytes())
            .map_err(|_| invalid_bool(self.bytes()).into())
    }

    /// Moves the elements into a `Vec`. `bool` is checked and copied.
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

    /// The new dtype has the same width and alignment, and every bit pattern is valid.
    pub(crate) fn relabel(self, dtype: Dtype) -> Self {
        debug_assert!(
            dtype.bits() == self.dtype.bits() && dtype.alignment() == self.dtype.alignment()
        );
        debug_assert!(dtype != Dtype::BOOL);
        Self { dtype, ..self }
    }

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

/// Swaps between the file's order and the machine's.
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
