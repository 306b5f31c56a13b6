//! Files of NumPy.

use safetensors_core::TensorSource;
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
