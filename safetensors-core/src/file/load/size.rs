//! The sizes of jobs.

use crate::format::tensor::CLEARED_BY_HAND;

// Enough to keep a disk busy, few enough to share the work evenly.
pub(super) const JOB: usize = 4 << 20;

/// Smaller tensors are read with their neighbours.
pub(super) const SMALL: usize = CLEARED_BY_HAND;

/// Jobs with gaps. A thread may need that much again to gather the runs.
pub(super) const STRIDED: u64 = 1 << 20;
