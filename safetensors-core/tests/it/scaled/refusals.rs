//! What is refused: conversions without scales, and scales that do not belong to their weight.

use safetensors_core::convert::{Overflow, ScaledWeights};
use safetensors_core::slice::TensorPart;
use safetensors_core::{ConvertOptions, Dtype, ErrorKind, LoadOptions, TensorBuf, TensorView};

use super::{checkpoint, dequantize, dequantize_blocks, read_part};

fn fp8(shape: &[usize], codes: &[u8]) -> TensorBuf {
    TensorBuf::from_view(&TensorView::new(Dtype::F8_E4M3, shape, codes).unwrap()).unwrap()
}

fn scales(shape: &[usize]) -> TensorBuf {
    TensorBuf::from_vec(shape.to_vec(), vec![0.5_f32; shape.iter().product()]).unwrap()
}

#[test]
fn a_conversion_without_scales_is_refused_unless_raw_values_are_asked_for() {
    // The codes of 1 and 2.
    let weight = fp8(&[1, 2], &[0x38, 0x40]);
    let (_directory, checkpoint) =
        checkpoint(&[("w", weight), ("w_scale_inv", scales(&[1, 1])), ("v", scales(&[1]))]);
    let conversions = [
        LoadOptions::new().floats_as(Dtype::BF16),
        LoadOptions::new().all_as(Dtype::F32),
        LoadOptions::new().all_as(Dtype::I32),
    ];
    for options in conversions {
        for error in [
            checkpoint.read_named(["v", "w"], &options).unwrap_err(),
            checkpoint.read_all(&options).unwrap_err(),
            read_part(&checkpoint, "w", TensorPart::span(0, 0, 1), &options).unwrap_err(),
            checkpoint.read_parts([("w", TensorPart::Whole)], &options).unwrap_err(),
        ] {
            let ErrorKind::NeedsScales { scales, .. } = error.kind() else { panic!("{error}") };
            assert_eq!((scales.as_str(), error.tensor()), ("w_scale_inv", Some("w")));
            let message = error.to_string();
            assert!(message.contains("model.safetensors") && message.contains("Raw"), "{message}");
        }
        // Other tensors are not concerned.
        checkpoint.read_named(["v"], &LoadOptions::new().floats_as(Dtype::F64)).unwrap();
    }
    let raw = LoadOptions::new().floats_as(Dtype::F32).scaled_weights(ScaledWeights::Raw);
    let read = checkpoint.read_named(["w"], &raw).unwrap();
    assert_eq!(read[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
    let read = checkpoint.read_named(["w", "v"], &dequantize()).unwrap();
    assert_eq!(read[0].as_slice::<f32>().unwrap(), [0.5, 1.0]);
    assert_eq!(checkpoint.read_all(&dequantize()).unwrap().len(), 3);

    // In their own dtype the elements are what the file has, whatever the options.
    let own = [
        LoadOptions::new(),
        LoadOptions::new().floats_as(Dtype::F8_E4M3),
        dequantize().all_as(Dtype::F8_E4M3),
        dequantize().floats_as(Dtype::F8_E4M3),
    ];
    for options in own {
        let read = checkpoint.read_named(["w"], &options).unwrap();
        assert_eq!((read[0].dtype(), read[0].bytes()), (Dtype::F8_E4M3, &[0x38, 0x40][..]));
    }
}

#[test]
fn only_small_floats_with_a_tensor_of_that_name_have_scales() {
    let (_directory, checkpoint) = checkpoint(&[
        ("both", fp8(&[1, 1], &[0x38])),
        ("both_scale", scales(&[1])),
        ("both_scale_inv", scales(&[1, 1])),
        ("none", fp8(&[1, 1], &[0x38])),
        ("wide", scales(&[1, 1])),
        ("wide_scale", scales(&[1])),
        ("bytes", TensorBuf::from_vec(vec![1], vec![7_u8]).unwrap()),
        ("bytes_scale", scales(&[1])),
    ]);
    let scales_of = |name: &str| {
        let scales = checkpoint.tensor(name).unwrap().scales();
        scales.map(|scales| scales.name().to_string())
    };
    assert_eq!(scales_of("both").as_deref(), Some("both_scale_inv"));
    for name in ["none", "wide", "bytes", "both_scale"] {
        assert_eq!(scales_of(name), None, "{name}");
    }
    let all = checkpoint.read_named(["none", "wide", "bytes"], &dequantize()).unwrap();
    assert_eq!(all[0].dtype(), Dtype::F8_E4M3);
    let floats = LoadOptions::new().floats_as(Dtype::F32);
    assert_eq!(checkpoint.read_named(["none"], &floats).unwrap()[0].dtype(), Dtype::F32);
}

#[test]
fn scales_of_another_shape_or_dtype_are_errors_that_name_both() {
    let weight = || fp8(&[130, 100], &[0x38; 13_000]);
    for wrong in [&[1, 1, 1][..], &[1, 2], &[3, 1], &[100], &[100, 1], &[130, 100], &[0, 1]] {
        let (_directory, checkpoint) = checkpoint(&[("w", weight()), ("w_scale", scales(wrong))]);
        let error = checkpoint.read_named(["w"], &dequantize()).unwrap_err();
        let ErrorKind::WrongScales { scales, block, expected, found } = error.kind() else {
            panic!("{error}")
        };
        assert_eq!((scales.as_str(), error.tensor()), ("w_scale", Some("w")));
        assert_eq!((*block, &expected[..], &found[..]), ([128, 128], &[2, 1][..], wrong));
        let message = error.to_string();
        assert!(message.contains("[2, 1]") && message.contains("\"w_scale\""), "{message}");
    }

    let (_directory, checkpoint) = checkpoint(&[("w", weight()), ("w_scale_inv", scales(&[2, 1]))]);
    checkpoint.read_named(["w"], &dequantize()).unwrap();
    for (rows, columns) in [(64, 128), (128, 64), (0, 128), (128, 0), (usize::MAX, 1)] {
        let options = dequantize_blocks(rows, columns);
        let error = checkpoint.read_named(["w"], &options).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WrongScales { .. }), "{rows} × {columns}");
    }
    checkpoint.read_named(["w"], &dequantize_blocks(65, usize::MAX)).unwrap();
}

