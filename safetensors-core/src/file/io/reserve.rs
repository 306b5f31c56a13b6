//! Reserves the space of a file, and room for open files.

use std::fs::File;
use std::io;

use super::failpoint;

// Finds a full disk before any work.
pub(crate) fn reserve(file: &File, len: u64) -> io::Result<()> {
    failpoint::hit("reserve")?;
    // The length is set first, because that fails if no file can be so long. `fallocate` does not
    // notice this on a file system that does not support it.
    file.set_len(len)?;
    allocate(file, len)
}

/// Returns `false` if the file system cannot (ext4 and XFS can).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn insert_at_start(file: &File, len: u64) -> bool {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::retry_on_intr;

    // The system inserts whole blocks only.
    !failpoint::lacks("inserting")
        && retry_on_intr(|| fallocate(file, FallocateFlags::INSERT_RANGE, 0, len)).is_ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn insert_at_start(_: &File, _: u64) -> bool {
    false
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn allocate(file: &File, len: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::{Errno, retry_on_intr};

    if let Some(system) = tmpfs(file) {
        // This only checks whether there is enough. A tmpfs without a limit reports 0 blocks.
        let full =
            system.f_blocks > 0 && system.f_bavail.saturating_mul(system.f_bsize as u64) < len;
        return if full { Err(Errno::NOSPC.into()) } else { Ok(()) };
    }
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, len)) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => Err(error.into()),
        // Any other error means that this file system or sandbox cannot reserve space. Writing does
        // not need it.
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn allocate(_: &File, _: u64) -> io::Result<()> {
    Ok(())
}

/// Reserves space for later writes, if that saves work. Never fails.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn reserve_ahead(file: &File, start: u64, len: u64) {
    use rustix::fs::{FallocateFlags, fallocate};

    if tmpfs(file).is_none() {
        // A length over the limit of the process would end it.
        let _ = fallocate(file, FallocateFlags::KEEP_SIZE, start, len);
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn reserve_ahead(_: &File, _: u64, _: u64) {}

// A tmpfs reserves memory by clearing it, which takes longer than writing it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn tmpfs(file: &File) -> Option<rustix::fs::StatFs> {
    /// From `linux/magic.h`.
    const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

    rustix::fs::fstatfs(file).ok().filter(|system| system.f_type == TMPFS_MAGIC)
}

/// Makes room for at most 65,536 more open files, if the system allows them.
// Otherwise the kernel doubles its table again and again, and threads that open files wait some ten
// milliseconds each time.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn reserve_open_files(count: usize) {
    // The length of every process's table. Half of it is enough for the files that are open
    // already.
    const GIVEN: usize = 64;
    const MOST: usize = 1 << 16;

    use rustix::fd::AsRawFd;

    if count < GIVEN / 2 {
        return;
    }
    let Ok(file) = File::open("/dev/null") else { return };
    // The table keeps its length after this copy of the number is closed.
    let last = file.as_raw_fd().checked_add(count.min(MOST) as i32);
    let _ = last.map(|last| rustix::io::fcntl_dupfd_cloexec(&file, last));
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn reserve_open_files(_: usize) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_open_files_grows_at_once() {
        let size = || -> usize {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
            line.trim().parse().unwrap()
        };
        reserve_open_files(150);
        assert!(size() > 150, "{}", size());
        // More than a process may open, in most places.
        reserve_open_files(usize::MAX);
    }
}
