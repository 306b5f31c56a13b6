//! [`Conversion`]: converts elements block by block.

use alloc::format;
use alloc::string::{String, ToString};

use super::block::{BLOCK, Failure, Scratch, aligned, bytes_of, cast_mut, elements_of};
use super::decode::decode;
use super::double::{narrow, widen};
use super::encode::{encode, saturate};
use super::integer::{self, is_integer};
use super::{ConvertOptions, Overflow};
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::check_bools;

/// Returns `true` if `from` can be converted to `to`, see [the table](super), or is the same.
///
/// ```
/// use safetensors_core::Dtype;
/// use safetensors_core::convert::can_convert;
///
/// assert!(can_convert(Dtype::F4, Dtype::BF16));
/// assert!(!can_convert(Dtype::BF16, Dtype::F4));
/// ```
pub fn can_convert(from: Dtype, to: Dtype) -> bool {
    let is_target = is_integer(to) || to.format().is_some_and(|format| !format.is_of_blocks());
    from == to || is_target && (from.is_float() || is_integer(from))
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversion {
    pub(super) from: Dtype,
    pub(super) to: Dtype,
    overflow: Overflow,
}

impl Conversion {
    pub(crate) fn new(from: Dtype, to: Dtype, options: &ConvertOptions) -> Result<Self, ErrorKind> {
        if !can_convert(from, to) {
            return Err(ErrorKind::NoConversion { from, to });
        }
        Ok(Self { from, to, overflow: options.overflow })
    }

    pub(crate) fn from(&self) -> Dtype {
        self.from
    }

    pub(crate) fn to(&self) -> Dtype {
        self.to
    }

    /// Converts elements into `out`, aligned and of their number, in the machine's byte order.
    /// `first` is the index of the first one in its tensor, for errors.
    pub(crate) fn run(&self, src: &[u8], out: &mut [u8], first: u64) -> Result<(), ErrorKind> {
        if self.from == Dtype::BOOL {
            check_bools(src, first)?;
        }
        if self.from == self.to {
            out.copy_from_slice(src);
            return Ok(());
        }
        let mut scratch = Scratch::new();
        let blocks =
            src.chunks(bytes_of(self.from, BLOCK)).zip(out.chunks_mut(bytes_of(self.to, BLOCK)));
        for (number, (src, out)) in blocks.enumerate() {
            self.block(src, out, &mut scratch).map_err(|failure| match failure {
                Failure::DoesNotFit(index) => ErrorKind::DoesNotFit {
                    index: first + (number * BLOCK + index) as u64,
                    value: self.describe(src, index, &mut scratch),
                    to: self.to,
                },
                Failure::NoConversion => ErrorKind::NoConversion { from: self.from, to: self.to },
                Failure::Misaligned => ErrorKind::Misaligned {
                    dtype: self.to,
                    alignment: self.to.alignment(),
                    address: out.as_ptr().addr(),
                },
            })?;
        }
        Ok(())
    }

    fn block(&self, src: &[u8], out: &mut [u8], scratch: &mut Scratch) -> Result<(), Failure> {
        let Self { from, to, overflow } = *self;
        match (from, to) {
            (from, to) if is_integer(from) && is_integer(to) => {
                integer::to_integers(from, to, src, out, scratch)
            }
            (from, Dtype::F64) if is_integer(from) => {
                integer::to_f64(from, src, cast_mut(out)?, scratch)
            }
            (from, Dtype::F32) if is_integer(from) => {
                integer::to_f32(from, src, cast_mut(out)?, scratch)
            }
            (Dtype::F64, to) if is_integer(to) => {
                integer::from_floats::<f64>(to, aligned(src, &mut scratch.source), out)
            }
            (Dtype::F64, Dtype::F32) => {
                narrow(overflow, aligned(src, &mut scratch.source), cast_mut(out)?)
            }
            (from, Dtype::F32) => {
                let values = cast_mut(out)?;
                decode(from, src, values, &mut scratch.source)?;
                if overflow == Overflow::Saturate {
                    saturate(to, values);
                }
                Ok(())
            }
            // F32 values are encoded directly, because nothing has to be decoded or clamped first.
            (Dtype::F32, to)
                if overflow != Overflow::Saturate && to != Dtype::F64 && !is_integer(to) =>
            {
                encode(to, overflow, aligned(src, &mut scratch.source), out)
            }
            (from, to) => {
                let values = &mut scratch.floats[..elements_of(from, src.len())];
                decode(from, src, values, &mut scratch.source)?;
                if is_integer(to) {
                    return integer::from_floats(to, values, out);
                }
                if to == Dtype::F64 {
                    widen(overflow, values, cast_mut(out)?);
                    return Ok(());
                }
                if overflow == Overflow::Saturate {
                    saturate(to, values);
                }
                encode(to, overflow, values, out)
            }
        }
    }

    fn describe(&self, src: &[u8], index: usize, scratch: &mut Scratch) -> String {
        if let Ok(value) = integer::describe(self.from, src, index, scratch) {
            return value.to_string();
        }
        if self.from == Dtype::F64 {
            let values: &[f64] = aligned(src, &mut scratch.source);
            return values.get(index).map_or_else(String::new, |value| format!("{value:?}"));
        }
        let values = &mut scratch.floats[..elements_of(self.from, src.len())];
        match decode(self.from, src, values, &mut scratch.source) {
            Ok(()) => values.get(index).map_or_else(String::new, |value| format!("{value:?}")),
            Err(_) => String::new(),
        }
    }
}
