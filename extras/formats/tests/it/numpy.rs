//! Files of NumPy are read as NumPy reads them, and written files equal NumPy's.
//!
//! `fixtures/generate.py` made the files with NumPy itself.

use std::collections::BTreeSet;
use std::fs;

use crate::support::{fixture, given, npy, open_npy, parts};
use crate::tensor_file::assert_any_range;
use safetensors_core::{Checkpoint, Dtype, TensorSource};
use safetensors_formats::npy::{Array, ByteOrder, Order};
use safetensors_formats::npz::Archive;
use safetensors_formats::{ErrorKind, Format, Options, npy as formats};
use serde_json::Value;

#[test]
fn arrays_of_every_type_and_layout_equal_numpys() {
    let expected = Checkpoint::open(fixture("expected.safetensors")).unwrap();
    let (mut dtypes, mut layouts) = (Vec::new(), Vec::new());
    for tensor in expected.tensors() {
        let name = tensor.name();
        let path = fixture(&format!("npy/{name}.npy"));
        let array = Array::open(&path).unwrap();
        assert_eq!((array.name(), array.dtype()), (name, tensor.dtype()));
        assert_eq!(array.shape(), tensor.shape(), "{name}");
        assert_eq!(array.read().unwrap().bytes(), tensor.read().unwrap().bytes(), "{name}");
        assert_eq!(given(&array).unwrap(), given(&tensor).unwrap(), "{name}");
        let opened = safetensors_formats::open(&path, &Options::new()).unwrap();
        assert!(parts(opened.tensor(name).unwrap().read()) == parts(array.read()), "{name}");
        let file = opened.files()[0].safetensors().source();
        assert_eq!(file.format(), Format::Npy);
        assert_any_range(file);
        dtypes.push(array.dtype());
        layouts.push((array.header().order, array.header().byte_order));
    }
    let files = fs::read_dir(fixture("npy")).unwrap().count();
    assert_eq!(files, expected.tensors().count());
    let missing = Dtype::ALL.iter().filter(|dtype| !dtypes.contains(dtype));
    let missing: Vec<_> = missing.filter(|dtype| dtype.bits() >= 8).map(|d| d.name()).collect();
    assert_eq!(
        missing.join(" "),
        "F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ BF16",
        "every dtype that NumPy has"
    );
    for order in [Order::C, Order::Fortran] {
        for byte_order in [ByteOrder::Little, ByteOrder::Big] {
            assert!(layouts.contains(&(order, byte_order)));
        }
    }
}

#[test]
fn written_files_equal_numpys() {
    let mut written = 0;
    for entry in fs::read_dir(fixture("npy")).unwrap() {
        let path = entry.unwrap().path();
        let array = Array::open(&path).unwrap();
        let header = array.header();
        assert!(fs::read(&path).unwrap().starts_with(&header.encode().unwrap()), "{path:?}");
        if (header.order, header.byte_order) == (Order::C, ByteOrder::Little) {
            let mut file = Vec::new();
            formats::write(&mut file, &array).unwrap();
            assert_eq!(file, fs::read(&path).unwrap(), "{path:?}");
            written += 1;
        }
    }
    assert!(written > 12, "{written}");
}

#[test]
fn archives_are_read_in_any_form_that_python_writes() {
    let expected = Checkpoint::open(fixture("expected.safetensors")).unwrap();
    for file in ["stored.npz", "deflated.npz", "piped.npz"] {
        let archive = Archive::open(fixture(file)).unwrap();
        let names = [
            ("layer.0/f4_c", "f4_c"),
            ("layer.0/f8_big_fortran", "f8_big_fortran"),
            ("layer.0/scalar", "scalar"),
            ("layer.0/empty", "empty"),
            ("größe", "c8_fortran"),
        ];
        assert!(archive.names().eq(names.map(|(name, _)| name)), "{file}");
        archive.check().unwrap();
        let opened = safetensors_formats::open(fixture(file), &Options::new()).unwrap();
        let source = opened.files()[0].safetensors().source();
        assert_eq!((source.format(), opened.len()), (Format::Npz, names.len()));
        assert_eq!(source.verify_checksums().unwrap(), names.len() as u64);
        assert_any_range(source);
        for (array, (name, expected_name)) in archive.arrays().zip(names) {
            let (array, tensor) = (array.unwrap(), expected.tensor(expected_name).unwrap());
            assert_eq!((array.name(), array.dtype()), (name, tensor.dtype()), "{file}");
            assert_eq!(array.shape(), tensor.shape());
            assert_eq!(array.read().unwrap().bytes(), tensor.read().unwrap().bytes(), "{name}");
            assert!(parts(opened.tensor(name).unwrap().read()) == parts(array.read()), "{name}");
            let by_name = archive.array(name).unwrap();
            assert_eq!(given(&by_name).unwrap(), given(&tensor).unwrap());
        }
    }
}

