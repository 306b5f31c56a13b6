//! Copies a range of a file, by the kernel if possible.

use std::fs::File;
use std::io;

use super::failpoint;
use super::positional::{read_at, shorter, write_all_at};

// A call cannot be interrupted.
const CALL: u64 = 1 << 30;

const BUFFER: usize = 1 << 20;

/// Copies `len` bytes. Fails with [`io::ErrorKind::UnexpectedEof`] if `from` ends early.
// A file system with reflinks (btrfs, XFS) shares blocks, if both offsets have the same position
// within a block.
pub(crate) fn copy_range(
    from: &File,
    mut from_offset: u64,
    to: &File,
    mut to_offset: u64,
    mut len: u64,
) -> io::Result<()> {
    while len > 0 {
        failpoint::hit("copy")?;
        let copied = by_kernel(from, from_offset, to, to_offset, len.min(CALL))?;
        if copied == 0 {
            return through_buffer(from, from_offset, to, to_offset, len);
        }
        from_offset += copied;
        to_offset += copied;
        len -= copied;
    }
    Ok(())
}

/// Returns 0 if the kernel cannot copy, or if `from` has ended.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn by_kernel(
    from: &File,
    mut from_offset: u64,
    to: &File,
    mut to_offset: u64,
    len: u64,
) -> io::Result<u64> {
    use rustix::fs::copy_file_range;
    use rustix::io::{Errno, retry_on_intr};

    let len = usize::try_from(len).unwrap_or(BUFFER);
    match retry_on_intr(|| {
        copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), len)
    }) {
        Ok(copied) => Ok(copied as u64),
        Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => Err(error.into()),
        // The kernel cannot copy between these file systems, is too old, or a sandbox forbids the
        // call. Reading and writing finds errors of the files themselves.
        Err(_) => Ok(0),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn by_kernel(_: &File, _: u64, _: &File, _: u64, _: u64) -> io::Result<u64> {
    Ok(0)
}

fn through_buffer(
    from: &File,
    mut from_offset: u64,
    to: &File,
    mut to_offset: u64,
    mut len: u64,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER.min(usize::try_from(len).unwrap_or(BUFFER))];
    while len > 0 {
        let piece = buffer.len().min(usize::try_from(len).unwrap_or(BUFFER));
        let read = read_at(from, &mut buffer[..piece], from_offset)?;
        if read == 0 {
            return Err(shorter(from, from_offset + len));
        }
        write_all_at(to, &buffer[..read], to_offset)?;
        from_offset += read as u64;
        to_offset += read as u64;
        len -= read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;
    use crate::file::io::testing::repeated;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn content(mut file: File) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn both_ways_copy_the_range_and_nothing_else() {
        let bytes = repeated(3_000_001, 251, |i| (i % 251) as u8);
        for (from_offset, to_offset, len) in
            [(0, 0, bytes.len()), (4096, 4096, 1 << 20), (5, 17, 2_500_000), (9, 9, 0)]
        {
            let mut expected = vec![b'x'; 20];
            expected.resize(expected.len().max(to_offset + len), 0);
            expected[to_offset..to_offset + len]
                .copy_from_slice(&bytes[from_offset..from_offset + len]);
            for copy in [copy_range, through_buffer] {
                let to = file(&[b'x'; 20]);
                copy(&file(&bytes), from_offset as u64, &to, to_offset as u64, len as u64).unwrap();
                assert!(content(to) == expected, "{from_offset} {to_offset} {len}");
            }
        }
    }

    #[test]
    fn a_source_that_ends_too_early_is_an_error() {
        for copy in [copy_range, through_buffer] {
            let error = copy(&file(b"short"), 2, &file(b""), 0, 4).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            let expected = "the file has become shorter: expected at least 6 bytes, found 5";
            assert_eq!(error.to_string(), expected);
        }
    }
}
