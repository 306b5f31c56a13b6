//! Which bytes are read, when, and by whom.

use std::path::Path;

use candle_core::{DType, Device};
use candle_nn::var_builder::Shard;
use safetensors_candle::TensorParallelBackend;
use safetensors_core::slice::TensorPart;
use safetensors_core::{Checkpoint, Limits, LoadOptions, SaveOptions, serialize};
use safetensors_testing::read_at::NotingSource;

use super::{builder, counting, values};

use crate::common::place;

/// A backend over two tensors of 512 × 1024, and a way to ask how many bytes were read since the
/// last time.
fn counted() -> (TensorParallelBackend<'static>, impl Fn() -> u64) {
    let (up, down) = (counting(&[512, 1024]), counting(&[512, 1024]));
    let bytes = serialize([("up", &up), ("down", &down)], &SaveOptions::new()).unwrap();
    let (_dir, path) = place("model.safetensors");
    std::fs::write(&path, b"only the name counts").unwrap();
    let source = NotingSource::new(bytes);
    let open = |_: &Path| Ok(source.clone());
    let checkpoint = Checkpoint::open_by(&path, &Limits::default(), open).unwrap();
    let options = LoadOptions::new().threads(2);
    let backend = TensorParallelBackend::new_with(checkpoint, &options).unwrap();
    source.take_reads();
    (backend, move || source.take_len())
}

const ALL: u64 = 512 * 1024 * 4;

#[test]
fn only_the_bytes_of_the_rank_are_read() {
    let (backend, read) = counted();
    let ranks = builder(&backend, DType::F32);
    for dim in [0, 1] {
        for dtype in [DType::F32, DType::BF16] {
            let hint = Shard { dim, rank: 1, world_size: 4 };
            ranks.get_with_hints_dtype((512, 1024), "up", hint, dtype).unwrap();
            assert_eq!(read(), ALL / 4, "{hint:?} {dtype:?}");
        }
    }
    let spans = builder(&backend.hints::<TensorPart>(), DType::F32);
    spans.get_with_hints((512, 256), "up", TensorPart::span(1, 700, 256)).unwrap();
    assert_eq!(read(), ALL / 4);
    spans.get_with_hints((3, 1024), "up", TensorPart::span(0, 509, 3)).unwrap();
    assert_eq!(read(), 3 * 4096);
    spans.get_with_hints((512, 0), "up", TensorPart::span(1, 1024, 0)).unwrap();
    assert_eq!(read(), 0);
    // Shape, presence and place are known without reading.
    assert!(spans.get_with_hints((9, 9), "up", TensorPart::span(1, 0, 1)).is_err());
    assert!(spans.get_with_hints((), "up", TensorPart::span(2, 0, 1)).is_err());
    assert!(spans.contains_tensor("down"));
    assert_eq!(read(), 0);
    spans.get_unchecked("up").unwrap();
    assert_eq!(read(), ALL);
}

#[test]
fn prefetched_parts_are_handed_out_once() {
    let (backend, read) = counted();
    let hint = Shard { dim: 1, rank: 2, world_size: 4 };
    let other = Shard { rank: 3, ..hint };
    let parts = [("up", hint), ("down", hint), ("up", hint)];
    backend.prefetch(parts, DType::F32, &Device::Cpu).unwrap();
    assert_eq!(read(), 2 * ALL / 4, "a part that is named twice is read once");
    backend.prefetch(parts, DType::F32, &Device::Cpu).unwrap();
    assert_eq!(read(), 0, "what is held is not read again");

    let builder = builder(&backend, DType::F32);
    let part = builder.get_with_hints((512, 1024), "up", hint).unwrap();
    assert_eq!((read(), values(&part)[0]), (0, 512.0));
    builder.get_with_hints((512, 1024), "up", hint).unwrap();
    assert_eq!(read(), ALL / 4, "the second request reads");
    builder.get_with_hints((512, 1024), "down", other).unwrap();
    assert_eq!(read(), ALL / 4, "another part reads");
    builder.get_with_hints_dtype((512, 1024), "down", hint, DType::F16).unwrap();
    assert_eq!(read(), ALL / 4, "another dtype reads");
    assert!(builder.get_with_hints((1024, 512), "down", hint).is_err());
    builder.get_with_hints((512, 1024), "down", hint).unwrap();
    assert_eq!(read(), 0, "what was not asked for rightly is still there");

    // These are equal positions, in another form.
    let spans = backend.hints::<TensorPart>();
    spans.prefetch([("up", TensorPart::span(0, 0, 512))], DType::F32, &Device::Cpu).unwrap();
    read();
    crate::tensor_parallel::builder(&spans, DType::F32).get((512, 1024), "up").unwrap();
    assert_eq!(read(), 0);
}

#[test]
fn a_prefetch_that_fails_keeps_nothing() {
    let (backend, read) = counted();
    let hint = Shard { dim: 0, rank: 0, world_size: 2 };
    let cases = [("up", Shard { dim: 9, ..hint }), ("gone", hint)];
    for wrong in cases {
        let error = backend.prefetch([("up", hint), wrong], DType::F32, &Device::Cpu).unwrap_err();
        assert_eq!(error.tensor(), Some(wrong.0), "{error}");
        assert_eq!(read(), 0, "nothing is read either");
    }
    builder(&backend, DType::F32).get_with_hints((512, 1024), "up", hint).unwrap();
    assert_eq!(read(), ALL / 2);
}
