//! [`Scales`]: the factors of quantised weights, and the elements that each belongs to.

use alloc::vec::Vec;
use core::ops::Range;

use super::block::vectorized;

/// Which scale belongs to each element of a weight. There is one scale for each block of the last
/// two dimensions, for each output channel, or for the whole weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScaleLayout {
    /// For each dimension of the weight: how many neighbouring positions share a scale.
    groups: Vec<usize>,
    /// The number of dimensions of the tensor of scales.
    scale_ndim: usize,
}

impl ScaleLayout {
    /// The layout that follows from the shapes of a weight and of its scales; `None` if they do not
    /// belong together. Block scales have the shape of the weight with the last two dimensions
    /// divided by `block`, rounded up. Channel scales have a last dimension of 1 instead of the
    /// weight's, or none. A tensor of one element scales the whole weight.
    pub(crate) fn new(weight: &[usize], scales: &[usize], block: [usize; 2]) -> Option<Self> {
        let layout = |groups| Some(Self { groups, scale_ndim: scales.len() });
        // Every element of a dimension that is taken whole has the same scale.
        let whole = |len: usize| len.max(1);
        if scales.iter().all(|&len| len == 1) && scales.len() <= weight.len().max(1) {
            return layout(weight.iter().map(|&len| whole(len)).collect());
        }
        let (&columns, outer) = weight.split_last()?;
        let (_, leading) = outer.split_last()?;
        if scales == outer || scales.split_last() == Some((&1, outer)) {
            return layout(outer.iter().map(|_| 1).chain([whole(columns)]).collect());
        }
        let is_of_blocks = !block.contains(&0) && scales == Self::block_shape(weight, block);
        is_of_blocks.then(|| layout(leading.iter().map(|_| 1).chain(block).collect()))?
    }

    /// The shape of the scales of a weight's blocks.
    pub(crate) fn block_shape(weight: &[usize], block: [usize; 2]) -> Vec<usize> {
        let leading = weight.len().saturating_sub(2);
        let blocks = core::iter::repeat_n(1, leading).chain(block);
        weight.iter().zip(blocks).map(|(len, block)| len.div_ceil(block.max(1))).collect()
    }

    /// The positions of the scales, in each dimension of their tensor, that these positions of the
    /// weight need.
    pub(crate) fn needed(&self, part: &[Range<usize>]) -> Vec<Range<usize>> {
        let groups = part.iter().zip(&self.groups);
        groups.take(self.scale_ndim).map(|(range, &group)| blocks(range, group)).collect()
    }
}

/// The blocks of `group` positions that a range touches.
fn blocks(range: &Range<usize>, group: usize) -> Range<usize> {
    range.start / group..range.end.div_ceil(group).max(range.start / group)
}

/// The scales of a weight, or of a part of one.
#[derive(Clone, Debug)]
pub(crate) struct Scales {
    values: Vec<f32>,
    /// The dimensions of the part, outermost first; at least one.
    dims: Vec<ScaledDim>,
}

/// One dimension of a weight, or of a part of one.
#[derive(Clone, Copy, Debug)]
struct ScaledDim {
    len: usize,
    /// How many neighbouring positions share a scale.
    group: usize,
    /// The position of the part's first element inside its group. It is above 0 if a part begins
    /// inside a block.
    origin: usize,
    /// The distance between the scales of neighbouring groups.
    stride: usize,
}

impl Scales {
    /// The scales of this part of a weight. `values` are those that [`ScaleLayout::needed`] names;
    /// `None` if their number is another.
    pub(crate) fn new(
        layout: &ScaleLayout,
        part: &[Range<usize>],
        values: Vec<f32>,
    ) -> Option<Self> {
        let mut stride = 1;
        let mut dims: Vec<_> = part
            .iter()
            .zip(&layout.groups)
            .rev()
            .map(|(range, &group)| {
                let dim =
                    ScaledDim { len: range.len(), group, origin: range.start % group, stride };
                stride *= blocks(range, group).len();
                dim
            })
            .collect();
        dims.reverse();
        if dims.is_empty() {
            dims.push(ScaledDim { len: 1, group: 1, origin: 0, stride: 1 });
        }
        let is_empty = dims.iter().any(|dim| dim.len == 0);
        (is_empty || values.len() == stride).then_some(Self { values, dims })
    }

    /// Multiplies elements by their scales. `first` is the index of the first element in the part,
    /// in C order.
    pub(crate) fn apply(&self, first: u64, elements: &mut [f32]) {
        let Some((&inner, outer)) = self.dims.split_last() else { return };
        if elements.is_empty() {
            return;
        }
        let (mut row, mut column) = (first / inner.len as u64, (first % inner.len as u64) as usize);
        let mut rest = elements;
        while !rest.is_empty() {
            let here;
            (here, rest) = rest.split_at_mut(rest.len().min(inner.len - column));
            self.apply_to_row(inner, scales_before(outer, row), column, here);
            (row, column) = (row + 1, 0);
        }
    }

