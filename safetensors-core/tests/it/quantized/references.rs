//! Every fixture equals its reference implementation, by every way to read.

use safetensors_testing::quantized::Quantized;
use serde_json::{Value, json};

use crate::support::*;

#[test]
fn every_weight_equals_the_reference() {
    for fixture in Quantized::all() {
        let checkpoint = fixture.open().dequantized().unwrap_or_else(|error| {
            panic!("{}: {error}", fixture.name);
        });
        let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
        names.sort_unstable();
        let expected = fixture.expected();
        let mut all: Vec<_> = expected.tensors().map(|tensor| tensor.name()).collect();
        all.sort_unstable();
        assert_eq!(names, all, "{}", fixture.name);
        for tensor in checkpoint.tensors() {
            let found = tensor.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
            fixture.compare(tensor.name(), tensor.shape(), found.as_slice().unwrap());
        }
    }
}

#[test]
fn the_weights_and_their_tensors_are_listed() {
    for fixture in Quantized::all() {
        let checkpoint = fixture.open();
        let weights = checkpoint.quantized_weights().unwrap();
        assert!(!weights.is_empty(), "{}", fixture.name);
        let expected = fixture.expected();
        for weight in &weights {
            let found = expected.tensor(&weight.name).unwrap();
            assert_eq!(weight.shape, found.shape(), "{}", fixture.name);
            let bytes = |name: &String| checkpoint.tensor(name).unwrap().byte_len();
            assert_eq!(weight.byte_len, weight.tensors.iter().map(bytes).sum::<u64>());
            assert_eq!(checkpoint.tensor(&weight.tensors[0]).unwrap().dtype(), weight.dtype);
        }
    }
}

/// Every part of a weight has the numbers of the whole: by rank, by slice, by bytes.
#[test]
fn parts_of_quantised_weights_equal_the_whole() {
    for fixture in Quantized::all() {
        let checkpoint = fixture.open().dequantized().unwrap();
        for weight in fixture.open().quantized_weights().unwrap() {
            let tensor = checkpoint.tensor(&weight.name).unwrap();
            check_parts(tensor, &fixture.name);
            // Rows in any order.
            let whole = file_bytes(&tensor.read().unwrap());
            let rows = weight.shape[0];
            let numbers: Vec<_> = (0..rows).rev().step_by(3).chain([0, rows - 1]).collect();
            let len = whole.len() / rows;
            let wanted = numbers.iter().flat_map(|row| &whole[row * len..][..len]);
            let wanted: Vec<_> = wanted.copied().collect();
            let slice = tensor.rows(&numbers).unwrap();
            for read in [slice.read(), slice.read_with(&LoadOptions::new())] {
                assert_eq!(file_bytes(&read.unwrap()), wanted, "{}", fixture.name);
            }
        }
    }
}

/// A dequantised checkpoint that is saved is a plain one: nothing of it is quantised any more.
#[test]
fn a_saved_dequantised_checkpoint_is_plain() {
    for fixture in Quantized::all() {
        let checkpoint = fixture.open().dequantized().unwrap();
        let (_directory, path) = place("model.safetensors");
        let options = SaveOptions::new().durable(false).metadata(checkpoint.metadata().clone());
        save(&path, checkpoint.tensors().map(|tensor| (tensor.name(), tensor)), &options).unwrap();
        let saved = Checkpoint::open(&path).unwrap();
        assert_eq!(saved.quantized_weights().unwrap(), [], "{}", fixture.name);
        for tensor in saved.tensors() {
            let found = tensor.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
            fixture.compare(tensor.name(), tensor.shape(), found.as_slice().unwrap());
        }
    }
}

/// The settings are of most modules, and `dynamic` has other sizes of groups for some.
#[test]
fn a_module_with_groups_of_another_size_is_read_by_its_shapes() {
    let fixture = Quantized::named("gptq-v1-4bits");
    let stored = fixture.open();
    let (directory, path) = place("model.safetensors");
    let options = SaveOptions::new().durable(false).metadata(stored.metadata().clone());
    save(&path, stored.tensors().map(|tensor| (tensor.name(), tensor)), &options).unwrap();
    let config = fs::read_to_string(fixture.directory.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["quantization_config"]["group_size"] = 1024.into();
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    Checkpoint::open(&path).unwrap().dequantized().unwrap_err();
    config["quantization_config"]["dynamic"] = json!({"+:layer": {"group_size": 32}});
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    let numbers = Checkpoint::open(&path).unwrap().dequantized().unwrap();
    let weight = numbers.tensor("layer.weight").unwrap();
    let found = weight.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
    fixture.compare("layer.weight", weight.shape(), found.as_slice().unwrap());
}

/// One of two weights becomes numbers, and the other stays unchanged: with its marks, and with its
/// description in the metadata.
#[test]
fn a_weight_that_stays_keeps_its_marks_and_metadata() {
    for name in ["comfy-old-fp8", "comfy-fp8-metadata", "torchao-float8", "gptq-v1-4bits"] {
        let fixture = Quantized::named(name);
        let stored = fixture.open();
        // The weight is there twice.
        let twice = |name: &str| name.replace("layer", "other");
        let mut metadata = stored.metadata().clone();
        for value in metadata.values_mut() {
            *value = value.replace(
                r#""layer": {"format": "float8_e4m3fn"}"#,
                r#""layer": {"format": "float8_e4m3fn"}, "other": {"format": "float8_e4m3fn"}"#,
            );
            *value = value.replace("\"layer.weight\"", "\"layer.weight\", \"other.weight\"");
        }
        if let Some(json) = metadata.get("layer.weight").cloned() {
            metadata.insert("other.weight".into(), json);
        }
        let (directory, path) = place("model.safetensors");
        let again = stored.tensors().filter(|tensor| tensor.name().contains("layer"));
        let again = again.map(|tensor| (twice(tensor.name()), tensor));
        let all = stored.tensors().map(|tensor| (tensor.name().to_owned(), tensor)).chain(again);
        save(&path, all, &SaveOptions::new().durable(false).metadata(metadata)).unwrap();
        if let Ok(config) = fs::read(fixture.directory.join("config.json")) {
            fs::write(directory.path().join("config.json"), config).unwrap();
        }
        let open = || Checkpoint::open(&path).unwrap();
        assert_eq!(open().quantized_weights().unwrap().len(), 2, "{name}");
        let mixed =
            open().dequantized_but(&mut |_| false, |weight| weight.name == "layer.weight").unwrap();
        let out = directory.path().join("out.safetensors");
        let options = SaveOptions::new().durable(false).metadata(mixed.metadata().clone());
        save(&out, mixed.tensors().map(|tensor| (tensor.name(), tensor)), &options).unwrap();
        let saved = Checkpoint::open(&out).unwrap();
        let left = saved.quantized_weights().unwrap();
        assert_eq!(left.len(), 1, "{name}");
        assert_eq!(left[0].name, "other.weight");
        let numbers = saved.dequantized().unwrap();
        for weight in ["layer.weight", "other.weight"] {
            let tensor = numbers.tensor(weight).unwrap();
            let values = tensor.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
            fixture.compare("layer.weight", tensor.shape(), values.as_slice().unwrap());
        }
    }
}
