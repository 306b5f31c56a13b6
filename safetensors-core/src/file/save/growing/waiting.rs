//! [`Waiting`]: small tensors on their way to a file.
//!
//! A file can have thousands of tensors of a few bytes. A system call for each takes longer than
//! all other work.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

use crate::file::io::positional::write_all_at;

/// This many bytes or more are written from where they lie.
const LARGE: usize = 64 << 10;

/// The most bytes that wait.
const MOST: usize = 256 << 10;

/// Bytes of one file that lie side by side in it and wait to be written together.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Run>);

#[derive(Debug, Default)]
struct Run {
    start: u64,
    bytes: Vec<u8>,
}

impl Waiting {
    /// Writes bytes at `start` of the file: large ones now, small ones together with those that
    /// follow them.
    pub(super) fn write(&self, file: &File, bytes: &[u8], start: u64) -> io::Result<()> {
        if bytes.len() >= LARGE {
            return write_all_at(file, bytes, start);
        }
        self.with(|run| {
            let is_next = run.start + run.bytes.len() as u64 == start;
            if !is_next || run.bytes.len() + bytes.len() > MOST {
                run.flush(file)?;
                run.start = start;
            }
            run.bytes.extend_from_slice(bytes);
            Ok(())
        })
    }

    /// Writes the bytes that wait. After an error they still wait.
    pub(super) fn flush(&self, file: &File) -> io::Result<()> {
        self.with(|run| run.flush(file))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Run) -> T) -> T {
        // Nothing that can panic happens under the lock.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Run {
    fn flush(&mut self, file: &File) -> io::Result<()> {
        write_all_at(file, &self.bytes, self.start)?;
        self.bytes.clear();
        Ok(())
    }
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
        let waiting = Waiting::default();
        waiting.write(&file, b"ab", 0).unwrap();
        waiting.write(&file, b"cd", 2).unwrap();
        assert_eq!(content(&file), b"");
        // Not a neighbour.
        waiting.write(&file, b"gh", 6).unwrap();
        assert_eq!(content(&file), b"abcd");
        // Large.
        waiting.write(&file, &[b'x'; LARGE], 8).unwrap();
        waiting.write(&file, b"ef", 4).unwrap();
        waiting.flush(&file).unwrap();
        waiting.flush(&file).unwrap();
        assert_eq!(content(&file), [&b"abcdefgh"[..], &[b'x'; LARGE]].concat());
    }

    #[test]
    fn memory_is_bounded() {
        let file = tempfile::tempfile().unwrap();
        let waiting = Waiting::default();
        let bytes = [7; 1000];
        for i in 0..1000 {
            waiting.write(&file, &bytes, i * 1000).unwrap();
            assert!(waiting.with(|run| run.bytes.len()) <= MOST);
        }
        waiting.flush(&file).unwrap();
        assert_eq!(content(&file), [7; 1_000_000]);
    }

    #[test]
    fn bytes_that_could_not_be_written_still_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"").unwrap();
        let closed = File::open(&path).unwrap();
        let waiting = Waiting::default();
        waiting.write(&closed, b"ab", 0).unwrap();
        assert!(waiting.flush(&closed).is_err());
        assert!(waiting.write(&closed, b"ef", 4).is_err());
        let open = File::options().read(true).write(true).open(&path).unwrap();
        waiting.flush(&open).unwrap();
        assert_eq!(content(&open), b"ab");
    }
}
