//! Weights that are quantised equal compressed-tensors' result.

use safetensors_core::quantized::{LinearLayers, Quantization, QuantizationError};
use safetensors_testing::quantized::made_by_reference;

use crate::support::*;

/// A checkpoint with these tensors of F32.
fn saved(tensors: &[(&str, &[usize], &[f32])]) -> (TempDir, Checkpoint) {
    let (dir, path) = place("model.safetensors");
    let tensors = tensors.iter().map(|&(name, shape, values)| {
        (name, TensorBuf::from_vec(shape.to_vec(), values.to_vec()).unwrap())
    });
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    (dir, Checkpoint::open(&path).unwrap())
}

#[test]
fn codes_and_scales_equal_the_reference() {
    let dir = tempdir().unwrap();
    let reference = made_by_reference();
    for how in Quantization::ALL {
        let out = dir.path().join(how.to_string());
        Rewrite::from_checkpoint(&reference)
            .select(|name, _| name == "weight")
            .rename(|_| "w.weight".into())
            .quantize(how, &ConvertOptions::new(), &LinearLayers::new(), |_, _| Some(true))
            .unwrap()
            .save(&out, &SaveOptions::new().durable(false))
            .unwrap();
        let made = Checkpoint::open(&out).unwrap();
        let expected = reference.tensors().filter_map(|tensor| {
            Some((
                tensor.name().strip_prefix(&how.to_string())?.strip_prefix('/')?.to_owned(),
                tensor,
            ))
        });
        let mut count = 0;
        for (name, expected) in expected {
            let found = made.tensor(&format!("w.{name}")).unwrap();
            assert_eq!(
                (found.dtype(), found.shape()),
                (expected.dtype(), expected.shape()),
                "{name}"
            );
            let (found, expected) = (found.read().unwrap(), expected.read().unwrap());
            let wrong = found.bytes().iter().zip(expected.bytes()).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "{how}: {name}");
            count += 1;
        }
        assert_eq!(made.len(), count, "{how}");
    }
}

