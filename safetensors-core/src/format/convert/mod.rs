//! Conversion of elements to another dtype.
//!
//! [`TensorView::convert`] and [`TensorBuf::convert`] convert in memory,
//! [`LoadOptions::all_as`](crate::LoadOptions::all_as) and
//! [`LoadOptions::floats_as`](crate::LoadOptions::floats_as) during a load, [`Converted`] during a
//! save. [`widen`] converts only where no value changes.
//!
//! | from | to | result |
//! |---|---|---|
//! | any dtype | the same | nothing: every bit is kept |
//! | F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ, F8_E8M0, F6_E2M3, F6_E3M2, F4 | the first eight of these | rounded once, to nearest, ties to even; [`Overflow`] for too large numbers |
//! | the same floats | BOOL, I8 … I64, U8 … U64 | an error unless the value is an integer in range |
//! | BOOL, I8 … I64, U8 … U64 | the eight floats | rounded to nearest, ties to even; [`Overflow`] |
//! | BOOL, I8 … I64, U8 … U64 | BOOL, I8 … I64, U8 … U64 | an error unless the value is in range; BOOL has 0 and 1 |
//! | C64 | any other dtype | not possible |
//! | any other dtype | C64 | not possible |
//! | any other dtype | F4, F6_E2M3, F6_E3M2, F8_E8M0 | not possible: elements and scales of a block are chosen together |
//!
//! [`can_convert`] returns whether a pair is possible; others are [`ErrorKind::NoConversion`].
//!
//! - A value that the target has is unchanged, including subnormals and the sign of zero. The FNUZ
//!   dtypes and integers have no negative zero: it becomes zero.
//! - NaN stays NaN, with any sign and payload. As an integer it is an error.
//! - Infinity stays infinity, or becomes NaN in a dtype without it, if [`Overflow`] does not change
//!   that.
//! - Packed elements (F4, F6_E2M3, F6_E3M2) are unpacked, lowest bits first.
//!
//! ```
//! use half::bf16;
//! use safetensors_core::{ConvertOptions, Dtype, TensorBuf};
//!
//! let weights = TensorBuf::from_vec(vec![2], vec![0.1_f32, 3e38])?;
//! let narrow = weights.convert(Dtype::BF16, &ConvertOptions::new())?;
//! assert_eq!(narrow.into_vec::<bf16>()?, [0.1, 3e38].map(bf16::from_f32));
//! # Ok::<(), safetensors_core::Error>(())
//! ```

mod block;
mod conversion;
mod decode;
mod double;
mod encode;
mod integer;
mod options;
mod source;
pub(crate) mod support;
pub(crate) mod widen;

#[cfg(all(test, feature = "std"))]
pub(crate) use block::tests::{CHOSEN, widths};
pub(crate) use block::{GROUP, STREAMED, bytes_of, elements_of, vectorized};
pub(crate) use conversion::Conversion;
pub use conversion::can_convert;
pub(crate) use decode::{decode_bytes, decode_four};
pub use options::{ConvertOptions, Overflow};
pub use source::Converted;
pub(crate) use support::DtypeTable;
pub use support::Widening;
pub use widen::{is_lossless, widen};

use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
#[cfg(feature = "std")]
use crate::format::parallel::in_parallel;
use crate::format::tensor::{TensorBuf, TensorView};
#[cfg(feature = "std")]
use crate::format::trace::Span;

