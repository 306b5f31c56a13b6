//! [`Index`]: the positions that a slice takes from one dimension.

use alloc::vec::Vec;
use core::fmt;
use core::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::format::error::ErrorKind;

/// The positions that a slice takes from one dimension, as in NumPy.
///
/// Negative positions count from the end. Integers and ranges of `isize`, `usize` and `i32` convert
/// to an `Index`:
///
/// ```
/// use safetensors_core::{Dtype, TensorSource, TensorView};
///
/// let values: Vec<i32> = (0..12).collect();
/// let matrix = TensorView::from_slice(&[3, 4], &values)?;
/// let column = matrix.slice((.., -1))?;
/// assert_eq!(column.shape(), [3]);
/// assert_eq!(column.to_buf()?.into_vec::<i32>()?, [3, 7, 11]);
///
/// use safetensors_core::slice::Index;
/// let every_other = matrix.slice((1..3, Index::from(..).step(2)))?;
/// assert_eq!(every_other.to_buf()?.into_vec::<i32>()?, [4, 6, 8, 10]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// One position. The dimension is removed from the shape.
    At(isize),
    /// Every `step`-th position from `start` up to but not including `end`. The dimension stays in
    /// the shape.
    Range {
        /// The first position; 0 if `None`.
        start: Option<isize>,
        /// The position after the last; the dimension's length if `None`.
        end: Option<isize>,
        /// The distance between two positions. A step of 0 is an error when the slice is made.
        step: usize,
    },
}

impl Index {
    /// The whole dimension.
    pub const ALL: Self = Self::Range { start: None, end: None, step: 1 };

    /// Returns the index of some positions of a dimension of length `len`. A dimension that is taken
    /// whole may be longer than an index can count: the tensor is empty then.
    pub(crate) fn within(range: Range<usize>, len: usize) -> Self {
        if range == (0..len) { Self::ALL } else { range.into() }
    }

    /// Sets the step of a range. A single position is returned unchanged.
    #[must_use]
    pub fn step(self, step: usize) -> Self {
        match self {
            Self::Range { start, end, .. } => Self::Range { start, end, step },
            at @ Self::At(_) => at,
        }
    }
}

/// Displays a position, or a range as it is written in Rust, and its step unless it is 1.
impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end, step) = match self {
            Self::At(position) => return write!(f, "{position}"),
            Self::Range { start, end, step } => (start, end, step),
        };
        start.iter().try_for_each(|start| write!(f, "{start}"))?;
        f.write_str("..")?;
        end.iter().try_for_each(|end| write!(f, "{end}"))?;
        if *step == 1 { Ok(()) } else { write!(f, " in steps of {step}") }
    }
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        Self::ALL
    }
}

macro_rules! positions {
    ($($int:ty),*) => {$(
        impl From<$int> for Index {
            fn from(position: $int) -> Self {
                Self::At(saturate(position))
            }
        }

        impl From<Range<$int>> for Index {
            fn from(range: Range<$int>) -> Self {
                Self::Range {
                    start: Some(saturate(range.start)),
                    end: Some(saturate(range.end)),
                    step: 1,
                }
            }
        }

        impl From<RangeFrom<$int>> for Index {
            fn from(range: RangeFrom<$int>) -> Self {
                Self::Range { start: Some(saturate(range.start)), end: None, step: 1 }
            }
        }

        impl From<RangeTo<$int>> for Index {
            fn from(range: RangeTo<$int>) -> Self {
                Self::Range { start: None, end: Some(saturate(range.end)), step: 1 }
            }
        }

        impl From<RangeInclusive<$int>> for Index {
            fn from(range: RangeInclusive<$int>) -> Self {
                Self::Range {
                    start: Some(saturate(*range.start())),
                    end: after(saturate(*range.end())),
                    step: 1,
                }
            }
        }

        impl From<RangeToInclusive<$int>> for Index {
            fn from(range: RangeToInclusive<$int>) -> Self {
                Self::Range { start: None, end: after(saturate(range.end)), step: 1 }
            }
        }
    )*};
}

positions!(isize, usize, i32);

/// Converts a position to `isize`. A position that does not fit becomes `isize::MAX`; both are out
/// of bounds in any dimension.
fn saturate(position: impl TryInto<isize>) -> isize {
    position.try_into().unwrap_or(isize::MAX)
}

/// Returns the exclusive end for an inclusive one. -1 is the last position, so the end of the
/// dimension follows it.
fn after(end: isize) -> Option<isize> {
    if end == -1 { None } else { Some(end.saturating_add(1)) }
}

/// The argument of [`TensorView::slice`](crate::TensorView::slice) and
/// [`LazyTensor::slice`](crate::LazyTensor::slice): a tuple of up to six integers and ranges (`()` for all of the tensor), any
/// number of [`Index`] values, or a part ([`TensorPart`](super::TensorPart),
/// [`RankPart`](super::RankPart)). Trailing dimensions without an index are taken in full.
pub trait IntoIndices {
    /// Returns one index for each dimension of a tensor of this shape, outermost first.
    ///
    /// # Errors
    ///
    /// A part has the errors of [`TensorPart::ranges`](super::TensorPart::ranges); indices have
    /// none.
    fn into_indices(self, shape: &[usize]) -> Result<Vec<Index>, ErrorKind>;
}

impl IntoIndices for &[Index] {
    fn into_indices(self, _: &[usize]) -> Result<Vec<Index>, ErrorKind> {
        Ok(self.to_vec())
    }
}

impl IntoIndices for Vec<Index> {
    fn into_indices(self, _: &[usize]) -> Result<Vec<Index>, ErrorKind> {
        Ok(self)
    }
}

impl<const N: usize> IntoIndices for [Index; N] {
    fn into_indices(self, _: &[usize]) -> Result<Vec<Index>, ErrorKind> {
        Ok(self.into())
    }
}

macro_rules! tuples {
    ($(($($name:ident),*);)*) => {$(
        impl<$($name: Into<Index>),*> IntoIndices for ($($name,)*) {
            #[allow(non_snake_case, reason = "a value is named as its type")]
            fn into_indices(self, _: &[usize]) -> Result<Vec<Index>, ErrorKind> {
                let ($($name,)*) = self;
                Ok(alloc::vec![$($name.into()),*])
            }
        }
    )*};
}

tuples! {
    ();
    (A);
    (A, B);
    (A, B, C);
    (A, B, C, D);
    (A, B, C, D, E);
    (A, B, C, D, E, F);
}
