//! The table *Coming from ndarray-npy* of the crate's documentation, line by line: ndarray-npy's
//! function and its replacement give the same result. Each line has its function here.

use std::fs::{self, File};
use std::path::PathBuf;

use ndarray::{Array2, ArrayView2, Ix1, Ix2, OwnedRepr, array};
use ndarray_npy::{
    NpzReader, NpzWriter, ReadNpyError, ReadNpyExt, ReadNpzError, ViewNpyError, ViewNpyExt,
    WriteNpyExt,
};
use safetensors_ndarray::{ErrorKind, Reader, Writer, WrongNdim};
use safetensors_testing::tables::assert_lines;
use tempfile::TempDir;

use crate::common::{said, shifted};

/// The test of a line. It panics if the line is not true.
type Line = fn(&Files);

struct Files(TempDir);

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Opens the archive that ndarray-npy wrote.
    fn npz(&self) -> NpzReader<File> {
        NpzReader::new(File::open(self.path("a.npz")).unwrap()).unwrap()
    }

    /// Opens the file that this crate wrote.
    fn reader(&self) -> Reader {
        Reader::open(self.path("a.safetensors")).unwrap()
    }
}

fn u() -> Array2<f64> {
    array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
}

fn files() -> Files {
    let files = Files(tempfile::tempdir().unwrap());
    let mut npz = NpzWriter::new(File::create(files.path("a.npz")).unwrap());
    npz.add_array("u", &u()).unwrap();
    npz.finish().unwrap();
    let w = Writer::create(files.path("a.safetensors")).unwrap();
    w.add("u", &u()).unwrap();
    w.finish().unwrap();
    files
}

/// Returns the bytes of an `.npy` file, at an address that is `off` bytes from an aligned one.
fn npy(off: usize) -> (Vec<u64>, usize) {
    let mut bytes = Vec::new();
    u().write_npy(&mut bytes).unwrap();
    let mut words = vec![0_u64; bytes.len() / 8 + 2];
    bytemuck::cast_slice_mut(&mut words)[off..off + bytes.len()].copy_from_slice(&bytes);
    (words, bytes.len())
}

const LINES: &[(&str, Line)] = &[
    ("`NpzWriter::new(File::create(path)?)`", |files| {
        Writer::create(files.path("b.safetensors")).unwrap().finish().unwrap();
        assert_eq!(Reader::open(files.path("b.safetensors")).unwrap().names().count(), 0);
    }),
    ("`npz.add_array(\"u\", &u)`", |files| {
        assert_eq!(files.reader().read::<f64, Ix2>("u").unwrap(), u());
    }),
    ("`npz.finish()`, or drop", |files| {
        let path = files.path("kept.safetensors");
        fs::write(&path, "old").unwrap();
        let w = Writer::create(&path).unwrap();
        w.add("u", &u()).unwrap();
        drop(w);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }),
    ("`NpzReader::new(File::open(path)?)`", |files| {
        assert_eq!(files.npz().names().unwrap(), ["u"]);
        assert!(files.reader().names().eq(["u"]));
    }),
    ("`npz.by_name::<OwnedRepr<f64>, Ix2>(\"u\")`", |files| {
        let theirs = files.npz().by_name::<OwnedRepr<f64>, Ix2>("u").unwrap();
        assert_eq!(files.reader().read::<f64, Ix2>("u").unwrap(), theirs);
    }),
    ("`npz.names()`", |files| {
        assert!(files.reader().with_prefix("").map(|(name, _)| name).eq(["u"]));
    }),
    ("`npz.by_index(i)`", |files| {
        let theirs = files.npz().by_index::<OwnedRepr<f64>, Ix2>(0).unwrap();
        let reader = files.reader();
        let ours = reader.arrays().next().unwrap();
        assert_eq!((ours.name(), ours.shape()), ("u", theirs.shape()));
    }),
    ("`read_npy(path)`, `write_npy(path, &u)`", |files| {
        ndarray_npy::write_npy(files.path("u.npy"), &u()).unwrap();
        let theirs: Array2<f64> = ndarray_npy::read_npy(files.path("u.npy")).unwrap();
        assert_eq!(files.reader().read::<f64, Ix2>("u").unwrap(), theirs);
    }),
    ("`ArrayView::view_npy(&map)`", |files| {
        let (words, len) = npy(0);
        let theirs = ArrayView2::<f64>::view_npy(&bytemuck::cast_slice(&words)[..len]).unwrap();
        let ours = Reader::open_in_memory(files.path("a.safetensors")).unwrap();
        assert_eq!(ours.read::<f64, Ix2>("u").unwrap(), theirs);
        let view = ours.view::<f64, Ix2>("u");
        assert!(cfg!(target_endian = "big") || view.unwrap() == theirs);
    }),
    ("`ReadNpyError::WrongDescriptor`", |files| {
        let (words, len) = npy(0);
        let theirs = Array2::<f32>::read_npy(&bytemuck::cast_slice(&words)[..len]).unwrap_err();
        assert!(matches!(theirs, ReadNpyError::WrongDescriptor(_)));
        let ours = files.reader().read::<f32, Ix2>("u").unwrap_err();
        assert!(matches!(ours.kind(), ErrorKind::WrongDtype { .. }));
    }),
    ("`ReadNpyError::WrongNdim`", |files| {
        let theirs = files.npz().by_name::<OwnedRepr<f64>, Ix1>("u").unwrap_err();
        assert!(matches!(theirs, ReadNpzError::Npy(ReadNpyError::WrongNdim(..))));
        let ours = files.reader().read::<f64, Ix1>("u").unwrap_err();
        assert_eq!(said::<WrongNdim>(&ours).expected, 1);
    }),
    ("`ViewNpyError::MisalignedData`", |files| {
        let (words, len) = npy(1);
        let theirs =
            ArrayView2::<f64>::view_npy(&bytemuck::cast_slice(&words)[1..1 + len]).unwrap_err();
        assert!(matches!(theirs, ViewNpyError::MisalignedData));
        let file = fs::read(files.path("a.safetensors")).unwrap();
        let (words, len) = shifted(&file);
        let ours = Reader::from_bytes(&bytemuck::cast_slice(&words)[1..1 + len]).unwrap();
        let error = ours.view::<f64, Ix2>("u").unwrap_err();
        let is_misaligned = matches!(error.kind(), ErrorKind::Misaligned { .. });
        assert!(is_misaligned || cfg!(target_endian = "big"), "{error}");
    }),
    ("`ReadNpzError::Zip(FileNotFound)`", |files| {
        let theirs = files.npz().by_name::<OwnedRepr<f64>, Ix2>("v").unwrap_err();
        assert!(matches!(theirs, ReadNpzError::Zip(_)), "{theirs}");
        let ours = files.reader().read::<f64, Ix2>("v").unwrap_err();
        assert!(matches!(ours.kind(), ErrorKind::TensorNotFound));
    }),
];

#[test]
fn each_line_of_the_table_is_true() {
    let (source, heading) = (include_str!("../../src/lib.rs"), "# Coming from ndarray-npy\n");
    assert_lines(source, heading, LINES.iter().map(|(line, _)| *line), &[]);
    for (line, check) in LINES {
        println!("{line}");
        check(&files());
    }
}
