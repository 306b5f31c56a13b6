//! Weights that are quantised are what compressed-tensors makes of them.

use safetensors_core::quantized::Quantization;
use safetensors_core::{
    Checkpoint, ConvertOptions, Dtype, ErrorKind, Rewrite, SaveOptions, ShardOptions, TensorSource,
    TensorView, save,
};
use safetensors_testing::quantized::made_by_reference;
use tempfile::TempDir;

/// A checkpoint with these tensors of F32.
fn saved(tensors: &[(&str, &[usize], &[f32])]) -> (TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let views = tensors
        .iter()
        .map(|&(name, shape, values)| (name, TensorView::from_slice(shape, values).unwrap()));
    save(&path, views, &SaveOptions::new().durable(false)).unwrap();
    (dir, Checkpoint::open(&path).unwrap())
}

#[test]
fn codes_and_scales_are_those_of_the_reference() {
    let reference = made_by_reference();
    let weight = reference.tensor("weight").unwrap();
    for how in Quantization::ALL {
        let parts = how.quantize("weight.weight", weight, &ConvertOptions::new()).unwrap();
        for (name, part) in parts {
            let name = name.replacen("weight.", &format!("{how}/"), 1);
            let expected = reference.tensor(&name).unwrap();
            assert_eq!(
                (part.dtype(), part.shape()),
                (expected.dtype(), expected.shape()),
                "{name}"
            );
            let mut found = Vec::new();
            part.write_to(&mut |bytes| {
                found.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
            let expected = expected.read().unwrap();
            let wrong = found.iter().zip(expected.bytes()).position(|(a, b)| a != b);
            assert_eq!((wrong, found.len()), (None, expected.bytes().len()), "{name}");
        }
    }
}

/// Every number is read back within half a step of its codes, from one file and from shards, with
/// and without the settings.
#[test]
fn what_is_quantised_is_read_back() {
    let reference = made_by_reference();
    let numbers = reference.tensor("weight").unwrap().read().unwrap();
    let numbers: &[f32] = numbers.as_slice().unwrap();
    let (dir, checkpoint) =
        saved(&[("a.weight", &[136, 160], numbers), ("norm.weight", &[160], &numbers[..160])]);
    for how in Quantization::ALL {
        let rewrite = || {
            let wanted = |name: &str, tensor: &_| how.suits(name, TensorSource::shape(tensor));
            Rewrite::of(&checkpoint).quantize(how, &ConvertOptions::new(), wanted).unwrap()
        };
        let out = dir.path().join(how.name());
        let options = ShardOptions::new().max_shard_size(20_000.into());
        let saved = rewrite().save_sharded(&out, &options).unwrap();
        assert!(saved.files.len() > 1, "{how}");
        let config = rewrite().quantized_config(how, "{\"rope_theta\": 1e-05}").unwrap();
        assert!(config.contains("\n  \"rope_theta\": 1e-05\n"), "{config}");
        for with_settings in [false, true] {
            if with_settings {
                std::fs::write(out.join("config.json"), &config).unwrap();
            }
            let quantised = Checkpoint::open(&out).unwrap();
            let weights = quantised.quantized_weights().unwrap();
            assert_eq!(weights.len(), 1, "{how}");
            assert_eq!((&*weights[0].name, &weights[0].shape[..]), ("a.weight", &[136, 160][..]));
            let quantised = quantised.dequantized().unwrap();
            assert_eq!(quantised.tensors().count(), 2);
            let read = quantised.tensor("a.weight").unwrap().read().unwrap();
            let read: &[f32] = read.as_slice().unwrap();
            for (row, (read, numbers)) in read.chunks(160).zip(numbers.chunks(160)).enumerate() {
                for (column, (&read, &number)) in read.iter().zip(numbers).enumerate() {
                    // The largest magnitude that shares a scale with the number.
                    let largest = match how {
                        Quantization::Fp8Block128 | Quantization::Fp8Tensor => 6.0,
                        Quantization::Nvfp4 => magnitude(&numbers[column / 16 * 16..][..16]),
                        Quantization::Mxfp4 => magnitude(&numbers[column / 32 * 32..][..32]),
                        _ => magnitude(numbers),
                    };
                    let half_step = match how {
                        Quantization::Int8Channel => largest / 255.0,
                        // Half of the last digit of the number, or of the smallest number.
                        Quantization::Nvfp4 => (number.abs() / 4.0).max(largest / 18.0) + 1e-3,
                        Quantization::Mxfp4 => (number.abs() / 4.0).max(largest / 10.0),
                        _ => (number.abs() / 16.0).max(largest / 448.0 / 1024.0),
                    };
                    let limit = half_step * 1.0001 + f32::EPSILON;
                    let distance = (read - number).abs();
                    assert!(distance <= limit, "{how} [{row}, {column}]: {number} {read}");
                }
            }
        }
    }
}

fn magnitude(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |most, number| most.max(number.abs()))
}

#[test]
fn numbers_that_are_not_finite_are_refused_with_their_place() {
    for (wrong, shown) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let mut numbers = vec![1.0; 32 * 64];
        numbers[999] = wrong;
        let (dir, checkpoint) = saved(&[("a.weight", &[32, 64], &numbers)]);
        for how in Quantization::ALL {
            let out = dir.path().join("out.safetensors");
            let rewrite = Rewrite::of(&checkpoint)
                .quantize(how, &ConvertOptions::new(), |_, _| true)
                .unwrap();
            let error = rewrite.save(&out, &SaveOptions::new()).unwrap_err();
            let ErrorKind::DoesNotFit { index: 999, value, .. } = error.kind() else {
                panic!("{how}: {error}")
            };
            assert_eq!((&**value, error.tensor()), (shown, Some("a.weight")));
            assert!(error.file().unwrap().ends_with("model.safetensors"), "{error}");
            assert!(!out.exists());
        }
    }
}

