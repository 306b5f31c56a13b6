//! [`Scales`]: the factors of quantised weights: how their tensors are called, when they are
//! applied, and the elements that each belongs to.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use super::block::vectorized;
use super::{ConvertOptions, ScaledWeights};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::shape::Positions;

/// The names that the scales of a weight may have, the first that exists counts.
///
/// DeepSeek's checkpoints use the first. `inv` means that these are the inverse of the factors by
/// which the weight was multiplied when it was quantised. So the elements are multiplied by all
/// kinds. `compressed-tensors` uses the second, ComfyUI the third, for weights called `X.weight`.
pub(crate) fn names_of_scales(weight: &str) -> impl Iterator<Item = String> {
    let module =
        weight.strip_suffix("weight").filter(|rest| rest.is_empty() || rest.ends_with('.'));
    let of_comfy = module.map(|module| alloc::format!("{module}scale_weight"));
    ["_scale_inv", "_scale"]
        .map(|suffix| alloc::format!("{weight}{suffix}"))
        .into_iter()
        .chain(of_comfy)
}

/// Whether a tensor of this dtype may be a quantised weight with scales beside it.
pub(crate) fn may_have_scales(dtype: Dtype) -> bool {
    dtype.is_float() && dtype.bits() == 8 && dtype != Dtype::F8_E8M0
}

/// The scales beside the first of a weight's names that has any, and others beside another name.
/// `find` returns what it knows of a tensor by its name.
#[cfg(feature = "std")]
pub(crate) fn find_scales<'n, T: PartialEq>(
    names: impl Iterator<Item = &'n str>,
    find: impl Fn(&str) -> Option<T>,
) -> Option<(T, Option<T>)> {
    let mut all = names.filter_map(|name| names_of_scales(name).find_map(|scales| find(&scales)));
    let first = all.next()?;
    let other = all.find(|other| *other != first);
    Some((first, other))
}

/// What is known of the scales of a weight before they are read.
pub(crate) struct FoundScales<'n> {
    /// The name of their tensor.
    pub(crate) name: &'n str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'n [usize],
    /// Other scales, beside another name of the weight.
    pub(crate) other: Option<&'n str>,
}

impl ConvertOptions {
    /// Decides whether a weight of this shape is multiplied by its scales when it becomes another
    /// dtype, and which scale belongs to which element. Every conversion asks here.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NeedsScales`], [`ErrorKind::AmbiguousScales`] and [`ErrorKind::WrongScales`], to
    /// which the caller adds the name of the weight; [`ErrorKind::WrongDtype`], which names the
    /// scales.
    pub(crate) fn scale_layout(
        &self,
        weight: &[usize],
        to: Dtype,
        found: &FoundScales<'_>,
    ) -> Result<Option<ScaleLayout>> {
        let scales = || found.name.into();
        if self.scaled_weights == ScaledWeights::Raw {
            return Ok(None);
        }
        if let Some(other) = found.other.map(Into::into) {
            return Err(ErrorKind::AmbiguousScales { scales: scales(), other }.into());
        }
        if self.scaled_weights == ScaledWeights::Refuse {
            return Err(ErrorKind::NeedsScales { scales: scales(), to }.into());
        }
        if !found.dtype.is_float() {
            let wrong = ErrorKind::WrongDtype { expected: Dtype::F32, found: found.dtype };
            return Err(Error::from(wrong).in_tensor(found.name));
        }
        let block = self.block();
        let wrong = || ErrorKind::WrongScales {
            scales: scales(),
            block,
            expected: ScaleLayout::block_shape(weight, block),
            found: found.shape.into(),
        };
        Ok(Some(ScaleLayout::new(weight, found.shape, block).ok_or_else(wrong)?))
    }
}

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
    pub(crate) fn needed(&self, part: &[Positions]) -> Vec<Range<usize>> {
        let groups = part.iter().zip(&self.groups);
        groups.take(self.scale_ndim).map(|(part, &group)| blocks(part, group)).collect()
    }
}

/// The blocks of `group` positions from the first to the last that these positions touch.
fn blocks(part: &Positions, group: usize) -> Range<usize> {
    let first = part.start / group;
    first..part.end().div_ceil(group).max(first)
}

/// The scales of a weight, or of a part of one.
#[derive(Clone, Debug)]
pub(crate) struct Scales {
    values: Vec<f32>,
    /// The dimensions of the part, outermost first; at least one.
    dims: Vec<ScaledDim>,
    /// If the rows of the part are given one by one, their positions in the first dimension,
    /// counted from the part's first position.
    rows: Option<Vec<usize>>,
}

