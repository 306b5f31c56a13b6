//! [`Tile`]: boxes that make up a tensor, each element once.

use std::hash::{BuildHasher, RandomState};

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

    fn is_inside(&self, shape: &[usize]) -> bool {
        let Self { offsets, sizes } = self;
        let ends = offsets.iter().zip(sizes).map(|(at, size)| at.checked_add(*size));
        offsets.len() == shape.len()
            && sizes.len() == shape.len()
            && ends.zip(shape).all(|(end, len)| end.is_some_and(|end| end <= *len))
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
pub(crate) struct BadTiles {
    pub(crate) tile: Option<usize>,
    pub(crate) problem: String,
}

/// Checks that each element of a tensor is in exactly one box. The shape does not overflow.
// Each boundary of a dimension gets a random number, boundary 0 gets 0. A box weighs the product of
// the differences of its boundaries: as much as its cells. So the boxes weigh as much as the tensor
// if each cell is in one. Otherwise the difference is a polynomial of the random numbers, which is
// zero in fewer than one of 2⁵⁰ cases (Schwartz and Zippel). Comparing pairs of boxes would take
// quadratic time, or code that grows with the dimensions.
pub(crate) fn check_tiles(shape: &[usize], tiles: &[&Tile]) -> Result<(), BadTiles> {
    if let Some(number) = tiles.iter().position(|tile| !tile.is_inside(shape)) {
        let Tile { offsets, sizes } = tiles[number];
        let problem = format!("{sizes:?} from {offsets:?} on does not fit shape {shape:?}");
        return Err(BadTiles { tile: Some(number), problem });
    }
    let filled = || tiles.iter().filter(|tile| !tile.is_empty());
    let covered = filled().map(|tile| tile.volume()).sum::<u128>();
    let all = volume(shape);
    if covered < all {
        let problem = format!("they have {covered} of the {all} elements of shape {shape:?}");
        return Err(BadTiles { tile: None, problem });
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
    for Tile { offsets, sizes } in filled() {
        let spans = &mut offsets.iter().zip(sizes).map(|(&at, &size)| (at, at + size));
        sum = (sum + weight(spans)) % PRIME;
    }
    let whole = weight(&mut shape.iter().map(|&len| (0, len)));
    if covered == all && (sum == whole || all == 0) {
        return Ok(());
    }
    Err(overlap(tiles))
}

/// Names two boxes that overlap, if they are found soon.
fn overlap(tiles: &[&Tile]) -> BadTiles {
    let mut sorted: Vec<_> = tiles.iter().enumerate().filter(|(_, it)| !it.is_empty()).collect();
    sorted.sort_by_key(|(_, tile)| &tile.offsets);
    let end = |tile: &Tile| Some(tile.offsets.first()? + tile.sizes.first()?);
    let near = |i: usize, one: &Tile| {
        let end = end(one);
        let is_near = move |two: &Tile| end.is_none_or(|end| two.offsets.first() < Some(&end));
        sorted[i + 1..].iter().take_while(move |(_, two)| is_near(two))
    };
    let pairs =
        sorted.iter().enumerate().flat_map(|(i, (_, one))| near(i, one).map(|it| (*one, it)));
    let most = MOST_COMPARED / tiles.first().map_or(1, |tile| tile.sizes.len().max(1));
    let found = pairs.take(most).find(|(one, (_, two))| one.overlaps(two));
    let Some((one, (number, two))) = found else {
        return BadTiles { tile: None, problem: "some of them overlap".into() };
    };
    let place = |tile: &Tile| format!("{:?} from {:?} on", tile.sizes, tile.offsets);
    BadTiles { tile: Some(*number), problem: format!("{} overlaps {}", place(two), place(one)) }
}

const MOST_COMPARED: usize = 1 << 20;

/// 2⁶¹ − 1.
const PRIME: u64 = (1 << 61) - 1;

fn multiply(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tile(offsets: &[usize], sizes: &[usize]) -> Tile {
        Tile { offsets: offsets.to_vec(), sizes: sizes.to_vec() }
    }

    fn check(shape: &[usize], tiles: &[Tile]) -> Result<(), BadTiles> {
        check_tiles(shape, &tiles.iter().collect::<Vec<_>>())
    }

    fn problem(shape: &[usize], tiles: &[Tile]) -> String {
        check(shape, tiles).unwrap_err().problem
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
        fn cut_boxes_cover_the_tensor(
            shape in prop::collection::vec(0..7_usize, 0..5),
            cuts in prop::collection::vec((0..5_usize, 0..9_usize), 0..12),
            changed in 0..100_usize,
        ) {
            let tiles = cut(tile(&vec![0; shape.len()], &shape), &cuts);
            check(&shape, &tiles).unwrap();
            // A box that is moved, lost or there twice is found.
            let changed = changed % tiles.len();
            if !tiles[changed].is_empty() {
                let mut lost = tiles.clone();
                lost.remove(changed);
                prop_assert!(check(&shape, &lost).is_err());
                let twice = [&tiles[..], &tiles[changed..=changed]].concat();
                prop_assert!(check(&shape, &twice).is_err());
                for (dim, &len) in shape.iter().enumerate() {
                    let mut moved = tiles.clone();
                    if moved[changed].offsets[dim] + moved[changed].sizes[dim] < len {
                        moved[changed].offsets[dim] += 1;
                        prop_assert!(check(&shape, &moved).is_err());
                    }
                }
            }
        }
    }

    #[test]
    fn problems_are_reported() {
        let two = [tile(&[0, 0], &[2, 3]), tile(&[2, 0], &[2, 3])];
        assert!(check(&[4, 3], &two).is_ok());
        assert!(problem(&[5, 3], &two).contains("12 of the 15 elements"));
        assert!(problem(&[3, 3], &two).contains("[2, 3] from [2, 0] on does not fit shape [3, 3]"));
        assert!(problem(&[4], &two).contains("does not fit"));
        let far = [tile(&[usize::MAX, 0], &[2, 3])];
        assert!(problem(&[4, 3], &far).contains("does not fit"));
        // As many elements as the whole has.
        let shifted = [tile(&[0, 0], &[2, 3]), tile(&[1, 0], &[2, 3])];
        assert!(problem(&[4, 3], &shifted).contains("[2, 3] from [1, 0] on overlaps"));
        let twice = [tile(&[], &[]), tile(&[], &[])];
        assert!(problem(&[], &twice).contains("overlap"));
        assert!(check(&[], &twice[..1]).is_ok());
        assert!(problem(&[], &[]).contains("0 of the 1 elements"));
        assert!(check(&[0, 4], &[]).is_ok());
        assert!(check(&[0, 4], &[tile(&[0, 4], &[0, 0])]).is_ok());
    }

    // Hostile numbers of boxes take no quadratic time, also if they are wrong.
    #[test]
    fn a_hundred_thousand_boxes_take_no_quadratic_time() {
        let count = 100_000;
        let long: Vec<_> = (0..count).map(|at| tile(&[0, at], &[1 << 20, 1])).collect();
        assert!(check(&[1 << 20, count], &long).is_ok());
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
