//! The cases about saving: memory layouts, bytes, tied tensors and shards.

use std::collections::BTreeMap;
use std::fs;

use safetensors_bridge::digest::{self, DigestOptions};
use safetensors_bridge::edit::Edit;
use safetensors_bridge::framework::{Support, load, save, save_sharded};
use safetensors_bridge::tied::{Tied, Views};
use safetensors_bridge::{
    Checkpoint, Dtype, ErrorKind, LoadOptions, SafeTensors, SaveOptions, ShardOptions, TensorBuf,
    Widening,
};

use super::Fixture;
use super::sample::{all_dtypes, expected, load_path, parts, save_file, tensor, written};

pub(crate) fn transposed_strided_and_broadcast_sources<F: Fixture>(device: &F::Device) {
    let (rows, columns) = (37, 53);
    let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
    let at = |row: usize, column: usize| values[row * columns + column];
    let matrix = TensorBuf::from_vec(vec![rows, columns], values.clone()).unwrap();
    let row = TensorBuf::from_vec(vec![columns], values[..columns].to_vec()).unwrap();
    let matrix = F::from_buf(matrix, device, Widening::Refuse).unwrap();
    let row = F::from_buf(row, device, Widening::Refuse).unwrap();

    let transposed =
        (0..columns).flat_map(|c| (0..rows).map(move |r| (r, c))).map(|(r, c)| at(r, c)).collect();
    let narrowed =
        (0..rows).flat_map(|r| (5..21).map(move |c| (r, c))).map(|(r, c)| at(r, c)).collect();
    let repeated = (0..3).flat_map(|_| values[..columns].iter().copied()).collect();
    let cases = [
        (F::transpose(&matrix), vec![columns, rows], transposed),
        (F::columns(&matrix, 5, 21), vec![rows, 16], narrowed),
        (F::broadcast(&row, 3), vec![3, columns], repeated),
    ];
    for (tensor, shape, values) in cases {
        let expected = TensorBuf::from_vec::<f32>(shape, values).unwrap();
        assert_eq!(written::<F>(&tensor), parts(&expected), "{}", F::NAME);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("strided.safetensors");
        save::<F>(&path, [("t", &tensor)], &SaveOptions::new()).unwrap();
        let loaded = load_path::<F>(&path, device).unwrap();
        assert_eq!(written::<F>(&loaded["t"]), parts(&expected), "{}", F::NAME);
    }
}

pub(crate) fn save_load_save_is_byte_identical<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let bufs: Vec<_> = all_dtypes(&[4, 3])
        .chain(all_dtypes(&[0]))
        .filter(|(dtype, _)| F::support(*dtype) != Support::Unsupported)
        .enumerate()
        .map(|(i, (dtype, buf))| (format!("{dtype}.{i}"), buf))
        .collect();
    let first =
        save_file(&dir, "first.safetensors", bufs.iter().map(|(name, buf)| (name.as_str(), buf)));
    let options = SaveOptions::new();

    let loaded = load_path::<F>(&first, device).unwrap();
    let (second, third) =
        (dir.path().join("second.safetensors"), dir.path().join("third.safetensors"));
    save::<F>(&second, &loaded, &options).unwrap();
    save::<F>(&third, &load_path::<F>(&second, device).unwrap(), &options).unwrap();
    let [first, second, third] = [first, second, third].map(|path| fs::read(path).unwrap());
    assert_eq!(second, third, "{}: save, load, save", F::NAME);

    // Tensors that the framework holds exactly equal the first file's, byte for byte.
    let (first, second) = (SafeTensors::parse(first).unwrap(), SafeTensors::parse(second).unwrap());
    for (name, view) in first.views().filter(|(_, view)| F::support(view.dtype()) == Support::Exact)
    {
        assert_eq!(second.view(name).unwrap(), view, "{}: {name}", F::NAME);
    }
    if Dtype::ALL.iter().all(|&dtype| F::support(dtype) == Support::Exact) {
        assert_eq!(first.source(), second.source(), "{}: nothing was widened", F::NAME);
    }
}

pub(crate) fn a_failed_save_leaves_the_old_file<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let path = save_file(&dir, "model.safetensors", [("old", &tensor(Dtype::F32, &[2]))]);
    let before = fs::read(&path).unwrap();
    let new = F::from_buf(tensor(Dtype::F32, &[5]), device, Widening::Refuse).unwrap();
    let error =
        save::<F>(&path, [("new", &new), ("__metadata__", &new)], &SaveOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ReservedName), "{error}");
    assert_eq!(error.file(), path.to_str());
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no litter");
}

pub(crate) fn tied_tensors_are_saved_once<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tied.safetensors");
    for (dtype, buf) in all_dtypes(&[4, 2]) {
        let Some(expected) = expected::<F>(&buf) else { continue };
        let context = format!("{} {dtype}", F::NAME);
        let make = || F::from_buf(buf.clone(), device, Widening::Lossless).unwrap();
        // The other tensor is equal, but has its own memory.
        let (tensor, other) = (make(), make());
        let tensors = [("lm_head", &tensor), ("embed", &tensor), ("other", &other)];
        let options = SaveOptions::new().tied(Tied::new().prefer(["embed", "lm_head"]));
        save::<F>(&path, tensors, &options).unwrap();

        let checkpoint = Checkpoint::open(&path).unwrap();
        let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["embed", "other"], "{context}");
        assert_eq!(checkpoint.metadata()["lm_head"], "embed", "{context}");
        let loaded = load_path::<F>(&path, device).unwrap();
        assert_eq!(loaded.keys().collect::<Vec<_>>(), ["embed", "lm_head", "other"], "{context}");
        for tensor in loaded.values() {
            assert_eq!(written::<F>(tensor), expected, "{context}");
        }
        let own = load::<F>(&checkpoint, device, &LoadOptions::new().aliases(false)).unwrap();
        assert_eq!(own.keys().collect::<Vec<_>>(), ["embed", "other"], "{context}");

        // Without the option nothing is tied, and empty tensors never are.
        save::<F>(&path, tensors, &SaveOptions::new()).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().len(), 3, "{context}");
    }
    let empty = F::from_buf(tensor(Dtype::F32, &[0, 2]), device, Widening::Refuse).unwrap();
    save::<F>(&path, [("a", &empty), ("b", &empty)], &SaveOptions::new().tied(Tied::new()))
        .unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().len(), 2, "{}", F::NAME);
}

