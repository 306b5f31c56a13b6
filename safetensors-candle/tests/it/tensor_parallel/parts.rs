//! Parts that candle's own backend does not know: any dimension, spans, parts of different length.

use candle_core::{DType, Device, Error, IndexOp};
use candle_nn::var_builder::Shard;
use safetensors_candle::IntoCore;
use safetensors_core::slice::{RankPart, TensorPart};
use safetensors_core::{Dtype, ErrorKind, LoadOptions, TensorBuf, Widening};

use super::{backend, backend_with, builder, counting, values};
use crate::common::{patterned, without_backtrace};

#[test]
fn any_dimension_can_be_cut() {
    let shape = [2, 3, 4, 5, 6];
    let (_dir, backend) = backend(&[("w", counting(&shape))]);
    let builder = builder(&backend, DType::F64);
    let whole = builder.get_unchecked("w").unwrap();
    for (dim, &world_size) in shape.iter().enumerate() {
        for rank in 0..world_size {
            let hint = Shard { dim, rank, world_size };
            let part = builder.get_with_hints(&shape[..], "w", hint).unwrap();
            let expected = whole.narrow(dim, rank, 1).unwrap();
            assert_eq!((part.dims(), part.dtype()), (expected.dims(), DType::F64));
            assert_eq!(values(&part), values(&expected));
        }
    }
}

#[test]
fn dimensions_ranks_and_positions_that_do_not_exist_are_errors() {
    let (_dir, backend) =
        backend(&[("w", counting(&[4, 6])), ("scalar", counting(&[])), ("odd", counting(&[5]))]);
    let of_ranks = builder(&backend, DType::F32);
    let spans = backend.clone().hints::<TensorPart>();
    let of_spans = builder(&spans, DType::F32);
    let shard = |dim, rank, world_size| Shard { dim, rank, world_size };
    type Check = fn(&ErrorKind) -> bool;
    let cases: [(&str, Shard, Check); 7] = [
        ("w", shard(2, 0, 2), |kind| matches!(kind, ErrorKind::NoSuchDim { dim: 2, ndim: 2 })),
        ("w", shard(usize::MAX, 0, 2), |kind| matches!(kind, ErrorKind::NoSuchDim { .. })),
        ("scalar", shard(0, 0, 2), |kind| matches!(kind, ErrorKind::NoSuchDim { ndim: 0, .. })),
        ("w", shard(0, 2, 2), |kind| matches!(kind, ErrorKind::NoSuchRank { .. })),
        ("w", shard(0, 1, 1), |kind| matches!(kind, ErrorKind::NoSuchRank { .. })),
        ("w", shard(0, 0, 0), |kind| matches!(kind, ErrorKind::NoSuchRank { .. })),
        ("odd", shard(0, 0, 2), |kind| {
            matches!(kind, ErrorKind::UnevenParts { dim: 0, len: 5, world_size: 2 })
        }),
    ];
    for (name, hint, is_expected) in cases {
        let error = of_ranks.get_with_hints((), name, hint).unwrap_err().into_core();
        assert!(is_expected(error.kind()), "{error}");
        assert_eq!(error.tensor(), Some(name));
        assert!(error.file().is_some_and(|file| file.ends_with("model.safetensors")));
    }
    for (dim, offset, len) in [(0, 3, 2), (1, 7, 0), (1, usize::MAX, 1), (0, 1, usize::MAX)] {
        let span = TensorPart::span(dim, offset, len);
        for error in [
            of_spans.get_with_hints((), "w", span).unwrap_err().into_core(),
            of_spans.get_with_hints((1, 1), "w", span).unwrap_err().into_core(),
            spans.prefetch([("w", span)], DType::F32, &Device::Cpu).unwrap_err(),
        ] {
            assert!(matches!(error.kind(), ErrorKind::IndexOutOfBounds { .. }), "{error}");
            assert_eq!(error.tensor(), Some("w"));
        }
    }
    // One rank has the whole of every tensor, scalars too.
    assert_eq!(values(&of_ranks.get((), "scalar").unwrap()), [0.0]);
    assert_eq!(of_ranks.get_with_hints((4, 6), "w", shard(7, 0, 1)).unwrap().dims(), [4, 6]);
}

