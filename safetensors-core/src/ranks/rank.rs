//! [`Rank`]: the number of a process.

use crate::format::error::{ErrorKind, RankProblem, Result};

// Bounds the cost of a plan from a stranger.
pub(super) const MOST_RANKS: usize = 1 << 20;

/// The number of a process among the processes of a job, counted from 0, often [from the
/// environment](Rank::from_env).
///
/// ```
/// use safetensors_core::ranks::Rank;
///
/// // Without a launcher the program is the only rank.
/// let rank = Rank::from_env()?.unwrap_or_default();
/// assert!(rank.rank() < rank.world_size());
///
/// let by_hand = Rank::new(5, 8)?.local(1, 4)?;
/// assert_eq!((by_hand.rank(), by_hand.local_rank()), (5, Some(1)));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rank {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) local_rank: Option<usize>,
    pub(super) local_world_size: Option<usize>,
}

/// The only rank: 0 of 1.
impl Default for Rank {
    fn default() -> Self {
        Self { rank: 0, world_size: 1, local_rank: Some(0), local_world_size: Some(1) }
    }
}

impl Rank {
    /// Makes the rank `rank` of `world_size`.
    ///
    /// # Errors
    ///
    /// [`RankProblem::WorldSize`] unless the world size is from 1 to 1,048,576;
    /// [`ErrorKind::NoSuchRank`] unless the rank is below it.
    pub fn new(rank: usize, world_size: usize) -> Result<Self> {
        check_world_size(world_size)?;
        if rank >= world_size {
            return Err(ErrorKind::NoSuchRank { rank, world_size }.into());
        }
        Ok(Self { rank, world_size, local_rank: None, local_world_size: None })
    }

    /// Sets the number among the ranks of this machine, and their number.
    ///
    /// # Errors
    ///
    /// As for [`new`](Rank::new); [`RankProblem::WorldSize`] for more ranks than the job has.
    pub fn local(mut self, local_rank: usize, local_world_size: usize) -> Result<Self> {
        Self::new(local_rank, local_world_size)?;
        if local_world_size > self.world_size {
            let limit = self.world_size;
            let found = local_world_size;
            return Err(RankProblem::WorldSize { limit, found }.into());
        }
        self.local_rank = Some(local_rank);
        self.local_world_size = Some(local_world_size);
        Ok(self)
    }

    /// Returns the number of this process, counted from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Returns the number of this process on its machine, if it is known. A program takes the
    /// device of this number.
    pub fn local_rank(&self) -> Option<usize> {
        self.local_rank
    }

    /// Returns the number of processes on this machine, if it is known.
    pub fn local_world_size(&self) -> Option<usize> {
        self.local_world_size
    }
}

pub(super) fn check_world_size(found: usize) -> Result<(), RankProblem> {
    if (1..=MOST_RANKS).contains(&found) {
        Ok(())
    } else {
        Err(RankProblem::WorldSize { limit: MOST_RANKS, found })
    }
}
