//! [`plan`]: assigns ranges of an object to requests, and their bytes to memory.

use std::io;
use std::ops::Range;

/// Bytes of a request. Parts of a larger range have at least half of this: they hide the latency of
/// a request, and share a load that is too much for one connection.
pub(super) const LARGEST: u64 = 16 << 20;

/// Ranges with a smaller gap are one request.
const GAP: u64 = 4 << 10;

/// Parts of a large range begin at its multiples.
const ALIGNMENT: u64 = 64 << 10;

struct Piece<'a> {
    offset: u64,
    bytes: &'a mut [u8],
}

impl Piece<'_> {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// One range of the object, and its places in memory. Bytes between the pieces are fetched and
/// dropped.
pub(super) struct Request<'a> {
    range: Range<u64>,
    pieces: Vec<Piece<'a>>,
    wanted: u64,
    /// Offset of the next byte to arrive.
    next: u64,
    open: usize,
}

/// Ranges are in any order, and may overlap.
///
/// Joins neighbours if the gap is at most 4 KiB, or if that fetches at most twice the wanted bytes.
pub(super) fn plan<'a>(ranges: impl IntoIterator<Item = (u64, &'a mut [u8])>) -> Vec<Request<'a>> {
    // `get_ranges` of `object_store` 0.14 holds every range in memory, joins neighbours without an
    // upper size, and does not ask for one version of the object.
    let mut pieces: Vec<_> =
        ranges.into_iter().flat_map(|range| divide(range.0, range.1)).collect();
    pieces.sort_by_key(|piece| piece.offset);
    let mut requests: Vec<Request<'a>> = Vec::new();
    for piece in pieces {
        match requests.last_mut() {
            Some(last) if last.may_take(&piece) => last.add(piece),
            _ => requests.push(Request::new(piece)),
        }
    }
    requests
}

fn divide(offset: u64, bytes: &mut [u8]) -> impl Iterator<Item = Piece<'_>> {
    let len = bytes.len() as u64;
    let parts = len.div_ceil(LARGEST).max(1);
    let part = if parts == 1 { len } else { len.div_ceil(parts).next_multiple_of(ALIGNMENT) };
    let chunks = bytes.chunks_mut((part as usize).max(1));
    (0..).zip(chunks).map(move |(number, bytes)| Piece { offset: offset + number * part, bytes })
}

impl<'a> Request<'a> {
    fn new(piece: Piece<'a>) -> Self {
        let range = piece.offset..piece.end();
        let wanted = piece.bytes.len() as u64;
        Self { next: range.start, range, pieces: vec![piece], wanted, open: 0 }
    }

    fn may_take(&self, piece: &Piece<'_>) -> bool {
        let Some(gap) = piece.offset.checked_sub(self.range.end) else { return false };
        let span = piece.end() - self.range.start;
        let wanted = self.wanted + piece.bytes.len() as u64;
        span <= LARGEST && (gap <= GAP || span <= wanted.saturating_mul(2))
    }

