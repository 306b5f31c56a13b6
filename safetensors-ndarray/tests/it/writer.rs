//! [`Writer`] and [`Reader`]: arrays of any layout there and back.

use half::f16;
use ndarray::{
    Array0, Array1, Array2, ArrayD, ArrayViewD, Axis, Ix1, Ix2, Ix3, IxDyn, ShapeBuilder, arr0,
    array, s,
};
use num_complex::Complex;
use proptest::prelude::*;
use safetensors_core::{Dtype, Error, ErrorKind, SaveOptions, ShardOptions, serialize};
use safetensors_ndarray::{ArrayElement, DynArray, Reader, Writer, array_source, save_sharded};

use crate::common::{place, shifted};

/// Another memory layout of an array with the same elements, and a view of some of them.
fn view_of<'a, T: Clone>(
    array: &'a ArrayD<T>,
    order: &[usize],
    steps: &[isize],
) -> ArrayViewD<'a, T> {
    let mut view = array.view();
    for (axis, &step) in steps.iter().enumerate().take(view.ndim()) {
        view.slice_axis_inplace(Axis(axis), ndarray::Slice::new(0, None, step));
    }
    let mut axes: Vec<usize> = (0..view.ndim()).collect();
    axes.sort_by_key(|&axis| order.get(axis).copied().unwrap_or(axis));
    view.permuted_axes(axes)
}

fn counted<T>(shape: &[usize], fortran: bool, element: impl Fn(usize) -> T) -> ArrayD<T> {
    let mut next = 0;
    ArrayD::from_shape_simple_fn(IxDyn(shape).set_f(fortran), || {
        next += 1;
        element(next)
    })
}

/// Returns `true` for the error on a machine with memory that never has the bytes of a file.
fn is_of_big_endian(error: &Error) -> bool {
    cfg!(target_endian = "big") && matches!(error.kind(), ErrorKind::BigEndian { .. })
}

/// Writes an array whole, and step by step along each of its axes. Reads all of them back.
fn check<T: ArrayElement + PartialEq + std::fmt::Debug>(array: &ArrayViewD<'_, T>) {
    let (_dir, path) = place("a.safetensors");
    let w = Writer::create(&path).unwrap();
    w.add("whole", array).unwrap();
    for axis in 0..array.ndim() {
        let mut step_shape = array.shape().to_vec();
        let steps = step_shape.remove(axis);
        let by_one = w.grow(&format!("by one {axis}"), Axis(axis), &step_shape).unwrap();
        array.axis_iter(Axis(axis)).for_each(|step| by_one.append(&step).unwrap());
        assert_eq!(by_one.steps() as usize, steps);
        let by_some = w.grow(&format!("by some {axis}"), Axis(axis), &step_shape).unwrap();
        array.axis_chunks_iter(Axis(axis), 2).for_each(|steps| by_some.extend(&steps).unwrap());
    }
    w.finish().unwrap();
    let r = Reader::open_in_memory(&path).unwrap();
    for name in r.names() {
        assert_eq!(r.read::<T, IxDyn>(name).unwrap(), array, "{name}");
        match r.view::<T, IxDyn>(name) {
            Ok(view) => assert_eq!(view, array, "{name}"),
            Err(error) => assert!(is_of_big_endian(&error), "{error}"),
        }
    }
    assert_eq!(r.checkpoint().len(), 1 + 2 * array.ndim());
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 150, ..ProptestConfig::default()
    })]

    #[test]
    fn any_layout_is_written_at_once_and_step_by_step(
        shape in prop::collection::vec(0..7_usize, 0..4),
        fortran in any::<bool>(),
        order in prop::collection::vec(0..4_usize, 4),
        steps in prop::collection::vec(prop_oneof![-2..=-1_isize, 1..=3_isize], 0..4),
        dtype in 0..5,
    ) {
        match dtype {
            0 => check(&view_of(&counted(&shape, fortran, |i| i as f64), &order, &steps)),
            1 => check(&view_of(&counted(&shape, fortran, |i| i as i8), &order, &steps)),
            2 => check(&view_of(&counted(&shape, fortran, |i| i % 3 == 0), &order, &steps)),
            3 => check(&view_of(&counted(&shape, fortran, |i| f16::from_f32(i as f32)), &order, &steps)),
            _ => check(&view_of(
                &counted(&shape, fortran, |i| Complex::new(i as f32, -1.0)), &order, &steps,
            )),
        }
    }
}

