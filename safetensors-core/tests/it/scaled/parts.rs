//! Parts of quantised weights, cut on block boundaries and inside blocks.

use safetensors_core::convert::{Converted, ScaledWeights};
use safetensors_core::slice::{RankPart, TensorPart};
use safetensors_core::{
    Checkpoint, ConvertOptions, Dtype, Limits, LoadOptions, SaveOptions, ShardOptions, TensorBuf,
    TensorView, save_sharded, serialize,
};
use safetensors_testing::read_at::NotingSource;

use super::{checkpoint, dequantize, dequantize_blocks, fixture, read_part};

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

#[test]
fn every_span_of_every_dimension_has_its_scales() {
    let weights = Checkpoint::open(fixture("small.safetensors")).unwrap();
    let options = dequantize_blocks(4, 8);
    for name in ["block", "experts", "channel", "vector", "tensor", "one", "row", "column", "exact"]
    {
        let whole = weights.read_named([name], &options).unwrap().remove(0);
        let mut parts = vec![TensorPart::Whole];
        for (dim, &len) in whole.shape().iter().enumerate() {
            for offset in 0..=len {
                parts.extend((0..=len - offset).map(|len| TensorPart::span(dim, offset, len)));
            }
        }
        let named = parts.iter().map(|&part| (name, part));
        let read = weights.read_parts(named, &options).unwrap();
        assert_eq!(read.len(), parts.len());
        for (part, read) in parts.into_iter().zip(read) {
            assert_eq!(read.shape(), part.shape(whole.shape()).unwrap(), "{name} {part:?}");
            assert_eq!(bits(&read), part_of(&whole, part), "{name} {part:?}");
            let alone = read_part(&weights, name, part, &options).unwrap();
            assert_eq!(bits(&alone), bits(&read), "{name} {part:?}");
        }
    }
}

#[test]
fn rows_in_any_order_have_their_scales() {
    let weights = Checkpoint::open(fixture("small.safetensors")).unwrap();
    let options = dequantize_blocks(4, 8);
    let converted =
        ConvertOptions::new().scale_block(4, 8).scaled_weights(ScaledWeights::Dequantize);
    for name in ["block", "experts", "channel", "vector", "tensor", "row", "column", "exact"] {
        let tensor = weights.tensor(name).unwrap();
        let whole = tensor.read_with(&options).unwrap();
        let count = whole.shape()[0];
        let whole = bits(&whole);
        let len = whole.len() / count;
        for numbers in [vec![count - 1], (0..count).rev().chain(0..count).collect(), vec![0; 9]] {
            let expected = numbers.iter().flat_map(|row| &whole[row * len..][..len]);
            let expected: Vec<u32> = expected.copied().collect();
            let rows = || tensor.rows(&numbers).unwrap();
            assert_eq!(bits(&rows().read_with(&options).unwrap()), expected, "{name}");
            let saved = Converted::new(rows(), Dtype::F32, &converted).unwrap();
            let file = serialize([("rows", saved)], &SaveOptions::new()).unwrap();
            let saved = Checkpoint::from_source(file, "file").unwrap();
            assert_eq!(bits(&saved.tensor("rows").unwrap().read().unwrap()), expected, "{name}");
        }
    }
}

/// A weight of several jobs, its scales, and the values by the definition.
fn large(rows: usize, columns: usize) -> (TensorBuf, TensorBuf, TensorBuf) {
    let code = |i: usize| ((i * 7 + i / columns) % 127) as u8;
    let codes: Vec<u8> = (0..rows * columns).map(code).collect();
    let shape = [rows, columns];
    let weight = TensorView::new(Dtype::F8_E4M3, &shape, &codes).unwrap();
    let weight = TensorBuf::from_view(&weight).unwrap();
    let grid = [rows.div_ceil(128), columns.div_ceil(128)];
    let scales: Vec<f32> = (0..grid[0] * grid[1]).map(|i| 1.0 + i as f32 / 64.0).collect();
    let values = weight
        .clone()
        .convert(Dtype::F32, &ConvertOptions::new())
        .unwrap()
        .into_vec::<f32>()
        .unwrap();
    let product = |(i, value): (usize, f32)| {
        let (row, column) = (i / columns, i % columns);
        value * scales[row / 128 * grid[1] + column / 128]
    };
    let products = values.into_iter().enumerate().map(product).collect();
    (
        weight,
        TensorBuf::from_vec(grid.to_vec(), scales.clone()).unwrap(),
        TensorBuf::from_vec(shape.to_vec(), products).unwrap(),
    )
}

