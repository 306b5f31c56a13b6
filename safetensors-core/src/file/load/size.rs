//! The sizes by which reading is divided into jobs.

use crate::format::tensor::CLEARED_BY_HAND;

/// The most bytes of a contiguous job. The size is large enough to keep a disk busy, and small
/// enough to share the work evenly.
pub(super) const JOB: usize = 4 << 20;

/// Tensors of at most this size are read together with their neighbours. The thread that reads such
/// a tensor is the first to touch its buffer.
pub(super) const SMALL: usize = CLEARED_BY_HAND;

/// The most bytes of a job for a slice with gaps. A thread may need that much memory again to
/// gather them.
pub(super) const STRIDED: u64 = 1 << 20;
