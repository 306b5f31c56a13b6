//! Slices of stored arrays, against the same slices of arrays in memory.

use half::bf16;
use ndarray::{
    Array2, Array3, ArrayD, Axis, IxDyn, NewAxis, ShapeBuilder, SliceInfoElem, array, s,
};
use num_complex::Complex;
use proptest::prelude::*;
use safetensors_core::{Checkpoint, ConvertOptions, ErrorKind, SaveOptions, serialize};
use safetensors_ndarray::{ArrayElement, ReadArrayExt, Reader, WrongNdim, array_source};
use safetensors_testing::read_at::NotingSource;

use crate::common::{assert_says, said};

fn reader<T: ArrayElement>(array: &ArrayD<T>) -> Reader<NotingSource> {
    let file = serialize([("a", array_source(array))], &SaveOptions::new()).unwrap();
    Reader::new(Checkpoint::from_source(NotingSource::new(file), "spied on").unwrap())
}

/// Returns the bytes that `f` reads.
fn read_by<T>(reader: &Reader<NotingSource>, f: impl FnOnce() -> T) -> u64 {
    let source = reader.checkpoint().files()[0].safetensors().source();
    source.take_reads();
    f();
    source.take_len()
}

/// One axis of a slice, as fractions of a length that is not known yet.
#[derive(Clone, Debug)]
enum Part {
    At(usize, bool),
    Range(usize, usize, isize, bool),
    New,
}

fn part() -> impl Strategy<Value = Part> {
    let step = prop_oneof![-3..=-1_isize, 1..=3_isize];
    prop_oneof![
        2 => (any::<usize>(), any::<bool>()).prop_map(|(at, from_end)| Part::At(at, from_end)),
        6 => (any::<usize>(), any::<usize>(), step, any::<bool>())
            .prop_map(|(start, end, step, from_end)| Part::Range(start, end, step, from_end)),
        1 => Just(Part::New),
    ]
}

/// Returns the slice of an array of this shape that the parts describe. Every axis gets an element.
fn elements(shape: &[usize], parts: &[Part]) -> Vec<SliceInfoElem> {
    let mut lengths = shape.iter().copied();
    let mut elements = Vec::new();
    for part in parts {
        let from_end = |position: usize, len: usize, from_end: bool| match from_end {
            true if position < len => position as isize - len as isize,
            _ => position as isize,
        };
        match *part {
            Part::New => elements.push(SliceInfoElem::NewAxis),
            Part::At(at, end) => match lengths.next() {
                Some(0) => elements.push(SliceInfoElem::from(..)),
                Some(len) => elements.push(SliceInfoElem::Index(from_end(at % len, len, end))),
                None => {}
            },
            Part::Range(start, stop, step, end) => {
                let Some(len) = lengths.next() else { continue };
                let (start, stop) = (start % (len + 1), stop % (len + 2));
                elements.push(SliceInfoElem::Slice {
                    start: from_end(start, len, end),
                    end: (stop <= len).then(|| from_end(stop, len, end)),
                    step,
                });
            }
        }
    }
    elements.extend(lengths.map(|_| SliceInfoElem::from(..)));
    elements
}

/// Compares every way to read the slice with the slice of the array.
fn check<T: ArrayElement + PartialEq + std::fmt::Debug>(
    shape: &[usize],
    parts: &[Part],
    element: impl Fn(usize) -> T,
) {
    let mut next = 0;
    let array = ArrayD::from_shape_simple_fn(shape, || {
        next += 1;
        element(next)
    });
    let slice = elements(shape, parts);
    let expected = array.slice(&slice[..]);
    let reader = reader(&array);
    let found = reader.slice::<T, _>("a", &slice[..]).unwrap();
    assert_eq!(found, expected, "{slice:?}");
    let zero: T = bytemuck::Zeroable::zeroed();
    let mut reversed = ArrayD::from_elem(expected.raw_dim(), zero);
    if expected.ndim() > 0 {
        reversed.invert_axis(Axis(expected.ndim() - 1));
    }
    for mut here in [
        ArrayD::from_elem(expected.raw_dim(), zero),
        ArrayD::from_elem(expected.raw_dim().f(), zero),
        reversed,
    ] {
        reader.slice_into("a", &slice[..], here.view_mut()).unwrap();
        assert_eq!(here, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 600, ..ProptestConfig::default()
    })]

    #[test]
    fn any_slice_equals_ndarrays(
        shape in prop::collection::vec(0..7_usize, 0..5),
        parts in prop::collection::vec(part(), 0..7),
        dtype in 0..5,
    ) {
        match dtype {
            0 => check(&shape, &parts, |i| i as f64),
            1 => check(&shape, &parts, |i| i as u8),
            2 => check(&shape, &parts, |i| i % 3 == 0),
            3 => check(&shape, &parts, |i| Complex::new(i as f32, -(i as f32))),
            _ => check(&shape, &parts, |i| bf16::from_f32((i % 256) as f32)),
        }
    }
}