#[test]
fn scales_that_are_no_floats_are_an_error_of_their_own_tensor() {
    let integers = TensorBuf::from_vec(vec![1], vec![127_u8]).unwrap();
    let (_directory, checkpoint) =
        checkpoint(&[("w", fp8(&[1, 2], &[0x38, 0x40])), ("w_scale", integers)]);
    let error = checkpoint.read_named(["w"], &dequantize()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongDtype { found: Dtype::U8, .. }), "{error}");
    assert_eq!(error.tensor(), Some("w_scale"));
}

#[test]
fn empty_weights_have_no_scales_to_apply() {
    let (_directory, checkpoint) = checkpoint(&[
        ("rows", fp8(&[0, 300], &[])),
        ("rows_scale_inv", scales(&[0, 3])),
        ("columns", fp8(&[300, 0], &[])),
        ("columns_scale", scales(&[300, 1])),
    ]);
    let read = checkpoint.read_named(["rows", "columns"], &dequantize()).unwrap();
    assert_eq!((read[0].shape(), read[1].shape()), (&[0, 300][..], &[300, 0][..]));
}

#[test]
fn products_that_are_too_large_follow_the_policy() {
    let large = TensorBuf::from_vec(vec![1], vec![1e38_f32]).unwrap();
    // 1, 448, and NaN.
    let (_directory, checkpoint) =
        checkpoint(&[("w", fp8(&[1, 3], &[0x38, 0x7e, 0x7f])), ("w_scale", large)]);
    let read = |overflow, dtype| {
        let options = ConvertOptions::new().overflow(overflow);
        checkpoint.read_named(["w"], &dequantize().convert_options(options).floats_as(dtype))
    };
    for (overflow, expected) in [(Overflow::Ieee, f32::INFINITY), (Overflow::Saturate, f32::MAX)] {
        let buf = read(overflow, Dtype::F32).unwrap().remove(0);
        let values = buf.as_slice::<f32>().unwrap();
        assert_eq!(values[..2], [1e38, expected]);
        assert!(values[2].is_nan());
    }
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F64] {
        let error = read(Overflow::Error, dtype).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DoesNotFit { index: 1, .. }), "{error}");
        assert_eq!(error.tensor(), Some("w"));
    }
    let error = read(Overflow::Error, Dtype::F16).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DoesNotFit { .. }), "{error}");
}
