//! Parts of arrays that are taken by labels along their coordinates.

use std::ops::Bound;

use half::f16;
use ndarray::{Array1, Array2, Array3, ArrayRef, Ix1, Ix2, Ix3, array, s};
use proptest::prelude::*;
use safetensors_core::{Checkpoint, ErrorKind, SaveOptions};
use safetensors_ndarray::{ArrayElement, Reader, Writer, WrongNdim};
use safetensors_testing::read_at::NotingSource;

use crate::common::{assert_says, place, said};

fn written(write: impl FnOnce(&Writer)) -> Vec<u8> {
    let (_dir, path) = place("a.safetensors");
    let w = Writer::create_with(&path, &SaveOptions::new().durable(false)).unwrap();
    write(&w);
    w.finish().unwrap();
    std::fs::read(&path).unwrap()
}

/// Makes a file with the coordinate `t`, and `u` of the same length, counted from 0.
fn series<T: ArrayElement>(labels: &ArrayRef<T, Ix1>) -> Reader<Vec<u8>> {
    let file = written(|w| {
        w.add("t", labels).unwrap();
        w.add("u", &Array1::from_iter(0..labels.len() as i32)).unwrap();
        w.dimensions("u", &["t"]).unwrap();
    });
    Reader::from_bytes(file).unwrap()
}

#[test]
fn only_the_bytes_of_the_part_are_read() {
    let u = Array3::from_shape_fn((50, 40, 30), |(t, y, x)| (1200 * t + 30 * y + x) as f32);
    let file = written(|w| {
        w.add("t", &Array1::linspace(0.0, 4.9, 50)).unwrap();
        w.add("y", &Array1::from_iter((0..40_i64).rev())).unwrap();
        w.add("u", &u).unwrap();
        w.dimensions("u", &["t", "y", "x"]).unwrap();
    });
    let r = Reader::new(Checkpoint::from_source(NotingSource::new(file), "spied on").unwrap());
    let source = r.checkpoint().files()[0].safetensors().source();
    source.take_reads();
    let part = r.select("t", 1.0..2.05).unwrap().select("y", 30..=32).unwrap();
    assert_eq!(source.take_len(), 50 * 8 + 40 * 8);
    let found = part.read::<f32, Ix3>("u").unwrap();
    assert_eq!(found, u.slice(s![10..21, 7..10, ..]));
    assert_eq!(source.take_len(), 11 * 3 * 30 * 4);
    assert_eq!(part.read_as::<f64, Ix3>("u").unwrap()[[0, 0, 0]], f64::from(u[[10, 7, 0]]));
    // Each coordinate is a part along its own dimension.
    assert_eq!(part.read::<f64, Ix1>("t").unwrap().len(), 11);
    assert_eq!(part.read_as::<f64, Ix1>("y").unwrap(), array![32.0, 31.0, 30.0]);
    // One dimension twice: the positions in both parts.
    let both = r.select("t", 1.0..2.0).unwrap().select("t", 1.45..).unwrap();
    assert_eq!(both.read::<f32, Ix3>("u").unwrap(), u.slice(s![15..20, .., ..]));
    let none = r.select("t", ..1.0).unwrap().select("t", 2.0..).unwrap();
    assert_eq!(none.read::<f32, Ix3>("u").unwrap().dim(), (0, 40, 30));
}