#[test]
fn names_prefixes_attributes_and_metadata() {
    let (_dir, path) = place("a.safetensors");
    let w = Writer::create_with(&path, &SaveOptions::new().metadata([("title", "t")])).unwrap();
    w.add("u", &array![[1.0, 2.0]]).unwrap();
    w.attribute("u", "units", "m/s").unwrap();
    let error = w.attribute("uu", "units", "m/s").unwrap_err();
    assert_eq!((error.tensor(), error.similar()), (Some("uu"), &["u".to_owned()][..]));
    w.add("grid/x", &Array1::<f32>::zeros(4)).unwrap();
    // The value of an attribute may be the name of an array, and makes no alias of it.
    w.attribute("u", "coordinates", "grid/x").unwrap();
    w.attribute("u", "scale_factor", 0.01).unwrap();
    w.attribute("u", "_FillValue", f32::NAN).unwrap();
    w.attribute("u", "level", -7_i64).unwrap();
    w.attribute("u", "is_periodic", true).unwrap();
    w.metadata([("planck", 6.62607015e-34)]);
    w.attribute("u", "units", "km/h").unwrap();
    w.add("scalar", &arr0(3_i64)).unwrap();
    w.add_tensor("any", &DynArray::from(array![true, false])).unwrap();
    w.finish().unwrap();

    let r = Reader::open(&path).unwrap();
    assert!(r.names().eq(["u", "grid/x", "scalar", "any"]));
    let below = r.with_prefix("grid/").map(|(name, array)| (name, array.dtype()));
    assert!(below.eq([("x", Dtype::F32)]));
    let attributes = ["coordinates", "units", "title"].map(|name| r.attribute("u", name));
    assert_eq!(attributes, [Some("grid/x"), Some("km/h"), None]);
    assert_eq!(r.attribute("grid/x", "units"), None);
    let numbers = ["scale_factor", "_FillValue", "level", "is_periodic"];
    let numbers = numbers.map(|name| r.attribute("u", name));
    assert_eq!(numbers, [Some("0.01"), Some("NaN"), Some("-7"), Some("true")]);
    assert_eq!(r.metadata()["planck"].parse(), Ok(6.62607015e-34));
    assert_eq!(r.metadata()["title"], "t");
    assert_eq!(r.checkpoint().aliases().count(), 0);
    assert_eq!(r.read::<i64, ndarray::Ix0>("scalar").unwrap(), Array0::from_elem((), 3));
    assert_eq!(r.read_any("any").unwrap(), DynArray::from(array![true, false]));
    assert_eq!(r.read_as::<f32, Ix2>("u").unwrap(), array![[1.0_f32, 2.0]]);
    let shown = path.display();
    let error = r.read::<f64, Ix3>("u").unwrap_err();
    let says = "ndarray: expected 3 dimensions, found 2: shape [1, 2]";
    assert_eq!(error.to_string(), format!(r#"{shown}: tensor "u": {says}"#));
    let error = r.read::<f32, Ix2>("u").unwrap_err();
    assert_eq!(error.to_string(), format!(r#"{shown}: tensor "u": expected dtype F32, found F64"#));
    // Every request for an array that does not exist names the one that may have been meant.
    let mut here = Array1::<f32>::zeros(4);
    for error in [
        r.read::<f32, Ix1>("grid/y").unwrap_err(),
        r.read_as::<f32, Ix1>("grid/y").unwrap_err(),
        r.read_any("grid/y").unwrap_err(),
        r.read_into("grid/y", here.view_mut()).unwrap_err(),
        r.slice::<f32, _>("grid/y", s![..]).unwrap_err(),
        r.slice_as::<f64, _>("grid/y", s![..]).unwrap_err(),
        r.slice_into("grid/y", s![..], here.view_mut()).unwrap_err(),
        r.array("grid/y").unwrap_err(),
        Reader::open_in_memory(&path).unwrap().view::<f32, Ix1>("grid/y").unwrap_err(),
    ] {
        let says = r#"there is no such tensor; did you mean "grid/x"?"#;
        assert_eq!(error.to_string(), format!(r#"{shown}: tensor "grid/y": {says}"#));
    }
}

#[test]
fn from_shards_bytes_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let arrays = [("a", array![1.0_f64, 2.0]), ("b", array![3.0, 4.0]), ("c", array![5.0, 6.0])];
    let arrays = arrays.map(|(name, array)| (name, DynArray::from(array)));
    let options = ShardOptions::new().max_shard_size(16.into());
    let saved =
        save_sharded(dir.path(), arrays.iter().map(|(name, array)| (name, array)), &options);
    assert_eq!(saved.unwrap().files.len(), 3);
    let r = Reader::open(dir.path()).unwrap();
    assert_eq!(r.read::<f64, Ix1>("b").unwrap(), array![3.0, 4.0]);
    let r = Reader::open_in_memory(dir.path()).unwrap();
    assert_eq!(r.read::<f64, Ix1>("c").unwrap(), array![5.0, 6.0]);
    let view = r.view::<f64, Ix1>("c");
    assert!(view.map_or_else(|error| is_of_big_endian(&error), |view| view == array![5.0, 6.0]));

    // At an odd address, an array can be read, and not borrowed.
    let file =
        serialize([("b", array_source(&array![3.0_f64, 4.0]))], &SaveOptions::new()).unwrap();
    let (words, len) = shifted(&file);
    let r = Reader::from_bytes(&bytemuck::cast_slice(&words)[1..1 + len]).unwrap();
    assert_eq!(r.read::<f64, Ix1>("b").unwrap(), array![3.0, 4.0]);
    let error = r.view::<f64, Ix1>("b").unwrap_err();
    let is_misaligned = matches!(error.kind(), ErrorKind::Misaligned { dtype: Dtype::F64, .. });
    assert!(is_misaligned || is_of_big_endian(&error), "{error}");
    assert!(error.to_string().starts_with(r#"bytes in memory: tensor "b": "#), "{error}");
    Reader::from_bytes(&b"no file"[..]).unwrap_err();
}

#[test]
fn steps_of_another_shape_are_refused() {
    let (_dir, path) = place("a.safetensors");
    let w = Writer::create(&path).unwrap();
    let u = w.grow("u", Axis(1), &[3]).unwrap();
    u.append(&array![1.0, 2.0, 3.0]).unwrap();
    let error = u.append(&array![1.0, 2.0]).unwrap_err();
    assert!(error.to_string().ends_with("expected shape [3], found [2]"), "{error}");
    u.append(&array![[1.0, 2.0, 3.0]]).unwrap_err();
    // Of several steps, the error shows all axes, in the order of the array.
    let shown = path.display();
    for (error, says) in [
        (u.extend(&Array2::zeros((5, 2))), "expected shape [3, 2], found [5, 2]"),
        (u.extend(&array![1.0, 2.0, 3.0]), "expected shape [3, 3], found [3]"),
        (u.extend(&arr0(1.0)), "expected shape [3, 1], found []"),
    ] {
        let says = format!(r#"{shown}: tensor "u": {says}"#);
        assert_eq!(error.unwrap_err().to_string(), says);
    }
    u.extend(&Array2::zeros((3, 0))).unwrap();
    u.push(1.0).unwrap_err();
    assert_eq!(u.steps(), 1);
    w.finish().unwrap();
    let r = Reader::open(&path).unwrap();
    assert_eq!(r.read::<f64, Ix2>("u").unwrap(), array![[1.0], [2.0], [3.0]]);
}

#[test]
fn a_finished_file_is_appended_to() {
    let (_dir, path) = place("run.safetensors");
    let rows = Array2::from_shape_fn((6, 3), |(row, column)| (10 * row + column) as f32);
    for part in [0..2, 2..3, 3..6] {
        let w = Writer::resume(&path).unwrap();
        let u = w.grow("u", Axis(0), &[3]).unwrap();
        let columns = w.grow("columns", Axis(1), &[3]).unwrap();
        assert_eq!((u.steps(), columns.steps()), (part.start as u64, part.start as u64));
        for step in part.clone() {
            u.append(&rows.row(step)).unwrap();
        }
        columns.extend(&rows.slice(s![part.clone(), ..]).t()).unwrap();
        w.dimensions("u", &["t", "x"]).unwrap();
        w.finish().unwrap();
        let r = Reader::open(&path).unwrap();
        assert_eq!(r.read::<f32, Ix2>("u").unwrap(), rows.slice(s![..part.end, ..]));
        assert_eq!(r.read::<f32, Ix2>("columns").unwrap(), rows.slice(s![..part.end, ..]).t());
        assert_eq!(r.dimensions("u").unwrap(), ["t", "x"]);
    }
    let w = Writer::resume(&path).unwrap();
    let error = w.grow::<f64>("u", Axis(0), &[3]).unwrap_err();
    assert!(error.to_string().ends_with("expected dtype F32, found F64"), "{error}");
}