/// One dimension of a weight, or of a part of one.
#[derive(Clone, Copy, Debug)]
struct ScaledDim {
    len: usize,
    /// The distance between the positions of the weight that are neighbours in the part.
    step: usize,
    /// How many neighbouring positions of the weight share a scale.
    group: usize,
    /// The position of the part's first element, counted from the first group that `values` has.
    origin: usize,
    /// The distance between the scales of neighbouring groups.
    stride: usize,
}

impl Scales {
    /// The scales of this part of a weight. `values` are those that [`ScaleLayout::needed`] names;
    /// `None` if their number is another.
    pub(crate) fn of_part(
        layout: &ScaleLayout,
        part: &[Positions],
        values: Vec<f32>,
    ) -> Option<Self> {
        Self::new(layout, part, part, values)
    }

    /// The scales of this part of a weight. `values` are all scales of the weight; `None` if their
    /// number is another.
    pub(crate) fn of_weight(
        layout: &ScaleLayout,
        weight: &[usize],
        part: &[Positions],
        values: Vec<f32>,
    ) -> Option<Self> {
        Self::new(layout, part, &Positions::whole(weight), values)
    }

    /// The scales of `part`. `values` are the scales of the blocks that `held` touches.
    fn new(
        layout: &ScaleLayout,
        part: &[Positions],
        held: &[Positions],
        values: Vec<f32>,
    ) -> Option<Self> {
        let mut stride = 1;
        let mut dims: Vec<_> = part
            .iter()
            .zip(held)
            .zip(&layout.groups)
            .rev()
            .map(|((part, held), &group)| {
                let held = blocks(held, group);
                let origin = part.start - held.start * group;
                let dim = ScaledDim { len: part.count, step: part.step, group, origin, stride };
                stride *= held.len();
                dim
            })
            .collect();
        dims.reverse();
        if dims.is_empty() {
            dims.push(ScaledDim { len: 1, step: 1, group: 1, origin: 0, stride: 1 });
        }
        let is_empty = dims.iter().any(|dim| dim.len == 0);
        (is_empty || values.len() == stride).then_some(Self { values, dims, rows: None })
    }

