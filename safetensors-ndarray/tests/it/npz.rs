//! NumPy's files, against ndarray-npy and NumPy itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};

use half::{bf16, f16};
use ndarray::{Array2, ArrayD, Axis, Ix1, Ix2, Ix3, IxDyn, ShapeBuilder, arr0, array, s};
use ndarray_npy::{NpzReader, NpzWriter, ReadNpyExt, WritableElement, WriteNpyExt};
use proptest::prelude::*;
use safetensors_core::tied::Tied;
use safetensors_core::{ConvertOptions, Error, SaveOptions, save};
use safetensors_ndarray::npz::{self, Archive, Compression, read_npy, write_npy};
use safetensors_ndarray::{ArrayElement, DynArray, ReadArrayExt, Reader, array_source};
use safetensors_testing::files::names_in;

use crate::common::place;

/// Writes an array with ndarray-npy and reads it here, and the other way round.
fn check<T>(shape: &[usize], fortran: bool, reversed: bool, of: impl Fn(usize) -> T)
where
    T: ArrayElement + PartialEq + std::fmt::Debug + WritableElement + ndarray_npy::ReadableElement,
{
    let mut next = 0;
    let mut array = ArrayD::from_shape_simple_fn(IxDyn(shape).set_f(fortran), || {
        next += 1;
        of(next)
    });
    if reversed && array.ndim() > 0 {
        array.invert_axis(Axis(0));
    }
    let dir = tempfile::tempdir().unwrap();
    let (theirs, ours) = (dir.path().join("theirs.npy"), dir.path().join("ours.npy"));
    array.write_npy(File::create(&theirs).unwrap()).unwrap();
    write_npy(&ours, &array).unwrap();
    assert_eq!(read_npy::<T, IxDyn>(&theirs).unwrap(), array);
    assert_eq!(read_npy::<T, IxDyn>(&ours).unwrap(), array);
    assert_eq!(ArrayD::<T>::read_npy(File::open(&ours).unwrap()).unwrap(), array);

    let (theirs, ours) = (dir.path().join("theirs.npz"), dir.path().join("ours.npz"));
    for (is_compressed, compression) in
        [(false, Compression::Stored), (true, Compression::Deflated)]
    {
        let file = File::create(&theirs).unwrap();
        let mut writer =
            if is_compressed { NpzWriter::new_compressed(file) } else { NpzWriter::new(file) };
        writer.add_array("a", &array).unwrap();
        writer.finish().unwrap();
        npz::save(&ours, [("a", array_source(&array))], compression).unwrap();
        for path in [&theirs, &ours] {
            let found = Archive::open(path).unwrap().array("a").unwrap();
            assert_eq!(found.read_array::<T, IxDyn>().unwrap(), array);
        }
        let mut reader = NpzReader::new(File::open(&ours).unwrap()).unwrap();
        let back: ArrayD<T> = reader.by_name("a").unwrap();
        assert_eq!(back, array);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 60, ..ProptestConfig::default()
    })]

    #[test]
    fn any_array_goes_there_and_back(
        shape in prop::collection::vec(0..7_usize, 0..4),
        fortran in any::<bool>(),
        reversed in any::<bool>(),
        dtype in 0..6,
    ) {
        match dtype {
            0 => check(&shape, fortran, reversed, |i| i as f64),
            1 => check(&shape, fortran, reversed, |i| i as u8),
            2 => check(&shape, fortran, reversed, |i| i % 3 == 0),
            3 => check(&shape, fortran, reversed, |i| i as i16),
            4 => check(&shape, fortran, reversed, |i| i as i32),
            _ => check(&shape, fortran, reversed, |i| -(i as i64)),
        }
    }
}

#[test]
fn an_archive_becomes_a_file_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let u = Array2::from_shape_fn((30, 40).f(), |(i, j)| (100 * i + j) as f64);
    let arrays = BTreeMap::from([
        ("u".to_owned(), DynArray::from(u.clone())),
        ("half".to_owned(), DynArray::from(array![f16::ONE, f16::NEG_ONE])),
        ("grid/x".to_owned(), DynArray::from(arr0(7_u16))),
        ("empty".to_owned(), DynArray::from(Array2::<i8>::zeros((0, 3)))),
    ]);
    npz::save(path("a.npz"), &arrays, Compression::Deflated).unwrap();
    assert_eq!(npz::load(path("a.npz")).unwrap(), arrays);
    npz::to_safetensors(path("a.npz"), path("a.safetensors")).unwrap();
    let reader = Reader::open(path("a.safetensors")).unwrap();
    let names: BTreeSet<_> = reader.names().collect();
    assert!(names.iter().eq(arrays.keys()));
    assert_eq!(reader.slice::<f64, _>("u", s![..;-3, 5]).unwrap(), u.slice(s![..;-3, 5]));
    npz::from_safetensors(path("a.safetensors"), path("b.npz"), Compression::Stored).unwrap();
    assert_eq!(npz::load(path("b.npz")).unwrap(), arrays);

    let halves = Archive::open(path("b.npz")).unwrap().array("half").unwrap();
    let floats = halves.read_array_as::<f32, Ix1>(&ConvertOptions::new()).unwrap();
    assert_eq!(floats, array![1.0, -1.0]);
}

