//! Structs that borrow arrays: saved from views, and loaded from files in memory.

use ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewD, CowArray, Ix2, array, s};
use safetensors_core::ErrorKind;
use safetensors_ndarray::{NamedArrays, Reader};

use super::{differences, file, place};
use crate::common::shifted;

#[derive(NamedArrays, Debug, PartialEq)]
struct Layer<'a> {
    weight: ArrayView2<'a, f32>,
    mask: Option<ArrayView1<'a, bool>>,
}

#[derive(NamedArrays, Debug, PartialEq)]
struct Model<'a, 'n> {
    title: &'n str,
    layers: Vec<Layer<'a>>,
    any: ArrayViewD<'a, i64>,
    cow: CowArray<'a, f64, Ix2>,
    owned: Array2<u8>,
    epoch: u32,
}

#[test]
fn views_are_saved_in_any_layout_and_borrow_from_memory() {
    let (_dir, path) = place();
    let weight = Array2::from_shape_fn((4, 6), |(i, j)| (10 * i + j) as f32);
    let mask = array![true, false];
    let (any, cow) = (array![[1_i64, 2], [3, 4]], array![[0.5], [1.5]]);
    let saved = Model {
        title: "views",
        layers: vec![
            Layer { weight: weight.t(), mask: Some(mask.slice(s![..;-1])) },
            Layer { weight: weight.slice(s![..;2, 1..;3]), mask: None },
        ],
        any: any.view().into_dyn().reversed_axes(),
        cow: cow.view().into(),
        owned: array![[1, 2]],
        epoch: 3,
    };
    saved.save_to(&path).unwrap();

    let reader = Reader::open_in_memory(&path).unwrap();
    if cfg!(target_endian = "big") {
        let error = Model::view_from(&reader).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BigEndian { .. }), "{error}");
        return;
    }
    let viewed = Model::view_from(&reader).unwrap();
    assert_eq!(viewed, saved);
    assert!(viewed.cow.is_view());
    let memory = reader.checkpoint().files()[0].safetensors().source();
    let memory = AsRef::<[u8]>::as_ref(memory).as_ptr_range();
    for pointer in [
        viewed.layers[0].weight.as_ptr().cast::<u8>(),
        viewed.any.as_ptr().cast(),
        viewed.cow.as_ptr().cast(),
        viewed.title.as_ptr(),
    ] {
        let is_text = pointer == viewed.title.as_ptr();
        assert!(is_text != memory.contains(&pointer), "texts are in the parsed header");
    }
    assert!(!memory.contains(&viewed.owned.as_ptr()));
}

#[derive(NamedArrays, Debug)]
struct View<'a> {
    x: ArrayView1<'a, f64>,
}

#[derive(NamedArrays, Debug)]
struct Cow<'a> {
    x: CowArray<'a, f64, ndarray::Ix1>,
}

#[test]
fn elements_that_are_not_aligned_are_an_error_or_a_copy() {
    let (_dir, path) = file(|writer| writer.add("x", &array![1.0, 2.0]).unwrap());
    let (words, len) = shifted(&std::fs::read(&path).unwrap());
    let reader = Reader::from_bytes(&bytemuck::cast_slice(&words)[1..1 + len]).unwrap();
    let is_big_endian = cfg!(target_endian = "big");
    let error = View::view_from(&reader).unwrap_err();
    match error.kind() {
        ErrorKind::BigEndian { .. } => assert!(is_big_endian),
        kind => assert!(matches!(kind, ErrorKind::Misaligned { .. }), "{error}"),
    }
    assert_eq!((error.tensor(), error.file()), (Some("x"), Some("bytes in memory")));
    let copied = Cow::view_from(&reader).unwrap();
    assert!(!copied.x.is_view());
    assert_eq!(copied.x, array![1.0, 2.0]);

    let reader = Reader::open_in_memory(&path).unwrap();
    let cow = Cow::view_from(&reader).unwrap().x;
    assert_eq!((cow.is_view(), cow), (!is_big_endian, array![1.0, 2.0].into()));
    assert!(is_big_endian || View::view_from(&reader).unwrap().x == array![1.0, 2.0]);
}

#[test]
fn views_are_checked_as_strictly() {
    let (_dir, path) = file(|writer| {
        writer.add("x", &array![[1.0_f32]]).unwrap();
        writer.add("y", &array![1.0_f32]).unwrap();
    });
    let reader = Reader::open_in_memory(&path).unwrap();
    let expected = [
        r#""x" should have 1 dimension, found shape [1, 1]"#,
        r#""x" should have dtype F64, found F32"#,
        r#""y" is not needed"#,
    ];
    assert_eq!(differences(&View::view_from(&reader).unwrap_err()), expected);
    assert_eq!(differences(&Cow::view_from(&reader).unwrap_err()), expected);
}
