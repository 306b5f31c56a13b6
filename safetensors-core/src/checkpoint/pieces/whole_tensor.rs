//! [`WholeTensor`]: a tensor, and the [`TensorPiece`]s of files that make it up.

use std::path::PathBuf;

use crate::checkpoint::{Piece, Strided};
use crate::file::io::ReadAt;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, RankProblem, Result};
use crate::format::slice::{BadTiles, Tile, check_tiles};
use crate::format::tensor::shape::{byte_len, memory_count};

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

impl WholeTensor {
    /// Checks the pieces, and finds their bytes.
    pub(super) fn placed<S: ReadAt>(&self, sources: &[(PathBuf, S)]) -> Result<Strided> {
        let Self { name, dtype, shape, pieces } = self;
        let in_source = |number: Option<usize>, problem: String| {
            let error = Error::from(RankProblem::BadParts { problem });
            match number.and_then(|number| sources.get(number)) {
                Some((path, _)) => error.in_path(path),
                None => error,
            }
        };
        let is_flat = pieces.first().is_some_and(|piece| piece.is_flat);
        let tiled = if is_flat { vec![memory_count(shape)?] } else { shape.clone() };
        byte_len(*dtype, &tiled)?;
        if let Some(piece) = pieces.iter().find(|piece| piece.is_flat != is_flat) {
            return Err(in_source(Some(piece.source), "some are flat, and some are boxes".into()));
        }
        let tiles: Vec<_> = pieces.iter().map(|piece| &piece.place).collect();
        check_tiles(&tiled, &tiles).map_err(|BadTiles { tile, problem }| {
            in_source(tile.map(|number| pieces[number].source), problem)
        })?;
        let elements = pieces.iter().filter_map(|TensorPiece { source, offset, place, .. }| {
            let places = place.offsets.iter().copied().zip(place.sizes.iter().copied());
            Piece::contiguous(*source, *offset, places)
        });
        let elements: Vec<_> = elements.collect();
        let tensor = Strided::new(name, *dtype, tiled, &elements)?;
        for (number, offset, len) in tensor.stored() {
            let found = sources.get(number).map(|(_, source)| source.byte_len());
            let end = offset.checked_add(len);
            if end.zip(found).is_none_or(|(end, found)| end > found) {
                let problem = match found {
                    None => format!("there is no source {number}"),
                    Some(found) => format!(
                        "a piece of {len} bytes from byte {offset} on, in a file of {found}"
                    ),
                };
                return Err(in_source(Some(number), problem));
            }
        }
        Ok(tensor)
    }
}