    fn add(&mut self, piece: Piece<'a>) {
        self.range.end = piece.end();
        self.wanted += piece.bytes.len() as u64;
        self.pieces.push(piece);
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    pub(super) fn take(&mut self, mut arrived: &[u8]) -> io::Result<()> {
        if arrived.len() as u64 > self.range.end - self.next {
            let message = "the server sent more bytes than were asked for";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        while let Some(piece) = self.pieces.get_mut(self.open)
            && !arrived.is_empty()
        {
            let dropped = piece.offset.saturating_sub(self.next).min(arrived.len() as u64);
            arrived = &arrived[dropped as usize..];
            self.next += dropped;
            let filled = self.next.saturating_sub(piece.offset) as usize;
            let here = (piece.bytes.len() - filled).min(arrived.len());
            piece.bytes[filled..filled + here].copy_from_slice(&arrived[..here]);
            arrived = &arrived[here..];
            self.next += here as u64;
            self.open += usize::from(self.next == piece.end());
        }
        Ok(())
    }

    pub(super) fn is_filled(&self) -> bool {
        self.next == self.range.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn planned(ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut memory: Vec<_> = ranges.iter().map(|&(_, len)| vec![0; len as usize]).collect();
        let each = ranges.iter().zip(&mut memory);
        plan(each.map(|(&(offset, _), bytes)| (offset, &mut bytes[..])))
            .iter()
            .map(|request| (request.range.start, request.range.end))
            .collect()
    }

    #[test]
    fn a_range_is_one_request_unless_it_is_large() {
        assert_eq!(planned(&[(7, 100)]), [(7, 107)]);
        assert_eq!(planned(&[(0, 16 * MIB)]), [(0, 16 * MIB)]);
        for len in [16 * MIB + 1, 17 * MIB, 40 * MIB, 100 * MIB + 12345] {
            let requests = planned(&[(3, len)]);
            assert_eq!(requests.len() as u64, len.div_ceil(LARGEST));
            assert_eq!((requests[0].0, requests[requests.len() - 1].1), (3, 3 + len));
            assert!(requests.array_windows().all(|[a, b]| a.1 == b.0));
            let (first, longest) = (requests[0].1 - 3, LARGEST);
            assert!((longest / 2..=longest).contains(&first), "{first}");
        }
    }

    #[test]
    fn neighbours_are_joined_up_to_a_gap() {
        assert_eq!(planned(&[(0, 10), (10, 10), (20, 5)]), [(0, 25)]);
        // Four KiB in between are joined for all ranges; one byte more, only if they are as long.
        assert_eq!(planned(&[(0, 1), (4097, 1)]), [(0, 4098)]);
        assert_eq!(planned(&[(0, 1), (4098, 1)]), [(0, 1), (4098, 4099)]);
        assert_eq!(planned(&[(0, MIB), (2 * MIB, MIB)]), [(0, 3 * MIB)]);
        assert_eq!(
            planned(&[(0, MIB), (3 * MIB + 1, MIB)]),
            [(0, MIB), (3 * MIB + 1, 4 * MIB + 1)]
        );
        // The order does not matter.
        assert_eq!(planned(&[(20, 5), (0, 10), (10, 10)]), [(0, 25)]);
        // No request is larger than the limit.
        let requests = planned(&Vec::from_iter((0..40).map(|number| (number * MIB, MIB))));
        assert_eq!(requests, [(0, 16 * MIB), (16 * MIB, 32 * MIB), (32 * MIB, 40 * MIB)]);
    }

    #[test]
    fn overlapping_ranges_are_fetched_each() {
        assert_eq!(planned(&[(0, 10), (0, 10)]), [(0, 10), (0, 10)]);
        assert_eq!(planned(&[(0, 10), (5, 10)]), [(0, 10), (5, 15)]);
        assert_eq!(planned(&[(0, 10), (10, 0), (10, 5)]), [(0, 15)]);
        assert!(planned(&[(0, 0)]).is_empty());
    }

    #[test]
    fn bytes_arrive_in_chunks_of_any_size() {
        let object: Vec<u8> = (0..200).collect();
        let ranges = [(5, 10), (15, 20), (40, 1), (60, 30)];
        for size in [1, 2, 3, 7, 50, 85] {
            let mut memory = ranges.map(|(_, len)| vec![0; len]);
            let each = ranges.iter().zip(&mut memory);
            let mut requests = plan(each.map(|(&(offset, _), bytes)| (offset, &mut bytes[..])));
            let [request] = &mut requests[..] else { panic!("one request") };
            assert_eq!(request.range(), 5..90);
            for chunk in object[5..90].chunks(size) {
                assert!(!request.is_filled());
                request.take(chunk).unwrap();
            }
            assert!(request.is_filled());
            assert!(request.take(&[1]).is_err());
            for ((offset, len), bytes) in ranges.iter().zip(&memory) {
                assert_eq!(bytes[..], object[*offset as usize..][..*len]);
            }
        }
    }
}