impl TensorBuf {
    /// Converts the values, see [the table](crate::convert). Does not copy a buffer of this dtype.
    ///
    /// ```
    /// use safetensors_core::{ConvertOptions, Dtype, ErrorKind, TensorBuf};
    ///
    /// let ids = TensorBuf::from_vec(vec![3], vec![1_i64, 2, 300])?;
    /// let error = ids.clone().convert(Dtype::U8, &ConvertOptions::new()).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::DoesNotFit { index: 2, .. }));
    /// assert_eq!(
    ///     ids.convert(Dtype::U16, &ConvertOptions::new())?.into_vec::<u16>()?,
    ///     [1, 2, 300]
    /// );
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NoConversion`](crate::ErrorKind::NoConversion);
    /// [`DoesNotFit`](crate::ErrorKind::DoesNotFit) for a value that the table or
    /// [`Overflow::Error`] refuses; [`ShapeOverflow`](crate::ErrorKind::ShapeOverflow);
    /// [`TooLargeForMemory`](crate::ErrorKind::TooLargeForMemory).
    pub fn convert(self, to: Dtype, options: &ConvertOptions) -> Result<Self> {
        self.convert_by(to, options, 0)
    }

    pub(crate) fn convert_by(
        self,
        to: Dtype,
        options: &ConvertOptions,
        threads: usize,
    ) -> Result<Self> {
        if self.dtype() == to {
            return Ok(self);
        }
        let conversion = Conversion::new(self.dtype(), to, options)?;
        convert(&conversion, self.shape(), self.bytes(), threads)
    }
}

impl TensorView<'_> {
    /// Converts the values into a new buffer, also to their own dtype. See [the
    /// table](crate::convert).
    ///
    /// ```
    /// use safetensors_core::{ConvertOptions, Dtype, TensorView};
    ///
    /// // Two elements of F4 in a byte: 0.5 in the low half, -6 in the high half.
    /// let packed = TensorView::new(Dtype::F4, &[2], &[0xf1])?;
    /// assert_eq!(
    ///     packed.convert(Dtype::F32, &ConvertOptions::new())?.into_vec::<f32>()?,
    ///     [0.5, -6.0]
    /// );
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`TensorBuf::convert`]; [`InvalidBool`](crate::ErrorKind::InvalidBool).
    pub fn convert(&self, to: Dtype, options: &ConvertOptions) -> Result<TensorBuf> {
        if self.dtype() == to || cfg!(target_endian = "big") {
            return TensorBuf::from_view(self)?.convert(to, options);
        }
        let conversion = Conversion::new(self.dtype(), to, options)?;
        convert(&conversion, self.shape(), self.data(), 0)
    }

    /// Converts the values into `out`, and to its dtype, without a new buffer.
    ///
    /// ```
    /// use safetensors_core::{ConvertOptions, TensorBuf, TensorView};
    ///
    /// let mut out = TensorBuf::from_vec(vec![2], vec![0.0_f32; 2])?;
    /// TensorView::from_slice(&[2], &[1_i8, -2])?
    ///     .convert_into(&mut out, &ConvertOptions::new())?;
    /// assert_eq!(out.as_slice::<f32>()?, [1.0, -2.0]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WrongShape`](crate::ErrorKind::WrongShape); as for [`convert`](TensorView::convert), after
    /// which the values of `out` are unspecified.
    pub fn convert_into(&self, out: &mut TensorBuf, options: &ConvertOptions) -> Result<()> {
        if self.shape() != out.shape() {
            return Err(ErrorKind::WrongShape {
                expected: out.shape().into(),
                found: self.shape().into(),
            }
            .into());
        }
        let conversion = Conversion::new(self.dtype(), out.dtype(), options)?;
        let converted = if cfg!(target_endian = "big") {
            run(&conversion, TensorBuf::from_view(self)?.bytes(), out.bytes_mut(), 0)
        } else {
            run(&conversion, self.data(), out.bytes_mut(), 0)
        };
        if converted.is_err() && out.dtype() == Dtype::BOOL {
            // The bytes may be neither 0 nor 1 now, which a BOOL buffer must never hold.
            out.bytes_mut().fill(0);
        }
        converted
    }
}

/// Converts `bytes` in the machine's byte order.
fn convert(
    conversion: &Conversion,
    shape: &[usize],
    bytes: &[u8],
    threads: usize,
) -> Result<TensorBuf> {
    let mut converted = TensorBuf::zeroed(conversion.to(), shape.to_vec())?;
    run(conversion, bytes, converted.bytes_mut(), threads)?;
    Ok(converted)
}

#[cfg(feature = "std")]
fn run(conversion: &Conversion, src: &[u8], out: &mut [u8], threads: usize) -> Result<()> {
    // Converting them takes far longer than starting a thread.
    const PIECE: usize = 1 << 20;

    let span = Span::convert(conversion.from().name(), conversion.to().name(), out.len());
    let _convert = span.enter();
    let from = bytes_of(conversion.from(), PIECE);
    let to = bytes_of(conversion.to(), PIECE);
    let pieces: std::vec::Vec<_> = src.chunks(from).zip(out.chunks_mut(to)).collect();
    in_parallel(pieces.into_iter().enumerate(), threads, |(number, (src, out)), _: &mut ()| {
        Ok(conversion.run(src, out, (number * PIECE) as u64)?)
    })?;
    Ok(())
}

#[cfg(not(feature = "std"))]
fn run(conversion: &Conversion, src: &[u8], out: &mut [u8], _: usize) -> Result<()> {
    Ok(conversion.run(src, out, 0)?)
}
