//! Tensors of GGUF with types that are not known, or that have blocks of two lengths.

use safetensors_core::Dtype;
use safetensors_formats::{Options, TensorFile};

use super::gguf_file::{Gguf, Q1_0, Q2_0, q2_0, values};
use super::refused;

#[test]
fn an_unknown_type_leaves_the_others_readable() {
    for id in [4, 36, 43, 142, u32::MAX] {
        let file = Gguf::default()
            .floats("first", &[2], &[1.0, 2.0])
            .with("new", &[3, 5], id, &[7; 40])
            .floats("last", &[2], &[3.0, 4.0])
            .with("end", &[1 << 40, 1 << 40], id, &[7; 20])
            .with("empty", &[0, 5], id, &[]);
        for options in
            [Options::new(), Options::new().dequantize(true), Options::new().blocks(true)]
        {
            let checkpoint = file.open(&options);
            assert_eq!(values(&checkpoint, "first"), [1.0, 2.0]);
            assert_eq!(values(&checkpoint, "last"), [3.0, 4.0]);
            let source = checkpoint.files()[0].safetensors().source();
            let kind = format!("type {id}");
            for (name, shape, byte_len) in
                [("new", vec![3, 5], 64), ("end", vec![1 << 40; 2], 32), ("empty", vec![0, 5], 0)]
            {
                let stored = source.stored(name).unwrap();
                assert_eq!((&stored.type_name, &stored.shape), (&kind, &shape));
                assert_eq!(stored.byte_len, byte_len, "{name}");
                assert!(!stored.is_readable && !stored.is_quantised);
                let tensor = checkpoint.tensor(name).unwrap();
                assert_eq!(tensor.dtype(), Dtype::U8);
                let error = tensor.read().unwrap_err();
                let says = format!("a file: tensor \"{name}\": the tensor is quantised as {kind},");
                assert!(error.to_string().starts_with(&says), "{error}");
            }
        }
    }
}

#[test]
fn a_tensor_of_an_unknown_type_needs_bytes_of_its_own() {
    let file = Gguf::default().floats("a", &[8], &[0.0; 8]).with("new", &[4], 99, &[0; 32]).floats(
        "b",
        &[8],
        &[0.0; 8],
    );
    let at = |offset: u64| file.placed(|i, at| if i == 1 { offset } else { at });
    for (bytes, says) in [
        (at(0), "overlaps"),
        (at(4), "\"new\": its data overlaps that of \"a\""),
        (at(64), "overlaps"),
        (at(96), "\"new\": its data ends at byte 225, but the file has 224"),
        (at(97), "its data ends at byte 226"),
        (at(u64::MAX), "its data ends at byte 18446744073709551615"),
    ] {
        for options in [Options::new(), Options::new().dequantize(true)] {
            let error = refused(&bytes, &options);
            assert!(error.contains(says), "{says}: {error}");
        }
    }
    // Behind all others, it reaches to the end of the file.
    let bytes = at(95);
    let file = TensorFile::from_source(bytes, "a file", &Options::new());
    assert!(file.unwrap_err().to_string().contains("overlaps that of \"b\""));
}

#[test]
fn small_types_are_read_as_ggml_reads_them() {
    let mut bits = half::f16::from_f32(0.5).to_le_bytes().to_vec();
    bits.extend([0b0000_0101; 16]);
    let file = Gguf::default().with("w", &[128], Q1_0, &bits);
    let expected: Vec<_> =
        (0..128).map(|i| if [0, 2].contains(&(i % 8)) { 0.5 } else { -0.5 }).collect();
    assert_eq!(values(&file.numbers(), "w"), expected);

    let expected = [-2.0, 0.0, 2.0, 4.0].repeat(512);
    // Blocks of 64, or a fork's of 128: the room of the tensors decides.
    for (len, blocks) in [(64, 32), (128, 16)] {
        let data = q2_0(len).repeat(blocks);
        let file = Gguf::default()
            .with("w.weight", &[8, 256], Q2_0, &data)
            .floats("w.scale", &[1], &[1.0])
            .with("small", &[128], Q2_0, &q2_0(len).repeat(128 / len));
        let numbers = file.numbers();
        assert_eq!(values(&numbers, "w.weight"), expected, "{len}");
        assert_eq!(values(&numbers, "small"), expected[..128], "{len}");
        let blocks = file.open(&Options::new().blocks(true));
        assert_eq!(blocks.tensor("w.weight").unwrap().read().unwrap().bytes(), data);
    }
}

#[test]
fn blocks_that_may_be_of_two_types_are_refused() {
    // Both have 64 bytes here.
    let both = Gguf::default().with("w", &[128], Q2_0, &q2_0(64).repeat(2));
    let neither = Gguf::default().with("w", &[8, 256], Q2_0, &[0; 640]).floats("v", &[1], &[1.0]);
    let mixed = Gguf::default()
        .with("w", &[8, 256], Q2_0, &q2_0(64).repeat(32))
        .with("v", &[8, 256], Q2_0, &q2_0(128).repeat(16))
        .floats("x", &[1], &[1.0]);
    for file in [both, neither, mixed] {
        let error = file.problem("w");
        assert!(error.contains("quantised as Q2_0, which cannot be dequantised"), "{error}");
    }
    // A file that is cut off is still recognised.
    let mut cut = Gguf::default().with("w", &[8, 256], Q2_0, &q2_0(64).repeat(32));
    cut = cut.with("v", &[8, 256], Q2_0, &q2_0(64).repeat(32));
    let mut bytes = cut.bytes();
    bytes.truncate(bytes.len() - 64);
    assert!(refused(&bytes, &Options::new()).contains("its data ends at byte"));
}
