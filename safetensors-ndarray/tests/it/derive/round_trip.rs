//! A saved struct comes back: every element type, dimension and memory layout.

use half::f16;
use ndarray::{ArcArray1, Array, Array0, Array1, Array2, Array3, ArrayD, IxDyn, arr0, array};
use num_complex::Complex;
use safetensors_ndarray::{NamedArrays, Reader};

use super::place;

#[derive(NamedArrays, Debug, PartialEq)]
struct Everything {
    mask: Array1<bool>,
    i8: Array2<i8>,
    f16: Array1<f16>,
    f32: Array3<f32>,
    f64: Array0<f64>,
    complex: Array1<Complex<f32>>,
    any: ArrayD<f32>,
    shared: ArcArray1<f32>,
    empty: Array3<u16>,
}

fn everything() -> Everything {
    Everything {
        mask: array![true, false, true],
        i8: array![[-128, 127]],
        f16: array![f16::from_f32(0.5)],
        f32: Array::from_shape_fn((2, 3, 4), |(i, j, k)| (i * 100 + j * 10 + k) as f32),
        f64: arr0(0.1),
        complex: array![Complex::new(1.0, -1.0)],
        any: ArrayD::from_shape_fn(IxDyn(&[1, 2, 1, 2, 1]), |index| index[3] as f32),
        shared: ArcArray1::from(vec![1.0, 2.0]),
        empty: Array3::zeros((3, 0, 2)),
    }
}

#[test]
fn every_element_type_and_dimension_comes_back() {
    let (_dir, path) = place();
    let saved = everything();
    saved.save_to(&path).unwrap();
    assert_eq!(Everything::load_from(&path).unwrap(), saved);
    // The fields are in the order of the file, which other readers see too.
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.checkpoint().len(), 9);
    assert!(reader.array("i8").is_ok() && reader.array("shared").is_ok());
    // From memory at any address, as well.
    let bytes = std::fs::read(&path).unwrap();
    for skip in [0, 1] {
        let mut moved = vec![0; skip];
        moved.extend_from_slice(&bytes);
        let reader = Reader::from_bytes(&moved[skip..]).unwrap();
        assert_eq!(Everything::read_from(&reader).unwrap(), saved);
        assert_eq!(Everything::view_from(&reader).unwrap(), saved);
    }
}

#[derive(NamedArrays, Debug, PartialEq)]
struct Renamed {
    #[safetensors(rename = "model.embed-tokens/weight")]
    a: Array1<f32>,
    r#type: Array1<f32>,
    #[safetensors(rename = "größe \"x\"")]
    b: u8,
    #[safetensors(skip)]
    c: Option<std::time::Duration>,
    #[safetensors(default)]
    d: Array1<i64>,
}

#[test]
fn names_come_from_fields_or_attributes() {
    let (_dir, path) = place();
    let mut saved = Renamed {
        a: array![1.0],
        r#type: array![2.0],
        b: 3,
        c: Some(std::time::Duration::ZERO),
        d: array![4],
    };
    saved.save_to(&path).unwrap();
    let reader = Reader::open(&path).unwrap();
    for name in ["model.embed-tokens/weight", "type", "d"] {
        assert!(reader.array(name).is_ok(), "{name}");
    }
    assert_eq!(reader.checkpoint().metadata()["größe \"x\""], "3");
    saved.c = None;
    assert_eq!(Renamed::load_from(&path).unwrap(), saved);
}

#[derive(NamedArrays)]
struct Nothing {
    #[safetensors(skip)]
    count: u32,
}

#[test]
fn a_struct_that_stores_nothing_is_an_empty_file() {
    let (_dir, path) = place();
    Nothing { count: 1 }.save_to(&path).unwrap();
    assert!(Reader::open(&path).unwrap().checkpoint().is_empty());
    assert_eq!(Nothing::load_from(&path).unwrap().count, 0);
}