#[test]
fn only_the_bytes_of_the_slice_are_read() {
    let steps = Array3::from_shape_fn((50, 40, 30), |(t, y, x)| (t * 10_000 + y * 100 + x) as f64);
    let all = steps.into_dyn();
    let reader = reader(&all);
    for (slice, least, most) in [
        // Rows of 240 bytes, 9,600 bytes apart: no gap is read.
        (s![..;-2, 3, ..].as_ref(), 25 * 30, 25 * 30),
        // One point over all steps.
        (s![.., 3, 4].as_ref(), 50, 50),
        // The points of every other column are 16 bytes apart: the gaps are read, and no more.
        (s![7, .., ..;2].as_ref(), 40 * 15, 40 * 30),
    ] {
        let bytes = read_by(&reader, || {
            let found = reader.slice::<f64, _>("a", slice).unwrap();
            assert_eq!(found, all.slice(slice));
        });
        assert!((8 * least..=8 * most).contains(&bytes), "{slice:?}: {bytes}");
    }
    // A refused part reads nothing.
    let bytes = read_by(&reader, || {
        reader.slice::<f32, _>("a", s![0, .., ..]).unwrap_err();
        reader.slice::<f64, _>("a", s![0, ..]).unwrap_err();
        reader.slice::<f64, _>("a", s![50, .., ..]).unwrap_err();
    });
    assert_eq!(bytes, 0);
}

#[test]
fn converted_and_of_any_type() {
    let halves = array![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]].mapv(bf16::from_f32);
    let reader = reader(&halves.into_dyn());
    let found = reader.slice_as::<f32, _>("a", s![.., NewAxis, ..;-1]).unwrap();
    assert_eq!(found, array![[[3.0, 2.0, 1.0]], [[6.0, 5.0, 4.0]]]);
    // A slice by positions of the core is read in the same ways as a tensor.
    let row = reader.array("a").unwrap().slice((1,)).unwrap();
    let wide = row.read_array_as::<f64, ndarray::Ix1>(&ConvertOptions::new()).unwrap();
    assert_eq!(wide, array![4.0, 5.0, 6.0]);
    assert_eq!(row.read_any().unwrap().shape(), [3]);
    let error = row.read_array::<bf16, ndarray::Ix2>().unwrap_err();
    assert_says(&error, r#"tensor "a": ndarray: expected 2 dimensions, found 1: shape [3]"#);
}

