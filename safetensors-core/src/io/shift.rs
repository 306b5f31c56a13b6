//! Moves the data of a new file, so that its header fits.

use std::fs::File;
use std::io;

use super::failpoint;
use super::positional::{read_exact_at, write_all_at};

/// The most bytes that are held in memory.
const BUFFER: u64 = 1 << 20;

/// Moves the `len` bytes at `from` to `to`. The two places may overlap. The bytes before `to` are
/// undefined afterwards.
///
/// File systems that can insert blocks (ext4, XFS) make room without copying anything.
pub(crate) fn shift(file: &File, from: u64, to: u64, len: u64) -> io::Result<()> {
    if from == to || len == 0 {
        return Ok(());
    }
    failpoint::hit("shift")?;
    if to > from && insert(file, to - from) {
        return Ok(());
    }
    let mut buffer = vec![0; len.min(BUFFER) as usize];
    let mut done = 0;
    while done < len {
        let piece = &mut buffer[..(len - done).min(BUFFER) as usize];
        // A move towards the end begins at the end, so that no byte is overwritten before it is
        // read.
        let offset = if to < from { done } else { len - done - piece.len() as u64 };
        read_exact_at(file, piece, from + offset)?;
        write_all_at(file, piece, to + offset)?;
        done += piece.len() as u64;
    }
    Ok(())
}

/// Inserts bytes at the start of the file. Returns whether the system supports that.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn insert(file: &File, room: u64) -> bool {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::retry_on_intr;

    // The system takes whole blocks only, and refuses anything else without a change.
    retry_on_intr(|| fallocate(file, FallocateFlags::INSERT_RANGE, 0, room)).is_ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn insert(_: &File, _: u64) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_moves_both_ways_also_over_itself() {
        let bytes: Vec<u8> = (0..3_000_001_u32).map(|i| (i % 251) as u8).collect();
        for (from, to) in
            [(16384, 4096), (16384, 20480), (16384, 16384), (100, 3), (3, 100), (8, 9)]
        {
            let file = tempfile::tempfile().unwrap();
            write_all_at(&file, &bytes, from).unwrap();
            shift(&file, from, to, bytes.len() as u64).unwrap();
            let mut found = vec![0; bytes.len()];
            read_exact_at(&file, &mut found, to).unwrap();
            assert!(found == bytes, "{from} {to}");
        }
        shift(&tempfile::tempfile().unwrap(), 5, 9, 0).unwrap();
    }
}