#[test]
fn a_large_weight_is_read_in_pieces_by_several_threads() {
    let (weight, scales, expected) = large(700, 3001);
    let (_directory, checkpoint) =
        checkpoint(&[("w", weight), ("w_scale_inv", scales), ("bias", expected.clone())]);
    let parts = [
        TensorPart::Whole,
        RankPart::new(0, 1, 4).into(),
        RankPart::new(1, 2, 4).uneven().into(),
        TensorPart::span(0, 127, 500),
        TensorPart::span(1, 129, 2700),
        TensorPart::span(1, 3000, 1),
    ];
    for threads in [1, 3] {
        let options = dequantize().threads(threads);
        let named = parts.iter().map(|&part| ("w", part)).chain([("bias", TensorPart::Whole)]);
        let read = checkpoint.read_parts(named, &options).unwrap();
        for (&part, read) in parts.iter().zip(&read) {
            assert!(bits(read) == part_of(&expected, part), "{part:?}, {threads} threads");
        }
        assert!(bits(&read[parts.len()]) == bits(&expected), "a tensor without scales");
        // By way of a narrow dtype, in the same pieces.
        let narrow = options.floats_as(Dtype::BF16);
        let read = read_part(&checkpoint, "w", parts[4], &narrow).unwrap();
        let wide = read_part(&checkpoint, "w", parts[4], &dequantize()).unwrap();
        let rounded = wide.convert(Dtype::BF16, &ConvertOptions::new()).unwrap();
        assert!(read.bytes() == rounded.bytes());
    }
}

#[test]
fn scales_may_lie_in_another_file() {
    let (weight, scales, expected) = large(200, 300);
    let directory = tempfile::tempdir().unwrap();
    let tensors = [("w", &weight), ("w_scale_inv", &scales)];
    let options = ShardOptions::new().max_shard_size("1KB".parse().unwrap());
    let saved = save_sharded(directory.path(), tensors, &options).unwrap();
    assert_eq!(saved.files.len(), 2);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let read = checkpoint.read_named(["w"], &dequantize()).unwrap();
    assert_eq!(bits(&read[0]), bits(&expected));
    let scales = checkpoint.tensor("w").unwrap().scales().unwrap();
    assert_eq!(scales.name(), "w_scale_inv");
    assert_ne!(scales.file(), checkpoint.tensor("w").unwrap().file());
}

#[test]
fn only_the_needed_scales_are_read() {
    let (weight, scales, expected) = large(1024, 1024);
    let tensors = [("w", &weight), ("w_scale_inv", &scales)];
    let bytes = serialize(tensors, &SaveOptions::new()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    std::fs::write(&path, b"only the name counts").unwrap();
    let open = |_: &std::path::Path| Ok(NotingSource::new(bytes.clone()));
    let checkpoint = Checkpoint::open_by(&path, &Limits::default(), open).unwrap();
    let source = checkpoint.files()[0].safetensors().source();
    let start = |name: &str| checkpoint.tensor(name).unwrap().file_offset();
    let (weight, scales) = (start("w"), start("w_scale_inv"));
    source.take_reads();

    // Rows 200 to 299 lie in the second and third row of blocks.
    let part = TensorPart::span(0, 200, 100);
    let read = read_part(&checkpoint, "w", part, &dequantize()).unwrap();
    assert_eq!(bits(&read), part_of(&expected, part));
    let mut found = source.take_reads();
    found.sort_unstable();
    let mut needed = [(weight + 200 * 1024, 100 * 1024), (scales + 8 * 4, 2 * 8 * 4)];
    needed.sort_unstable();
    assert_eq!(found, needed);

    // Without scales nothing else is read.
    source.take_reads();
    let raw = LoadOptions::new().floats_as(Dtype::F32).scaled_weights(ScaledWeights::Raw);
    read_part(&checkpoint, "w", part, &raw).unwrap();
    assert_eq!(source.take_reads(), [(weight + 200 * 1024, 100 * 1024)]);
}