#[test]
fn slices_that_would_panic_in_ndarray_are_errors() {
    let reader = reader(&Array2::<i32>::zeros((3, 4)).into_dyn());
    for (slice, dim, len, wanted) in [
        (s![3, ..].as_ref(), 0, 3, "3"),
        (s![-4, ..].as_ref(), 0, 3, "-4"),
        (s![.., 5..].as_ref(), 1, 4, "5.."),
        (s![.., ..5].as_ref(), 1, 4, "0..5"),
        (s![.., -5..;-1].as_ref(), 1, 4, "-5.."),
    ] {
        let error = reader.slice::<i32, _>("a", slice).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::IndexOutOfBounds { dim: d, len: l, asked }
                if (*d, *l, &**asked) == (dim, len, wanted)),
            "{error}"
        );
        assert_eq!((error.tensor(), error.file()), (Some("a"), Some("spied on")));
    }
    let none = [SliceInfoElem::Slice { start: 0, end: None, step: 0 }, SliceInfoElem::from(..)];
    let error = reader.slice::<i32, _>("a", &none[..]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ZeroStep { dim: 0 }), "{error}");
    let error = reader.slice::<i32, _>("a", s![0, .., ..]).unwrap_err();
    assert_eq!(*said::<WrongNdim>(&error), WrongNdim { expected: 3, found: vec![3, 4] });
    // As ndarray does: a range that ends before it begins is empty.
    let (start, end) = (2, 1);
    assert_eq!(reader.slice::<i32, _>("a", s![start..end, ..]).unwrap().dim(), (0, 4));

    let mut small = Array2::<i32>::zeros((2, 2));
    let error = reader.slice_into("a", s![..2, ..3], small.view_mut()).unwrap_err();
    assert_says(&error, "expected shape [2, 3], found [2, 2]");
    let mut other = Array2::<i64>::zeros((2, 3));
    let error = reader.slice_into("a", s![..2, ..3], other.view_mut()).unwrap_err();
    assert_says(&error, "expected dtype I64, found I32");
    assert!(reader.slice::<i32, _>("b", s![0]).unwrap_err().to_string().contains("no such"));
}

#[test]
fn a_whole_array_is_read_into_an_existing_one() {
    let array = Array3::from_shape_fn((2, 3, 4), |(i, j, k)| (100 * i + 10 * j + k) as u16);
    let reader = reader(&array.clone().into_dyn());
    for mut here in [Array3::<u16>::zeros((2, 3, 4)), Array3::zeros((2, 3, 4).f())] {
        reader.read_into("a", here.view_mut()).unwrap();
        assert_eq!(here, array);
    }
    let mut flat = ArrayD::<u16>::zeros(IxDyn(&[24]));
    let error = reader.read_into("a", flat.view_mut()).unwrap_err();
    assert_says(&error, "expected shape [2, 3, 4], found [24]");
}

#[test]
fn rows_are_arrays_in_the_requested_order() {
    let table = Array2::from_shape_fn((1000, 16), |(row, column)| (16 * row + column) as f32);
    let reader = reader(&table.clone().into_dyn());
    let numbers = [700, 3, 700, 0, 4];
    let rows = reader.array("a").unwrap().rows(&numbers).unwrap();
    let expected = table.select(Axis(0), &numbers);
    let read = || rows.read_array::<f32, ndarray::Ix2>().unwrap();
    assert_eq!(read(), expected);
    // Four rows of 64 bytes, and the two between them.
    assert!(read_by(&reader, read) <= 6 * 64);
    let wide = rows.read_array_as::<f64, ndarray::Ix2>(&ConvertOptions::new()).unwrap();
    assert_eq!(wide, expected.mapv(f64::from));
    assert_eq!(rows.read_any().unwrap().shape(), [5, 16]);
}

#[test]
fn rows_are_read_by_their_numbers_and_alone() {
    let table = Array2::from_shape_fn((100, 3), |(row, column)| (10 * row + column) as i32);
    let r = reader(&table.clone().into_dyn());
    let numbers = [70, 3, 70];
    let bytes = read_by(&r, || {
        let rows = r.rows::<i32, ndarray::Ix2>("a", &numbers).unwrap();
        assert_eq!(rows, table.select(Axis(0), &numbers));
    });
    assert_eq!(bytes, 2 * 3 * 4);
    assert_eq!(r.rows::<i32, IxDyn>("a", &[]).unwrap().shape(), [0, 3]);
    let error = r.rows::<i32, ndarray::Ix2>("a", &[100]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::IndexOutOfBounds { .. }), "{error}");
    let error = r.rows::<f32, ndarray::Ix2>("a", &[1]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongDtype { .. }), "{error}");
    let error = r.rows::<i32, ndarray::Ix1>("a", &[1]).unwrap_err();
    assert_eq!(*said::<WrongNdim>(&error), WrongNdim { expected: 1, found: vec![1, 3] });
}
