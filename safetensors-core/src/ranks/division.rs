//! [`Division`]: how a tensor is divided among ranks.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, RankProblem, Result};
use crate::format::slice::{Index, RankPart, Selection, TensorPart};
use crate::format::tensor::shape::byte_len;

/// How a tensor is divided among ranks.
///
/// The command and the JSON of a plan have a division as text:
///
/// | text | each rank holds |
/// |---|---|
/// | `replicate` | the entire tensor |
/// | `split:0` | one of several equal parts of dimension 0, one for each rank |
/// | `uneven:0` | the same, but the last parts may be shorter or empty |
/// | `shared:0:8` | one of 8 equal parts of dimension 0, which several ranks in a row share |
/// | `offsets:0:0,4,6,8` | the positions from 0 to 4, from 4 to 6, or from 6 to 8 of dimension 0 |
///
/// ```
/// use safetensors_core::ranks::Division;
///
/// let division: Division = "offsets:0:0,4,6,8".parse()?;
/// assert_eq!(division.dim(), Some(0));
/// assert_eq!(division.to_string(), "offsets:0:0,4,6,8");
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Division {
    /// Each rank holds the entire tensor.
    Replicate,
    /// A dimension is cut into equal parts, one for each rank.
    Split {
        /// The dimension that is cut.
        dim: usize,
    },
    /// Each rank gets the length divided by the number of ranks, rounded up, while enough is left.
    Uneven {
        /// The dimension that is cut.
        dim: usize,
    },
    /// The dimension is cut into fewer equal parts than there are ranks. Ranks in a row share each
    /// part, for example the heads of keys and values.
    Shared {
        /// The dimension that is cut.
        dim: usize,
        /// The number of parts, which divides the number of ranks.
        parts: usize,
    },
    /// Rank `r` holds the positions `offsets[r]..offsets[r + 1]`.
    Offsets {
        /// The dimension that is cut.
        dim: usize,
        /// One number more than there are ranks, ascending, from 0 to the length.
        offsets: Vec<usize>,
    },
}

impl Division {
    pub(super) fn part(
        &self,
        shape: &[usize],
        rank: usize,
        world_size: usize,
    ) -> Result<TensorPart> {
        if rank >= world_size {
            return Err(ErrorKind::NoSuchRank { rank, world_size }.into());
        }
        let part: TensorPart = match self {
            Self::Replicate => return Ok(TensorPart::Whole),
            &Self::Split { dim } => RankPart::new(dim, rank, world_size).into(),
            &Self::Uneven { dim } => RankPart::new(dim, rank, world_size).uneven().into(),
            &Self::Shared { dim, parts } => {
                let holders = holders(dim, parts, world_size)?;
                RankPart::new(dim, rank / holders, parts).into()
            }
            Self::Offsets { dim, offsets } => {
                check_offsets(shape, *dim, offsets, world_size, rank..rank + 1)?;
                TensorPart::span(*dim, offsets[rank], offsets[rank + 1] - offsets[rank])
            }
        };
        part.ranges(shape)?;
        Ok(part)
    }

    /// Returns the dimension that is cut; `None` if none is.
    pub fn dim(&self) -> Option<usize> {
        match *self {
            Self::Replicate => None,
            Self::Split { dim }
            | Self::Uneven { dim }
            | Self::Shared { dim, .. }
            | Self::Offsets { dim, .. } => Some(dim),
        }
    }

    pub(super) fn parts(&self, world_size: usize) -> usize {
        match *self {
            Self::Replicate => 1,
            Self::Shared { parts, .. } => parts,
            Self::Split { .. } | Self::Uneven { .. } | Self::Offsets { .. } => world_size,
        }
    }

    /// Returns the number of the part, and whether the rank is the first that holds it.
    pub(super) fn held(&self, rank: usize, world_size: usize) -> (usize, bool) {
        let holders = (world_size / self.parts(world_size).max(1)).max(1);
        (rank / holders, rank.is_multiple_of(holders))
    }

