//! Slices of a tensor in memory and in a file, compared with a loop over all positions.

use std::ops::Range;

use safetensors_core::failpoint::{Selected, select};
use safetensors_core::slice::{Index, RankPart, TensorPart};
use safetensors_core::{Dtype, ErrorKind, SafeTensors, SaveOptions, TensorView, serialize, shape};

use crate::input::Input;
use crate::tensors;

/// Checks one input.
pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let dtype = input.one_of(Dtype::ALL);
    let mut dims = tensors::dims(&mut input, 6);
    if input.below(8) == 7 {
        // Any shape may come from a header; only its bytes have to be there.
        dims.push(input.u64() as usize);
    }
    let indices = indices(&mut input, &dims);
    let selected = select(dtype, &dims, &indices);
    let len = match shape::byte_len(dtype, &dims) {
        Ok(len) => len,
        Err(_) => return assert!(selected.is_err()),
    };
    if len > 1 << 14 || dims.iter().any(|&dim| dim > 1 << 14) {
        // Too much to go through position by position.
        if let Ok((_, byte_len, runs)) = selected {
            assert!(byte_len <= len);
            assert!(runs.first().is_none_or(|run| run.start < run.end));
        }
        return;
    }
    let mut data = input.filled(len as usize);
    if dtype == Dtype::BOOL {
        data.iter_mut().for_each(|byte| *byte &= 1);
    }
    let view = TensorView::new(dtype, &dims, &data).unwrap();
    let expected = model(&view, &indices);
    is_as_expected(&view, &indices, selected, expected.as_ref());
    one_dimension(&mut input, &view);
}

/// Takes indices: one for each dimension, or a few more or less; positions near the ends.
fn indices(input: &mut Input<'_>, dims: &[usize]) -> Vec<Index> {
    let count = input.below(dims.len() + 2);
    let position = |input: &mut Input<'_>, len: usize| match input.below(16) {
        0 => isize::MIN,
        1 => isize::MAX,
        2 => input.u64() as isize,
        3 => (len as isize).wrapping_neg(),
        4 => len as isize,
        _ => input.below(2 * len.min(60) + 5) as isize - len.min(60) as isize - 2,
    };
    (0..count)
        .map(|i| {
            let len = dims.get(i).copied().unwrap_or(1);
            match input.below(5) {
                0 => Index::ALL,
                1 => Index::At(position(input, len)),
                kind => Index::Range {
                    start: (kind != 2).then(|| position(input, len)),
                    end: (kind != 3).then(|| position(input, len)),
                    step: match input.below(8) {
                        6 => input.u64() as usize,
                        step => step + usize::from(step < 6),
                    },
                },
            }
        })
        .collect()
}

/// A slice, position by position.
struct Model {
    shape: Vec<usize>,
    /// The positions of the elements, in order.
    elements: Vec<u64>,
}

/// Returns the positions that an index takes of a dimension, and whether the dimension stays;
/// `None` if it takes one that is not there.
fn positions(index: Index, len: usize) -> Option<(Vec<usize>, bool)> {
    let from_start = |at: isize| {
        let at = if at < 0 { at as i128 + len as i128 } else { at as i128 };
        (0..=len as i128).contains(&at).then_some(at as usize)
    };
    match index {
        Index::At(at) => {
            let at = from_start(at).filter(|&at| at < len)?;
            Some((vec![at], false))
        }
        Index::Range { step: 0, .. } => None,
        Index::Range { start, end, step } => {
            let start = start.map_or(Some(0), from_start)?;
            let end = end.map_or(Some(len), from_start)?;
            (start <= end).then(|| ((start..end).step_by(step).collect(), true))
        }
    }
}

fn model(view: &TensorView<'_>, indices: &[Index]) -> Option<Model> {
    let dims = view.shape();
    if indices.len() > dims.len() {
        return None;
    }
    let (mut shape, mut elements) = (Vec::new(), vec![0_u64]);
    for (dim, &len) in dims.iter().enumerate() {
        let index = indices.get(dim).copied().unwrap_or(Index::ALL);
        let (taken, stays) = positions(index, len)?;
        if stays {
            shape.push(taken.len());
        }
        let further = |element: u64| taken.iter().map(move |&at| element * len as u64 + at as u64);
        elements = elements.into_iter().flat_map(further).collect();
    }
    Some(Model { shape, elements })
}

impl Model {
    /// Returns the fewest runs of bits that hold the elements in order.
    fn runs(&self, dtype: Dtype) -> Vec<Range<u64>> {
        let bits = u64::from(dtype.bits());
        let mut runs: Vec<Range<u64>> = Vec::new();
        for &element in &self.elements {
            let start = element * bits;
            match runs.last_mut() {
                Some(last) if last.end == start => last.end += bits,
                _ => runs.push(start..start + bits),
            }
        }
        runs
    }
}

