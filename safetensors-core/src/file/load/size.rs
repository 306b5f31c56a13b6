//! The sizes of jobs.

use crate::format::tensor::CLEARED_BY_HAND;

/// The most bytes of a contiguous job: enough to keep a disk busy, few enough to share the work
/// evenly.
pub(super) const JOB: usize = 4 << 20;

/// Smaller tensors are read with their neighbours, by the thread that touches their buffers first.
pub(super) const SMALL: usize = CLEARED_BY_HAND;

/// The most bytes of a job with gaps. A thread may need them again to gather its runs.
pub(super) const STRIDED: u64 = 1 << 20;
