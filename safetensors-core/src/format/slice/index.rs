//! [`Index`]: the positions that a slice takes from a dimension.

use alloc::vec::Vec;
use core::fmt;
use core::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::format::error::ErrorKind;

/// The positions that a slice takes from a dimension, as in NumPy.
///
/// Negative positions count from the end. Integers and ranges convert to an `Index`:
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
    /// One position, which removes the dimension.
    At(isize),
    /// Every `step`-th position from `start` up to `end`.
    Range {
        /// The first position; 0 if `None`.
        start: Option<isize>,
        /// The position after the last; the dimension's length if `None`.
        end: Option<isize>,
        /// The distance between positions, not 0.
        step: usize,
    },
}

impl Index {
    /// The whole dimension.
    pub const ALL: Self = Self::Range { start: None, end: None, step: 1 };

    // A dimension that is taken whole may be too long for an index, in an empty tensor.
    pub(crate) fn within(range: Range<usize>, len: usize) -> Self {
        if range == (0..len) { Self::ALL } else { range.into() }
    }

    /// Sets the step of a range; not of a position.
    #[must_use]
    pub fn step(self, step: usize) -> Self {
        match self {
            Self::Range { start, end, .. } => Self::Range { start, end, step },
            at @ Self::At(_) => at,
        }
    }
}

/// As in Rust, with a step other than 1.
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

// A position that does not fit is out of bounds, as `isize::MAX` is.
fn saturate(position: impl TryInto<isize>) -> isize {
    position.try_into().unwrap_or(isize::MAX)
}

/// -1 is the last position.
fn after(end: isize) -> Option<isize> {
    if end == -1 { None } else { Some(end.saturating_add(1)) }
}

/// The argument of [`TensorView::slice`](crate::TensorView::slice) and
/// [`LazyTensor::slice`](crate::LazyTensor::slice): a tuple of up to six integers and ranges, any
/// number of [`Index`] values, a [`TensorPart`](super::TensorPart) or a
/// [`RankPart`](super::RankPart). Dimensions without an index are whole, so `()` is all of it.
pub trait IntoIndices {
    /// Returns an index for each dimension, outermost first.
    ///
    /// # Errors
    ///
    /// For parts as for [`TensorPart::ranges`](super::TensorPart::ranges).
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
