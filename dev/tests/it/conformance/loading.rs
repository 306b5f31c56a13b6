//! The cases about loading: dtypes, widening, values, names and files.

use std::fs;

use safetensors_bridge::checkpoint::Arranged;
use safetensors_bridge::convert::can_convert;
use safetensors_bridge::framework::{Framework, Samples, Support, TensorCache, load};
use safetensors_bridge::{
    Checkpoint, ConvertOptions, Dtype, Error, ErrorKind, LoadOptions, SaveOptions, TensorBuf,
    TensorView, Widening, serialize,
};
use tempfile::TempDir;

use super::Fixture;
use super::documented::documented;
use super::sample::{
    all_dtypes, expected, load_path, parts, save_file, shape_of_ndim, tensor, written,
};

/// Loads one tensor from a file and compares it with the framework's table.
fn check_one<F: Framework>(dir: &TempDir, buf: &TensorBuf, device: &F::Device) {
    let path = save_file(dir, "one.safetensors", [("t", buf)]);
    let context = format!("{} {} {:?}", F::NAME, buf.dtype(), buf.shape());
    match (expected::<F>(buf), load_path::<F>(&path, device)) {
        (Some(expected), Ok(loaded)) => {
            assert_eq!(written::<F>(&loaded["t"]), expected, "{context}")
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

/// A stack of slices of each dtype, and transposes.
pub(crate) fn arranged_tensors<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let (low, high) =
        (|| Arranged::tensor("t").slice(0, ..2), || Arranged::tensor("t").slice(0, 2..));
    for (dtype, buf) in all_dtypes(&[4, 2, 4]) {
        let path = save_file(&dir, "one.safetensors", [("t", &buf)]);
        let of =
            [("stack", Arranged::stack([high(), low()])), ("row", high().slice(0, 1).slice(0, 0))];
        let arranged = Checkpoint::open(&path).unwrap().arranged(of).unwrap();
        let Ok(loaded) = load::<F>(&arranged, device, &LoadOptions::new()) else {
            assert_eq!(F::support(dtype), Support::Unsupported);
            continue;
        };
        let bytes = buf.bytes();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let expect = |name: &str, shape: &[usize], bytes: &[u8]| {
            let view = TensorView::new(dtype, shape, bytes).unwrap();
            let buf = TensorBuf::from_view(&view).unwrap();
            assert_eq!(written::<F>(&loaded[name]), expected::<F>(&buf).unwrap(), "{dtype} {name}");
        };
        expect("stack", &[2, 2, 2, 4], &[second, first].concat());
        expect("row", &[4], &second[second.len() / 2..][..second.len() / 4]);
    }
    let matrix = TensorBuf::from_vec(vec![2, 3], vec![0.0_f32, 1., 2., 3., 4., 5.]).unwrap();
    let path = save_file(&dir, "matrix.safetensors", [("m", &matrix)]);
    let turned = [("m", Arranged::tensor("m").transposed())];
    let turned = Checkpoint::open(&path).unwrap().arranged(turned).unwrap();
    let loaded = load::<F>(&turned, device, &LoadOptions::new()).unwrap();
    let expected = TensorBuf::from_vec(vec![3, 2], vec![0.0_f32, 3., 1., 4., 2., 5.]).unwrap();
    assert_eq!(written::<F>(&loaded["m"]), parts(&expected));
}

pub(crate) fn exact_loading_refuses_to_widen<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, buf) in all_dtypes(&[4]) {
        let path = save_file(&dir, "one.safetensors", [("t", &buf)]);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let loaded = load::<F>(&checkpoint, device, &LoadOptions::new().widening(Widening::Refuse));
        match (F::support(dtype), loaded) {
            (Support::Exact, Ok(loaded)) => assert_eq!(written::<F>(&loaded["t"]), parts(&buf)),
            (Support::Widened(expected), Err(error)) => {
                let ErrorKind::WouldWiden { to, .. } = error.kind() else { panic!("{error}") };
                assert_eq!(*to, expected);
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
        (Support::Exact, Ok(loaded)) => assert_eq!(written::<F>(&loaded["big"]), parts(&buf)),
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
        let len = buf.bytes().len();
        let mut bytes = vec![0; len + 1];
        let start = usize::from(bytes.as_ptr().addr().is_multiple_of(2));
        bytes[start..][..len].copy_from_slice(buf.bytes());
        let view = TensorView::new(dtype, buf.shape(), &bytes[start..][..len]).unwrap();
        let loaded = F::from_view(&view, device, Widening::Lossless).unwrap();
        assert_eq!(written::<F>(&loaded), expected, "{} {dtype}", F::NAME);

        // An odd offset in a file.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("odd.safetensors");
        let json = format!(
            r#"{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},"b":{{"dtype":"{dtype}","shape":[4,2],"data_offsets":[1,{}]}}}}"#,
            len + 1
        );
        let file =
            [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &[7], buf.bytes()].concat();
        fs::write(&path, file).unwrap();
        let loaded = load_path::<F>(&path, device).unwrap();
        assert_eq!(written::<F>(&loaded["b"]), expected, "{} {dtype}", F::NAME);
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
    assert!(loaded.keys().eq(["a", "b"]), "what the index does not name is not loaded");
    assert_eq!(written::<F>(&loaded["a"]), parts(&a));
    assert_eq!(written::<F>(&loaded["b"]), parts(&b));
}

pub(crate) fn rows_in_any_order<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let options = LoadOptions::new().for_framework::<F>();
    for (dtype, buf) in all_dtypes(&[4, 4]) {
        let row = buf.bytes().len() / 4;
        let rows = TensorBuf::filled_by(dtype, vec![3, 4], |bytes| {
            let wanted = [3, 0, 3].map(|number| &buf.bytes()[number * row..][..row]);
            bytes.copy_from_slice(&wanted.concat());
            Ok(())
        });
        let Some(expected) = expected::<F>(&rows.unwrap()) else { continue };
        let path = save_file(&dir, "table.safetensors", [("t", &buf)]);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let rows = checkpoint.tensor("t").unwrap().rows(&[3, 0, 3]).unwrap();
        let loaded = F::from_exact(rows.read_with(&options).unwrap(), device).unwrap();
        assert_eq!(written::<F>(&loaded), expected, "{} {dtype}", F::NAME);
    }
}

/// A batch of files of a directory has their tensors, with one more dimension.
pub(crate) fn samples_of_a_directory_are_stacked<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    for position in 0..5_u8 {
        let image = TensorBuf::from_vec(vec![2], vec![f32::from(position); 2]).unwrap();
        let options = SaveOptions::new().metadata([("label", position.to_string())]);
        let path = dir.path().join(format!("{position}.safetensors"));
        safetensors_bridge::save(path, [("image", &image)], &options.durable(false)).unwrap();
    }
    let samples = Samples::<F>::open(dir.path(), device.clone()).unwrap();
    let mut sizes = Vec::new();
    let all = samples.for_each_batch(samples.shuffled(5), 2, |batch| {
        let values = batch.positions.iter().flat_map(|&position| [position as f32; 2]).collect();
        let images = TensorBuf::from_vec::<f32>(vec![batch.positions.len(), 2], values).unwrap();
        assert_eq!(written::<F>(&batch.tensors["image"]), parts(&images), "{}", F::NAME);
        for (metadata, position) in batch.metadata.iter().zip(&batch.positions) {
            assert_eq!(metadata["label"], position.to_string());
        }
        sizes.push(batch.positions.len());
        Ok::<(), Error>(())
    });
    all.unwrap();
    assert_eq!(sizes, [2, 2, 1]);
}

/// Each slice equals the slice of a loaded tensor, read ahead or not.
pub(crate) fn a_cache_keeps_slices_of_tensors<F: Fixture>(device: &F::Device) {
    let dir = tempfile::tempdir().unwrap();
    let bufs = all_dtypes(&[6, 2, 4]);
    let bufs = bufs.into_iter().filter_map(|(dtype, buf)| Some((dtype, expected::<F>(&buf)?, buf)));
    for (dtype, (_, shape, bytes), buf) in bufs {
        let path = save_file(&dir, "stack.safetensors", [("t", &buf)]);
        let part = bytes.len() / 6;
        let cache = |budget| {
            let checkpoint = Checkpoint::open(&path).unwrap();
            TensorCache::<F>::new(checkpoint, device.clone(), budget, &LoadOptions::new()).unwrap()
        };
        let small = cache(part as u64);
        let large = cache(2 * part as u64);
        large.read_ahead((0..6).map(|i| ("t", (i,)))).unwrap();
        for i in 0..6 {
            for cache in [&small, &large] {
                let (_, found_shape, found) = written::<F>(&*cache.get("t", (i,)).unwrap());
                assert_eq!(found_shape, shape[1..], "{} {dtype}", F::NAME);
                assert!(found == bytes[i * part..][..part], "{} {dtype} {i}", F::NAME);
            }
        }
        assert_eq!(small.stats().bytes_kept, part as u64, "{} {dtype}", F::NAME);
    }
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
        assert_eq!(written::<F>(&loaded[*name]), parts(buf), "{name:?}");
    }
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
        assert_eq!(written::<F>(&loaded["t"]), parts(&converted), "{} {dtype}", F::NAME);
    }
    // Other tensors stay as they are. A dtype that no conversion gives is an error before anything
    // is read.
    let (ids, mask) = (tensor(Dtype::I64, &[3]), tensor(Dtype::BOOL, &[3]));
    let path = save_file(&dir, "others.safetensors", [("ids", &ids), ("mask", &mask)]);
    let options = LoadOptions::new().floats_as(Dtype::F32);
    let loaded = load::<F>(&Checkpoint::open(&path).unwrap(), device, &options).unwrap();
    assert_eq!(written::<F>(&loaded["ids"]), parts(&ids), "{}", F::NAME);
    assert_eq!(Some(written::<F>(&loaded["mask"])), expected::<F>(&mask), "{}", F::NAME);
    // A framework that lacks the requested dtype still gets its values: rounded to that dtype, then
    // widened.
    let thirds = TensorBuf::from_vec(vec![2], vec![1.0_f32 / 3.0, -200.0 / 3.0]).unwrap();
    let path = save_file(&dir, "thirds.safetensors", [("t", &thirds)]);
    let narrow = LoadOptions::new().floats_as(Dtype::F8_E5M2);
    let loaded = load::<F>(&Checkpoint::open(&path).unwrap(), device, &narrow).unwrap();
    let rounded = thirds.convert(Dtype::F8_E5M2, &ConvertOptions::new()).unwrap();
    assert_eq!(Some(written::<F>(&loaded["t"])), expected::<F>(&rounded), "{}", F::NAME);
    let path = save_file(&dir, "float.safetensors", [("t", &tensor(Dtype::F32, &[4]))]);
    let impossible = LoadOptions::new().floats_as(Dtype::F4);
    let error = load::<F>(&Checkpoint::open(&path).unwrap(), device, &impossible).err().unwrap();
    assert!(matches!(error.kind(), ErrorKind::NoConversion { to: Dtype::F4, .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("t"), path.to_str()));
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