#[test]
fn types_without_a_dtype_are_named() {
    let expected = [
        ("bfloat16", "\"<V2\" has no dtype in the format; if it is the bfloat16 of ml_dtypes"),
        ("bytes", "\"|S2\" has no dtype in the format"),
        ("complex128", "\"<c16\" has no dtype in the format; c8 has one"),
        ("dates", "\"<M8[s]\" has no dtype in the format"),
        ("fields", "the .npy array has fields; only plain arrays can be read"),
        ("float8_e4m3", "\"<V1\" has no dtype in the format; if it is an 8-bit float"),
        ("float8_e5m2", "\"<f1\" has no dtype in the format; if it is an 8-bit float"),
        ("longdouble", "\"<f16\" has no dtype in the format; f8 has one"),
        ("objects", "\"|O\" has no dtype in the format"),
        ("texts", "\"<U2\" has no dtype in the format"),
        ("void", "\"|V2\" has no dtype in the format"),
    ];
    assert_eq!(fs::read_dir(fixture("refused")).unwrap().count(), expected.len());
    for (name, problem) in expected {
        let path = fixture(&format!("refused/{name}.npy"));
        let error = Array::open(&path).unwrap_err();
        assert_eq!(error.file(), path.to_str());
        assert!(error.to_string().contains(problem), "{error}");
    }
}

/// Headers that NumPy takes and that are refused here: only a person writes them by hand. They are
/// identified by a text in them.
const STRICTER: [(&str, &str); 14] = [
    ("a number in other digits", "(0x2,)"),
    ("a number with underscores", "(1_0,)"),
    ("a number with a plus sign", "(+2,)"),
    ("a prefix of a string", "u'<f4'"),
    ("a prefix of a string", "r'<f4'"),
    ("strings in a row", "'<' 'f4'"),
    ("an escape in a string", "\\x3c"),
    ("a string in three quotes", "'''"),
    ("a type by its letter", "'f'"),
    ("a type by its letter", "'?'"),
    ("a type by its name", "float32"),
    ("a comment", "#"),
    ("a key twice", "'shape': (2,), 'shape'"),
    ("a key twice", "'<i4', 'descr'"),
];

#[test]
fn headers_are_taken_and_refused_as_numpy_does() {
    let judged: Value =
        serde_json::from_slice(&fs::read(fixture("headers.json")).unwrap()).unwrap();
    let (mut taken, mut refused, mut stricter) = (0, 0, BTreeSet::new());
    for entry in judged.as_array().unwrap() {
        let text = entry["text"].as_str().unwrap();
        let [major, minor] = [0, 1].map(|i| entry["version"][i].as_u64().unwrap() as u8);
        let latin_1: Vec<u8> = text.chars().map(|c| u32::from(c) as u8).collect();
        // As much data as the shape asks for, so that only the header can be wrong.
        let shape = entry["shape"].as_array().map(|dims| dims.iter().map(|dim| dim.as_u64()));
        let count: u64 = shape.into_iter().flatten().map(Option::unwrap).product();
        let width = entry["descr"].as_str().map_or(4, |descr| descr[2..].parse().unwrap());
        let data = vec![0; (count * width) as usize];
        let opened = open_npy(npy((major, minor), &latin_1, &data));
        let exception = STRICTER.iter().position(|(_, part)| text.contains(part));
        match (&entry["refused"], opened, exception) {
            (Value::Null, Err(_), Some(exception)) => {
                stricter.insert(exception);
            }
            (Value::Null, Ok(array), None) => {
                taken += 1;
                let shape: Vec<usize> = serde_json::from_value(entry["shape"].clone()).unwrap();
                assert_eq!(array.shape(), shape, "{text}");
                let fortran = array.header().order == Order::Fortran;
                assert_eq!(fortran, entry["fortran"].as_bool().unwrap(), "{text}");
                let header =
                    String::from_utf8_lossy(&array.header().encode().unwrap()).into_owned();
                assert!(header.contains(entry["descr"].as_str().unwrap()), "{text}: {header}");
            }
            (Value::String(_), Err(error), None) => {
                refused += 1;
                assert!(
                    !matches!(error.other(), Some(ErrorKind::DataLength { .. })),
                    "{text}: {error}"
                );
            }
            (expected, found, _) => panic!("{major}.{minor} {text}: {expected} {found:?}"),
        }
    }
    assert_eq!(stricter.len(), STRICTER.len(), "every exception is one");
    assert!(taken >= 30 && refused >= 60, "{taken} {refused}");
}