#[test]
fn parts_of_different_length_are_explicit() {
    let (_dir, backend) = backend(&[("w", counting(&[2, 5]))]);
    let parts = builder(&backend.hints::<TensorPart>(), DType::F32);
    let last = RankPart::new(1, 1, 2);
    assert!(parts.get_with_hints((2, 5), "w", last.into()).is_err());
    let last = parts.get_with_hints((2, 5), "w", last.uneven().into()).unwrap();
    assert_eq!(values(&last), [3.0, 4.0, 8.0, 9.0]);
    let lens = [0, 1, 2, 3].map(|rank| {
        let part = RankPart::new(1, rank, 4).uneven().into();
        parts.get_with_hints((), "w", part).unwrap().dims()[1]
    });
    assert_eq!(lens, [2, 2, 1, 0]);
}

#[test]
fn spans_have_the_shape_of_the_span() {
    let (_dir, backend) = backend(&[("qkv", counting(&[8, 2])), ("experts", counting(&[4, 2, 3]))]);
    let builder = builder(&backend.hints::<TensorPart>(), DType::F32);
    let keys = builder.get_with_hints((2, 2), "qkv", TensorPart::span(0, 4, 2)).unwrap();
    assert_eq!(values(&keys), [8.0, 9.0, 10.0, 11.0]);
    let whole = builder.get((4, 2, 3), "experts").unwrap();
    let mine = builder.get_with_hints((2, 2, 3), "experts", TensorPart::span(0, 1, 2)).unwrap();
    assert_eq!(values(&mine), values(&whole.i(1..3).unwrap()));
    let middle = builder.get_with_hints((4, 2, 1), "experts", TensorPart::span(2, 1, 1)).unwrap();
    assert_eq!(values(&middle), values(&whole.i((.., .., 1..2)).unwrap()));
    let none = builder.get_with_hints((4, 0, 3), "experts", TensorPart::span(1, 2, 0)).unwrap();
    assert_eq!(none.dims(), [4, 0, 3]);

    let error = builder.get_with_hints((8, 2), "qkv", TensorPart::span(0, 4, 2)).unwrap_err();
    let error = without_backtrace(error);
    let Error::UnexpectedShape { msg, got, .. } = &error else { panic!("{error}") };
    assert!(got.dims() == [2, 2] && msg.contains("part"), "{error}");
}

#[test]
fn parts_are_widened_and_converted_like_whole_tensors() {
    let tensors = [
        ("mask", patterned(Dtype::BOOL, &[4, 6])),
        ("seeds", TensorBuf::from_vec(vec![2, 1], vec![u64::MAX, 7]).unwrap()),
        ("rope", patterned(Dtype::C64, &[4, 6])),
        ("fp4", patterned(Dtype::F4, &[4, 6])),
    ];
    let (_dir, whole) = backend(&tensors);
    let rows = builder(&whole, DType::U8);
    let last = Shard { dim: 0, rank: 1, world_size: 2 };
    let mask = rows.get_unchecked("mask").unwrap();
    let part = rows.get_with_hints((4, 6), "mask", last).unwrap();
    assert_eq!((part.dtype(), values(&part)), (DType::U8, values(&mask.i(2..).unwrap())));

    // Only the part is converted: a value elsewhere need not fit.
    let seed = rows.get_with_hints_dtype((2, 1), "seeds", last, DType::I64).unwrap();
    assert_eq!(seed.flatten_all().unwrap().to_vec1::<i64>().unwrap(), [7]);
    let first = Shard { rank: 0, ..last };
    let error = rows.get_with_hints_dtype((2, 1), "seeds", first, DType::I64).unwrap_err();
    assert!(matches!(error.into_core().kind(), ErrorKind::DoesNotFit { .. }));

    // Complex numbers become pairs, in each part.
    let rope = rows.get_with_hints_dtype((4, 6, 2), "rope", last, DType::F32).unwrap();
    assert_eq!(rope.dims(), [2, 6, 2]);
    let half = Shard { dim: 1, ..last };
    let fp4 = rows.get_with_hints_dtype((4, 6), "fp4", half, DType::F32).unwrap_err();
    // Half a row of packed elements begins inside a byte.
    assert!(matches!(fp4.into_core().kind(), ErrorKind::SliceInsideByte { .. }));

    let exact = LoadOptions::new().widening(Widening::Refuse);
    let (_dir, exact) = backend_with(&tensors, &exact);
    let error = builder(&exact, DType::U8).get_with_hints((4, 6), "mask", last).unwrap_err();
    assert!(matches!(error.into_core().kind(), ErrorKind::WouldWiden { .. }));
}
