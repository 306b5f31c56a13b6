//! Directories of PyTorch's distributed checkpoints (DCP) in safetensors files.

use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_formats::{ErrorKind, Format, Options};
use safetensors_testing::dcp::{check, file_of, sample, save_parts};

use super::fixture;
use super::training::{open, refused};

#[test]
fn parts_in_safetensors_files_become_whole_tensors() {
    let dir = tempfile::tempdir().unwrap();
    save_parts(dir.path(), &sample());
    let checkpoint = safetensors_formats::open(dir.path(), &Options::new()).unwrap();
    check(&checkpoint, &sample());
    let file = checkpoint.files()[0].safetensors().source();
    assert_eq!((file.format(), file.verify_checksums().unwrap()), (Format::Dcp, 0));
    let files: Vec<_> = (0..4).map(|rank| file_of(dir.path(), rank)).collect();
    let len = |path: &PathBuf| std::fs::metadata(path).unwrap().len();
    assert_eq!(file.file_len(), files.iter().map(len).sum::<u64>());
    assert!(file.has("grid") && !file.has("grids") && file.source().byte_len() == len(&files[0]));
    super::assert_any_range(file);

    let in_memory = |left_out: usize| {
        let files = files.iter().enumerate().filter(|(rank, _)| *rank != left_out);
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        MemoryStore::from_iter(files.map(|(_, it)| (name(it), std::fs::read(it).unwrap())))
    };
    check(&open(&in_memory(4)).unwrap(), &sample());
    refused(&in_memory(1), &["tensor", "elements of shape"]);
    // Files of PyTorch do not hide that parts are missing, and are not hidden by whole tensors.
    let bin = std::fs::read(fixture("pytorch/tied.pt")).unwrap();
    let mut store = in_memory(1);
    store.insert("pytorch_model.bin", bin.clone());
    refused(&store, &["elements of shape"]);
    let mut store = MemoryStore::default();
    store.insert("pytorch_model.bin", bin);
    store.insert("model.safetensors", std::fs::read(fixture("pytorch/tied.safetensors")).unwrap());
    assert_eq!(open(&store).unwrap().files()[0].path(), Path::new("pytorch_model.bin"));
    // Nor by files that are broken, such as a pointer of Git LFS.
    for name in ["model.safetensors", "model.safetensors.index.json"] {
        store.insert(name, b"version https://git-lfs.github.com/spec/v1\n".to_vec());
        assert_eq!(open(&store).unwrap().files()[0].path(), Path::new("pytorch_model.bin"));
    }
    // A directory with whole tensors is one of core.
    store = MemoryStore::default();
    store.insert("model.safetensors", std::fs::read(fixture("pytorch/tied.safetensors")).unwrap());
    let error = open(&store).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::UnknownFormat { .. })), "{error}");
}