/// Every number is read back within half a step of its codes, from one file and from shards, with
/// and without the settings.
#[test]
fn quantised_weights_are_read_back_within_half_a_step() {
    let reference = made_by_reference();
    let numbers = reference.tensor("weight").unwrap().read().unwrap();
    let numbers: &[f32] = numbers.as_slice().unwrap();
    let (dir, checkpoint) =
        saved(&[("a.weight", &[136, 160], numbers), ("norm.weight", &[160], &numbers[..160])]);
    for how in Quantization::ALL {
        let rewrite = || {
            let (layers, options) = (LinearLayers::new(), ConvertOptions::new());
            Rewrite::from_checkpoint(&checkpoint)
                .quantize(how, &options, &layers, |_, _| None)
                .unwrap()
        };
        let out = dir.path().join(how.to_string());
        let options = ShardOptions::new().max_shard_size(10_000.into());
        let saved = rewrite().save_sharded(&out, &options).unwrap();
        assert!(saved.files.len() > 1, "{how}");
        let one = rewrite();
        one.save(dir.path().join("one"), &SaveOptions::new()).unwrap();
        let errors: Vec<_> =
            one.tensors().filter_map(|(name, it)| Some((name, it.quantization_error()?))).collect();
        let config = one.quantized_config("{\"rope_theta\": 1e-05}").unwrap();
        assert!(config.contains("\n  \"rope_theta\": 1e-05\n"), "{config}");
        for with_settings in [false, true] {
            if with_settings {
                fs::write(out.join("config.json"), &config).unwrap();
            }
            let quantised = Checkpoint::open(&out).unwrap();
            let weights = quantised.quantized_weights().unwrap();
            assert_eq!(weights.len(), 1, "{how}");
            assert_eq!((&*weights[0].name, &weights[0].shape[..]), ("a.weight", &[136, 160][..]));
            let quantised = quantised.dequantized().unwrap();
            assert_eq!(quantised.tensors().count(), 2);
            let read = quantised.tensor("a.weight").unwrap().read().unwrap();
            let read: &[f32] = read.as_slice().unwrap();
            let [(codes, error)] = errors[..] else { panic!("{how}: {errors:?}") };
            assert!(codes.starts_with("a.weight"), "{codes}");
            assert_error_is_of(&error, numbers, read);
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

/// The error that was measured while the codes were written equals the error of the read numbers.
#[track_caller]
fn assert_error_is_of(error: &QuantizationError, numbers: &[f32], read: &[f32]) {
    let differences = numbers.iter().zip(read).map(|(a, b)| f64::from((a - b).abs()));
    let squares = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|it| it * it).sum::<f64>();
    let most = differences.clone().fold(0.0, f64::max);
    let sum = squares(&mut differences.clone());
    let of_numbers = squares(&mut numbers.iter().map(|&it| f64::from(it)));
    let is_near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b;
    assert!(is_near(error.max, most), "{error:?} {most}");
    assert!(is_near(error.rms, (sum / numbers.len() as f64).sqrt()), "{error:?}");
    assert!(is_near(error.relative, (sum / of_numbers).sqrt()), "{error:?}");
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
            let rewrite = Rewrite::from_checkpoint(&checkpoint)
                .quantize(how, &ConvertOptions::new(), &LinearLayers::new(), |_, _| Some(true))
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
        let wanted = |found: &str, _: &_| Some(found == name);
        Rewrite::from_checkpoint(&checkpoint)
            .quantize(how, &ConvertOptions::new(), &LinearLayers::new(), wanted)
            .map(drop)
    };
    let error = quantize(Quantization::Nvfp4, "a.weight").unwrap_err().to_string();
    assert!(
        error.contains("rows of one or more groups of 16 columns, found shape [3, 24]"),
        "{error}"
    );
    let error = quantize(Quantization::Fp8Tensor, "b").unwrap_err().to_string();
    assert!(error.contains("tensor \"b\"") && error.contains("ends in .weight"), "{error}");
    quantize(Quantization::Fp8Tensor, "a.weight").unwrap();
}

#[test]
fn empty_weights_have_empty_codes() {
    for shape in [[0, 32], [4, 0], [0, 0]] {
        let (dir, checkpoint) = saved(&[("a.weight", &shape, &[])]);
        for how in Quantization::ALL {
            let out = dir.path().join("out.safetensors");
            let rewrite = Rewrite::from_checkpoint(&checkpoint).quantize(
                how,
                &ConvertOptions::new(),
                &LinearLayers::new(),
                |_, _| Some(true),
            );
            if shape[1] == 0 && matches!(how, Quantization::Nvfp4 | Quantization::Mxfp4) {
                assert!(rewrite.unwrap_err().to_string().contains("one or more groups"));
                continue;
            }
            rewrite.unwrap().save(&out, &SaveOptions::new()).unwrap();
            let made = Checkpoint::open(&out).unwrap().dequantized().unwrap();
            assert_eq!(made.tensor("a.weight").unwrap().shape(), shape, "{how}");
            assert_eq!(made.len(), 1, "{how}");
        }
    }
}

/// Tied weights stay tied if one name is quantised, with any choice of the name.
#[test]
fn tied_weights_share_codes_and_scales() {
    let (dir, path) = place("model.safetensors");
    let weight = TensorBuf::from_vec(vec![2, 32], vec![1.0_f32; 64]).unwrap();
    let options = SaveOptions::new().metadata([("b.weight", "a.weight")]);
    save(&path, [("a.weight", weight)], &options).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let out = dir.path().join("out.safetensors");
    let rewrite = |of_a, of_b| {
        let wanted = move |name: &str, _: &_| if name == "a.weight" { of_a } else { of_b };
        let how = Quantization::Fp8Channel;
        Rewrite::from_checkpoint(&checkpoint)
            .quantize(how, &ConvertOptions::new(), &LinearLayers::new(), wanted)
            .unwrap()
    };
    for follows in [None, Some(true)] {
        rewrite(Some(true), follows).save(&out, &SaveOptions::new()).unwrap();
        let tied = Checkpoint::open(&out).unwrap();
        assert_eq!(tied.len(), 2);
        let aliases: Vec<_> = tied.aliases().map(|(alias, of)| (alias, of.name())).collect();
        assert_eq!(aliases, [("b.weight", "a.weight"), ("b.weight_scale", "a.weight_scale")]);
    }
    for (of_a, of_b, a, b) in [
        (Some(false), Some(true), Dtype::F32, Dtype::F8_E4M3),
        (Some(true), Some(false), Dtype::F8_E4M3, Dtype::F32),
        (Some(false), None, Dtype::F32, Dtype::F32),
    ] {
        let rewrite = rewrite(of_a, of_b);
        let quantised = rewrite.tensors().filter(|(_, tensor)| tensor.is_quantized());
        assert!(quantised.into_iter().all(|(_, tensor)| !tensor.is_alias()));
        rewrite.save(&out, &SaveOptions::new()).unwrap();
        let apart = Checkpoint::open(&out).unwrap();
        assert_eq!(apart.tensor("a.weight").unwrap().dtype(), a);
        assert_eq!(apart.tensor("b.weight").unwrap().dtype(), b);
    }
}

/// Numbers have both names again, with any names of the codes, and no entry of the metadata names a
/// removed tensor.
#[test]
fn a_tied_weight_has_both_names_after_it_was_quantised() {
    let (dir, path) = place("model.safetensors");
    let numbers: Vec<f32> = (0..64_u8).map(f32::from).collect();
    let weight = TensorBuf::from_vec(vec![2, 32], numbers).unwrap();
    let options = SaveOptions::new().metadata([("b.weight", "a.weight")]);
    save(&path, [("a.weight", weight)], &options).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for how in Quantization::ALL {
        let out = dir.path().join(how.to_string());
        let wanted = |name: &str, _: &_| (name == "a.weight").then_some(true);
        let rewrite = Rewrite::from_checkpoint(&checkpoint).quantize(
            how,
            &ConvertOptions::new(),
            &LinearLayers::new(),
            wanted,
        );
        let options = SaveOptions::new().metadata([("title", "tied")]);
        rewrite.unwrap().save(&out, &options).unwrap();
        let back = Checkpoint::open(&out).unwrap().dequantized().unwrap();
        assert_eq!(back.len(), 1, "{how}");
        let entries: Vec<_> = back.metadata().iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(entries, [("b.weight", "a.weight"), ("title", "tied")], "{how}");
        let read = |name| back.tensor(name).unwrap().read().unwrap();
        assert_eq!(read("b.weight").bytes(), read("a.weight").bytes(), "{how}");
    }
}

/// Later steps leave codes and scales as they are.
#[test]
fn codes_are_neither_cast_nor_quantised_again() {
    let numbers = [1.0; 64];
    let (dir, checkpoint) =
        saved(&[("a.weight", &[2, 32], &numbers), ("b.weight", &[2, 32], &numbers)]);
    let (how, options) = (Quantization::Fp8Channel, ConvertOptions::new());
    let quantised = || {
        let rewrite = Rewrite::from_checkpoint(&checkpoint);
        rewrite
            .quantize(how, &options, &LinearLayers::new(), |name, _| Some(name == "a.weight"))
            .unwrap()
    };
    let out = dir.path().join("out");
    quantised()
        .cast(&options, |_, _| Some(Dtype::F16))
        .unwrap()
        .save(&out, &SaveOptions::new())
        .unwrap();
    let dtypes = |out: &Path| {
        let mut dtypes: Vec<_> = Checkpoint::open(out)
            .unwrap()
            .tensors()
            .map(|tensor| (tensor.name().to_owned(), tensor.dtype()))
            .collect();
        dtypes.sort();
        dtypes
    };
    let codes = [("a.weight", Dtype::F8_E4M3), ("a.weight_scale", Dtype::F32)];
    let named = |all: &[(&str, Dtype)]| -> Vec<_> {
        all.iter().map(|&(name, dtype)| (name.to_owned(), dtype)).collect()
    };
    assert_eq!(dtypes(&out), named(&[codes[0], codes[1], ("b.weight", Dtype::F16)]));
    let again =
        quantised().quantize(how, &options, &LinearLayers::new(), |_, _| Some(true)).unwrap();
    again.save(&out, &SaveOptions::new()).unwrap();
    let all = [codes[0], codes[1], ("b.weight", Dtype::F8_E4M3), ("b.weight_scale", Dtype::F32)];
    assert_eq!(dtypes(&out), named(&all));
    let other = quantised()
        .quantize(Quantization::Nvfp4, &options, &LinearLayers::new(), |_, _| Some(true))
        .unwrap_err();
    assert!(other.to_string().contains("fp8-channel and as nvfp4"), "{other}");
}

/// A weight that is already quantised is quantised again from its numbers, and its scales go.
#[test]
fn weights_that_are_already_quantised_are_quantised_again() {
    let (dir, path) = place("model.safetensors");
    let codes = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40]).unwrap();
    let half = 0.5_f32.to_le_bytes();
    let scales = TensorView::new(Dtype::F32, &[1, 1], &half).unwrap();
    save(&path, [("w.weight", codes), ("w.weight_scale_inv", scales)], &SaveOptions::new())
        .unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let how = Quantization::Int8Channel;
    let quantize = |checkpoint| {
        let (layers, options) = (LinearLayers::new(), ConvertOptions::new());
        let wanted = |name: &str, _: &_| Some(name == "w.weight");
        Rewrite::from_checkpoint(checkpoint).quantize(how, &options, &layers, wanted)
    };
    let checkpoint = checkpoint.into_boxed();
    let refused = quantize(&checkpoint).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Quantization { .. }), "{refused}");
    let numbers = Checkpoint::open(&path).unwrap().dequantized().unwrap().into_boxed();
    let out = dir.path().join("out.safetensors");
    quantize(&numbers).unwrap().save(&out, &SaveOptions::new()).unwrap();
    let made = Checkpoint::open(&out).unwrap();
    let names: Vec<_> = made.tensors().map(|tensor| tensor.name()).collect();
    assert_eq!(names, ["w.weight_scale", "w.weight"]);
    let read = made.dequantized().unwrap().tensor("w.weight").unwrap().read().unwrap();
    let numbers: &[f32] = read.as_slice().unwrap();
    assert!((numbers[0] - 0.5).abs() < 0.004 && (numbers[1] - 1.0).abs() < 0.004, "{numbers:?}");
}
