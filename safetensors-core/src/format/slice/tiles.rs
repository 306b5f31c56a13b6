//! [`Tiles`]: boxes that make up a tensor, each element once.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use super::runs::Runs;
use super::{Index, Selection};
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, RankProblem};
use crate::format::tensor::shape::byte_len;

/// The first position and the number of positions, in each dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) offsets: Vec<usize>,
    pub(crate) sizes: Vec<usize>,
}

impl Tile {
    fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    fn volume(&self) -> u128 {
        volume(&self.sizes)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let ends =
            |tile: &Self, dim: usize| (tile.offsets[dim], tile.offsets[dim] + tile.sizes[dim]);
        (0..self.sizes.len()).all(|dim| {
            let ((start, end), (other_start, other_end)) = (ends(self, dim), ends(other, dim));
            start < other_end && other_start < end
        })
    }
}

/// At most 2⁶⁷, half a byte each.
fn volume(sizes: &[usize]) -> u128 {
    if sizes.contains(&0) { 0 } else { sizes.iter().map(|&size| size as u128).product() }
}

#[derive(Debug)]
pub(crate) struct PlacedTile {
    pub(crate) number: usize,
    pub(crate) runs: Runs,
    start: u64,
    end: u64,
    /// The largest end of this and all earlier tiles.
    furthest: u64,
}

#[derive(Debug)]
pub(crate) struct BadTiles {
    pub(crate) tile: Option<usize>,
    pub(crate) kind: ErrorKind,
}

/// Boxes that make up a tensor. The bytes of each are stored together elsewhere, in C order.
#[derive(Debug)]
pub(crate) struct Tiles {
    /// By their first bytes in the tensor. None is empty.
    tiles: Vec<PlacedTile>,
}

impl Tiles {
    /// Checks by sorting that each element of the tensor is in exactly one box.
    pub(crate) fn new(dtype: Dtype, shape: &[usize], boxes: &[Tile]) -> Result<Self, BadTiles> {
        let whole = |kind| BadTiles { tile: None, kind };
        byte_len(dtype, shape).map_err(whole)?;
        let mut tiles = Vec::with_capacity(boxes.len());
        for (number, tile) in boxes.iter().enumerate() {
            let failed = |kind| BadTiles { tile: Some(number), kind };
            check_inside(shape, tile).map_err(|problem| failed(bad(problem)))?;
            if tile.is_empty() {
                continue;
            }
            let ends = tile.offsets.iter().zip(&tile.sizes).map(|(at, size)| *at..at + size);
            let indices = ends.zip(shape).map(|(range, &len)| Index::within(range, len));
            let indices: Vec<_> = indices.collect();
            let runs = Selection::new(dtype, shape, &indices).map_err(failed)?.into_parts().1;
            let first = runs.iter().next().map_or(0, |run| run.start);
            let end = runs.end();
            tiles.push(PlacedTile { number, runs, start: first, end, furthest: 0 });
        }
        tiles.sort_unstable_by_key(|tile| (tile.start, tile.number));
        let mut furthest = 0;
        for tile in &mut tiles {
            furthest = furthest.max(tile.end);
            tile.furthest = furthest;
        }
        let this = Self { tiles };
        this.check_cover(shape, boxes)?;
        Ok(this)
    }

