//! The cases that every framework must pass.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors_bridge::convert::{can_convert, widen};
use safetensors_bridge::framework::{Framework, Support, load, save, save_sharded};
use safetensors_bridge::tied::{Tied, Views};
use safetensors_bridge::{
    Checkpoint, ConvertOptions, Dtype, ErrorKind, LoadOptions, Result, SafeTensors, SaveOptions,
    ShardOptions, TensorBuf, TensorView, Widening, serialize,
};
use tempfile::TempDir;

use super::Fixture;
use super::documented::documented;
use super::sample::{all_dtypes, parts, shape_of_ndim, tensor, written};

type Loaded<F> = BTreeMap<String, <F as Framework>::Tensor>;

fn load_path<F: Framework>(path: &Path, device: &F::Device) -> Result<Loaded<F>> {
    load::<F>(&Checkpoint::open(path)?, device, &LoadOptions::new())
}

fn save_file<'a>(
    dir: &TempDir,
    name: &str,
    tensors: impl IntoIterator<Item = (&'a str, &'a TensorBuf)>,
) -> std::path::PathBuf {
    let path = dir.path().join(name);
    safetensors_bridge::save(&path, tensors, &SaveOptions::new()).unwrap();
    path
}

/// What a framework must load a tensor as, by its own dtype table.
fn expected<F: Framework>(buf: &TensorBuf) -> Option<(Dtype, Vec<usize>, Vec<u8>)> {
    match F::support(buf.dtype()) {
        Support::Exact => Some(parts(buf)),
        Support::Widened(to) => Some(parts(&widen(buf.clone(), to).unwrap())),
        Support::Unsupported => None,
    }
}

/// Loads one tensor from a file and compares it with what the framework's table promises.
fn check_one<F: Framework>(dir: &TempDir, buf: &TensorBuf, device: &F::Device) {
    let path = save_file(dir, "one.safetensors", [("t", buf)]);
    let context = format!("{} {} {:?}", F::NAME, buf.dtype(), buf.shape());
    match (expected::<F>(buf), load_path::<F>(&path, device)) {
        (Some(expected), Ok(loaded)) => {
            assert_eq!(written::<F>(&loaded["t"]).unwrap(), expected, "{context}")
        }
        (None, Err(error)) => {
            assert!(
                matches!(error.kind(), ErrorKind::UnsupportedDtype { .. }),
                "{context}: {error}"
            );
            assert_eq!(error.tensor(), Some("t"), "{context}");
            assert_eq!(error.file(), path.to_str(), "{context}");
        }
        (Some(_), Err(error)) => panic!("{context}: {error}"),
        (None, Ok(_)) => panic!("{context}: loaded, against the framework's own table"),
    }
}

pub(crate) fn every_dtype_at_every_ndim<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    for ndim in 0..=6 {
        for (_, buf) in all_dtypes(&shape_of_ndim(ndim)) {
            check_one::<F>(&dir, &buf, device);
        }
    }
}

pub(crate) fn tensors_without_elements<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    for shape in [&[0][..], &[3, 0], &[0, 2, 4]] {
        for (_, buf) in all_dtypes(shape) {
            check_one::<F>(&dir, &buf, device);
        }
    }
}

pub(crate) fn exact_loading_refuses_to_widen<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, buf) in all_dtypes(&[4]) {
        let path = save_file(&dir, "one.safetensors", [("t", &buf)]);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let loaded = load::<F>(&checkpoint, device, &LoadOptions::new().widening(Widening::Refuse));
        match (F::support(dtype), loaded) {
            (Support::Exact, Ok(loaded)) => {
                assert_eq!(written::<F>(&loaded["t"]).unwrap(), parts(&buf))
            }
            (Support::Widened(expected), Err(error)) => {
                assert!(
                    matches!(error.kind(), ErrorKind::WouldWiden { to, .. } if *to == expected),
                    "{error}"
                );
                assert_eq!(error.tensor(), Some("t"));
            }
            (Support::Unsupported, Err(error)) => {
                assert!(matches!(error.kind(), ErrorKind::UnsupportedDtype { .. }), "{error}");
            }
            (support, loaded) => panic!("{} {dtype} {support:?}: {:?}", F::NAME, loaded.err()),
        }
    }
}

