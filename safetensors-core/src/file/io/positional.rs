//! Reads and writes at positions of a file.

use std::fs::File;
use std::io;

use super::failpoint;
#[cfg(any(target_os = "linux", target_os = "android"))]
use super::page_cache::{Unkept, read_unkept};
use crate::format::slice::read_range::ReadRange;

/// Returns 0 only at the end of the file.
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        #[cfg(unix)]
        let read = std::os::unix::fs::FileExt::read_at(file, buf, offset);
        #[cfg(windows)]
        let read = std::os::windows::fs::FileExt::seek_read(file, buf, offset);
        #[cfg(target_os = "wasi")]
        let read = rustix::io::pread(file, &mut *buf, offset).map_err(io::Error::from);
        #[cfg(not(any(unix, windows, target_os = "wasi")))]
        let read = unsupported(file, &buf, offset);
        match read {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Stands in on a platform without files.
#[cfg(not(any(unix, windows, target_os = "wasi")))]
fn unsupported<T>(_: &File, _: impl AsRef<[u8]>, _: u64) -> io::Result<T> {
    let problem = "files are read and written on Unix, Windows and WASI only, on this platform \
                   bytes in memory and stores";
    Err(io::Error::new(io::ErrorKind::Unsupported, problem))
}

/// Fails with [`io::ErrorKind::UnexpectedEof`] if the file has become shorter.
pub(crate) fn read_exact_at(file: &File, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        let read = read_at(file, buf, offset)?;
        if read == 0 {
            return Err(shorter(file, offset.saturating_add(buf.len() as u64)));
        }
        buf = &mut buf[read..];
        offset += read as u64;
    }
    Ok(())
}

#[cold]
pub(crate) fn shorter(file: &File, expected: u64) -> io::Error {
    let found = file.metadata().map(|metadata| format!(", found {}", metadata.len()));
    let found = found.unwrap_or_default();
    let message = format!("the file has become shorter: expected at least {expected} bytes{found}");
    io::Error::new(io::ErrorKind::UnexpectedEof, message)
}

/// Fills neighbours by one system call, where there is one.
pub(crate) fn read_ranges_at(file: &File, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
    // The most buffers that one call takes, on every system.
    const MOST: usize = 1024;
    let neighbours = |a: &ReadRange<'_>, b: &ReadRange<'_>| {
        a.offset.checked_add(a.bytes.len() as u64) == Some(b.offset)
    };
    ranges
        .chunk_by_mut(neighbours)
        .flat_map(|run| run.chunks_mut(MOST))
        .try_for_each(|run| read_run(file, run))
}

/// Fills buffers with consecutive ranges.
fn read_run(file: &File, run: &mut [ReadRange<'_>]) -> io::Result<()> {
    // The call may read less than requested, fail, or not exist on this system. The rest is read
    // range by range. If the call failed, this gives the error.
    let mut done = read_vectored_at(file, run).unwrap_or(0);
    for range in run {
        let here = done.min(range.bytes.len());
        done -= here;
        read_exact_at(file, &mut range.bytes[here..], range.offset + here as u64)?;
    }
    Ok(())
}

#[cfg(unix)]
fn read_vectored_at(file: &File, run: &mut [ReadRange<'_>]) -> io::Result<usize> {
    let Some(offset) = run.first().map(|range| range.offset) else { return Ok(0) };
    let mut buffers: Vec<_> =
        run.iter_mut().map(|range| io::IoSliceMut::new(range.bytes)).collect();
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if Unkept::is_begun()
        && let Ok(done) = read_unkept(file, &mut buffers, offset)
    {
        return Ok(done);
    }
    Ok(rustix::io::retry_on_intr(|| rustix::io::preadv(file, &mut buffers, offset))?)
}

#[cfg(not(unix))]
fn read_vectored_at(_: &File, _: &mut [ReadRange<'_>]) -> io::Result<usize> {
    Ok(0)
}

pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    if let Err(error) = failpoint::hit("write") {
        // The worst case of a real failure is half a write, so this writes half.
        let _ = write_all(file, &bytes[..bytes.len() / 2], offset);
        return Err(error);
    }
    write_all(file, bytes, offset)
}

#[cfg(unix)]
fn write_all(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(not(unix))]
fn write_all(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        #[cfg(windows)]
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset);
        #[cfg(target_os = "wasi")]
        let written = rustix::io::pwrite(file, bytes, offset).map_err(io::Error::from);
        #[cfg(not(any(windows, target_os = "wasi")))]
        let written = unsupported(file, bytes, offset);
        match written {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Asks the system to put bytes of a file on the disk. Does not wait. Errors show at
/// synchronisation.
#[doc(hidden)]
pub fn start_writing_back(file: &File, range: std::ops::Range<u64>) {
    // Linux takes this advice as a request to write back changes. Bytes that are on the disk
    // already leave the page cache, which are few directly after the write.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use std::num::NonZeroU64;

        let len = NonZeroU64::new(range.end.saturating_sub(range.start));
        let _ = rustix::fs::fadvise(file, range.start, len, rustix::fs::Advice::DontNeed);
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (file, range);
}