    /// Returns the tiles that may have bytes of a range.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = &PlacedTile> {
        let end = self.tiles.partition_point(|tile| tile.start < range.end);
        let begin = self.tiles[..end].partition_point(|tile| tile.furthest <= range.start);
        let start = range.start;
        self.tiles[begin..end].iter().filter(move |tile| tile.end > start)
    }

    /// Returns the number and the bytes of each tile that is not empty.
    pub(crate) fn byte_lens(&self) -> impl Iterator<Item = (usize, u64)> {
        self.tiles.iter().map(|tile| (tile.number, tile.runs.byte_len()))
    }

    /// Checks that each element is in exactly one of the boxes, which are inside the tensor.
    // Each boundary of a dimension gets a random number, boundary 0 gets 0. A box weighs the
    // product of the differences of its boundaries: as much as its cells. So the boxes weigh as
    // much as the tensor if each cell is in one. Otherwise the difference is a polynomial of the
    // random numbers, which is zero in fewer than one of 2⁵⁰ cases (Schwartz and Zippel). Comparing
    // pairs of boxes would take quadratic time, or code that grows with the dimensions.
    fn check_cover(&self, shape: &[usize], boxes: &[Tile]) -> Result<(), BadTiles> {
        let tiles = || self.tiles.iter().map(|tile| &boxes[tile.number]);
        let covered = tiles().map(Tile::volume).sum::<u128>();
        let all = volume(shape);
        if covered < all {
            let problem = format!("they have {covered} of the {all} elements of shape {shape:?}");
            return Err(BadTiles { tile: None, kind: bad(problem) });
        }
        let keys = RandomState::new();
        let boundary = |dim: usize, at: usize| match at {
            0 => 0,
            at => keys.hash_one((dim, at)) % PRIME,
        };
        let weight = |offsets: &mut dyn Iterator<Item = (usize, usize)>| {
            offsets.enumerate().fold(1, |product, (dim, (start, end))| {
                multiply(product, PRIME + boundary(dim, end) - boundary(dim, start))
            })
        };
        let mut sum = 0;
        for Tile { offsets, sizes } in tiles() {
            let spans = &mut offsets.iter().zip(sizes).map(|(&at, &size)| (at, at + size));
            sum = (sum + weight(spans)) % PRIME;
        }
        let whole = weight(&mut shape.iter().map(|&len| (0, len)));
        if covered == all && (sum == whole || all == 0) {
            return Ok(());
        }
        Err(self.overlap(boxes))
    }

    /// Names two boxes that overlap, if they are found soon.
    fn overlap(&self, boxes: &[Tile]) -> BadTiles {
        let mut left = MOST_COMPARED;
        for (i, tile) in self.tiles.iter().enumerate() {
            for other in self.tiles[i + 1..].iter().take_while(|other| other.start < tile.end) {
                let one = &boxes[tile.number];
                let two = &boxes[other.number];
                if one.overlaps(two) {
                    let place =
                        |tile: &Tile| format!("{:?} from {:?} on", tile.sizes, tile.offsets);
                    let problem = format!("{} overlaps {}", place(two), place(one));
                    return BadTiles { tile: Some(other.number), kind: bad(problem) };
                }
                left = left.saturating_sub(one.sizes.len());
                if left == 0 {
                    return BadTiles { tile: None, kind: bad("some of them overlap".into()) };
                }
            }
        }
        BadTiles { tile: None, kind: bad("some of them overlap".into()) }
    }
}

const MOST_COMPARED: usize = 1 << 20;

/// 2⁶¹ − 1.
const PRIME: u64 = (1 << 61) - 1;

fn multiply(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64
}

fn bad(problem: String) -> ErrorKind {
    RankProblem::BadParts { problem }.into()
}

