//! Parts of quantised weights, cut on block boundaries and inside blocks.

use safetensors_core::slice::{RankPart, TensorPart};

use super::{checkpoint, fp8, numbers};
use crate::support::*;

/// The elements of a part of a tensor of F32, one by one.
fn part_of(whole: &TensorBuf, part: TensorPart) -> Vec<u32> {
    let ranges = part.ranges(whole.shape()).unwrap();
    let values = whole.as_slice::<f32>().unwrap();
    let mut kept = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let mut rest = index;
        let inside = whole.shape().iter().zip(&ranges).rev().all(|(&len, range)| {
            let position = rest % len;
            rest /= len;
            range.contains(&position)
        });
        if inside {
            kept.push(value.to_bits());
        }
    }
    kept
}

fn bits(buf: &TensorBuf) -> Vec<u32> {
    buf.as_slice::<f32>().unwrap().iter().map(|value| value.to_bits()).collect()
}

/// Reads part of the tensor of this name.
fn read_part<S: ReadAt>(checkpoint: &Checkpoint<S>, name: &str, part: TensorPart) -> TensorBuf {
    checkpoint.tensor(name).unwrap().slice(part).unwrap().read().unwrap()
}

#[test]
fn every_span_of_every_dimension_has_its_scales() {
    let weights = numbers("small", [4, 8]);
    for name in ["block", "experts", "channel", "vector", "tensor", "one", "row", "column", "exact"]
    {
        let whole = weights.tensor(name).unwrap().read().unwrap();
        let mut parts = vec![TensorPart::Whole];
        for (dim, &len) in whole.shape().iter().enumerate() {
            for offset in 0..=len {
                parts.extend((0..=len - offset).map(|len| TensorPart::span(dim, offset, len)));
            }
        }
        let named = parts.iter().map(|&part| (name, part));
        let read = weights.read_parts(named, &LoadOptions::new()).unwrap();
        assert_eq!(read.len(), parts.len());
        for (part, read) in parts.into_iter().zip(read) {
            assert_eq!(read.shape(), part.shape(whole.shape()).unwrap(), "{name} {part:?}");
            assert_eq!(bits(&read), part_of(&whole, part), "{name} {part:?}");
            assert_eq!(bits(&read_part(&weights, name, part)), bits(&read), "{name} {part:?}");
        }
    }
}

/// A weight of several jobs, its scales, and the values by the definition.
fn large(rows: usize, columns: usize) -> (TensorBuf, TensorBuf, TensorBuf) {
    let code = |i: usize| ((i * 7 + i / columns) % 127) as u8;
    let codes: Vec<u8> = (0..rows * columns).map(code).collect();
    let shape = [rows, columns];
    let weight = fp8(&shape, &codes);
    let grid = [rows.div_ceil(128), columns.div_ceil(128)];
    let scales: Vec<f32> = (0..grid[0] * grid[1]).map(|i| 1.0 + i as f32 / 64.0).collect();
    let values = weight.clone().convert(Dtype::F32, &ConvertOptions::new()).unwrap();
    let product = |(i, value): (usize, f32)| {
        let (row, column) = (i / columns, i % columns);
        value * scales[row / 128 * grid[1] + column / 128]
    };
    let products = values.into_vec::<f32>().unwrap().into_iter().enumerate().map(product).collect();
    (
        weight,
        TensorBuf::from_vec(grid.to_vec(), scales.clone()).unwrap(),
        TensorBuf::from_vec(shape.to_vec(), products).unwrap(),
    )
}

#[test]
fn a_large_weight_is_read_in_pieces_by_several_threads() {
    let (weight, scales, expected) = large(700, 3001);
    let tensors = [("w", weight), ("w_scale_inv", scales), ("bias", expected.clone())];
    let (_directory, checkpoint) = checkpoint(&tensors);
    let numbers = checkpoint.dequantized().unwrap();
    let parts = [
        TensorPart::Whole,
        RankPart::new(0, 1, 4).into(),
        RankPart::new(1, 2, 4).uneven().into(),
        TensorPart::span(0, 127, 500),
        TensorPart::span(1, 129, 2700),
        TensorPart::span(1, 3000, 1),
    ];
    for threads in [1, 3] {
        let options = LoadOptions::new().threads(threads);
        let named = parts.iter().map(|&part| ("w", part)).chain([("bias", TensorPart::Whole)]);
        let read = numbers.read_parts(named, &options).unwrap();
        for (&part, read) in parts.iter().zip(&read) {
            assert!(bits(read) == part_of(&expected, part), "{part:?}, {threads} threads");
        }
        assert!(bits(&read[parts.len()]) == bits(&expected), "a tensor without scales");
        // By way of a narrow dtype, in the same pieces.
        let slice = numbers.tensor("w").unwrap().slice(parts[4]).unwrap();
        let narrow = slice.read_with(&options.floats_as(Dtype::BF16)).unwrap();
        let wide = slice.read().unwrap().convert(Dtype::BF16, &ConvertOptions::new()).unwrap();
        assert!(narrow.bytes() == wide.bytes());
    }
}

#[test]
fn scales_may_be_in_another_file() {
    let (weight, scales, expected) = large(200, 300);
    let directory = tempdir().unwrap();
    let tensors = [("w", &weight), ("w_scale_inv", &scales)];
    let options = ShardOptions::new().max_shard_size("1KB".parse().unwrap());
    let saved = save_sharded(directory.path(), tensors, &options).unwrap();
    assert_eq!(saved.files.len(), 2);
    let numbers = Checkpoint::open(directory.path()).unwrap().dequantized().unwrap();
    assert_eq!(bits(&numbers.tensor("w").unwrap().read().unwrap()), bits(&expected));
}
