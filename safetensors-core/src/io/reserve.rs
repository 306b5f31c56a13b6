//! Making room in a file before it is written.

use std::fs::File;
use std::io;

use super::failpoint;

/// Gives a new file its length and, where the file system can, the space for it: a full disk is
/// found before any work is done, and not when gigabytes are written.
pub(crate) fn reserve(file: &File, len: u64) -> io::Result<()> {
    failpoint::hit("reserve")?;
    // The length first: `fallocate` on a file system without it says nothing about lengths that no
    // file can have.
    file.set_len(len)?;
    allocate(file, len)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn allocate(file: &File, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, FsWord, fallocate, fstatfs};
    use rustix::io::{Errno, retry_on_intr};

    /// From `linux/magic.h`.
    const TMPFS_MAGIC: FsWord = 0x0102_1994;

    if let Ok(system) = fstatfs(file)
        && system.f_type == TMPFS_MAGIC
    {
        // To reserve memory is to clear it, which takes longer than to write it; so only look
        // whether there is enough. A tmpfs without a limit says that it has no blocks.
        let full =
            system.f_blocks > 0 && system.f_bavail.saturating_mul(system.f_bsize as u64) < len;
        return if full { Err(Errno::NOSPC.into()) } else { Ok(()) };
    }
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len)) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => Err(error.into()),
        // Anything else says that this file system or sandbox cannot reserve, which the writes do
        // not need.
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn allocate(_: &File, _: u64) -> io::Result<()> {
    Ok(())
}
