//! Loads and saves `TensorData` of every dtype, owned and shared.
#![allow(unsafe_code, reason = "mapping a file is unsafe")]

use std::error::Error as _;
use std::sync::Arc;

use burn::tensor::quantization::QuantScheme;
use burn::tensor::{
    AllocationProperty, BoolStore, Bytes, DType, Device, Int, Tensor, TensorData, flex32,
};
use safetensors_burn::{Burn, load, save, share_checkpoint, share_tensor};
use safetensors_core::framework::Framework;
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, SaveOptions, TensorBuf, TensorView, Widening, serialize,
};

use crate::place;

/// A file of raw tensors.
fn file(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|&(name, dtype, shape, data)| (name, TensorView::new(dtype, shape, data).unwrap()));
    serialize(views, &SaveOptions::new()).unwrap()
}

#[test]
fn loaded_elements_are_moved_and_usable_as_vectors() {
    let values = vec![1.0_f32, 2.0, 3.0];
    let address = values.as_ptr();
    let buf = TensorBuf::from_vec(vec![3], values).unwrap();
    let data = Burn::from_buf(buf, &(), Widening::Refuse).unwrap();
    assert_eq!(data.as_bytes().as_ptr(), address.cast());
    let values = data.try_into_vec::<f32>().unwrap();
    assert_eq!(values.as_ptr(), address);
}

/// The suite of all adapters has the other ways to load such tensors.
#[test]
fn shared_dtypes_that_burn_lacks_are_widened_or_refused() {
    let bytes = [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0];
    let archive = in_memory(file(&[("t", Dtype::C64, &[1], &bytes)]));
    let widened = share_tensor(&archive, "t", Widening::Lossless).unwrap();
    assert_eq!(widened, TensorData::from([[1.0_f32, -2.0]]));
    let error = share_tensor(&archive, "t", Widening::Refuse).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldWiden { .. }), "{error}");
    assert_eq!(error.tensor(), Some("t"));
}

#[test]
fn booleans_are_saved_as_bool_however_they_are_stored() {
    let (_dir, path) = place("mask.safetensors");
    // These fill more than one buffer of the writer.
    let values: Vec<bool> = (0..10_000).map(|i| i % 3 == 0).collect();
    let native = TensorData::new(values.clone(), [10_000]);
    let as_u8: Vec<u8> = values.iter().map(|&value| if value { 255 } else { 0 }).collect();
    let as_u32: Vec<u32> = values.iter().map(|&value| if value { 1 << 16 } else { 0 }).collect();
    let stored =
        |bytes, store| TensorData::try_from_bytes(bytes, [10_000], DType::Bool(store)).unwrap();
    let u8s = stored(Bytes::from_elems(as_u8), BoolStore::U8);
    let u32s = stored(Bytes::from_elems(as_u32), BoolStore::U32);
    save(&path, [("native", &native), ("u8", &u8s), ("u32", &u32s)], &SaveOptions::new()).unwrap();
    for tensor in Checkpoint::open(&path).unwrap().tensors() {
        assert_eq!(tensor.dtype(), Dtype::BOOL, "{}", tensor.name());
    }
    for (name, data) in load(&path).unwrap() {
        assert_eq!(data, native, "{name}");
    }
}

#[test]
fn flex32_is_saved_as_f32() {
    let (_dir, path) = place("flex.safetensors");
    let data = TensorData::from([flex32::from_f32(1.25), flex32::from_f32(-3.0)]);
    assert_eq!(data.dtype(), DType::Flex32);
    save(&path, [("t", &data)], &SaveOptions::new()).unwrap();
    assert_eq!(load(&path).unwrap()["t"], TensorData::from([1.25_f32, -3.0]));
}

#[test]
fn tensors_that_could_not_be_read_back_are_not_saved() {
    let (dir, path) = place("model.safetensors");
    std::fs::write(&path, b"old").unwrap();

    let quantized =
        TensorData::quantized(vec![1_i8, 2, 3, 4], [4], QuantScheme::default(), &[0.5], None);
    let error = save(&path, [("weight", &quantized)], &SaveOptions::new()).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error.kind(), ErrorKind::UnsupportedFrameworkType { .. }), "{message}");
    let says = "model.safetensors: tensor \"weight\": the format has no dtype for burn elements of \
                type qfloat";
    assert!(message.contains(says), "{message}");

    let bytes = Bytes::from_elems(vec![0_u8, 1, 2]);
    let invalid = TensorData::try_from_bytes(bytes, [3], DType::Bool(BoolStore::Native)).unwrap();
    let error = save(&path, [("mask", &invalid)], &SaveOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidBool { index: 2, found: 2 }), "{error}");
    assert_eq!(error.tensor(), Some("mask"));

    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(dir.path().read_dir().unwrap().count(), 1);
}

