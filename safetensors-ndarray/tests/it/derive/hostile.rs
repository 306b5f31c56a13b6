//! Hostile files.

use ndarray::{Array1, array};
use safetensors_core::ErrorKind;
use safetensors_ndarray::NamedArrays;

use super::{differences, file, mismatches};

#[derive(NamedArrays, Debug, Default)]
struct Layer {
    w: Option<Array1<f32>>,
    a: Option<u8>,
}

#[derive(NamedArrays, Debug, Default)]
struct Layers {
    layers: Vec<Layer>,
}

#[test]
fn an_index_from_a_file_is_no_length() {
    for name in [
        "layers.4294967295.w",
        "layers.18446744073709551615.w",
        "layers.99999999999999999999999999.w",
        "layers.00.w",
        "layers.+0.w",
        "layers.-1.w",
        "layers.0x0.w",
        "layers. 0.w",
        "layers..w",
        "layers.w",
        "layers",
        "layers.0",
        "layers.0.w.x",
        ".layers.0.w",
        "",
    ] {
        let (_dir, path) = file(|writer| writer.add(name, &array![1.0_f32]).unwrap());
        let error = Layers::load_from(&path).unwrap_err();
        assert_eq!(differences(&error), [format!("{name:?} is not needed")], "{name}");
    }
    // As entries of the metadata, they are ignored.
    let (_dir, path) = file(|writer| {
        writer.metadata([("layers.4294967295", ""), ("layers.2.a", "1"), ("layers", "9999999999")]);
    });
    assert_eq!(Layers::load_from(&path).unwrap().layers.len(), 0);
}

#[derive(NamedArrays, Debug, Default)]
struct Tree {
    children: Vec<Tree>,
    next: Vec<Option1>,
}

#[derive(NamedArrays, Debug, Default)]
struct Option1 {
    tree: Option<Tree>,
}

#[test]
fn names_of_a_million_dots_do_not_fill_the_stack() {
    for part in ["children.0.", "next.0.tree."] {
        let name = part.repeat(200_000);
        let (_dir, path) = file(|writer| writer.add(&name, &array![1.0_f32]).unwrap());
        let error = Tree::load_from(&path).unwrap_err();
        assert_eq!(mismatches(&error).len(), 1);
        assert!(error.to_string().len() < 2000);
        // In the metadata, which is ignored where no field needs it.
        let (_dir, path) = file(|writer| writer.metadata([(name, "x")]));
        Tree::load_from(&path).unwrap();
    }
}

#[derive(NamedArrays, Debug)]
struct Wide {
    items: Vec<WideItem>,
}

#[derive(NamedArrays, Debug)]
struct WideItem {
    _a: Array1<f32>,
    _b: Array1<f32>,
    _c: Array1<f32>,
    _d: Array1<f32>,
    _e: u8,
}

#[test]
fn a_list_of_differences_is_bounded() {
    let (_dir, path) =
        file(|writer| writer.metadata((0..30_000).map(|i| (format!("items.{i}._x"), ""))));
    let error = Wide::load_from(&path).unwrap_err();
    assert_eq!(mismatches(&error).len(), 100_000);
    assert!(error.to_string().len() < 3000);
}

#[test]
fn shapes_that_ndarray_refuses_are_errors() {
    #[derive(NamedArrays, Debug)]
    struct Empty {
        _x: ndarray::ArrayD<u8>,
    }

    // An empty tensor with other dimensions that overflow: no bytes, so the header is valid.
    let header = format!(
        r#"{{"_x":{{"dtype":"U8","shape":[0,{},{}],"data_offsets":[0,0]}}}}"#,
        u32::MAX,
        u64::from(u32::MAX)
    );
    let padded = header.len().next_multiple_of(8);
    let bytes =
        [&(padded as u64).to_le_bytes()[..], format!("{header:padded$}").as_bytes()].concat();
    let reader = safetensors_ndarray::Reader::from_bytes(bytes).unwrap();
    for error in [Empty::read_from(&reader).unwrap_err(), Empty::view_from(&reader).unwrap_err()] {
        assert!(matches!(error.kind(), ErrorKind::Framework { .. }), "{error}");
        assert_eq!(error.tensor(), Some("_x"));
    }
}