pub(crate) fn tied_tensors_of_any_layout<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tied.safetensors");
    let matrix = F::from_buf(tensor(Dtype::F32, &[6, 6]), device, Widening::Refuse).unwrap();
    let row = F::from_buf(tensor(Dtype::F32, &[6]), device, Widening::Refuse).unwrap();
    for strided in [F::transpose(&matrix), F::columns(&matrix, 1, 4), F::broadcast(&row, 3)] {
        // A framework may not recognize such tensors as tied. The saved values are right in any
        // case.
        let options = SaveOptions::new().tied(Tied::new().views(Views::Save));
        let tensors = [("whole", &matrix), ("a", &strided), ("b", &strided), ("row", &row)];
        save::<F>(&path, tensors, &options).unwrap();
        let loaded = load_path::<F>(&path, device).unwrap();
        for (name, tensor) in tensors {
            assert_eq!(written::<F>(&loaded[name]), written::<F>(tensor), "{} {name}", F::NAME);
        }
    }
}

pub(crate) fn shards<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let bufs: BTreeMap<String, TensorBuf> = all_dtypes(&[4, 3])
        .filter(|(dtype, _)| F::support(*dtype) != Support::Unsupported)
        .map(|(dtype, buf)| (dtype.to_string(), buf))
        .collect();
    let make = |buf: &TensorBuf| F::from_buf(buf.clone(), device, Widening::Lossless).unwrap();
    let tensors: BTreeMap<_, _> =
        bufs.iter().map(|(name, buf)| (name.clone(), make(buf))).collect();
    // Another name for a tensor. A tied tensor stays in one shard.
    let named = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .chain([("again", &tensors["F32"])]);
    let metadata = SaveOptions::new().tied(Tied::new()).metadata([("title", "Test")]);
    let options = ShardOptions::new().max_shard_size(100.into()).save_options(metadata);
    let saved = save_sharded::<F>(dir.path(), named, &options).unwrap();
    assert!(saved.files.len() > 2, "{}: {saved:?}", F::NAME);

    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let size: u64 = checkpoint.tensors().map(|tensor| tensor.byte_len()).sum();
    let found = (checkpoint.files().len(), checkpoint.len(), size);
    assert_eq!(found, (saved.files.len(), tensors.len(), saved.total_size), "{}", F::NAME);
    assert_eq!(checkpoint.metadata()["title"], "Test");
    let loaded = load_path::<F>(dir.path(), device).unwrap();
    assert_eq!(loaded.len(), tensors.len() + 1);
    for (name, tensor) in &tensors {
        let found = written::<F>(&loaded[name]);
        assert_eq!(found, written::<F>(tensor), "{} {name}", F::NAME);
        assert_eq!(Some(found), expected::<F>(&bufs[name]), "{} {name}", F::NAME);
    }
    assert_eq!(written::<F>(&loaded["again"]), written::<F>(&tensors["F32"]));
}

/// A program loads a file that records digests, changes a tensor, and saves with the metadata that
/// it has read.
pub(crate) fn metadata_is_passed_on_without_the_records_of_another_file<F: Fixture>(
    device: &F::Device,
) {
    let dir = tempfile::tempdir().unwrap();
    let buf = |value: f32| TensorBuf::from_vec(vec![2], vec![value; 2]).unwrap();
    let first = save_file(&dir, "first.safetensors", [("w", &buf(1.0))]);
    let sha256 = ("modelspec.hash_sha256", format!("0x{}", "0".repeat(64)));
    let edit = Edit::open(&first).unwrap().set_metadata([("k", "v".into()), sha256]);
    edit.record_digests(&DigestOptions::new()).unwrap().apply().unwrap();
    let verify = |path: &std::path::Path| {
        let file = Checkpoint::open(path).unwrap();
        let verified = digest::verify(&file, &DigestOptions::new()).unwrap().remove(0);
        (verified.checked.len(), verified.sha256.is_some(), file.metadata().len())
    };
    let metadata = Checkpoint::open(&first).unwrap().metadata().clone();
    assert_eq!(metadata.len(), 3, "{}", F::NAME);
    let changed = F::from_buf(buf(2.0), device, Widening::Refuse).unwrap();
    let options = SaveOptions::new().metadata(metadata);
    let second = dir.path().join("second.safetensors");
    save::<F>(&second, [("w", &changed)], &options).unwrap();
    assert_eq!(verify(&second), (0, false, 1), "{}", F::NAME);
    save::<F>(&second, [("w", &changed)], &options.digests(true)).unwrap();
    assert_eq!(verify(&second), (1, false, 2), "{}", F::NAME);
}
