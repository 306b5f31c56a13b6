//! How the reading of tensors is divided into jobs.

use crate::tensor::CLEARED_BY_HAND;

/// The most bytes that a thread reads as one job. Large enough to keep a disk busy, small enough to
/// share the work evenly.
pub(super) const JOB: usize = 4 << 20;

/// Tensors of at most this size are read together with their neighbours, each into a buffer that
/// the thread which reads it is the first to touch.
pub(super) const SMALL: usize = CLEARED_BY_HAND;

/// Bytes of a slice that lie apart are read by jobs of this size: a thread may need as much again
/// to gather them.
pub(super) const STRIDED: u64 = 1 << 20;