fn check_inside(shape: &[usize], tile: &Tile) -> Result<(), String> {
    let Tile { offsets, sizes } = tile;
    let ends = offsets.iter().zip(sizes).map(|(at, size)| at.checked_add(*size));
    let is_inside = offsets.len() == shape.len()
        && sizes.len() == shape.len()
        && ends.zip(shape).all(|(end, len)| end.is_some_and(|end| end <= *len));
    if is_inside {
        return Ok(());
    }
    Err(format!("{sizes:?} from {offsets:?} on does not lie in shape {shape:?}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tile(offsets: &[usize], sizes: &[usize]) -> Tile {
        Tile { offsets: offsets.to_vec(), sizes: sizes.to_vec() }
    }

    fn problem(shape: &[usize], tiles: &[Tile]) -> String {
        Tiles::new(Dtype::U8, shape, tiles).unwrap_err().kind.to_string()
    }

    /// Cuts a box at random places until it has fallen apart into about `count`.
    fn cut(whole: Tile, cuts: &[(usize, usize)]) -> Vec<Tile> {
        let mut tiles = vec![whole];
        for (i, &(dim, at)) in cuts.iter().enumerate() {
            let index = (i * 7) % tiles.len();
            let found = tiles[index].clone();
            let dim = dim % found.sizes.len().max(1);
            let Some(&len) = found.sizes.get(dim) else { continue };
            let at = at % (len + 1);
            let (mut one, mut two) = (found.clone(), found);
            one.sizes[dim] = at;
            two.sizes[dim] -= at;
            two.offsets[dim] += at;
            tiles[index] = one;
            tiles.push(two);
        }
        tiles
    }

    proptest! {
        #[test]
        fn what_was_cut_makes_up_the_whole(
            shape in prop::collection::vec(0..7_usize, 0..5),
            cuts in prop::collection::vec((0..5_usize, 0..9_usize), 0..12),
            changed in 0..100_usize,
        ) {
            let tiles = cut(tile(&vec![0; shape.len()], &shape), &cuts);
            let found = Tiles::new(Dtype::U16, &shape, &tiles).unwrap();
            let bytes = shape.iter().product::<usize>() as u64 * 2;
            let all = found.tiles.iter().flat_map(|it| it.runs.iter().flatten());
            let mut all: Vec<u64> = all.collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..bytes));
            for range in [0..bytes, 3..bytes / 2, bytes / 3..bytes] {
                let expected = |it: &&PlacedTile| it.runs.pieces_in(range.clone()).next().is_some();
                let expected = found.tiles.iter().filter(expected).map(|it| it.number);
                let expected: Vec<_> = expected.collect();
                let within: Vec<_> = found.within(range.clone()).map(|it| it.number).collect();
                prop_assert!(expected.iter().all(|number| within.contains(number)));
            }
            // A box that is moved, lost or there twice is found.
            let changed = changed % tiles.len();
            if !tiles[changed].is_empty() {
                let mut lost = tiles.clone();
                lost.remove(changed);
                prop_assert!(Tiles::new(Dtype::U16, &shape, &lost).is_err());
                let twice = [&tiles[..], &tiles[changed..=changed]].concat();
                prop_assert!(Tiles::new(Dtype::U16, &shape, &twice).is_err());
                for (dim, &len) in shape.iter().enumerate() {
                    let mut moved = tiles.clone();
                    if moved[changed].offsets[dim] + moved[changed].sizes[dim] < len {
                        moved[changed].offsets[dim] += 1;
                        prop_assert!(Tiles::new(Dtype::U16, &shape, &moved).is_err());
                    }
                }
            }
        }
    }

    #[test]
    fn problems_are_told() {
        let two = [tile(&[0, 0], &[2, 3]), tile(&[2, 0], &[2, 3])];
        assert!(Tiles::new(Dtype::U8, &[4, 3], &two).is_ok());
        assert!(problem(&[5, 3], &two).contains("12 of the 15 elements"));
        assert!(
            problem(&[3, 3], &two).contains("[2, 3] from [2, 0] on does not lie in shape [3, 3]")
        );
        assert!(problem(&[4], &two).contains("does not lie"));
        let far = [tile(&[usize::MAX, 0], &[2, 3])];
        assert!(problem(&[4, 3], &far).contains("does not lie"));
        // As many elements as the whole has.
        let shifted = [tile(&[0, 0], &[2, 3]), tile(&[1, 0], &[2, 3])];
        assert!(problem(&[4, 3], &shifted).contains("[2, 3] from [1, 0] on overlaps"));
        let twice = [tile(&[], &[]), tile(&[], &[])];
        assert!(problem(&[], &twice).contains("overlap"));
        assert!(Tiles::new(Dtype::U8, &[], &twice[..1]).is_ok());
        assert!(problem(&[], &[]).contains("0 of the 1 elements"));
        assert!(Tiles::new(Dtype::U8, &[0, 4], &[]).is_ok());
        assert!(Tiles::new(Dtype::U8, &[0, 4], &[tile(&[0, 4], &[0, 0])]).is_ok());
    }

    #[test]
    fn halves_of_bytes_are_refused() {
        let halves = [tile(&[0, 0], &[2, 1]), tile(&[0, 1], &[2, 1])];
        let error = Tiles::new(Dtype::F4, &[2, 2], &halves).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::SliceInsideByte { dtype: Dtype::F4 }));
        let rows = [tile(&[0, 0], &[1, 2]), tile(&[1, 0], &[1, 2])];
        assert!(Tiles::new(Dtype::F4, &[2, 2], &rows).is_ok());
    }

    // Hostile numbers of boxes take no quadratic time, also if they are wrong.
    #[test]
    fn a_hundred_thousand_boxes() {
        let count = 100_000;
        let long: Vec<_> = (0..count).map(|at| tile(&[0, at], &[1 << 20, 1])).collect();
        assert!(Tiles::new(Dtype::U8, &[1 << 20, count], &long).is_ok());
        let mut wrong = long;
        wrong[count - 1].offsets[1] = 0;
        assert!(problem(&[1 << 20, count], &wrong).contains("overlap"));
    }

    // Comparing two boxes of many dimensions takes as long as comparing many of few.
    #[test]
    fn compared_dimensions_are_counted() {
        let more = [1; 1022];
        let column =
            |at| tile(&[&[0, at][..], &[0; 1022]].concat(), &[&[2, 1], &more[..]].concat());
        let shape = [&[2, 60], &more[..]].concat();
        let wrong: Vec<_> = (0..60).map(|at| column(at.min(58))).collect();
        assert!(problem(&shape, &wrong).contains("some of them overlap"));
    }
}