#[test]
fn a_tied_array_keeps_its_names_in_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    let (file, archive) = (dir.path().join("a.safetensors"), dir.path().join("a.npz"));
    let u = array![1.0, 2.0];
    let tied = [("u", array_source(&u)), ("v", array_source(&u))];
    save(&file, tied, &SaveOptions::new().tied(Tied::new())).unwrap();
    assert_eq!(Reader::open(&file).unwrap().checkpoint().len(), 1);
    npz::from_safetensors(&file, &archive, Compression::Stored).unwrap();
    let expected = ["u", "v"].map(|name| (name.to_owned(), DynArray::from(u.clone())));
    assert_eq!(npz::load(&archive).unwrap(), BTreeMap::from(expected));
}

/// Replaces a text of an archive by one of the same length. Checksums are compared where an array
/// ends, and this is its header.
fn patch(archive: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let at = archive.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    archive[at..at + to.len()].copy_from_slice(to.as_bytes());
}

#[test]
fn arrays_of_types_that_safetensors_lacks_are_skipped_by_option() {
    let (dir, path) = place("a.npz");
    let u = array![[1.0, 2.0]];
    let arrays: [(&str, DynArray); 4] = [
        ("names", array![1.0_f32, 2.0].into()),
        ("u", u.clone().into()),
        ("table", array![1_u32, 2].into()),
        ("z", array![1_i64, 2].into()),
    ];
    npz::save(&path, arrays, Compression::Stored).unwrap();
    let mut archive = fs::read(&path).unwrap();
    patch(&mut archive, "'<f4'", "'<U1'");
    const END: &str = ", 'fortran_order': False, 'shape': (2,), }";
    patch(&mut archive, &format!("'<u4'{END}         "), &format!("[('x', '<f4')]{END}"));
    patch(&mut archive, "'<i8'", "'<M8'");
    fs::write(&path, &archive).unwrap();

    let file = dir.path().join("a.safetensors");
    let error = npz::to_safetensors(&path, &file).unwrap_err();
    let expected = r#"tensor "names": the NumPy type "<U1" has no dtype in the format"#;
    assert!(error.to_string().ends_with(expected), "{error}");
    assert_eq!(npz::load(&path).unwrap_err().to_string(), error.to_string());
    assert!(!file.exists());

    let skipped = npz::to_safetensors_skipping(&path, &file).unwrap();
    assert!(skipped.iter().filter_map(Error::tensor).eq(["names", "table", "z"]));
    assert_eq!(skipped[0].to_string(), error.to_string());
    assert!(Reader::open(&file).unwrap().names().eq(["u"]));
    assert_eq!(Reader::open(&file).unwrap().read::<f64, Ix2>("u").unwrap(), u);

    // Damage is no type that is lacking.
    patch(&mut archive, "'<f8'", "'<f8,");
    fs::write(&path, &archive).unwrap();
    assert_eq!(npz::to_safetensors_skipping(&path, &file).unwrap_err().tensor(), Some("u"));
    assert!(Reader::open(&file).unwrap().names().eq(["u"]));
}

#[test]
fn a_name_that_occurs_twice_is_refused_by_its_name() {
    let (dir, path) = place("a.npz");
    let twice = [1.0, 2.0].map(|value| ("u", DynArray::from(array![value])));
    let error = npz::save(&path, twice, Compression::Stored).unwrap_err();
    assert!(error.to_string().ends_with(r#"a.npz: tensor "u": duplicate tensor name"#), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn errors_have_the_expected_and_the_found_value() {
    let (dir, path) = place("a.npz");
    npz::save(&path, [("velocity", array_source(&array![[1.0, 2.0]]))], Compression::Stored)
        .unwrap();
    let archive = Archive::open(&path).unwrap();
    let velocity = archive.array("velocity").unwrap();
    let shown = path.display();
    let error = velocity.read_array::<f32, Ix2>().unwrap_err();
    let expected = format!(r#"{shown}: tensor "velocity": expected dtype F32, found F64"#);
    assert_eq!(error.to_string(), expected);
    let expected = format!(
        r#"{shown}: tensor "velocity": ndarray: expected 3 dimensions, found 2: shape [1, 2]"#
    );
    assert_eq!(velocity.read_array::<f64, Ix3>().unwrap_err().to_string(), expected);
    let converted = velocity.read_array_as::<f32, Ix3>(&ConvertOptions::new());
    assert_eq!(converted.unwrap_err().to_string(), expected);
    let error = archive.array("velocty").unwrap_err();
    assert!(error.to_string().ends_with(r#"did you mean "velocity"?"#), "{error}");
    let error = npz::load(dir.path().join("absent.npz")).unwrap_err();
    assert!(error.to_string().contains("absent.npz"), "{error}");

    // A failed write leaves the old file, and no other.
    let old = fs::read(&path).unwrap();
    let error = npz::save(
        &path,
        [("u", DynArray::from(array![1.0])), ("b", DynArray::from(array![bf16::ONE]))],
        Compression::Stored,
    );
    let expected = format!(r#"{shown}: tensor "b": NumPy has no type for BF16"#);
    assert_eq!(error.unwrap_err().to_string(), expected);
    write_npy(&path, &array![bf16::ONE]).unwrap_err();
    fs::write(dir.path().join("cut.npz"), &old[..old.len() / 2]).unwrap();
    npz::to_safetensors(dir.path().join("cut.npz"), dir.path().join("cut.safetensors"))
        .unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), old);
    assert_eq!(names_in(dir.path()), ["a.npz", "cut.npz"]);
}
