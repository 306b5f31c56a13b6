//! The cache that Python shares: its layout on the disk.