#[test]
fn a_dimension_has_its_name_also_where_its_coordinate_is_tied_to_another() {
    let file = written(|w| {
        w.add("x", &array![0.0, 1.0]).unwrap();
        w.metadata([("y", "x")]);
        w.add("u", &array![[1, 2], [3, 4]]).unwrap();
        w.dimensions("u", &["y", "x"]).unwrap();
    });
    let r = Reader::from_bytes(file).unwrap();
    let part = r.select("y", 1.0..).unwrap().read::<i32, Ix2>("u").unwrap();
    assert_eq!(part, array![[3, 4]]);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 64, ..ProptestConfig::default()
    })]

    #[test]
    fn a_part_has_the_labels_that_are_in_the_range(
        mut labels in prop::collection::vec(-5..5_i8, 0..12),
        is_descending in any::<bool>(),
        (start, end) in (-6..6_i8, -6..6_i8),
        (starts, ends) in (0..3, 0..3),
    ) {
        labels.sort();
        if is_descending {
            labels.reverse();
        }
        let bound = |kind, at| match kind {
            0 => Bound::Included(at),
            1 => Bound::Excluded(at),
            _ => Bound::Unbounded,
        };
        let range = (bound(starts, start), bound(ends, end));
        let is_reversed = starts < 2 && ends < 2 && start > end;
        let ascends = labels.first() < labels.last();
        let is_in = |label: &i8| match is_reversed {
            true => std::ops::RangeBounds::contains(&(range.1, range.0), label),
            false => std::ops::RangeBounds::contains(&range, label),
        };
        let expected: Vec<i32> =
            (0..labels.len()).filter(|&i| is_in(&labels[i])).map(|i| i as i32).collect();
        let labels = Array1::from(labels);
        let check = |found: safetensors_core::Result<Array1<i32>>| match is_reversed && ascends {
            true => assert_says(&found.unwrap_err(), "swap its ends"),
            false => assert_eq!(found.unwrap().to_vec(), expected),
        };
        check(series(&labels).select("t", range).and_then(|part| part.read("u")));
        // Labels and ends of different types.
        let floats = range_of(range, f64::from);
        check(series(&labels).select("t", floats).and_then(|part| part.read("u")));
        let halves = labels.mapv(|label| f16::from_f32(label.into()));
        check(series(&halves).select("t", range).and_then(|part| part.read("u")));
    }
}

fn range_of<A, B>((start, end): (Bound<A>, Bound<A>), of: impl Fn(A) -> B) -> (Bound<B>, Bound<B>) {
    (start.map(&of), end.map(of))
}

#[test]
fn large_integers_are_compared_exactly() {
    // Nanoseconds since 1970, as NumPy's datetime64 has them.
    let now = 1_764_000_000_000_000_001_i64;
    let r = series(&array![now - 1, now, now + 1]);
    assert_eq!(r.select("t", now..=now).unwrap().read::<i32, Ix1>("u").unwrap(), array![1]);
    assert_eq!(r.select("t", now as f64..).unwrap().read::<i32, Ix1>("u").unwrap().len(), 3);
    let r = series(&array![u64::MAX - 1, u64::MAX]);
    assert_eq!(r.select("t", u64::MAX..).unwrap().read::<i32, Ix1>("u").unwrap(), array![1]);
    assert_eq!(r.select("t", -1..).unwrap().read::<i32, Ix1>("u").unwrap().len(), 2);
    // Infinities are labels, too.
    let r = series(&array![f64::NEG_INFINITY, 0.0, f64::INFINITY]);
    assert_eq!(r.select("t", 1e308..).unwrap().read::<i32, Ix1>("u").unwrap(), array![2]);
}

#[test]
fn labels_without_an_order_are_refused() {
    for (labels, expected) in [
        (array![0.0, 1.0, 1.0, 0.5], "element 3 does neither"),
        (array![1.0, 1.0, 0.5, 2.0], "element 3 does neither"),
        (array![0.0, f64::NAN, 1.0], "element 1 is NaN"),
        (array![f64::NAN], "element 0 is NaN"),
    ] {
        let error = series(&labels).select("t", 0.0..).unwrap_err();
        assert_says(&error, expected);
        assert_eq!(error.tensor(), Some("t"));
    }
    let r = series(&array![0.0, 1.0]);
    assert_says(&r.select("t", f64::NAN..).unwrap_err(), "should be numbers, found NaN");
}

