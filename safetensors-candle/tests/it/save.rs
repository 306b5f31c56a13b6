//! Saves candle tensors of every layout, also of shared and partial storages. Tests which tensors
//! are refused.

use std::collections::BTreeMap;

use crate::common::{place, read_bufs, save_tensors, unchecked};
use candle_core::{CpuStorage, DType, Device, Tensor, Var};
use safetensors_candle::Candle;
use safetensors_core::error::TieProblem;
use safetensors_core::framework::Framework;
use safetensors_core::tied::{Tied, Views};
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, Metadata, Result, SaveOptions, TensorBuf, TensorSource,
};
use safetensors_testing::tensors::file_bytes;

/// Returns the pieces of bytes that a source writes.
fn pieces(tensor: &Tensor) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let source = Candle::source(tensor).unwrap();
    source
        .write_to(&mut |bytes| {
            pieces.push(bytes.to_vec());
            Ok(())
        })
        .unwrap();
    pieces
}

fn iota(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    Tensor::arange(0, count as i64, &Device::Cpu).unwrap().reshape(shape).unwrap()
}

/// Checks, for elements of each width, that a layout is written as the values that candle itself
/// reads from it.
fn check(name: &str, layout: impl Fn(&Tensor) -> Tensor, shape: &[usize]) {
    let (_dir, path) = place("a.safetensors");
    for dtype in [
        DType::U8,
        DType::F8E4M3,
        DType::I16,
        DType::BF16,
        DType::F16,
        DType::U32,
        DType::F32,
        DType::I64,
        DType::F64,
    ] {
        let strided = layout(&iota(shape).to_dtype(dtype).unwrap());
        save_tensors(&path, &[("t", &strided)]).unwrap();
        let loaded = &safetensors_candle::load(&path, &Device::Cpu).unwrap()["t"];
        assert_eq!(loaded.dims(), strided.dims(), "{name} {dtype:?}");
        assert!(loaded.is_contiguous());
        let values = |tensor: &Tensor| {
            tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(values(loaded), values(&strided), "{name} {dtype:?}");
    }
}

#[test]
fn every_layout_is_written_in_c_order() {
    check("transposed", |t| t.t().unwrap(), &[3, 5]);
    check("permuted", |t| t.permute((2, 0, 1)).unwrap(), &[2, 3, 4]);
    check("inner transposed", |t| t.transpose(1, 2).unwrap(), &[2, 3, 4]);
    check("outer transposed", |t| t.transpose(0, 1).unwrap(), &[2, 3, 4]);
    check("rows", |t| t.narrow(0, 1, 2).unwrap(), &[4, 3]);
    check("columns", |t| t.narrow(1, 1, 2).unwrap(), &[4, 3]);
    check("narrowed and transposed", |t| t.narrow(0, 1, 2).unwrap().t().unwrap(), &[4, 3]);
    check("broadcast outside", |t| t.broadcast_as((3, 2, 4)).unwrap(), &[2, 4]);
    check("broadcast inside", |t| t.broadcast_as((2, 5, 4)).unwrap(), &[2, 1, 4]);
    check("broadcast scalar", |t| t.broadcast_as((2, 3)).unwrap(), &[]);
    check("ones in the shape", |t| t.transpose(0, 2).unwrap(), &[1, 4, 1]);
    check("scalar", Tensor::clone, &[]);
    check("empty", |t| t.t().unwrap(), &[3, 0]);
    check("empty part", |t| t.narrow(0, 2, 0).unwrap(), &[3, 2]);
    // These fill more than one gather buffer: first by single elements, then by blocks.
    check("large transposed", |t| t.t().unwrap(), &[301, 307]);
    check("large columns", |t| t.narrow(1, 3, 290).unwrap(), &[301, 307]);
}

#[test]
fn memory_of_strided_tensors_is_bounded() {
    let tensor = iota(&[600, 400]);
    let sizes: Vec<usize> = pieces(&tensor.t().unwrap()).iter().map(Vec::len).collect();
    assert!(sizes.len() > 1 && sizes.iter().all(|&size| size <= 256 << 10), "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), 600 * 400 * 8);
    // Long blocks need no buffer.
    let blocks = iota(&[2, 2, 1 << 16]).narrow(1, 0, 1).unwrap();
    assert_eq!(pieces(&blocks).iter().map(Vec::len).collect::<Vec<_>>(), [8 << 16, 8 << 16]);
}

#[test]
fn contiguous_tensors_are_written_without_a_copy() {
    let tensor = iota(&[10, 10]);
    let rows = tensor.narrow(0, 2, 3).unwrap();
    let (storage, _) = tensor.storage_and_layout();
    let candle_core::Storage::Cpu(CpuStorage::I64(values)) = &*storage else {
        panic!("{storage:?}")
    };
    let expected = values[20..50].as_ptr_range();
    let mut seen = Vec::new();
    let source = Candle::source(&rows).unwrap();
    source
        .write_to(&mut |bytes| {
            seen.push(bytes.as_ptr_range());
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, [expected.start.cast()..expected.end.cast()]);
}

#[test]
fn a_source_does_not_hold_the_lock_of_its_storage() {
    let variable = Var::from_tensor(&iota(&[2])).unwrap();
    let source = Candle::source(variable.as_tensor()).unwrap();
    // This takes the lock for writing: it would wait forever if the source held it.
    variable.set(&Tensor::new(&[7_i64, 8], &Device::Cpu).unwrap()).unwrap();
    assert_eq!(file_bytes(&source), [7_i64.to_le_bytes(), 8_i64.to_le_bytes()].concat());
}

#[test]
fn raw_bytes_of_exponents_can_be_strided() {
    let tensor = unchecked(CpuStorage::F8E8M0(vec![1, 2, 3, 4, 5, 6]), &[2, 3]);
    assert_eq!(pieces(&tensor).concat(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(pieces(&tensor.t().unwrap()).concat(), [1, 4, 2, 5, 3, 6]);
}

#[test]
fn only_entire_packed_tensors_are_written() {
    let (_dir, path) = place("a.safetensors");
    let cases = [
        (CpuStorage::F4(vec![1, 2, 3, 4, 5, 6, 7, 8]), Dtype::F4, [2, 8]),
        (CpuStorage::F6E2M3(vec![1, 2, 3, 4, 5, 6]), Dtype::F6_E2M3, [2, 4]),
        (CpuStorage::F6E3M2(vec![1, 2, 3, 4, 5, 6]), Dtype::F6_E3M2, [2, 4]),
    ];
    for (storage, dtype, shape) in cases {
        let whole = unchecked(storage, &shape);
        save_tensors(&path, &[("w", &whole)]).unwrap();
        let saved = &read_bufs(&path)["w"];
        assert_eq!((saved.dtype(), saved.shape()), (dtype, &shape[..]));
        let before = std::fs::read(&path).unwrap();

        let error = save_tensors(&path, &[("w.t", &whole.t().unwrap())]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Framework { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains("\"w.t\": candle: ") && message.contains("contiguous"), "{error}");
        for start in [0, 1] {
            let row = whole.narrow(0, start, 1).unwrap();
            let error = save_tensors(&path, &[("w.row", &row)]).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::DataLength { .. }), "{error}");
            assert_eq!((error.tensor(), error.file()), (Some("w.row"), path.to_str()));
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}

#[test]
fn a_storage_that_is_too_short_is_an_error() {
    let (_dir, path) = place("a.safetensors");
    let short = unchecked(CpuStorage::F32(vec![1.0, 2.0, 3.0]), &[2, 2]);
    for tensor in [&short, &short.t().unwrap()] {
        let error = save_tensors(&path, &[("short", tensor)]).unwrap_err();
        let ErrorKind::DataLength { expected, found, .. } = error.kind() else { panic!("{error}") };
        assert_eq!((error.tensor(), *expected, *found), (Some("short"), 16, 12));
    }
    assert!(!path.exists());
}

/// Saves tensors with [`SaveOptions::tied`]. Returns the tensors and the metadata of the file.
fn save_tied(
    tensors: &[(&str, &Tensor)],
    tied: Tied,
) -> Result<(BTreeMap<String, TensorBuf>, Metadata)> {
    let (_dir, path) = place("a.safetensors");
    let options = SaveOptions::new().durable(false).tied(tied);
    safetensors_candle::save(&path, tensors.iter().copied(), &options)?;
    Ok((read_bufs(&path), Checkpoint::open(&path).unwrap().metadata().clone()))
}

#[test]
fn tensors_of_one_storage_are_saved_once() {
    let weight = iota(&[2, 3]);
    // Also variables, and elements that candle stores as bytes.
    let variable = Var::from_tensor(&weight).unwrap();
    let tensors = [("a", variable.as_tensor()), ("b", &variable.as_detached_tensor())];
    assert_eq!(save_tied(&tensors, Tied::new()).unwrap().0.len(), 1);
    for storage in [CpuStorage::F8E8M0(vec![1, 2]), CpuStorage::F4(vec![1, 2])] {
        let elements = if matches!(storage, CpuStorage::F4(_)) { 4 } else { 2 };
        let tensor = unchecked(storage, &[elements]);
        let (bufs, _) = save_tied(&[("a", &tensor), ("b", &tensor.clone())], Tied::new()).unwrap();
        assert_eq!(bufs.len(), 1);
    }
}

#[test]
fn other_views_of_one_storage_are_refused_or_saved_apart() {
    let square = iota(&[4, 4]);
    let views = [
        ("rows", square.narrow(0, 1, 2).unwrap()),
        ("columns", square.narrow(1, 1, 2).unwrap()),
        ("transposed", square.t().unwrap()),
        ("flat", square.flatten_all().unwrap()),
        ("repeated", square.narrow(0, 0, 1).unwrap().broadcast_as((4, 4)).unwrap()),
    ];
    for (name, view) in &views {
        let tensors = [("whole", &square), (*name, view), ("again", view)];
        let error = save_tied(&tensors, Tied::new()).unwrap_err();
        let ErrorKind::Tie { problem } = error.kind() else { panic!("{error}") };
        assert!(matches!(problem, TieProblem::PartlyTied { .. }), "{error}");

        let (bufs, _) = save_tied(&tensors, Tied::new().views(Views::Save)).unwrap();
        // A view under two names is one tensor only if it is contiguous.
        assert_eq!(bufs.len(), if view.is_contiguous() { 2 } else { 3 }, "{name}");
        assert_eq!(bufs["again"].bytes(), pieces(view).concat(), "{name}");
        assert_eq!(bufs["whole"].as_slice::<i64>().unwrap(), (0..16).collect::<Vec<_>>());
        // Saved alone, a view must cover its whole storage: only two of these do.
        let alone = save_tied(&[(name, view)], Tied::new());
        match *name {
            "flat" | "transposed" => assert_eq!(alone.unwrap().0.len(), 1, "{name}"),
            _ => {
                let error = alone.unwrap_err();
                let ErrorKind::Tie { problem } = error.kind() else { panic!("{error}") };
                assert!(matches!(problem, TieProblem::NotCovered { .. }), "{name}: {error}");
            }
        }
    }
    let (bufs, metadata) =
        save_tied(&[("whole", &square), ("rows", &views[0].1)], Tied::new().views(Views::Drop))
            .unwrap();
    assert_eq!((bufs.len(), metadata["rows"].as_str()), (1, "whole"));
    // Two halves of equal length are two tensors.
    let [first, second] = [0, 2].map(|at| square.narrow(0, at, 2).unwrap());
    let halves = [("first", &first), ("second", &second)];
    let (bufs, _) = save_tied(&halves, Tied::new().views(Views::Save)).unwrap();
    assert_eq!(bufs["second"].as_slice::<i64>().unwrap(), (8..16).collect::<Vec<_>>());
}