    /// Also checks that each part begins and ends between two bytes.
    pub(super) fn check(&self, dtype: Dtype, shape: &[usize], world_size: usize) -> Result<()> {
        if let Self::Offsets { dim, offsets } = self {
            check_offsets(shape, *dim, offsets, world_size, 0..world_size)?;
        }
        // Of equal parts, checking the second and the last is enough.
        let ranks = self.like_ranks(shape, world_size).into_iter();
        let ranks = ranks.flat_map(|ranks| [ranks.start, ranks.start + 1, ranks.end - 1]);
        let check = |rank| self.check_part(dtype, shape, rank, world_size);
        ranks.filter(|&rank| rank < world_size).try_for_each(check)
    }

    /// Divides all ranks into ranges with parts of equal shape. None is empty.
    pub(super) fn like_ranks(&self, shape: &[usize], world_size: usize) -> Vec<Range<usize>> {
        match self {
            Self::Replicate | Self::Split { .. } | Self::Shared { .. } => {
                std::iter::once(0..world_size).collect()
            }
            // The last part that is not empty may be shorter than those before it.
            Self::Uneven { dim } => {
                let len = shape.get(*dim).copied().unwrap_or_default();
                let whole = (len / len.div_ceil(world_size).max(1)).min(world_size);
                let next = (whole + 1).min(world_size);
                let all = [0..whole, whole..next, next..world_size];
                all.into_iter().filter(|ranks| !ranks.is_empty()).collect()
            }
            Self::Offsets { .. } => (0..world_size).map(|rank| rank..rank + 1).collect(),
        }
    }

    pub(super) fn byte_len(
        &self,
        dtype: Dtype,
        shape: &[usize],
        rank: usize,
        world_size: usize,
    ) -> Result<u64> {
        Ok(byte_len(dtype, &self.part(shape, rank, world_size)?.shape(shape)?)?)
    }

    fn check_part(
        &self,
        dtype: Dtype,
        shape: &[usize],
        rank: usize,
        world_size: usize,
    ) -> Result<()> {
        let ranges = self.part(shape, rank, world_size)?.ranges(shape)?;
        let indices = ranges.into_iter().zip(shape).map(|(range, &len)| match range {
            whole if whole == (0..len) => Index::ALL,
            range => Index::from(range),
        });
        Selection::new(dtype, shape, &indices.collect::<Vec<_>>())?;
        Ok(())
    }
}

fn holders(dim: usize, parts: usize, world_size: usize) -> Result<usize, ErrorKind> {
    if parts > 0 && world_size.is_multiple_of(parts) {
        Ok(world_size / parts)
    } else {
        // The ranks do not divide evenly among the parts.
        Err(ErrorKind::UnevenParts { dim, len: world_size, world_size: parts })
    }
}

