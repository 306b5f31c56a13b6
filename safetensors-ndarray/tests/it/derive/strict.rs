//! Loading lists everything that differs, and leaves a value as it was on error.

use ndarray::{Array1, Array2, ArrayD, arr0, array};
use safetensors_core::error::Mismatch;
use safetensors_core::{Dtype, ErrorKind};
use safetensors_ndarray::{NamedArrays, Reader};

use super::{differences, file, mismatches, place};

#[derive(NamedArrays, Clone, Debug, Default, PartialEq)]
struct Layer {
    weight: Array2<f32>,
    bias: Option<Array1<f32>>,
    #[safetensors(skip)]
    uses: u32,
}

#[derive(NamedArrays, Clone, Debug, Default, PartialEq)]
struct Model {
    mask: Array1<bool>,
    layers: Vec<Layer>,
    any: ArrayD<f64>,
    epoch: u32,
    title: String,
    #[safetensors(skip)]
    verbose: bool,
}

fn model() -> Model {
    let layer = Layer { weight: array![[1.0, 2.0]], bias: Some(array![3.0]), uses: 0 };
    Model {
        mask: array![true],
        layers: vec![layer.clone(), layer],
        any: array![[1.0]].into_dyn(),
        epoch: 1,
        title: "t".into(),
        verbose: false,
    }
}

#[test]
fn everything_that_differs_is_listed_at_once() {
    let (_dir, path) = file(|writer| {
        writer.add("mask", &array![1_u8]).unwrap();
        writer.add("layers.0.weight", &array![1.0_f64]).unwrap();
        writer.add("layers.0.bias", &array![[1.0_f32]]).unwrap();
        writer.add("layers.1.bias", &array![1.0_f32]).unwrap();
        writer.add("layers.3.weight", &array![[1.0_f32]]).unwrap();
        writer.add("optimizer.step", &arr0(1_i64)).unwrap();
        writer.metadata([("epoch", "1.5")]);
    });
    let error = Model::load_from(&path).unwrap_err();
    assert!(error.file().is_some_and(|file| file.ends_with("file.safetensors")));
    let expected = [
        Mismatch::Dtype { name: "mask".into(), expected: Dtype::BOOL, found: Dtype::U8 },
        Mismatch::Ndim { name: "layers.0.weight".into(), expected: 2, found: vec![1] },
        Mismatch::Dtype { name: "layers.0.weight".into(), expected: Dtype::F32, found: Dtype::F64 },
        Mismatch::Ndim { name: "layers.0.bias".into(), expected: 1, found: vec![1, 1] },
        Mismatch::Missing { name: "layers.1.weight".into() },
        Mismatch::Missing { name: "any".into() },
        Mismatch::Metadata {
            key: "epoch".into(),
            expected: "an integer that fits u32",
            found: Some("1.5".into()),
        },
        Mismatch::Metadata { key: "title".into(), expected: "a text", found: None },
        Mismatch::Extra { name: "optimizer.step".into() },
        Mismatch::Extra { name: "layers.3.weight".into() },
    ];
    assert_eq!(mismatches(&error), expected);
    // Also for bytes in memory.
    let reader = Reader::open_in_memory(&path).unwrap();
    let (read, viewed) = (Model::read_from(&reader), Model::view_from(&reader));
    assert_eq!(mismatches(&read.unwrap_err()), mismatches(&error));
    assert_eq!(mismatches(&viewed.unwrap_err()), mismatches(&error));
}

#[derive(NamedArrays, Clone, Debug, PartialEq)]
#[safetensors(ignore_others)]
struct Output {
    layers: Vec<Layer>,
    #[safetensors(rename = "grid.x")]
    x: Array1<f32>,
    #[safetensors(skip)]
    mask: bool,
}

#[test]
fn a_struct_can_ignore_arrays_that_belong_to_none_of_its_fields() {
    let layer = Layer { weight: array![[1.0, 2.0]], bias: None, uses: 0 };
    let output = Output { layers: vec![layer], x: array![0.5], mask: false };
    let with = |others: &'static [&'static str]| {
        let output = output.clone();
        file(move |writer| {
            output.write_to(writer).unwrap();
            others.iter().for_each(|name| writer.add(name, &array![1_u8]).unwrap());
            writer.metadata([("title", "wind")]);
        })
    };
    let (_dir, path) = with(&["mask", "grid", "grid.y", "layer", "layers2.0", "", "a.b.c"]);
    assert_eq!(Output::load_from(&path).unwrap(), output);
    let mut loaded = output.clone();
    loaded.load_into(&path).unwrap();
    let memory = Reader::open_in_memory(&path).unwrap();
    assert_eq!(Output::view_from(&memory).unwrap(), output);
    // Tensors below the name of a field were meant for it.
    let (_dir, path) = with(&["other", "layers.2.weight", "layers.0.scale", "grid.x.y"]);
    let found = differences(&Output::load_from(&path).unwrap_err());
    let expected = ["grid.x.y", "layers.0.scale", "layers.2.weight"];
    let expected = expected.map(|name| format!("{name:?} is not needed"));
    assert!(found.len() == 3 && expected.iter().all(|one| found.contains(one)), "{found:?}");
}