pub(crate) fn values_that_do_not_fit_are_named<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let buf = TensorBuf::from_vec(vec![2], vec![7_u64, u64::MAX]).unwrap();
    let path = save_file(&dir, "one.safetensors", [("big", &buf)]);
    match (F::support(Dtype::U64), load_path::<F>(&path, device)) {
        (Support::Exact, Ok(loaded)) => {
            assert_eq!(written::<F>(&loaded["big"]).unwrap(), parts(&buf))
        }
        (Support::Widened(_), Err(error)) => {
            assert!(matches!(error.kind(), ErrorKind::DoesNotFit { index: 1, .. }), "{error}");
            assert_eq!((error.tensor(), error.file()), (Some("big"), path.to_str()));
        }
        (support, loaded) => panic!("{} {support:?}: {:?}", F::NAME, loaded.err()),
    }
}

pub(crate) fn booleans_other_than_0_and_1_are_refused<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bool.safetensors");
    let view = TensorView::new(Dtype::BOOL, &[3], &[1, 0, 2]).unwrap();
    fs::write(&path, serialize([("mask", view)], &SaveOptions::new()).unwrap()).unwrap();
    let errors = [
        load_path::<F>(&path, device).err(),
        F::from_view(&view, device, Widening::Lossless).err(),
    ];
    for error in errors.into_iter().map(Option::unwrap) {
        assert!(matches!(error.kind(), ErrorKind::InvalidBool { index: 2, found: 2 }), "{error}");
    }
}

pub(crate) fn misaligned_views_and_files<F: Fixture>(device: &F::Device) {
    for (dtype, buf) in all_dtypes(&[4, 2]) {
        let Some(expected) = expected::<F>(&buf) else { continue };
        // An odd address in memory.
        let mut bytes = vec![0; buf.bytes().len() + 1];
        let start = usize::from(bytes.as_ptr().addr().is_multiple_of(2));
        bytes[start..start + buf.bytes().len()].copy_from_slice(buf.bytes());
        let view =
            TensorView::new(dtype, buf.shape(), &bytes[start..start + buf.bytes().len()]).unwrap();
        let loaded = F::from_view(&view, device, Widening::Lossless).unwrap();
        assert_eq!(written::<F>(&loaded).unwrap(), expected, "{} {dtype}", F::NAME);

        // An odd offset in a file.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("odd.safetensors");
        let len = buf.bytes().len();
        let json = format!(
            r#"{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},"b":{{"dtype":"{dtype}","shape":[4,2],"data_offsets":[1,{}]}}}}"#,
            len + 1
        );
        let file =
            [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &[7], buf.bytes()].concat();
        fs::write(&path, file).unwrap();
        let loaded = load_path::<F>(&path, device).unwrap();
        assert_eq!(written::<F>(&loaded["b"]).unwrap(), expected, "{} {dtype}", F::NAME);
    }
}

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
        assert_eq!(written::<F>(&tensor).unwrap(), parts(&expected), "{}", F::NAME);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("strided.safetensors");
        save::<F>(&path, [("t", &tensor)], &SaveOptions::new()).unwrap();
        let loaded = load_path::<F>(&path, device).unwrap();
        assert_eq!(written::<F>(&loaded["t"]).unwrap(), parts(&expected), "{}", F::NAME);
    }
}

pub(crate) fn several_files<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (tensor(Dtype::F32, &[2, 3]), tensor(Dtype::I64, &[4]));
    save_file(&dir, "model-00001-of-00002.safetensors", [("a", &a), ("stray", &b)]);
    save_file(&dir, "model-00002-of-00002.safetensors", [("b", &b)]);
    let index = r#"{"metadata":{"total_size":56},"weight_map":{
        "a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();

    let loaded = load_path::<F>(dir.path(), device).unwrap();
    assert_eq!(
        loaded.keys().collect::<Vec<_>>(),
        ["a", "b"],
        "what the index does not name is not loaded"
    );
    assert_eq!(written::<F>(&loaded["a"]).unwrap(), parts(&a));
    assert_eq!(written::<F>(&loaded["b"]).unwrap(), parts(&b));
}

