//! [`TiledBlock`]: bytes of a tensor in tiles.

use std::io;
use std::ops::Range;

use crate::file::io::ReadRange;
use crate::format::slice::Tiles;

/// Shorter runs are read together, and copied.
const DIRECT: u64 = 64 << 10;

/// Consecutive bytes of a tensor that consists of [`Tiles`].
// A tile's bytes in a range of the tensor are adjacent in the tile, so each tile needs one read.
pub(crate) struct TiledBlock<'t, 'b> {
    tiles: &'t Tiles,
    /// In the tensor.
    start: u64,
    bytes: &'b mut [u8],
    /// To be read into place: the range in `bytes`, the tile, and the offset in it.
    direct: Vec<(Range<usize>, usize, u64)>,
    /// To be copied: the tile, the offset in it, and the bytes.
    copied: Vec<(usize, u64, Vec<u8>)>,
}

impl<'t, 'b> TiledBlock<'t, 'b> {
    pub(crate) fn new(tiles: &'t Tiles, start: u64, bytes: &'b mut [u8]) -> Self {
        let range = start..start + bytes.len() as u64;
        let mut direct = Vec::new();
        let mut copied = Vec::new();
        for tile in tiles.within(range.clone()) {
            let in_tile =
                tile.runs.selected_before(range.start)..tile.runs.selected_before(range.end);
            let mut pieces = tile.runs.pieces_in(range.clone()).take(2);
            let (Some(_), second) = (pieces.next(), pieces.next()) else { continue };
            if second.is_some() && tile.runs.piece < DIRECT {
                let bytes = vec![0; (in_tile.end - in_tile.start) as usize];
                copied.push((tile.number, in_tile.start, bytes));
                continue;
            }
            let mut at = in_tile.start;
            for piece in tile.runs.pieces_in(range.clone()) {
                let len = piece.end - piece.start;
                let place = (piece.start - start) as usize..(piece.end - start) as usize;
                direct.push((place, tile.number, at));
                at += len;
            }
        }
        direct.sort_unstable_by_key(|(place, ..)| place.start);
        Self { tiles, start, bytes, direct, copied }
    }

    pub(crate) fn ranges(&mut self) -> io::Result<Vec<(usize, ReadRange<'_>)>> {
        let mut ranges = Vec::with_capacity(self.direct.len() + self.copied.len());
        let mut rest = &mut *self.bytes;
        let mut at = 0;
        for (place, tile, offset) in &self.direct {
            // No two overlap, or they were no tiles.
            let found = place.start.checked_sub(at).and_then(|gap| {
                let (_, rest) = std::mem::take(&mut rest).split_at_mut_checked(gap)?;
                rest.split_at_mut_checked(place.len())
            });
            let Some((bytes, more)) = found else {
                return Err(io::Error::other("the parts of a tensor overlap"));
            };
            ranges.push((*tile, ReadRange { offset: *offset, bytes }));
            (rest, at) = (more, place.end);
        }
        for (tile, offset, bytes) in &mut self.copied {
            ranges.push((*tile, ReadRange { offset: *offset, bytes }));
        }
        Ok(ranges)
    }

    pub(crate) fn finish(self) {
        let Self { tiles, start, bytes, copied, .. } = self;
        let range = start..start + bytes.len() as u64;
        let mut copied = copied.into_iter().peekable();
        // They have the order of the tiles.
        for tile in tiles.within(range.clone()) {
            let Some((.., read)) = copied.next_if(|(number, ..)| *number == tile.number) else {
                continue;
            };
            let mut read = &read[..];
            for piece in tile.runs.pieces_in(range.clone()) {
                let place = (piece.start - start) as usize..(piece.end - start) as usize;
                let (these, more) = read.split_at(place.len());
                bytes[place].copy_from_slice(these);
                read = more;
            }
        }
    }
}
