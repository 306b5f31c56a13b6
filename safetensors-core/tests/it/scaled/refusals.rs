//! Refused input: codes that would become numbers, and scales that do not belong to their weight.

use safetensors_core::convert::Converted;
use safetensors_core::load::QuantizedWeights;
use safetensors_core::slice::TensorPart;

use super::{checkpoint, codes, fp8, is_of_codes, scales};
use crate::support::*;

#[test]
fn codes_become_numbers_only_on_request() {
    let tensors = [("w", codes()), ("w_scale_inv", scales(&[1, 1])), ("v", scales(&[1]))];
    let (_directory, checkpoint) = checkpoint(&tensors);
    let file = serialize(tensors.iter().map(|(name, it)| (name, it)), &SaveOptions::new()).unwrap();
    let alone = SafeTensors::from_source(file).unwrap();
    let weight = checkpoint.tensor("w").unwrap();
    let part = || weight.slice(TensorPart::span(0, 0, 1)).unwrap();
    let numbers = QuantizedWeights::Numbers;
    for options in [
        LoadOptions::new().floats_as(Dtype::BF16),
        LoadOptions::new().all_as(Dtype::F32),
        LoadOptions::new().all_as(Dtype::I32),
        // A tensor of codes that is open does not become another one.
        LoadOptions::new().floats_as(Dtype::F32).quantized(numbers),
    ] {
        for error in [
            checkpoint.read_named(["v", "w"], &options).unwrap_err(),
            checkpoint.read_all(&options).unwrap_err(),
            checkpoint.read_parts([("w", TensorPart::Whole)], &options).unwrap_err(),
            weight.read_with(&options).unwrap_err(),
            part().read_with(&options).unwrap_err(),
            weight.rows(&[0]).unwrap().read_with(&options).unwrap_err(),
            alone.tensor("w").unwrap().read_with(&options).unwrap_err(),
        ] {
            assert_eq!(error.tensor(), Some("w"));
            let message = error.to_string();
            assert!(message.contains("fp8"), "{message}");
            assert!(message.contains("QuantizedWeights::Numbers"), "{message}");
        }
        // Other tensors are not concerned.
        checkpoint.read_named(["v"], &LoadOptions::new().floats_as(Dtype::F64)).unwrap();
    }
    let error = Converted::new(part(), Dtype::F32, &ConvertOptions::new()).unwrap_err();
    assert!(is_of_codes(&error), "{error}");
    let same = Converted::new(weight, Dtype::F8_E4M3, &ConvertOptions::new()).unwrap();
    let error = Converted::new(&same, Dtype::F32, &ConvertOptions::new()).unwrap_err();
    assert!(is_of_codes(&error), "{error}");

    let stored = LoadOptions::new().floats_as(Dtype::F32).quantized(QuantizedWeights::Stored);
    assert_eq!(weight.read_with(&stored).unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0]);
    // In their own dtype the elements equal the file's, with any options.
    for options in [LoadOptions::new(), LoadOptions::new().quantized(numbers)] {
        for options in [options.clone(), options.all_as(Dtype::F8_E4M3)] {
            let read = checkpoint.read_named(["w"], &options).unwrap();
            assert_eq!((read[0].dtype(), read[0].bytes()), (Dtype::F8_E4M3, &[0x38, 0x40][..]));
        }
    }
}

#[test]
fn plain_tensors_are_plain() {
    let bytes = TensorBuf::from_vec(vec![1], vec![7_u8]).unwrap();
    let tensors = [
        ("none", codes()),
        ("wide", scales(&[1, 1])),
        ("wide_scale", scales(&[1])),
        ("bytes", bytes),
    ];
    let (_directory, checkpoint) = checkpoint(&tensors);
    assert_eq!(checkpoint.quantized_weights().unwrap(), []);
    let all = checkpoint.read_all(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!(checkpoint.dequantized().unwrap().len(), 4);
}

#[test]
fn scales_of_another_shape_or_dtype_are_errors_that_name_both() {
    let weight = || fp8(&[130, 100], &[0x38; 13_000]);
    for wrong in [&[1, 2], &[3, 1], &[0, 1], &[7, 1]] {
        let tensors = [("w", weight()), ("w_scale", scales(wrong))];
        let (_directory, checkpoint) = checkpoint(&tensors);
        let errors = [
            checkpoint.quantized_weights().unwrap_err(),
            checkpoint.tensor("w").unwrap().refuse_codes().unwrap_err(),
        ];
        for error in errors {
            let message = error.to_string();
            let shape = format!("{wrong:?}");
            assert!(message.contains("\"w_scale\"") && message.contains(&shape), "{message}");
            assert!(message.contains("[130, 100]"), "{message}");
        }
    }
    let codes_of_scales = fp8(&[1, 1], &[0x38]).convert(Dtype::BOOL, &ConvertOptions::new());
    for wrong in [TensorBuf::from_vec(vec![2], vec![0_u8; 2]).unwrap(), codes_of_scales.unwrap()] {
        let (_directory, checkpoint) = checkpoint(&[("w", codes()), ("w_scale", wrong)]);
        _ = checkpoint.tensor("w").unwrap().refuse_codes().unwrap_err();
    }
}

#[test]
fn empty_weights_have_no_scales_to_apply() {
    let (_directory, checkpoint) = checkpoint(&[
        ("rows", fp8(&[0, 300], &[])),
        ("rows_scale_inv", scales(&[0, 3])),
        ("columns", fp8(&[300, 0], &[])),
        ("columns_scale", scales(&[300, 1])),
    ]);
    let numbers = checkpoint.dequantized().unwrap();
    let read = numbers.read_named(["rows", "columns"], &LoadOptions::new()).unwrap();
    assert_eq!((read[0].shape(), read[1].shape()), (&[0, 300][..], &[300, 0][..]));
}
