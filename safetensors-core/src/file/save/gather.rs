//! [`Gathered`]: small tensors on their way to a file.
//!
//! A system call for each takes longer than copying, and threads that write to one file wait for
//! each other.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::StreamWriter;
use crate::file::io::positional::write_all_at;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::Named;

/// Longer bytes are written from their own memory.
const LARGE: usize = 64 << 10;

const MOST: usize = 256 << 10;

/// Adjacent bytes of a file.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    start: u64,
    bytes: Vec<u8>,
}

impl Gathered {
    // Threads can write large bytes at once.
    pub(super) fn waits(bytes: &[u8]) -> bool {
        bytes.len() < LARGE
    }

    /// Writes large bytes now, and small ones with the bytes that follow.
    pub(super) fn add(&mut self, file: &File, bytes: &[u8], start: u64) -> io::Result<()> {
        if !Self::waits(bytes) {
            return write_all_at(file, bytes, start);
        }
        let is_next = self.start + self.bytes.len() as u64 == start;
        if !is_next || self.bytes.len() + bytes.len() > MOST {
            self.flush(file)?;
            self.start = start;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns where it has written. After an error the bytes are still there.
    pub(super) fn flush(&mut self, file: &File) -> io::Result<Range<u64>> {
        write_all_at(file, &self.bytes, self.start)?;
        let start = self.start;
        self.start += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(start..self.start)
    }
}

/// Divides the tensors, front to back, into one large tensor, or several small neighbours. Returns
/// positions among the declarations.
pub(super) fn runs(writer: &StreamWriter) -> Vec<&[usize]> {
    // The bytes of the run so far, without the tensor that is looked at.
    let mut bytes = 0;
    let in_one_run = |&a: &usize, &b: &usize| {
        let [a, b] = [a, b].map(|position| writer.at(position).byte_len());
        bytes += a;
        let in_one = a < LARGE as u64 && b < LARGE as u64 && bytes + b <= MOST as u64;
        if !in_one {
            bytes = 0;
        }
        in_one
    };
    writer.order.chunk_by(in_one_run).collect()
}

/// Reuses `gathered` from run to run.
pub(super) fn write_run(
    writer: &StreamWriter,
    run: &[usize],
    tensors: &[Named<'_>],
    gathered: &mut Gathered,
) -> Result<()> {
    let Some(&first) = run.first() else { return Ok(()) };
    if run.len() == 1 {
        return writer.at(first).write_from(tensors[first].1);
    }
    for &position in run {
        writer.at(position).gather(tensors[position].1, gathered)?;
    }
    let written = gathered.flush(writer.file.file());
    let written = written.map_err(|error| writer.at(first).locate(ErrorKind::Io(error).into()))?;
    writer.note_written(written);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::io::positional::read_exact_at;

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        read_exact_at(file, &mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn neighbours_are_written_together_and_all_others_too() {
        let file = tempfile::tempfile().unwrap();
        let mut gathered = Gathered::default();
        gathered.add(&file, b"ab", 0).unwrap();
        gathered.add(&file, b"cd", 2).unwrap();
        assert_eq!(content(&file), b"");
        // Not a neighbour.
        gathered.add(&file, b"gh", 6).unwrap();
        assert_eq!(content(&file), b"abcd");
        // Large.
        gathered.add(&file, &[b'x'; LARGE], 8).unwrap();
        gathered.add(&file, b"ef", 4).unwrap();
        assert_eq!(gathered.flush(&file).unwrap(), 4..6);
        assert_eq!(gathered.flush(&file).unwrap(), 6..6);
        assert_eq!(content(&file), [&b"abcdefgh"[..], &[b'x'; LARGE]].concat());
    }

    #[test]
    fn memory_is_bounded() {
        let file = tempfile::tempfile().unwrap();
        let mut gathered = Gathered::default();
        let bytes = [7; 1000];
        for i in 0..1000 {
            gathered.add(&file, &bytes, i * 1000).unwrap();
            assert!(gathered.bytes.len() <= MOST);
        }
        gathered.flush(&file).unwrap();
        assert_eq!(content(&file), [7; 1_000_000]);
    }

    #[test]
    fn bytes_that_could_not_be_written_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"").unwrap();
        let closed = File::open(&path).unwrap();
        let mut gathered = Gathered::default();
        gathered.add(&closed, b"ab", 0).unwrap();
        assert!(gathered.flush(&closed).is_err());
        assert!(gathered.add(&closed, b"ef", 4).is_err());
        let open = File::options().read(true).write(true).open(&path).unwrap();
        gathered.flush(&open).unwrap();
        assert_eq!(content(&open), b"ab");
    }
}
