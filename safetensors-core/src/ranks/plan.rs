//! [`RankPlan`]: the part of each tensor that each rank holds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::Division;
use super::rank::check_world_size;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Mismatch, RankProblem, Result};
use crate::format::slice::TensorPart;
use crate::format::tensor::shape;

/// The part of each tensor of a model that each rank holds, equal on every rank and, as
/// [JSON](RankPlan::to_json), for a later job. [`read`](RankPlan::read) reads a rank's parts,
/// [`RankSaver`](super::RankSaver) saves them.
///
/// ```
/// use safetensors_core::ranks::RankRules;
/// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let (weight, norm) = ([0_f32, 1., 2., 3., 4., 5., 6., 7.], [1_f32, 1.]);
/// let up = TensorView::from_slice(&[4, 2], &weight)?;
/// let norm = TensorView::from_slice(&[2], &norm)?;
/// let tensors = [("layers.0.mlp.up_proj.weight", up), ("norm.weight", norm)];
/// save(&path, tensors, &SaveOptions::new())?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let plan = RankRules::llama().plan(&checkpoint, 2)?;
/// assert_eq!(plan.byte_len(1)?, 16 + 8);
/// let parts = plan.read(&checkpoint, 1, &LoadOptions::new())?;
/// for (tensor, part) in plan.tensors().zip(&parts) {
///     println!("{}: {:?} of {:?}", tensor.name(), part.shape(), tensor.shape());
/// }
/// assert_eq!(parts[0].as_slice::<f32>()?, [4., 5., 6., 7.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankPlan {
    pub(super) world_size: usize,
    pub(super) tensors: Vec<RankTensor>,
}

/// A tensor of a [`RankPlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    division: Division,
    world_size: usize,
}

