//! Structs in structs, in `Vec`s and in `Option`s.

use ndarray::{Array1, Array2, array};
use safetensors_core::ErrorKind;
use safetensors_ndarray::{NamedArrays, Reader};

use super::{differences, file, place};

#[derive(NamedArrays, Clone, Debug, PartialEq)]
struct Linear {
    weight: Array2<f32>,
    bias: Option<Array1<f32>>,
    #[safetensors(skip)]
    uses: u32,
}

#[derive(NamedArrays, Clone, Debug, PartialEq)]
struct Model {
    embed: Linear,
    layers: Vec<Linear>,
    #[safetensors(rename = "lm.head")]
    head: Option<Linear>,
    buffers: Vec<Array1<f64>>,
    grids: Vec<Vec<Array1<u8>>>,
    history: Option<Vec<Linear>>,
}

fn linear(value: f32, bias: bool) -> Linear {
    Linear { weight: array![[value, 1.0]], bias: bias.then(|| array![value]), uses: 0 }
}

fn model() -> Model {
    Model {
        embed: linear(1.0, true),
        layers: (0..12).map(|i| linear(i as f32, i % 2 == 0)).collect(),
        head: Some(linear(9.0, false)),
        buffers: vec![array![1.0], array![]],
        grids: vec![vec![array![1]], vec![], vec![array![2], array![3, 4]]],
        history: None,
    }
}

#[test]
fn names_equal_pytorchs() {
    let (_dir, path) = place();
    model().save_to(&path).unwrap();
    let reader = Reader::open(&path).unwrap();
    for name in [
        "embed.weight",
        "embed.bias",
        "layers.0.weight",
        "layers.0.bias",
        "layers.11.weight",
        "lm.head.weight",
        "buffers.1",
        "grids.2.1",
    ] {
        assert!(reader.array(name).is_ok(), "{name}");
    }
    assert!(reader.array("layers.1.bias").is_err() && reader.array("lm.head.bias").is_err());
    assert_eq!(Model::read_from(&reader).unwrap(), model());
}

#[test]
fn options_and_empty_lists_are_restored() {
    let (_dir, path) = place();
    for head in [None, Some(linear(1.0, true))] {
        for history in [None, Some(vec![]), Some(vec![linear(2.0, false)])] {
            for (buffers, grids) in [(vec![], vec![]), (vec![array![1.0]], vec![vec![], vec![]])] {
                let saved = Model {
                    head: head.clone(),
                    history: history.clone(),
                    layers: vec![],
                    buffers,
                    grids,
                    ..model()
                };
                saved.save_to(&path).unwrap();
                assert_eq!(Model::load_from(&path).unwrap(), saved);
            }
        }
    }
}

#[derive(NamedArrays, Clone, Debug, PartialEq)]
struct Sparse {
    a: Option<Array1<f32>>,
    b: Option<u8>,
}

#[derive(NamedArrays, Clone, Debug, PartialEq)]
struct Sparses {
    one: Option<Sparse>,
    many: Vec<Sparse>,
    plain: Sparse,
}

#[test]
fn items_without_content_are_counted() {
    let (_dir, path) = place();
    let none = Sparse { a: None, b: None };
    let some = Sparse { a: Some(array![1.0]), b: None };
    let number = Sparse { a: None, b: Some(7) };
    for many in [
        vec![],
        vec![none.clone(); 3],
        vec![none.clone(), some.clone(), none.clone()],
        vec![number.clone(), none.clone(), number.clone()],
    ] {
        for one in [None, Some(none.clone()), Some(some.clone()), Some(number.clone())] {
            let saved = Sparses { one, many: many.clone(), plain: none.clone() };
            saved.save_to(&path).unwrap();
            assert_eq!(Sparses::load_from(&path).unwrap(), saved);
        }
    }
}

#[derive(NamedArrays, Debug, Default, PartialEq)]
struct Tree {
    value: Option<u32>,
    children: Vec<Tree>,
}

fn chain(depth: usize) -> Tree {
    (0..depth).fold(Tree { value: Some(1), children: vec![] }, |tree, _| Tree {
        value: None,
        children: vec![tree],
    })
}

#[test]
fn a_struct_can_have_itself_as_items_to_a_depth() {
    let (_dir, path) = place();
    let saved = Tree { value: Some(1), children: vec![chain(3), Tree::default(), chain(20)] };
    saved.save_to(&path).unwrap();
    assert_eq!(Tree::load_from(&path).unwrap(), saved);
    // `children.0.` 64 times and `value` is the longest name.
    let deepest = chain(64);
    deepest.save_to(&path).unwrap();
    assert_eq!(Tree::load_from(&path).unwrap(), deepest);
    let error = chain(65).save_to(&path).unwrap_err();
    crate::common::assert_says(&error, "the name of a field has more than 128 dots");
    assert!(error.file().is_some(), "{error}");
    assert_eq!(Tree::load_from(&path).unwrap(), deepest, "the old file stays");
}

/// An entry of the metadata and an array with the same name.
#[derive(NamedArrays, Debug)]
struct Clash {
    #[safetensors(rename = "inner.value")]
    outer: u32,
    inner: Inner,
}

#[derive(NamedArrays, Debug)]
struct Inner {
    value: Array1<f32>,
}

#[test]
fn two_fields_of_one_name_are_refused() {
    let (_dir, path) = place();
    let inner = Inner { value: array![1.0] };
    let saving = Clash { outer: 1, inner }.save_to(&path).unwrap_err();
    assert!(!path.exists());
    let (_dir, path) = file(|writer| {
        writer.add("inner.value", &array![1.0_f32]).unwrap();
        writer.metadata([("inner.value", "1")]);
    });
    for error in [saving, Clash::load_from(&path).unwrap_err()] {
        assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
        assert_eq!(error.tensor(), Some("inner.value"));
        assert!(error.file().is_some_and(|file| file.ends_with("file.safetensors")), "{error}");
    }
}

#[derive(NamedArrays, Debug, PartialEq)]
struct Defaults {
    #[safetensors(default)]
    array: Array1<f32>,
    #[safetensors(default)]
    epoch: u32,
    #[safetensors(default)]
    tree: Tree,
}

#[test]
fn a_default_replaces_missing_but_not_invalid_fields() {
    let (_dir, path) = file(|_| {});
    let empty = Defaults { array: array![], epoch: 0, tree: Tree::default() };
    assert_eq!(Defaults::load_from(&path).unwrap(), empty);
    let (_dir, path) = file(|writer| {
        writer.add("array", &array![1.0_f64]).unwrap();
        writer.metadata([("epoch", "x"), ("tree.value", "-1")]);
    });
    let found = differences(&Defaults::load_from(&path).unwrap_err());
    let expected = [
        r#""array" should have dtype F32, found F64"#,
        r#""epoch" in the metadata should be an integer that fits u32, found "x""#,
        r#""tree.value" in the metadata should be an integer that fits u32, found "-1""#,
    ];
    assert_eq!(found, expected);
}
