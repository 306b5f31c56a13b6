//! [`WholeTensor`]: a tensor, and the [`TensorPiece`]s of files that make it up.

use std::ops::Range;
use std::path::PathBuf;

use crate::file::io::ReadAt;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, RankProblem, Result};
use crate::format::slice::{BadTiles, Tile, Tiles};
use crate::format::tensor::shape::memory_count;

/// A tensor of an [`Assembled`](crate::checkpoint::Assembled) file, and the pieces that make it up. Each of its
/// elements is in one of them. Their order does not matter.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct WholeTensor {
    /// The name.
    pub name: String,
    /// The type of the elements, in all pieces.
    pub dtype: Dtype,
    /// The shape.
    pub shape: Vec<usize>,
    /// All [boxes](TensorPiece::new), or all [flat](TensorPiece::flat). A tensor without elements
    /// needs none.
    pub pieces: Vec<TensorPiece>,
}

/// Some elements of a [`WholeTensor`] that are contiguous in a file, in C order.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct TensorPiece {
    source: usize,
    offset: u64,
    place: Tile,
    is_flat: bool,
}

impl TensorPiece {
    /// Makes a box: in each dimension of the tensor, `sizes` positions from `offsets` on. Its
    /// elements begin at byte `offset` of the source with the number `source`.
    #[doc(hidden)]
    pub fn new(source: usize, offset: u64, offsets: Vec<usize>, sizes: Vec<usize>) -> Self {
        Self { source, offset, place: Tile { offsets, sizes }, is_flat: false }
    }

    /// Makes a piece of the `len` elements of the tensor from the element `first` on, counted in C
    /// order, as if the tensor had one dimension. They begin at byte `offset` of the source with
    /// the number `source`.
    #[doc(hidden)]
    pub fn flat(source: usize, offset: u64, first: usize, len: usize) -> Self {
        let place = Tile { offsets: vec![first], sizes: vec![len] };
        Self { source, offset, place, is_flat: true }
    }
}

/// The places of a tensor's bytes.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) tiles: Tiles,
    /// For each piece, the number of its source, and its first byte there.
    pub(crate) starts: Vec<(usize, u64)>,
}

impl Placed {
    /// Checks the pieces of a tensor.
    pub(crate) fn new<S: ReadAt>(tensor: &WholeTensor, sources: &[(PathBuf, S)]) -> Result<Self> {
        let WholeTensor { dtype, shape, pieces, .. } = tensor;
        let of_piece = |number: usize, error: Error| {
            let source = pieces.get(number).and_then(|piece| sources.get(piece.source));
            match source {
                Some((path, _)) => error.in_path(path),
                None => error,
            }
        };
        let is_flat = pieces.first().is_some_and(|piece| piece.is_flat);
        let count = if is_flat { vec![memory_count(shape)?] } else { Vec::new() };
        let tiled = if is_flat { &count } else { shape };
        if let Some(number) = pieces.iter().position(|piece| piece.is_flat != is_flat) {
            return Err(of_piece(number, bad("a flat piece beside a box".into())));
        }
        let places: Vec<_> = pieces.iter().map(|piece| piece.place.clone()).collect();
        let tiles = Tiles::new(*dtype, tiled, &places).map_err(|BadTiles { tile, kind }| {
            let error = Error::from(kind);
            match tile {
                Some(number) => of_piece(number, error),
                None => error,
            }
        })?;
        let starts = pieces.iter().map(|piece| (piece.source, piece.offset)).collect();
        let placed = Self { tiles, starts };
        for (number, len) in placed.tiles.byte_lens() {
            let (source, offset) = placed.starts[number];
            let found = sources.get(source).map(|(_, source)| source.byte_len());
            let end = offset.checked_add(len);
            if end.zip(found).is_none_or(|(end, found)| end > found) {
                let problem = match found {
                    None => format!("there is no source {source}"),
                    Some(found) => format!(
                        "a piece of {len} bytes from byte {offset} on, in a file of {found}"
                    ),
                };
                return Err(of_piece(number, bad(problem)));
            }
        }
        Ok(placed)
    }

    /// Returns the bytes of the sources that a range of the tensor is read from, with the number of
    /// each source.
    pub(crate) fn sources_of(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (usize, Range<u64>)> {
        let of_tiles = self.tiles.within(range.clone()).map(move |tile| {
            let (source, offset) = self.starts[tile.number];
            let before = |position| offset + tile.runs.selected_before(position);
            (source, before(range.start)..before(range.end))
        });
        of_tiles.filter(|(_, bytes)| !bytes.is_empty())
    }
}

fn bad(problem: String) -> Error {
    RankProblem::BadParts { problem }.into()
}
