//! The settings of a model next to its files, or in the directory that is one file.

use std::fs;

use safetensors_core::TensorBuf;
use safetensors_formats::{Options, npz};
use safetensors_testing::files::copy_all;

use super::fixture;

/// Blocks have 128 rows and columns unless settings differ.
#[test]
fn settings_next_to_a_file_describe_its_quantised_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.npz");
    let mut file = npz::Writer::new(fs::File::create(&path).unwrap());
    let codes = TensorBuf::from_vec(vec![150, 150], vec![1_i8; 150 * 150]).unwrap();
    let scales = TensorBuf::from_vec(vec![2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    file.add("m.weight", &codes).unwrap();
    file.add("m.weight_scale_inv", &scales).unwrap();
    file.finish().unwrap();
    let config =
        r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [96, 96]}}"#;
    for (block, config) in [(128, "{}"), (96, config)] {
        fs::write(dir.path().join("config.json"), config).unwrap();
        let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
        let numbers = checkpoint.dequantized().unwrap();
        let numbers = numbers.tensor("m.weight").unwrap().read().unwrap();
        let numbers = numbers.into_vec::<f32>().unwrap();
        let expected =
            |at: usize| 1.0 + f32::from(at % 150 >= block) + 2.0 * f32::from(at / 150 >= block);
        assert!((0..150 * 150).all(|at| numbers[at] == expected(at)), "{block}");
    }
}

/// A directory is one file, and the settings of its model are in it.
#[test]
fn settings_are_read_from_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy_all(&fixture("training/values"), &model);
    fs::write(dir.path().join("config.json"), "of others").unwrap();
    fs::write(model.join("config.json"), "of the model").unwrap();
    let checkpoint = safetensors_formats::open(&model, &Options::new()).unwrap();
    let found = checkpoint.read_beside("config.json", 100).unwrap().unwrap();
    assert_eq!(found, (model.join("config.json"), b"of the model".to_vec()));
}