    /// The scales of these rows of the part. `part` has the positions from the first of the rows to
    /// the last.
    pub(crate) fn of_rows(mut self, rows: &[usize], part: &[Positions]) -> Self {
        match &mut self.dims[..] {
            // All elements of a weight of one dimension have the same scale.
            [only] => {
                *only =
                    ScaledDim { len: rows.len(), step: 1, group: usize::MAX, origin: 0, ..*only }
            }
            [outer, ..] => {
                outer.len = rows.len();
                self.rows = Some(rows.iter().map(|row| row - part[0].start).collect());
            }
            [] => {}
        }
        self
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
            self.apply_to_row(inner, self.scales_before(outer, row), column, here);
            (row, column) = (row + 1, 0);
        }
    }

    /// Multiplies neighbouring elements of one row, from `column` on. The scales of the row begin
    /// at `start`.
    fn apply_to_row(&self, inner: ScaledDim, start: usize, column: usize, row: &mut [f32]) {
        let ScaledDim { step, group, origin, .. } = inner;
        let mut position = origin + column * step;
        let mut rest = row;
        while !rest.is_empty() {
            let here;
            let to_next_group = (group - position % group).div_ceil(step);
            (here, rest) = rest.split_at_mut(rest.len().min(to_next_group));
            let scale = self.values[start + position / group];
            // After the last element a large step may leave the numbers behind.
            position = position.saturating_add(here.len().saturating_mul(step));
            vectorized(|| here.iter_mut().for_each(|element| *element *= scale));
        }
    }

    /// The number of scales before a row's scales, whose number counts all outer dimensions.
    fn scales_before(&self, outer: &[ScaledDim], mut row: u64) -> usize {
        let mut scales = 0;
        for (number, dim) in outer.iter().enumerate().rev() {
            let position = (row % dim.len as u64) as usize;
            row /= dim.len as u64;
            let position = match &self.rows {
                Some(rows) if number == 0 => rows[position],
                _ => position * dim.step,
            };
            scales += (dim.origin + position) / dim.group * dim.stride;
        }
        scales
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scale of each element of a part, by the definition.
    fn by_definition(
        groups: &[usize],
        weight: &[usize],
        part: &[Positions],
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
            if position.iter().zip(part).all(|(&at, part)| part.contains(at)) {
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
            [(0..2, 1), (0..5, 1), (0..7, 1)],
            [(1..2, 1), (1..4, 1), (2..7, 1)],
            [(0..2, 1), (3..5, 1), (4..5, 1)],
            [(0..1, 1), (4..5, 1), (6..7, 1)],
            [(0..2, 1), (2..2, 1), (0..7, 1)],
            [(0..2, 1), (5..5, 1), (7..7, 1)],
            [(0..2, 1), (0..5, 2), (1..7, 2)],
            [(0..2, 2), (1..5, 3), (0..7, 4)],
            [(1..2, 7), (4..5, 9), (2..7, 5)],
        ];
        for part in parts {
            let part = part.map(|(range, step)| Positions {
                start: range.start,
                count: range.len().div_ceil(step),
                step,
            });
            let needed = layout.needed(&part);
            let mut values = Vec::new();
            for i in needed[0].clone() {
                for j in needed[1].clone() {
                    values.extend(needed[2].clone().map(|k| scale_of(&[i, j, k])));
                }
            }
            let all = (0..18).map(|i| scale_of(&[i / 9, i / 3 % 3, i % 3])).collect();
            let expected = by_definition(&[1, 2, 3], &weight, &part, scale_of);
            for scales in [
                Scales::of_part(&layout, &part, values).unwrap(),
                Scales::of_weight(&layout, &weight, &part, all).unwrap(),
            ] {
                // All at once, and from each element on.
                for first in 0..=expected.len() {
                    let mut elements = alloc::vec![1.0; expected.len() - first];
                    scales.apply(first as u64, &mut elements);
                    assert_eq!(elements, expected[first..], "{part:?} from {first}");
                }
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
    fn each_convention_has_its_name() {
        let names = |weight| names_of_scales(weight).collect::<Vec<_>>();
        assert_eq!(names("a.w"), ["a.w_scale_inv", "a.w_scale"]);
        let of_weight = ["a.weight_scale_inv", "a.weight_scale", "a.scale_weight"];
        assert_eq!(names("a.weight"), of_weight);
        assert_eq!(names("weight")[2], "scale_weight");
        assert_eq!(names("a.reweight").len(), 2);
    }

    #[test]
    fn each_element_of_rows_in_any_order_has_the_scale_of_its_block() {
        let (weight, rows) = ([5, 3, 4], [4, 1, 1, 3]);
        let layout = ScaleLayout::new(&weight, &[5, 2, 2], [2, 3]).unwrap();
        let all: Vec<f32> = (1..=20).map(|i| i as f32).collect();
        let part =
            [Positions { start: 1, count: 4, step: 1 }, Positions::all(3), Positions::all(4)];
        let expected: Vec<f32> = rows
            .iter()
            .flat_map(|row| (0..12).map(move |i| (row * 4 + i / 8 * 2 + i % 4 / 3 + 1) as f32))
            .collect();
        for scales in [
            Scales::of_part(&layout, &part, all[4..].to_vec()).unwrap(),
            Scales::of_weight(&layout, &weight, &part, all).unwrap(),
        ] {
            let scales = scales.of_rows(&rows, &part);
            for first in 0..expected.len() {
                let mut elements = alloc::vec![1.0; expected.len() - first];
                scales.apply(first as u64, &mut elements);
                assert_eq!(elements, expected[first..], "from {first}");
            }
        }
        // A weight of one dimension, of which there are more elements than it has.
        let (layout, part) = (ScaleLayout::new(&[2], &[1], [2, 2]).unwrap(), [Positions::all(2)]);
        let scales = Scales::of_part(&layout, &part, alloc::vec![3.0]).unwrap();
        let mut elements = [1.0; 5];
        scales.of_rows(&[1, 0, 1, 1, 0], &part).apply(0, &mut elements);
        assert_eq!(elements, [3.0; 5]);
    }

    #[test]
    fn values_of_another_number_are_refused() {
        let layout = ScaleLayout::new(&[4, 4], &[2, 2], [2, 2]).unwrap();
        let all = Positions::all(4);
        let rows = Positions { count: 2, ..all };
        assert!(Scales::of_part(&layout, &[all, all], alloc::vec![1.0; 3]).is_none());
        assert!(Scales::of_part(&layout, &[rows, all], alloc::vec![1.0; 2]).is_some());
        assert!(Scales::of_weight(&layout, &[4, 4], &[rows, all], alloc::vec![1.0; 2]).is_none());
    }
}