#[derive(NamedArrays, Debug)]
struct Outer {
    inner: Output,
}

#[test]
fn a_struct_ignores_only_names_below_it() {
    let (_dir, path) = file(|writer| {
        writer.add("inner.grid.x", &array![0.5_f32]).unwrap();
        writer.add("inner.other", &array![1_u8]).unwrap();
        writer.add("outer", &array![1_u8]).unwrap();
    });
    let error = Outer::load_from(&path).unwrap_err();
    assert_eq!(differences(&error), [r#""outer" is not needed"#]);
}

#[test]
fn loading_into_a_value_compares_shapes_and_lengths() {
    let (_dir, path) = place();
    model().save_to(&path).unwrap();
    let mut value = model();
    value.mask = array![true, false];
    value.any = arr0(1.0).into_dyn();
    value.layers.push(Layer { weight: Array2::zeros((1, 1)), bias: None, uses: 5 });
    value.layers[0].weight = Array2::zeros((2, 1));
    let before = value.clone();
    let error = value.load_into(&path).unwrap_err();
    let expected = [
        r#""mask" should have shape [2], found [1]"#,
        r#""layers.0.weight" should have shape [2, 1], found [1, 2]"#,
        r#""layers.2.weight" is missing"#,
        r#""any" should have shape [], found [1, 1]"#,
    ];
    assert_eq!(differences(&error), expected);
    assert_eq!(value, before);

    // Items that only the file has are not needed.
    value = model();
    value.layers.pop();
    let before = value.clone();
    let error = value.load_into(&path).unwrap_err();
    assert_eq!(
        differences(&error),
        [r#""layers.1.weight" is not needed"#, r#""layers.1.bias" is not needed"#]
    );
    assert_eq!(value, before);
}

#[derive(NamedArrays, Clone, Debug, PartialEq)]
struct Notes {
    notes: Vec<Note>,
}

#[derive(NamedArrays, Clone, Debug, PartialEq)]
struct Note {
    text: Option<String>,
}

#[test]
fn items_without_arrays_are_counted_too() {
    let (_dir, path) = place();
    let notes = |texts: &[Option<&str>]| Notes {
        notes: texts.iter().map(|text| Note { text: text.map(Into::into) }).collect(),
    };
    let saved = notes(&[Some("a"), None]);
    saved.save_to(&path).unwrap();
    for (texts, expected) in [
        (&[None][..], r#""notes.1" is not needed"#),
        (&[None, Some("b"), None], r#""notes.2" is missing"#),
    ] {
        let mut value = notes(texts);
        assert_eq!(differences(&value.load_into(&path).unwrap_err()), [expected]);
        assert_eq!(value, notes(texts));
    }
    let mut value = notes(&[None, Some("b")]);
    value.load_into(&path).unwrap();
    assert_eq!(value, saved);
}

#[test]
fn loading_into_a_value_keeps_skipped_fields() {
    let (_dir, path) = place();
    model().save_to(&path).unwrap();
    let mut value = Model { verbose: true, epoch: 9, mask: array![false], ..model() };
    value.layers[0].uses = 5;
    value.layers[1] = Layer { weight: array![[0.0, 0.0]], bias: None, uses: 6 };
    value.load_into(&path).unwrap();
    let mut expected = model();
    (expected.verbose, expected.layers[0].uses, expected.layers[1].uses) = (true, 5, 6);
    assert_eq!(value, expected);

    // An option follows the file in the other direction too.
    let mut without = model();
    without.layers[0].bias = None;
    without.save_to(&path).unwrap();
    value.read_into(&Reader::open(&path).unwrap()).unwrap();
    expected.layers[0].bias = None;
    assert_eq!(value, expected);
}

#[test]
fn a_value_is_unchanged_if_reading_fails() {
    let (_dir, path) = place();
    model().save_to(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // The mask is the only tensor with one byte per element, so it is at the end.
    *bytes.last_mut().unwrap() = 7;
    std::fs::write(&path, bytes).unwrap();
    let mut value = Model { epoch: 9, ..model() };
    let before = value.clone();
    let error = value.load_into(&path).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidBool { index: 0, found: 7 }), "{error}");
    assert_eq!((error.tensor(), error.file().is_some()), (Some("mask"), true));
    assert_eq!(value, before);

    assert!(value.load_into(path.with_extension("absent")).is_err());
    assert_eq!(value, before);
}
