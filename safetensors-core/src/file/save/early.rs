//! [`Early`]: sends a file to the disk while it is being written.
//!
//! Otherwise the disk waits while the file is written, and the program while the disk works.

use std::fs::File;
use std::ops::Range;
use std::sync::Mutex;

use super::ranges::Ranges;
use crate::file::io::positional::start_writing_back;
use crate::format::parallel::lock;

// The disk gets a quarter of the file at a time, within these limits. A shorter file is soon
// synchronised at its end.
const LEAST: u64 = 1 << 20;
const MOST: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Early {
    piece: u64,
    state: Mutex<EarlyState>,
}

#[derive(Debug, Default)]
struct EarlyState {
    written: Ranges,
    /// Everything before this offset was asked for.
    asked: u64,
}

impl Early {
    /// Returns `None` for a short file.
    pub(super) fn for_file_of(bytes: u64) -> Option<Self> {
        let piece = (bytes / 4).clamp(LEAST, MOST);
        (bytes > LEAST).then(|| Self { piece, state: Mutex::default() })
    }

    pub(super) fn piece(&self) -> usize {
        self.piece as usize
    }

    /// Asks the system to put bytes on the disk as soon as enough have followed the last request.
    pub(super) fn written(&self, file: &File, range: Range<u64>) {
        if let Some(range) = self.next(range) {
            start_writing_back(file, range);
        }
    }

    fn next(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut state = lock(&self.state);
        // A range that is written again after a failure goes to the disk at the end.
        let _ = state.written.insert(range);
        let end = state.written.first_gap(u64::MAX).map_or(u64::MAX, |gap| gap.start);
        let range = state.asked..end;
        if end - range.start < self.piece {
            return None;
        }
        state.asked = end;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_requested_once_and_in_order() {
        const PIECE: u64 = MOST;
        let early = Early::for_file_of(1 << 30).unwrap();
        assert_eq!(early.next(0..100), None);
        assert_eq!(early.next(PIECE..2 * PIECE), None);
        assert_eq!(early.next(50..60), None);
        assert_eq!(early.next(100..PIECE), Some(0..2 * PIECE));
        assert_eq!(early.next(2 * PIECE..3 * PIECE - 1), None);
        assert_eq!(early.next(3 * PIECE - 1..3 * PIECE), Some(2 * PIECE..3 * PIECE));
        assert_eq!(early.next(4 * PIECE..9 * PIECE), None);
    }

    #[test]
    fn a_short_file_goes_to_the_disk_in_shorter_pieces() {
        assert!(Early::for_file_of(LEAST).is_none());
        for (bytes, piece) in [
            (LEAST + 1, LEAST),
            (4 * LEAST, LEAST),
            (20 * LEAST, 5 * LEAST),
            (64 * LEAST, MOST),
            (u64::MAX, MOST),
        ] {
            assert_eq!(Early::for_file_of(bytes).unwrap().piece() as u64, piece, "{bytes}");
        }
    }
}