#[test]
fn weights_that_cannot_be_quantised_are_refused_before_anything_is_written() {
    let numbers = [1.0; 72];
    let (_dir, checkpoint) =
        saved(&[("a.weight", &[3, 24], &numbers), ("b", &[4, 16], &numbers[..64])]);
    let quantize = |how, name: &str| {
        let wanted = |found: &str, _: &_| found == name;
        Rewrite::of(&checkpoint).quantize(how, &ConvertOptions::new(), wanted).map(drop)
    };
    let error = quantize(Quantization::Nvfp4, "a.weight").unwrap_err().to_string();
    assert!(error.contains("rows of a multiple of 16 columns, found shape [3, 24]"), "{error}");
    let error = quantize(Quantization::Fp8Tensor, "b").unwrap_err().to_string();
    assert!(error.contains("tensor \"b\"") && error.contains("ends in .weight"), "{error}");
    quantize(Quantization::Fp8Tensor, "a.weight").unwrap();
    let error = "fp8".parse::<Quantization>().unwrap_err().to_string();
    assert!(error.contains("fp8-block128, fp8-channel"), "{error}");
}

#[test]
fn empty_weights_have_empty_codes() {
    for shape in [[0, 32], [4, 0], [0, 0]] {
        let (dir, checkpoint) = saved(&[("a.weight", &shape, &[])]);
        for how in Quantization::ALL {
            let out = dir.path().join("out.safetensors");
            Rewrite::of(&checkpoint)
                .quantize(how, &ConvertOptions::new(), |_, _| true)
                .unwrap()
                .save(&out, &SaveOptions::new())
                .unwrap();
            let codes = Checkpoint::open(&out).unwrap();
            assert_eq!(codes.tensors().map(|it| it.shape()[0]).max(), Some(shape[0].max(1)));
        }
    }
}

/// Tied weights stay tied, whichever of their names is quantised.
#[test]
fn tied_weights_share_codes_and_scales() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let numbers = [1.0_f32; 64];
    let weight = TensorView::from_slice(&[2, 32], &numbers).unwrap();
    let options = SaveOptions::new().metadata([("b.weight", "a.weight")]);
    save(&path, [("a.weight", weight), ("b.weight", weight)], &options).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let out = dir.path().join("out.safetensors");
    let rewrite = |wanted: &'static str| {
        let wanted = |name: &str, _: &_| name == wanted;
        let how = Quantization::Fp8Channel;
        Rewrite::of(&checkpoint).quantize(how, &ConvertOptions::new(), wanted).unwrap()
    };
    rewrite("a.weight").save(&out, &SaveOptions::new()).unwrap();
    let tied = Checkpoint::open(&out).unwrap();
    assert_eq!(tied.len(), 2);
    let aliases: Vec<_> = tied.aliases().map(|(alias, of)| (alias, of.name())).collect();
    assert_eq!(aliases, [("b.weight", "a.weight"), ("b.weight_scale", "a.weight_scale")]);
    rewrite("b.weight").save(&out, &SaveOptions::new()).unwrap();
    let apart = Checkpoint::open(&out).unwrap();
    assert_eq!(apart.tensor("a.weight").unwrap().dtype(), Dtype::F32);
    assert_eq!(apart.tensor("b.weight").unwrap().dtype(), Dtype::F8_E4M3);
}

/// A weight that is quantised already is quantised anew from its numbers, and its scales go.
#[test]
fn quantised_weights_are_quantised_anew() {
    use safetensors_core::convert::ScaledWeights;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let codes = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40]).unwrap();
    let scales = TensorView::from_slice(&[1, 1], &[0.5_f32]).unwrap();
    save(&path, [("w.weight", codes), ("w.weight_scale_inv", scales)], &SaveOptions::new())
        .unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let how = Quantization::Int8Channel;
    let quantize = |options: &ConvertOptions| {
        Rewrite::of(&checkpoint).quantize(how, options, |name, _| name == "w.weight")
    };
    let refused = quantize(&ConvertOptions::new()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NeedsScales { .. }), "{refused}");
    let options = ConvertOptions::new().scaled_weights(ScaledWeights::Dequantize);
    let out = dir.path().join("out.safetensors");
    quantize(&options).unwrap().save(&out, &SaveOptions::new()).unwrap();
    let made = Checkpoint::open(&out).unwrap();
    let names: Vec<_> = made.tensors().map(|tensor| tensor.name()).collect();
    assert_eq!(names, ["w.weight_scale", "w.weight"]);
    let read = made.dequantized().unwrap().tensor("w.weight").unwrap().read().unwrap();
    let numbers: &[f32] = read.as_slice().unwrap();
    assert!((numbers[0] - 0.5).abs() < 0.004 && (numbers[1] - 1.0).abs() < 0.004, "{numbers:?}");
}
