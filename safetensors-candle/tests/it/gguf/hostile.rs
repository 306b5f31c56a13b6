//! Files that are damaged, or have content that candle cannot hold.

use std::io::Read;

use candle_core::Device;
use candle_core::quantized::GgmlDType::{F32, Q8_0};
use candle_core::quantized::gguf_file::Value;
use safetensors_candle::gguf::GgufFile;
use safetensors_core::{ErrorKind, SaveOptions, TensorView, serialize};
use safetensors_testing::read_at::NotingSource;

use super::{assert_same, of_bytes, open, quantised, written};

use crate::common::place;

/// Returns two tensors. The second has another type in the file.
fn with_type(id: u32) -> (Vec<u8>, candle_core::quantized::QTensor) {
    let (first, second) = (quantised(Q8_0, &[4, 256]), of_bytes(F32, &[64, 256]));
    let mut bytes = written(&[], &[("first", &first), ("second", &second)]);
    let name = bytes.windows(6).position(|text| text == b"second").unwrap();
    // After the name: the number of dimensions, two dimensions, the type.
    let place = name + 6 + 4 + 16;
    bytes[place..place + 4].copy_from_slice(&id.to_le_bytes());
    (bytes, first)
}

#[test]
fn a_type_that_candle_lacks_is_named_and_hinders_no_other_tensor() {
    for (id, name) in [
        (9, "Q8_1"),
        (16, "IQ2_XXS"),
        (26, "I32"),
        (28, "F64"),
        (35, "TQ2_0"),
        (39, "MXFP4"),
        (42, "Q2_0"),
        (99, "type 99"),
    ] {
        let (mut bytes, first) = with_type(id);
        // The largest of these types needs twice the bytes.
        bytes.resize(bytes.len() + (1 << 16), 0);
        let source = NotingSource::new(bytes);
        let file = GgufFile::from_source(source.clone(), "model.gguf").unwrap();
        assert_same(&file.qtensor("first", &Device::Cpu).unwrap(), &first);
        source.take_reads();
        for error in [
            file.qtensor("second", &Device::Cpu).unwrap_err(),
            file.load(&Device::Cpu).unwrap_err(),
        ] {
            assert!(matches!(error.kind(), ErrorKind::Framework { .. }), "{error}");
            assert_eq!((error.tensor(), error.file()), (Some("second"), Some("model.gguf")));
            assert!(error.to_string().contains(&format!("tensors of {name}")), "{error}");
        }
        assert!(source.take_reads().is_empty(), "refused before anything is read");
    }
}

#[test]
fn a_missing_tensor_is_named_with_similar_ones() {
    let tensor = quantised(Q8_0, &[1, 32]);
    let file = open(&written(&[], &[("blk.0.attn_q.weight", &tensor)]));
    let error = file.qtensor("blk.0.attn_p.weight", &Device::Cpu).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound), "{error}");
    assert!(error.to_string().contains("model.gguf"), "{error}");
    assert!(error.to_string().contains("blk.0.attn_q.weight"), "{error}");
}

#[test]
fn a_file_that_becomes_shorter_is_an_error() {
    let (_dir, path) = place("model.gguf");
    std::fs::write(&path, written(&[], &[("a", &of_bytes(Q8_0, &[64, 4096]))])).unwrap();
    let file = GgufFile::open(&path).unwrap();
    let content = file.content().unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000).unwrap();
    let error = file.qtensor("a", &Device::Cpu).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    assert!(error.to_string().contains("model.gguf") && error.tensor() == Some("a"), "{error}");
    // candle passes on the error of the reader, which names the file.
    let error = content.tensor(&mut file.reader(), "a", &Device::Cpu).unwrap_err();
    assert!(error.to_string().contains("model.gguf"), "{error}");
    assert!(file.reader().read(&mut [0; 8]).is_err());
}

#[test]
fn content_that_candle_would_misread_is_refused() {
    let tensor = quantised(Q8_0, &[1, 32]);
    let alignment = Value::U64(64);
    let file = open(&written(&[("general.alignment", &alignment)], &[]));
    let error = file.content().unwrap_err();
    assert_eq!(error.file(), Some("model.gguf"));
    let says = "general.alignment should be U32, found U64(64)";
    assert!(error.to_string().contains(says), "{error}");
    let file = open(&written(&[("general.alignment", &Value::U32(32))], &[("a", &tensor)]));
    assert_eq!(file.content().unwrap().tensor_infos.len(), 1);

    // A type that candle lacks keeps it from describing the file.
    let mut bytes = with_type(16).0;
    bytes.resize(bytes.len() + (1 << 16), 0);
    let error = open(&bytes).content().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Framework { .. }), "{error}");
    assert_eq!(error.file(), Some("model.gguf"));
}

#[test]
fn a_tensor_without_dimensions_is_an_error_and_no_panic() {
    // candle writes none, so the number of dimensions is changed, and they become a padded key.
    let mut bytes = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend(1_u64.to_le_bytes());
    bytes.push(b's');
    bytes.extend([0_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat());
    bytes.extend(0_u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32) + 4, 0);
    let error = open(&bytes).qtensor("s", &Device::Cpu).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Framework { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("s"), Some("model.gguf")));
}

#[test]
fn files_of_other_formats_are_refused_by_name() {
    let tensor = TensorView::from_slice(&[1], &[1.0_f32]).unwrap();
    let bytes = serialize([("a", tensor)], &SaveOptions::new()).unwrap();
    for (bytes, name) in
        [(bytes, "a.safetensors"), (b"".to_vec(), "empty"), (b"\x93NUMPY".to_vec(), "a.npy")]
    {
        let error = GgufFile::from_source(bytes, name).unwrap_err();
        assert_eq!(error.file(), Some(name), "{error}");
    }
    let mut npy = Vec::new();
    let array = safetensors_core::TensorBuf::from_vec(vec![1], vec![1.0_f32]).unwrap();
    safetensors_formats::npy::write(&mut npy, &array).unwrap();
    let error = GgufFile::from_source(npy, "a.npy").unwrap_err();
    assert!(error.to_string().contains("expected a GGUF file"), "{error}");
    assert_eq!(error.file(), Some("a.npy"), "{error}");
    assert!(GgufFile::open("no/such/file.gguf").unwrap_err().to_string().contains("no/such"));
}
