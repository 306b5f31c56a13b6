//! Files of NumPy.

use safetensors_core::{TensorBuf, TensorSource};
use safetensors_formats::{Format, Options, npy, npz};

use super::{assert_any_range, fixture};

#[test]
fn every_array_has_the_values_that_are_written_elsewhere() {
    for entry in std::fs::read_dir(fixture("npy")).unwrap() {
        let path = entry.unwrap().path();
        let array = npy::Array::open(&path).unwrap();
        let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
        let tensor = checkpoint.tensor(array.name()).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (array.dtype(), array.shape()));
        let [read, expected] = [tensor.read().unwrap(), array.read().unwrap()];
        assert_eq!(read.bytes(), expected.bytes(), "{}", path.display());
        let file = checkpoint.files()[0].safetensors().source();
        assert_eq!(file.format(), Format::Npy);
        assert_any_range(file);
    }
}

#[test]
fn archives_are_read_whatever_their_compression() {
    for name in ["stored.npz", "deflated.npz", "piped.npz"] {
        let checkpoint = safetensors_formats::open(fixture(name), &Options::new()).unwrap();
        let archive = npz::Archive::open(fixture(name)).unwrap();
        assert!(checkpoint.len() > 1 && checkpoint.len() == archive.names().len());
        for tensor in checkpoint.tensors() {
            let same = archive.array(tensor.name()).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (same.dtype(), same.shape()));
            assert_eq!(tensor.read().unwrap().bytes(), same.read().unwrap().bytes());
        }
        let file = checkpoint.files()[0].safetensors().source();
        assert_eq!(file.format(), Format::Npz);
        assert_eq!(file.verify_checksums().unwrap(), checkpoint.len() as u64);
        assert_any_range(file);
    }
}

/// Blocks have 128 rows and columns where no settings say so.
#[test]
fn the_settings_beside_a_file_say_how_its_weights_are_stored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.npz");
    let mut file = npz::Writer::new(std::fs::File::create(&path).unwrap());
    let codes = TensorBuf::from_vec(vec![150, 150], vec![1_i8; 150 * 150]).unwrap();
    let scales = TensorBuf::from_vec(vec![2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    file.add("m.weight", &codes).unwrap();
    file.add("m.weight_scale_inv", &scales).unwrap();
    file.finish().unwrap();
    let config =
        r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [96, 96]}}"#;
    for (block, config) in [(128, "{}"), (96, config)] {
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
        let numbers = checkpoint.dequantized().unwrap();
        let numbers = numbers.tensor("m.weight").unwrap().read().unwrap();
        let numbers = numbers.into_vec::<f32>().unwrap();
        let expected =
            |at: usize| 1.0 + f32::from(at % 150 >= block) + 2.0 * f32::from(at / 150 >= block);
        assert!((0..150 * 150).all(|at| numbers[at] == expected(at)), "{block}");
    }
}