#[test]
fn inconsistent_labels_are_refused() {
    let file = written(|w| {
        w.add("t", &array![0.0, 1.0, 2.0]).unwrap();
        w.add("table", &array![[0.0, 1.0]]).unwrap();
        w.add("c", &array![num_complex::Complex::new(0.0_f32, 0.0)]).unwrap();
        w.add("short", &array![1.0, 2.0]).unwrap();
        w.add("bare", &array![1.0, 2.0, 3.0]).unwrap();
        w.add("wrong", &Array2::<f32>::zeros((3, 1))).unwrap();
        w.dimensions("short", &["t"]).unwrap();
        w.attribute("wrong", "dimensions", "[\"t\"]").unwrap();
        w.dimensions("nothing", &[]).unwrap_err();
        for names in [&["t"][..], &["t", "t"], &["a", "b", "c"]] {
            let error = w.dimensions("table", names).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::BadAttribute { .. }), "{error}");
        }
    });
    let r = Reader::from_bytes(file).unwrap();
    let error = r.select("q", 0..).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound), "{error}");
    let error = r.select("table", 0..).unwrap_err();
    assert!(error.to_string().contains("expected 1 dimension"), "{error}");
    let error = r.select("c", 0..).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoConversion { .. }), "{error}");
    let part = r.select("t", 1.0..).unwrap();
    let error = part.read::<f64, Ix1>("short").unwrap_err();
    assert_eq!(error.tensor(), Some("short"));
    assert_says(&error, r#"dimension "t" has length 2, but its coordinate has 3 labels"#);
    let error = part.read::<f64, Ix1>("bare").unwrap_err();
    assert_says(&error, r#"expected a dimension "t", but its dimensions have no names"#);
    let error = part.read::<f32, Ix2>("wrong").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BadAttribute { .. }), "{error}");
    let error = series(&array![0.0]).select("t", 0.0..).unwrap().read::<i32, Ix2>("u").unwrap_err();
    assert_eq!(*said::<WrongNdim>(&error), WrongNdim { expected: 2, found: vec![1] });
}

/// A field on a grid with descending latitudes, as in most weather models.
fn weather() -> Reader<Vec<u8>> {
    let file = written(|w| {
        let levels = Array3::from_shape_fn((4, 5, 3), |(t, y, x)| (100 * t + 10 * y + x) as f32);
        w.add("time", &array![0, 6, 12, 18]).unwrap();
        w.add("lat", &array![20.0, 10.0, 0.0, -10.0, -20.0]).unwrap();
        w.add("lon", &array![0.0, 120.0, 240.0]).unwrap();
        w.add("wind", &levels).unwrap();
        w.add("mean", &Array2::<f32>::ones((5, 3))).unwrap();
        w.add("bare", &array![1, 2, 3]).unwrap();
        w.dimensions("wind", &["time", "lat", "lon"]).unwrap();
        w.dimensions("mean", &["lat", "lon"]).unwrap();
    });
    Reader::from_bytes(file).unwrap()
}

#[test]
fn a_selection_over_several_dimensions_has_the_labels_of_each_axis() {
    let r = weather();
    let part = r.select("time", 6..18).unwrap().select("lat", -10.0..=10.0).unwrap();
    assert_eq!(part.read::<f32, Ix3>("wind").unwrap().dim(), (2, 3, 3));
    assert_eq!(part.read::<i32, Ix1>("time").unwrap(), array![6, 12]);
    assert_eq!(part.read::<f64, Ix1>("lat").unwrap(), array![10.0, 0.0, -10.0]);
    // A dimension that nothing was selected of.
    assert_eq!(part.read::<f64, Ix1>("lon").unwrap(), array![0.0, 120.0, 240.0]);
    // Other arrays need every dimension, so that no part of the selection is lost in silence.
    let error = part.read::<f32, Ix2>("mean").unwrap_err();
    assert_says(&error, r#"expected a dimension "time", found ["lat", "lon"]"#);
    let error = part.read::<i32, Ix1>("bare").unwrap_err();
    assert_says(&error, r#"expected a dimension "time", but its dimensions have no names"#);
}

#[test]
fn a_reversed_range_selects_along_descending_labels_and_is_refused_along_ascending_ones() {
    let r = weather();
    let labels = |range: (Bound<f64>, Bound<f64>)| {
        r.select("lat", range).and_then(|part| part.read::<f64, Ix1>("lat"))
    };
    use Bound::{Excluded, Included};
    for (range, expected) in [
        ((Included(10.0), Included(-10.0)), array![10.0, 0.0, -10.0]),
        ((Included(10.0), Excluded(-10.0)), array![10.0, 0.0]),
        ((Excluded(10.0), Included(-10.0)), array![0.0, -10.0]),
        ((Included(90.0), Included(15.0)), array![20.0]),
    ] {
        assert_eq!(labels(range).unwrap(), expected, "{range:?}");
    }
    let error = r.select("lon", 240.0..=120.5).unwrap_err();
    assert_eq!(error.tensor(), Some("lon"));
    assert_says(
        &error,
        "the labels ascend, but the range goes from 240.0 down to 120.5: swap its ends",
    );
    // A single label has both orders.
    let one = series(&array![5.0]);
    assert_eq!(one.select("t", 9.0..=1.0).unwrap().read::<i32, Ix1>("u").unwrap(), array![0]);
}