fn in_memory(file: impl Into<bytes::Bytes>) -> Arc<Checkpoint<bytes::Bytes>> {
    Arc::new(Checkpoint::from_source(file.into(), "a file").unwrap())
}

#[test]
fn aligned_tensors_share_the_bytes_of_the_file() {
    let values = [1.0_f32, 2.0, 3.0, 4.0];
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let parsed = file(&[("w", Dtype::F32, &[2, 2], &raw), ("none", Dtype::I64, &[0], &[])]);
    // The file starts at each distance from a multiple of 8. So the tensor is aligned at some
    // distances and misaligned at others.
    let (mut shared, mut copied) = (0, 0);
    for distance in 0..8 {
        let mut padded = vec![0_u8; distance];
        padded.extend_from_slice(&parsed);
        let all = bytes::Bytes::from(padded);
        let archive = in_memory(all.slice(distance..));
        let view = archive.files()[0].safetensors().view("w").unwrap().data().as_ptr();
        let data = share_tensor(&archive, "w", Widening::Refuse).unwrap();
        if view.addr().is_multiple_of(4) {
            assert_eq!(data.as_bytes().as_ptr(), view);
            assert_eq!(data.bytes().property(), AllocationProperty::File);
            shared += 1;
        } else {
            assert_ne!(data.as_bytes().as_ptr(), view);
            copied += 1;
        }
        assert!(data.as_bytes().as_ptr().addr().is_multiple_of(4));
        // The backend computes with the tensor. It would panic on misaligned bytes.
        let sum = Tensor::<2>::from_data(data, &Device::default()).sum();
        assert_eq!(sum.into_scalar::<f32>(), 10.0);
        let none = share_tensor(&archive, "none", Widening::Refuse).unwrap();
        let none = Tensor::<1, Int>::from_data(none, (&Device::default(), DType::I64));
        assert_eq!(none.add_scalar(1).dims(), [0]);
    }
    assert_eq!((shared, copied), (2, 6));
}

#[test]
fn a_shared_tensor_outlives_its_archive_and_is_copied_when_written_to() {
    let raw: Vec<u8> = [1_i32, 2, 3].iter().flat_map(|value| value.to_le_bytes()).collect();
    let bytes = bytes::Bytes::from(file(&[("t", Dtype::I32, &[3], &raw)]));
    let archive = in_memory(bytes.clone());
    let mut data = share_tensor(&archive, "t", Widening::Refuse).unwrap();
    drop(archive);
    data.as_mut_slice::<i32>().unwrap()[0] = 9;
    assert_eq!(data, TensorData::from([9_i32, 2, 3]));
    assert!(bytes.ends_with(&raw), "the file in memory is as it was");
}

#[test]
fn a_mapped_checkpoint_lends_each_tensor_from_its_file_and_stays_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let one = TensorData::from([[1.5_f64, -0.0]]);
    let two = TensorData::from([true, false, true]);
    let empty = TensorData::new(Vec::<i64>::new(), [2, 0]);
    save(dir.path().join("a.safetensors"), [("one", &one)], &SaveOptions::new()).unwrap();
    let others = [("two", &two), ("empty", &empty)];
    save(dir.path().join("b.safetensors"), others, &SaveOptions::new()).unwrap();
    let index =
        r#"{"weight_map":{"one":"a.safetensors","two":"b.safetensors","empty":"b.safetensors"}}"#;
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    // SAFETY: nothing changes these files while they are mapped.
    let checkpoint = Arc::new(unsafe { Checkpoint::mmap(dir.path()) }.unwrap());
    let error = share_tensor(&checkpoint, "three", Widening::Refuse).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound), "{error}");
    assert!(error.source().is_none());
    let expected = [("one", &one, 0), ("two", &two, 1), ("empty", &empty, 1)];
    let shared = expected.map(|(name, expected, file)| {
        let data = share_tensor(&checkpoint, name, Widening::Refuse).unwrap();
        assert_eq!((data.dtype(), &data), (expected.dtype(), expected), "{name}");
        let mapped = checkpoint.files()[file].safetensors().source().as_ptr_range();
        assert_eq!(mapped.contains(&data.as_bytes().as_ptr()), name != "empty", "{name}");
        data
    });
    let all = share_checkpoint(&checkpoint, Widening::Refuse).unwrap();
    let all: Vec<_> = all.into_iter().map(|(name, data)| (name.to_owned(), data)).collect();
    // The tensors keep the mapping alive.
    drop(checkpoint);
    assert_eq!(all.len(), 3);
    for ((name, expected, _), shared) in expected.iter().zip(shared) {
        assert_eq!(shared.as_bytes(), expected.as_bytes(), "{name}");
        assert!(all.contains(&((*name).to_owned(), shared)), "{name}");
    }
}