pub(crate) fn any_name<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let names = [
        "",
        " ",
        "a.b.c",
        "重み",
        "ñ\u{301}",
        "\u{202e}gpj.exe",
        "line\nbreak\t\"quoted\" \\ \0",
        "🦀",
    ];
    let bufs: Vec<_> = names.iter().enumerate().map(|(i, _)| tensor(Dtype::F32, &[i])).collect();
    let path = save_file(&dir, "names.safetensors", names.iter().copied().zip(&bufs));
    let loaded = load_path::<F>(&path, device).unwrap();
    assert_eq!(loaded.len(), names.len());
    for (name, buf) in names.iter().zip(&bufs) {
        assert_eq!(written::<F>(&loaded[*name]).unwrap(), parts(buf), "{name:?}");
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
    assert_eq!(
        fs::read(&second).unwrap(),
        fs::read(&third).unwrap(),
        "{}: save, load, save",
        F::NAME
    );

    // Tensors that the framework holds exactly equal those of the first file, byte for byte.
    let (first, second) = (fs::read(first).unwrap(), fs::read(second).unwrap());
    let (first, second) = (SafeTensors::parse(first).unwrap(), SafeTensors::parse(second).unwrap());
    for (name, view) in first.views().filter(|(_, view)| F::support(view.dtype()) == Support::Exact)
    {
        assert_eq!(second.view(name).unwrap(), view, "{}: {name}", F::NAME);
    }
    if Dtype::ALL.iter().all(|&dtype| F::support(dtype) == Support::Exact) {
        assert_eq!(
            first.source(),
            second.source(),
            "{}: nothing was widened, so the files are the same",
            F::NAME
        );
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

/// [`F::support`](Framework::support) agrees with the README, which has each dtype once.
pub(crate) fn the_dtype_table_is_the_documented_one<F: Fixture>(_: &F::Device) {
    let documented = documented(F::NAME);
    for &dtype in Dtype::ALL {
        let said: Vec<_> =
            documented.iter().filter(|(documented, _)| *documented == dtype).collect();
        assert_eq!(said, [&(dtype, F::support(dtype))], "{}", F::NAME);
    }
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
        save::<F>(
            &path,
            tensors,
            &SaveOptions::new().tied(Tied::new().prefer(["embed", "lm_head"])),
        )
        .unwrap();

        let checkpoint = Checkpoint::open(&path).unwrap();
        let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["embed", "other"], "{context}");
        assert_eq!(checkpoint.metadata()["lm_head"], "embed", "{context}");
        let loaded = load_path::<F>(&path, device).unwrap();
        assert_eq!(loaded.keys().collect::<Vec<_>>(), ["embed", "lm_head", "other"], "{context}");
        for tensor in loaded.values() {
            assert_eq!(written::<F>(tensor).unwrap(), expected, "{context}");
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
        let expected = written::<F>(&strided).unwrap();
        // A framework may not recognize such tensors as tied. The saved values are right in any
        // case.
        let options = SaveOptions::new().tied(Tied::new().views(Views::Save));
        let tensors = [("whole", &matrix), ("a", &strided), ("b", &strided), ("row", &row)];
        save::<F>(&path, tensors, &options).unwrap();
        let loaded = load_path::<F>(&path, device).unwrap();
        assert_eq!(
            written::<F>(&loaded["whole"]).unwrap(),
            written::<F>(&matrix).unwrap(),
            "{}",
            F::NAME
        );
        assert_eq!(
            written::<F>(&loaded["row"]).unwrap(),
            written::<F>(&row).unwrap(),
            "{}",
            F::NAME
        );
        assert_eq!(written::<F>(&loaded["a"]).unwrap(), expected, "{}", F::NAME);
        assert_eq!(written::<F>(&loaded["b"]).unwrap(), expected, "{}", F::NAME);
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
    assert_eq!(
        (checkpoint.files().len(), checkpoint.len()),
        (saved.files.len(), tensors.len()),
        "{}",
        F::NAME
    );
    assert_eq!(
        checkpoint.tensors().map(|tensor| tensor.byte_len()).sum::<u64>(),
        saved.total_size,
        "{}",
        F::NAME
    );
    assert_eq!(checkpoint.metadata()["title"], "Test");
    let loaded = load_path::<F>(dir.path(), device).unwrap();
    assert_eq!(loaded.len(), tensors.len() + 1);
    for (name, tensor) in &tensors {
        assert_eq!(
            written::<F>(&loaded[name]).unwrap(),
            written::<F>(tensor).unwrap(),
            "{} {name}",
            F::NAME
        );
        assert_eq!(
            Some(written::<F>(&loaded[name]).unwrap()),
            expected::<F>(&bufs[name]),
            "{} {name}",
            F::NAME
        );
    }
    assert_eq!(written::<F>(&loaded["again"]).unwrap(), written::<F>(&tensors["F32"]).unwrap());
}

pub(crate) fn floats_come_in_the_asked_dtype<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    // All frameworks have F32, so nothing needs to be widened.
    let options = LoadOptions::new().floats_as(Dtype::F32).widening(Widening::Refuse);
    for (dtype, buf) in all_dtypes(&[4, 3]).filter(|(dtype, _)| dtype.is_float()) {
        let path = save_file(&dir, "float.safetensors", [("t", &buf)]);
        assert!(can_convert(dtype, Dtype::F32), "{dtype}");
        let loaded = load::<F>(&Checkpoint::open(&path).unwrap(), device, &options).unwrap();
        let converted = buf.convert(Dtype::F32, &ConvertOptions::new()).unwrap();
        assert_eq!(written::<F>(&loaded["t"]).unwrap(), parts(&converted), "{} {dtype}", F::NAME);
    }
    // Other tensors stay as they are. A dtype that no conversion gives is an error before anything
    // is read.
    let (ids, mask) = (tensor(Dtype::I64, &[3]), tensor(Dtype::BOOL, &[3]));
    let path = save_file(&dir, "others.safetensors", [("ids", &ids), ("mask", &mask)]);
    let loaded = load::<F>(
        &Checkpoint::open(&path).unwrap(),
        device,
        &LoadOptions::new().floats_as(Dtype::F32),
    )
    .unwrap();
    assert_eq!(written::<F>(&loaded["ids"]).unwrap(), parts(&ids), "{}", F::NAME);
    assert_eq!(Some(written::<F>(&loaded["mask"]).unwrap()), expected::<F>(&mask), "{}", F::NAME);
    // A framework that lacks the requested dtype still gets its values: rounded to that dtype, then
    // widened.
    let thirds = TensorBuf::from_vec(vec![2], vec![1.0_f32 / 3.0, -200.0 / 3.0]).unwrap();
    let path = save_file(&dir, "thirds.safetensors", [("t", &thirds)]);
    let narrow = LoadOptions::new().floats_as(Dtype::F8_E5M2);
    let loaded = load::<F>(&Checkpoint::open(&path).unwrap(), device, &narrow).unwrap();
    let rounded = thirds.convert(Dtype::F8_E5M2, &ConvertOptions::new()).unwrap();
    assert_eq!(Some(written::<F>(&loaded["t"]).unwrap()), expected::<F>(&rounded), "{}", F::NAME);
    let path = save_file(&dir, "float.safetensors", [("t", &tensor(Dtype::F32, &[4]))]);
    let impossible = LoadOptions::new().floats_as(Dtype::F4);
    let error = load::<F>(&Checkpoint::open(&path).unwrap(), device, &impossible).err().unwrap();
    assert!(
        matches!(error.kind(), ErrorKind::NoConversion { to: Dtype::F4, .. }),
        "{} {error}",
        F::NAME
    );
    assert_eq!((error.tensor(), error.file()), (Some("t"), path.to_str()));
}