fn check_offsets(
    shape: &[usize],
    dim: usize,
    offsets: &[usize],
    world_size: usize,
    ranks: Range<usize>,
) -> Result<(), ErrorKind> {
    let &len = shape.get(dim).ok_or(ErrorKind::NoSuchDim { dim, ndim: shape.len() })?;
    let ends = (offsets.first(), offsets.last());
    let is_whole = ends == (Some(&0), Some(&len)) && offsets.len() - 1 == world_size;
    if is_whole && offsets[ranks.start..=ranks.end].is_sorted() {
        return Ok(());
    }
    let offsets = offsets.to_vec();
    Err(RankProblem::BadOffsets { dim, len, world_size, offsets }.into())
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicate => f.write_str("replicate"),
            Self::Split { dim } => write!(f, "split:{dim}"),
            Self::Uneven { dim } => write!(f, "uneven:{dim}"),
            Self::Shared { dim, parts } => write!(f, "shared:{dim}:{parts}"),
            Self::Offsets { dim, offsets } => {
                write!(f, "offsets:{dim}:")?;
                for (i, offset) in offsets.iter().enumerate() {
                    write!(f, "{}{offset}", if i == 0 { "" } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for Division {
    type Err = Error;

    /// # Errors
    ///
    /// [`RankProblem::BadRule`].
    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            is_plain.then(|| text.parse::<usize>().ok()).flatten()
        };
        let parse = || {
            let mut fields = text.split(':');
            let division = match (fields.next()?, fields.next(), fields.next()) {
                ("replicate", None, None) => Self::Replicate,
                ("split", Some(dim), None) => Self::Split { dim: number(dim)? },
                ("uneven", Some(dim), None) => Self::Uneven { dim: number(dim)? },
                ("shared", Some(dim), Some(parts)) => {
                    Self::Shared { dim: number(dim)?, parts: number(parts)? }
                }
                ("offsets", Some(dim), Some(offsets)) => Self::Offsets {
                    dim: number(dim)?,
                    offsets: offsets.split(',').map(number).collect::<Option<_>>()?,
                },
                _ => return None,
            };
            fields.next().is_none().then_some(division)
        };
        parse().ok_or_else(|| {
            let expected = "expected replicate, split:DIM, uneven:DIM, shared:DIM:PARTS or \
                            offsets:DIM:0,…,LEN";
            RankProblem::BadRule { expected: expected.into(), found: text.into() }.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_read_back() {
        for text in ["replicate", "split:1", "uneven:0", "shared:0:8", "offsets:2:0,0,5"] {
            assert_eq!(text.parse::<Division>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "split",
            "split:",
            "split:-1",
            "split:+1",
            "split:0:1",
            "shared:0",
            "offsets:0",
            "offsets:0:",
            "offsets:0:1,",
            "offsets:0:1:2",
            "replicate:0",
            "Split:0",
            "split: 0",
            "split:99999999999999999999",
            "offsets:0:0,4:x",
        ] {
            let error = text.parse::<Division>().unwrap_err();
            assert!(error.to_string().starts_with("expected replicate"), "{text:?}: {error}");
        }
    }

    #[test]
    fn parts_make_up_the_tensor() {
        for (text, len, world_size) in [
            ("split:1", 12, 4),
            ("uneven:1", 10, 4),
            ("uneven:1", 3, 8),
            ("uneven:1", 0, 3),
            ("shared:1:2", 12, 6),
            ("offsets:1:0,5,5,9", 9, 3),
        ] {
            let (division, shape) = (text.parse::<Division>().unwrap(), [2, len]);
            division.check(Dtype::U8, &shape, world_size).unwrap();
            let mut end = 0;
            for rank in 0..world_size {
                let ranges = division.part(&shape, rank, world_size).unwrap().ranges(&shape);
                let (_, is_first) = division.held(rank, world_size);
                let range = ranges.unwrap()[1].clone();
                if is_first {
                    assert_eq!(range.start, end, "{text} {rank}");
                    end = range.end;
                } else {
                    assert_eq!(range.end, end, "{text} {rank}");
                }
            }
            assert_eq!(end, len, "{text}");
        }
    }

    #[test]
    fn indivisible_tensors_are_refused() {
        let refused = |text: &str, dtype, shape: &[usize], world_size| {
            text.parse::<Division>().unwrap().check(dtype, shape, world_size).unwrap_err()
        };
        let u8 = Dtype::U8;
        let kind = |error: Error| format!("{:?}", error.kind());
        assert!(kind(refused("split:0", u8, &[10], 4)).contains("UnevenParts"));
        assert!(kind(refused("shared:0:3", u8, &[12], 4)).contains("UnevenParts"));
        assert!(kind(refused("shared:0:0", u8, &[12], 4)).contains("UnevenParts"));
        assert!(kind(refused("split:1", u8, &[10], 2)).contains("NoSuchDim"));
        for offsets in ["0,4", "0,2,5", "1,2,4", "0,3,2,4", "0,1,2,3,4"] {
            let error = refused(&format!("offsets:0:{offsets}"), u8, &[4], 2);
            assert!(kind(error).contains("BadOffsets"), "{offsets}");
        }
        // Half a byte for each rank.
        assert!(kind(refused("split:0", Dtype::F4, &[2], 2)).contains("SliceInsideByte"));
        assert!(kind(refused("offsets:0:0,3,6", Dtype::F4, &[6], 2)).contains("SliceInsideByte"));
    }
}
