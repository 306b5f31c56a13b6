//! Equal bits to candle's own `ShardedSafeTensors`, and equal errors where it has some.
#![allow(unsafe_code, reason = "candle's own loader maps the file")]

use candle_core::{DType, Device, Error};
use candle_nn::var_builder::{Shard, ShardedSafeTensors};
use safetensors_candle::{IntoCore, from_candle_dtype, to_candle_dtype};
use safetensors_core::{Dtype, ErrorKind};

use super::{backend, builder};
use crate::common::{bytes, patterned, place, save_bufs, without_backtrace};

/// The dtypes that both load. candle's own loader takes no other dtypes.
const DTYPES: [Dtype; 10] = [
    Dtype::U8,
    Dtype::U32,
    Dtype::I16,
    Dtype::I32,
    Dtype::I64,
    Dtype::BF16,
    Dtype::F16,
    Dtype::F32,
    Dtype::F64,
    Dtype::F8_E4M3,
];

#[test]
fn every_dtype_equals_candles_part_in_both_dimensions_for_every_rank() {
    let (_dir, path) = place("model.safetensors");
    let tensors = DTYPES.map(|dtype| (dtype.name(), patterned(dtype, &[12, 8, 3])));
    save_bufs(&path, &tensors);
    let ours =
        safetensors_candle::tensor_parallel_var_builder(&path, DType::F32, &Device::Cpu).unwrap();
    // SAFETY: nothing changes the file while it is mapped.
    let theirs = unsafe { ShardedSafeTensors::var_builder(&[&path], DType::F32, &Device::Cpu) };
    let theirs = theirs.unwrap();
    for dtype in DTYPES {
        let (name, dtype) = (dtype.name(), to_candle_dtype(dtype).unwrap());
        assert_eq!(from_candle_dtype(dtype).unwrap().name(), name);
        for (dim, world_size) in [(0, 2), (0, 3), (0, 12), (1, 2), (1, 8), (0, 1), (1, 1)] {
            for rank in 0..world_size {
                let hint = Shard { dim, rank, world_size };
                let ours = ours.get_with_hints_dtype((12, 8, 3), name, hint, dtype).unwrap();
                let theirs = theirs.get_with_hints_dtype((12, 8, 3), name, hint, dtype).unwrap();
                assert_eq!(ours.dims(), theirs.dims(), "{name} {hint:?}");
                assert!(bytes(&ours) == bytes(&theirs), "{name} {hint:?}");
            }
        }
    }
    // Converted on the way: candle's own rounds F64 to F32 as we do.
    let hint = Shard { dim: 1, rank: 1, world_size: 2 };
    for name in ["BF16", "F16", "I16", "U8"] {
        let ours = ours.get_with_hints((12, 8, 3), name, hint).unwrap();
        let theirs = theirs.get_with_hints((12, 8, 3), name, hint).unwrap();
        assert!(bytes(&ours) == bytes(&theirs), "{name}");
    }
}

/// candle's backend does not look at the shape of a part. So some models ask with the shape of the
/// whole tensor, others with the part's, and others without one.
#[test]
fn a_part_may_be_requested_with_either_shape_or_none() {
    let (dir, backend) = backend(&[("weight", crate::tensor_parallel::counting(&[4, 6]))]);
    let path = dir.path().join("model.safetensors");
    // SAFETY: nothing changes the file while it is mapped.
    let theirs = unsafe { ShardedSafeTensors::var_builder(&[path], DType::F32, &Device::Cpu) };
    let (ours, theirs) = (builder(&backend, DType::F32), theirs.unwrap());
    for (dim, part) in [(0, [2, 6]), (1, [4, 3])] {
        for rank in 0..2 {
            let hint = Shard { dim, rank, world_size: 2 };
            for shape in [&[4, 6][..], &part, &[]] {
                let (ours, theirs) = (
                    ours.get_with_hints(shape, "weight", hint).unwrap(),
                    theirs.get_with_hints(shape, "weight", hint).unwrap(),
                );
                assert_eq!((ours.dims(), bytes(&ours)), (theirs.dims(), bytes(&theirs)));
            }
        }
    }
    // The shape that the part would have does not exist.
    let uneven = Shard { dim: 0, rank: 0, world_size: 3 };
    let error = ours.get_with_hints((2, 6), "weight", uneven).unwrap_err();
    assert!(matches!(error.into_core().kind(), ErrorKind::UnevenParts { .. }));
}

#[test]
fn a_missing_tensor_or_another_shape_is_candles_error() {
    let (_dir, backend) = backend(&[("weight", crate::tensor_parallel::counting(&[4, 6]))]);
    let builder = builder(&backend, DType::F32);
    let whole = Shard::default();
    let half = Shard { dim: 0, rank: 1, world_size: 2 };
    for hint in [whole, half] {
        let error = without_backtrace(builder.get_with_hints((4, 6), "gone", hint).unwrap_err());
        let Error::CannotFindTensor { path } = &error else { panic!("{error}") };
        assert!(path.starts_with("gone in ") && path.contains("model.safetensors"), "{path}");
        for shape in [(3, 6), (6, 4)] {
            let error =
                without_backtrace(builder.get_with_hints(shape, "weight", hint).unwrap_err());
            let Error::UnexpectedShape { msg, expected, got } = &error else { panic!("{error}") };
            assert_eq!((expected.dims(), got.dims()), (&[shape.0, shape.1][..], &[4, 6][..]));
            assert!(msg.contains("weight") && msg.contains("model.safetensors"), "{msg}");
            assert_eq!(msg.contains("[2, 6]"), hint.world_size == 2, "{msg}");
        }
    }
    assert!(builder.get((), "weight").is_err(), "only a part may be asked for without a shape");
    assert!(builder.get_unchecked("gone").is_err());
    assert!(builder.contains_tensor("weight") && !builder.contains_tensor("gone"));
}