fn is_as_expected(
    view: &TensorView<'_>,
    indices: &[Index],
    selected: Result<Selected, ErrorKind>,
    expected: Option<&Model>,
) {
    let Some(expected) = expected else {
        let error = selected.unwrap_err();
        return assert!(
            matches!(
                error,
                ErrorKind::TooManyIndices { .. }
                    | ErrorKind::IndexOutOfBounds { .. }
                    | ErrorKind::ZeroStep { .. }
            ),
            "{error}"
        );
    };
    let runs = expected.runs(view.dtype());
    let bytes: Option<Vec<Range<u64>>> = runs
        .iter()
        .map(|run| {
            let whole = run.start.is_multiple_of(8) && run.end.is_multiple_of(8);
            whole.then_some(run.start / 8..run.end / 8)
        })
        .collect();
    let (shape, byte_len, runs) = match (selected, bytes) {
        (Ok(selection), Some(bytes)) => {
            assert_eq!(selection.2, bytes);
            selection
        }
        (Err(error), None) => {
            return assert!(matches!(error, ErrorKind::SliceInsideByte { .. }), "{error}");
        }
        (found, expected) => panic!("{found:?}, expected the runs {expected:?}"),
    };
    assert_eq!(shape, expected.shape);
    let data: Vec<u8> = runs
        .iter()
        .flat_map(|run| &view.data()[run.start as usize..run.end as usize])
        .copied()
        .collect();
    assert_eq!(byte_len, data.len() as u64);

    let slice = view.slice(indices).unwrap();
    assert_eq!(slice.to_buf().unwrap().bytes(), data);
    let saved = serialize([("s", slice)], &SaveOptions::new()).unwrap();
    let saved = SafeTensors::parse(saved).unwrap();
    let again = saved.view("s").unwrap();
    assert_eq!((again.shape(), again.data()), (&expected.shape[..], &data[..]));
    from_a_file(view, indices, &data);
}

/// Reads the slice from a file, with runs fetched one by one or several together.
fn from_a_file(view: &TensorView<'_>, indices: &[Index], data: &[u8]) {
    let before = TensorView::from_slice(&[3], &[1_u8, 2, 3]).unwrap();
    let options = SaveOptions::new().order(safetensors_core::save::Order::Given);
    let file = serialize([("before", before), ("t", *view)], &options).unwrap();
    let file = SafeTensors::from_source(file).unwrap();
    let tensor = file.tensor("t").unwrap();
    for gap in [0, 3, 512] {
        let slice = tensor.slice(indices).unwrap().max_gap(gap);
        assert_eq!(slice.byte_len(), data.len() as u64);
        assert_eq!(slice.read().unwrap().bytes(), data);
        let saved = serialize([("s", slice)], &SaveOptions::new()).unwrap();
        assert_eq!(SafeTensors::parse(saved).unwrap().view("s").unwrap().data(), data);
    }
}

/// Checks that `narrow` and `shard` are ranges of a dimension.
fn one_dimension(input: &mut Input<'_>, view: &TensorView<'_>) {
    let (dim, start, len) = (input.below(8), input.below(10), input.below(10));
    let narrowed = view.slice(TensorPart::span(dim, start, len));
    if dim >= view.shape().len() {
        assert!(matches!(narrowed.unwrap_err().kind(), ErrorKind::NoSuchDim { .. }));
    } else {
        let mut indices = vec![Index::ALL; dim];
        indices.push((start..start + len).into());
        match (narrowed, view.slice(indices)) {
            (Ok(narrowed), Ok(slice)) => assert!(narrowed.runs().eq(slice.runs())),
            (Err(narrowed), Err(slice)) => assert_eq!(narrowed.to_string(), slice.to_string()),
            (narrowed, slice) => panic!("{narrowed:?}, {slice:?}"),
        }
    }

    let (rank, world_size) = (input.below(6), input.below(6));
    let mut shard = RankPart::new(dim, rank, world_size);
    if input.flag() {
        shard = shard.uneven();
    }
    // The parts of all ranks, one after the other, are the dimension.
    let range_of = |shard: RankPart| {
        let ranges = TensorPart::from(shard).ranges(view.shape())?;
        Ok::<_, ErrorKind>(ranges[dim].clone())
    };
    if let Ok(range) = range_of(shard) {
        assert!(rank < world_size);
        let mut end = 0;
        for rank in 0..world_size {
            let part = range_of(RankPart { rank, ..shard }).unwrap();
            assert_eq!(part.start, end);
            end = part.end;
        }
        assert_eq!(end, view.shape()[dim]);
        assert!(range.end <= end);
        let _ = view.slice(shard);
    }
}
