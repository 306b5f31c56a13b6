//! [`TensorBuf`]: a tensor that owns its elements.

use alloc::vec::Vec;
#[cfg(feature = "std")]
use core::ops::Range;

use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::view::{invalid_bool, refuse_big_endian};
use crate::tensor::words::Words;
use crate::tensor::{Element, TensorView, shape};

/// A dtype, a shape and the elements of one tensor, owned and aligned for typed use.
///
/// The elements lie in one `Vec` that [`into_vec`](TensorBuf::into_vec) hands over without a copy,
/// so a framework that owns `Vec`s takes them as they were read. A BOOL buffer only ever holds the
/// bytes 0 and 1.
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
    words: Words,
}

impl TensorBuf {
    /// A tensor of these values; they are moved, not copied.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DataLength`] if there are not as many values as the shape asks for, and the
    /// errors of [`shape::byte_len`].
    pub fn from_vec<T: Element>(shape: Vec<usize>, values: Vec<T>) -> Result<Self> {
        let expected = shape::memory_len(T::DTYPE, &shape)?;
        let found = size_of_val(values.as_slice());
        if expected != found {
            return Err(data_length(T::DTYPE, shape, expected, found));
        }
        Ok(Self { dtype: T::DTYPE, shape, words: Words::from_vec(values) })
    }

    /// An owned, aligned copy of a view. On a big-endian target this swaps the bytes of each
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

    /// A tensor whose bytes, as a file has them, `read` fills in. They are zero before.
    ///
    /// # Errors
    ///
    /// Those of `read`; those of [`shape::byte_len`]; [`ErrorKind::TooLargeForMemory`];
    /// [`ErrorKind::InvalidBool`] if the dtype is BOOL and a byte is neither 0 nor 1.
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

    /// A tensor of zeros. Large ones take no memory until they are written to.
    pub(crate) fn zeroed(dtype: Dtype, shape: Vec<usize>) -> Result<Self> {
        let len = shape::memory_len(dtype, &shape)?;
        let words =
            Words::zeroed(dtype, len).ok_or(ErrorKind::TooLargeForMemory { bytes: len as u64 })?;
        #[cfg(feature = "std")]
        super::hugepage::advise([words.room()]);
        Ok(Self { dtype, shape, words })
    }

    /// Room for a tensor, one of many: [`bytes_mut`](TensorBuf::bytes_mut) must be called before
    /// anything is read from it. Then it is a tensor of zeros. Until then nobody has touched the
    /// memory, so that advice about all of it can still be given, and so that several threads can
    /// share the work.
    #[cfg(feature = "std")]
    pub(crate) fn reserved(dtype: Dtype, shape: Vec<usize>) -> Result<Self> {
        /// Zeros of at most this size may come from memory that has to be cleared by hand. More
        /// than that, allocators mostly get from the system, which gives it zeroed.
        const CLEARED_BY_HAND: usize = 256 << 10;

        let len = shape::memory_len(dtype, &shape)?;
        let words = if len > CLEARED_BY_HAND {
            Words::zeroed(dtype, len)
        } else {
            Words::reserved(dtype, len)
        };
        Ok(Self {
            dtype,
            shape,
            words: words.ok_or(ErrorKind::TooLargeForMemory { bytes: len as u64 })?,
        })
    }

    /// The memory of the elements, for advice.
    #[cfg(feature = "std")]
    pub(crate) fn room(&self) -> Range<*const u8> {
        self.words.room()
    }

    /// The length of the elements, in bytes, also of a tensor that is only reserved.
    #[cfg(feature = "std")]
    pub(crate) fn byte_len(&self) -> usize {
        // Computed before, when the tensor was made: it cannot fail.
        shape::memory_len(self.dtype, &self.shape).unwrap_or_default()
    }

    /// The storage, to be filled with elements, or with the bytes of a file and then passed to
    /// [`TensorBuf::finish_reading`].
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        #[cfg(feature = "std")]
        self.words.fill_up(self.byte_len());
        self.words.as_bytes_mut()
    }

    /// Makes values of the bytes that were just filled in: swapped on a big-endian target, BOOL
    /// checked.
    pub(crate) fn finish_reading(&mut self) -> Result<()> {
        if self.dtype == Dtype::BOOL && self.bytes().iter().any(|&byte| byte > 1) {
            return Err(invalid_bool(self.bytes()));
        }
        swap_on_big_endian(self.dtype, self.words.as_bytes_mut());
        Ok(())
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes of the elements in memory, in C order and native byte order.
    pub fn bytes(&self) -> &[u8] {
        self.words.as_bytes()
    }

    /// The tensor as a view, borrowed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BigEndian`] for elements wider than a byte on a big-endian target: a view is
    /// what a file holds.
    pub fn view(&self) -> Result<TensorView<'_>> {
        refuse_big_endian(self.dtype)?;
        TensorView::new(self.dtype, &self.shape, self.bytes())
    }

    /// The elements, borrowed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] if the dtype is not that of `T`.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_dtype::<T>()?;
        bytemuck::checked::try_cast_slice(self.bytes()).map_err(|_| invalid_bool(self.bytes()))
    }

    /// The elements, owned: moved for every type but `bool`, whose bytes are checked and copied.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] if the dtype is not that of `T`.
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>> {
        self.check_dtype::<T>()?;
        T::vec_from_words(self.words).or_else(|words| {
            let bytes = words.as_bytes();
            let values =
                bytemuck::checked::try_cast_slice(bytes).map_err(|_| invalid_bool(bytes))?;
            Ok(values.to_vec())
        })
    }

    /// The same elements under another dtype of the same width and alignment, for which every bit
    /// pattern is valid.
    pub(crate) fn relabel(self, dtype: Dtype) -> Self {
        debug_assert!(
            dtype.bits() == self.dtype.bits() && dtype.alignment() == self.dtype.alignment()
        );
        debug_assert!(dtype != Dtype::BOOL);
        Self { dtype, ..self }
    }

    /// The same bytes as elements of another dtype, in a shape that gives them the same length.
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
    // The unit is the number, not the element: a complex element is two numbers, each of its
    // alignment's size.
    let unit = dtype.alignment();
    if cfg!(target_endian = "big") && unit > 1 {
        bytes.chunks_exact_mut(unit).for_each(<[u8]>::reverse);
    }
}

fn data_length(dtype: Dtype, shape: Vec<usize>, expected: usize, found: usize) -> Error {
    ErrorKind::DataLength { dtype, shape, expected: expected as u64, found: found as u64 }.into()
}
