//! Checkpoints in buckets, on web servers and on the Hub, read by ranges.