impl RankTensor {
    pub(super) fn new(name: String, dtype: Dtype, shape: Vec<usize>, division: Division) -> Self {
        Self { name, dtype, shape, division, world_size: 1 }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of the elements in the file.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the shape of the entire tensor.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns how it is divided.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// Returns the part that a rank holds, for
    /// [`Checkpoint::read_parts`](crate::Checkpoint::read_parts) or an adapter.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchRank`].
    pub fn part(&self, rank: usize) -> Result<TensorPart> {
        let part = self.division.part(&self.shape, rank, self.world_size);
        part.map_err(|error| error.in_tensor(&self.name))
    }

    /// Returns the number of bytes, in the file, of the part that a rank holds.
    pub fn byte_len(&self, rank: usize) -> Result<u64> {
        let len = self.division.byte_len(self.dtype, &self.shape, rank, self.world_size);
        len.map_err(|error| error.in_tensor(&self.name))
    }

    /// Returns the number of bytes of the part of each rank: ranges of ranks in a row with equal
    /// numbers, each with its number.
    #[doc(hidden)]
    pub fn byte_lens(&self) -> Result<Vec<(Range<usize>, u64)>> {
        let ranks = self.division.like_ranks(&self.shape, self.world_size).into_iter();
        ranks.map(|ranks| Ok((ranks.clone(), self.byte_len(ranks.start)?))).collect()
    }
}

/// Tensors times ranks. Work on all parts takes minutes at most.
const MOST_PARTS: usize = 1_000_000_000;

impl RankPlan {
    pub(super) fn new(world_size: usize, mut tensors: Vec<RankTensor>) -> Result<Self> {
        check_world_size(world_size)?;
        let limit = MOST_PARTS;
        if tensors.len().checked_mul(world_size).is_none_or(|parts| parts > limit) {
            let tensors = tensors.len();
            return Err(RankProblem::TooManyParts { limit, tensors, world_size }.into());
        }
        let mut names = std::collections::HashSet::new();
        let mut total = 0_u64;
        for tensor in &mut tensors {
            tensor.world_size = world_size;
        }
        for tensor in &tensors {
            let mut check = || {
                let len = shape::byte_len(tensor.dtype, &tensor.shape)?;
                // The sum over all ranks is the most that any sum below can be.
                let len = len.checked_mul(world_size as u64);
                let overflow = || ErrorKind::ShapeOverflow { shape: tensor.shape.clone() };
                total = len.and_then(|len| total.checked_add(len)).ok_or_else(overflow)?;
                if !names.insert(tensor.name.as_str()) {
                    return Err(ErrorKind::DuplicateTensor.into());
                }
                tensor.division.check(tensor.dtype, &tensor.shape, world_size)
            };
            check().map_err(|error: Error| error.in_tensor(&tensor.name))?;
        }
        Ok(Self { world_size, tensors })
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Returns the tensors, in the order of the checkpoint that the plan was made for.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &RankTensor> + Clone {
        self.tensors.iter()
    }

    /// Returns the number of bytes, in the files, of all parts that a rank holds.
    pub fn byte_len(&self, rank: usize) -> Result<u64> {
        self.check_rank(rank)?;
        self.tensors.iter().map(|tensor| tensor.byte_len(rank)).sum()
    }

    /// Returns [`byte_len`](RankPlan::byte_len) of every rank, in far less time.
    #[doc(hidden)]
    pub fn byte_lens(&self) -> Result<Vec<u64>> {
        self.byte_lens_of(|_| true)
    }

    fn byte_lens_of(&self, counts: impl Fn(&RankTensor) -> bool) -> Result<Vec<u64>> {
        // The bytes of each rank minus the bytes of the previous one, and then their sums. A
        // difference may be negative; it wraps around, and the sums are right.
        let mut lens = vec![0_u64; self.world_size];
        for tensor in self.tensors.iter().filter(|tensor| counts(tensor)) {
            for (ranks, len) in tensor.byte_lens()? {
                lens[ranks.start] = lens[ranks.start].wrapping_add(len);
                if let Some(next) = lens.get_mut(ranks.end) {
                    *next = next.wrapping_sub(len);
                }
            }
        }
        let mut sum = 0_u64;
        for len in &mut lens {
            sum = sum.wrapping_add(*len);
            *len = sum;
        }
        Ok(lens)
    }

    /// Returns the number of bytes of all tensors, undivided.
    pub fn total_size(&self) -> u64 {
        // The lengths were computed before, and their sum fits.
        let len = |tensor: &RankTensor| shape::byte_len(tensor.dtype, &tensor.shape).unwrap_or(0);
        self.tensors.iter().map(len).sum()
    }

    pub(super) fn check_rank(&self, rank: usize) -> Result<(), ErrorKind> {
        let world_size = self.world_size;
        if rank < world_size { Ok(()) } else { Err(ErrorKind::NoSuchRank { rank, world_size }) }
    }

    /// Checks that these tensors, given by name, dtype and shape, are the plan's tensors.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatches`] with all differences.
    pub fn check_tensors<'t>(
        &self,
        found: impl IntoIterator<Item = (&'t str, Dtype, &'t [usize])>,
    ) -> Result<()> {
        let mut expected: HashMap<&str, &RankTensor> =
            self.tensors.iter().map(|tensor| (tensor.name(), tensor)).collect();
        let mut mismatches = Vec::new();
        for (name, dtype, shape) in found {
            let Some(tensor) = expected.remove(name) else {
                mismatches.push(Mismatch::Extra { name: name.into() });
                continue;
            };
            mismatches.extend(
                Mismatch::of_dtypes(name, tensor.dtype, dtype)
                    .or_else(|| Mismatch::of_shapes(name, &tensor.shape, shape)),
            );
        }
        let missing = self.tensors.iter().filter(|tensor| expected.contains_key(tensor.name()));
        mismatches.extend(missing.map(|tensor| Mismatch::Missing { name: tensor.name.clone() }));
        Mismatch::refuse(mismatches)
    }

    /// Assigns each replicated tensor to the rank with the fewest bytes so far.
    pub(super) fn savers(&self) -> Vec<Option<usize>> {
        let is_replicated = |tensor: &RankTensor| tensor.division.dim().is_none();
        if !self.tensors.iter().any(is_replicated) {
            return vec![None; self.tensors.len()];
        }
        // The lengths were computed before.
        let divided = self.byte_lens_of(|tensor| !is_replicated(tensor)).unwrap_or_default();
        let mut ranks: BinaryHeap<_> =
            divided.into_iter().enumerate().map(|(rank, bytes)| Reverse((bytes, rank))).collect();
        let saver = |tensor: &RankTensor| {
            if !is_replicated(tensor) {
                return None;
            }
            let Reverse((bytes, rank)) = ranks.pop()?;
            ranks.push(Reverse((bytes + tensor.byte_len(rank).unwrap_or(0), rank)));
            Some(rank)
        };
        self.tensors.iter().map(saver).collect()
    }
}