    /// Multiplies neighbouring elements of one row, from `column` on. The scales of the row begin
    /// at `start`.
    fn apply_to_row(&self, inner: ScaledDim, start: usize, column: usize, row: &mut [f32]) {
        let ScaledDim { group, origin, .. } = inner;
        let mut position = origin + column;
        let mut rest = row;
        while !rest.is_empty() {
            let here;
            (here, rest) = rest.split_at_mut(rest.len().min(group - position % group));
            let scale = self.values[start + position / group];
            position += here.len();
            vectorized(|| here.iter_mut().for_each(|element| *element *= scale));
        }
    }
}

/// The number of scales before those of a row, whose number counts all outer dimensions.
fn scales_before(outer: &[ScaledDim], mut row: u64) -> usize {
    let mut scales = 0;
    for dim in outer.iter().rev() {
        let position = (row % dim.len as u64) as usize;
        row /= dim.len as u64;
        scales += (dim.origin + position) / dim.group * dim.stride;
    }
    scales
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scale of each element of a part, by the definition.
    fn by_definition(
        groups: &[usize],
        weight: &[usize],
        part: &[Range<usize>],
        scale_of: impl Fn(&[usize]) -> f32,
    ) -> Vec<f32> {
        let count = weight.iter().product::<usize>();
        let mut found = Vec::new();
        for mut index in 0..count {
            let mut position: Vec<_> = weight
                .iter()
                .rev()
                .map(|&len| {
                    let at = index % len;
                    index /= len;
                    at
                })
                .collect();
            position.reverse();
            if position.iter().zip(part).all(|(at, range)| range.contains(at)) {
                let blocks: Vec<_> = position.iter().zip(groups).map(|(at, g)| at / g).collect();
                found.push(scale_of(&blocks));
            }
        }
        found
    }

    #[test]
    fn each_element_of_each_part_has_the_scale_of_its_block() {
        let (weight, block, grid) = ([2, 5, 7], [2, 3], [2, 3, 3]);
        let layout = ScaleLayout::new(&weight, &grid, block).unwrap();
        let scale_of = |at: &[usize]| (1 + at[2] + 10 * at[1] + 100 * at[0]) as f32;
        let parts = [
            [0..2, 0..5, 0..7],
            [1..2, 1..4, 2..7],
            [0..2, 3..5, 4..5],
            [0..1, 4..5, 6..7],
            [0..2, 2..2, 0..7],
            [0..2, 5..5, 7..7],
        ];
        for part in parts {
            let needed = layout.needed(&part);
            let mut values = Vec::new();
            for i in needed[0].clone() {
                for j in needed[1].clone() {
                    values.extend(needed[2].clone().map(|k| scale_of(&[i, j, k])));
                }
            }
            let scales = Scales::new(&layout, &part, values).unwrap();
            let expected = by_definition(&[1, 2, 3], &weight, &part, scale_of);
            // All at once, and from each element on.
            for first in 0..=expected.len() {
                let mut elements = alloc::vec![1.0; expected.len() - first];
                scales.apply(first as u64, &mut elements);
                assert_eq!(elements, expected[first..], "{part:?} from {first}");
            }
        }
    }

    #[test]
    fn the_shape_of_the_scales_says_what_they_scale() {
        let groups = |weight: &[usize], scales: &[usize]| {
            ScaleLayout::new(weight, scales, [128, 128]).map(|layout| layout.groups)
        };
        assert_eq!(groups(&[300, 200], &[3, 2]), Some(alloc::vec![128, 128]));
        for channels in [&[300][..], &[300, 1]] {
            assert_eq!(groups(&[300, 200], channels), Some(alloc::vec![1, 200]));
        }
        for one in [&[][..], &[1], &[1, 1]] {
            assert_eq!(groups(&[300, 200], one), Some(alloc::vec![300, 200]));
        }
        assert_eq!(groups(&[8, 300, 200], &[8, 3, 2]), Some(alloc::vec![1, 128, 128]));
        assert_eq!(groups(&[8, 300, 200], &[8, 300, 1]), Some(alloc::vec![1, 1, 200]));
        assert_eq!(groups(&[], &[1]), Some(alloc::vec![]));
        assert_eq!(groups(&[0, 5], &[0, 1]), Some(alloc::vec![1, 5]));
        for wrong in [&[2, 3][..], &[2, 1], &[200], &[1, 200], &[3, 2, 1], &[1, 1, 1], &[0, 0]] {
            assert_eq!(groups(&[300, 200], wrong), None, "{wrong:?}");
        }
        assert_eq!(groups(&[300], &[3]), None);
        assert_eq!(ScaleLayout::new(&[300, 200], &[3, 2], [0, 128]), None);
    }

    #[test]
    fn values_of_another_number_are_refused() {
        let layout = ScaleLayout::new(&[4, 4], &[2, 2], [2, 2]).unwrap();
        assert!(Scales::new(&layout, &[0..4, 0..4], alloc::vec![1.0; 3]).is_none());
        assert!(Scales::new(&layout, &[0..2, 0..4], alloc::vec![1.0; 2]).is_some());
    }
}
