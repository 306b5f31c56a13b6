//! Numbers and texts: entries in the metadata.

use ndarray::{Array1, array};
use safetensors_ndarray::{NamedArrays, Reader};

use super::{differences, file, place};

#[derive(NamedArrays, Clone, Debug, PartialEq)]
struct Settings {
    adam: bool,
    i8: i8,
    u64: u64,
    i128: i128,
    index: usize,
    f32: f32,
    f64: f64,
    title: String,
    note: Option<String>,
    rate: Option<f64>,
    labels: Vec<String>,
    nested: Nested,
}

#[derive(NamedArrays, Clone, Debug, PartialEq)]
struct Nested {
    step: u32,
}

fn settings() -> Settings {
    Settings {
        adam: true,
        i8: i8::MIN,
        u64: u64::MAX,
        i128: i128::MIN,
        index: 7,
        f32: 0.1,
        f64: 1.0 / 3.0,
        title: "Größe \"x\"\n\0".into(),
        note: None,
        rate: Some(1e-8),
        labels: vec!["a".into(), String::new()],
        nested: Nested { step: 3 },
    }
}

#[test]
fn numbers_and_texts_come_back() {
    let (_dir, path) = place();
    let mut saved = settings();
    saved.save_to(&path).unwrap();
    assert_eq!(Settings::load_from(&path).unwrap(), saved);
    let reader = Reader::open(&path).unwrap();
    for (key, value) in [
        ("adam", "true"),
        ("i8", "-128"),
        ("u64", "18446744073709551615"),
        ("f32", "0.1"),
        ("f64", "0.3333333333333333"),
        ("rate", "1e-8"),
        ("labels.0", "a"),
        ("labels.1", ""),
        ("nested.step", "3"),
    ] {
        assert_eq!(reader.checkpoint().metadata()[key], value, "{key}");
    }
    assert!(reader.checkpoint().is_empty() && !reader.checkpoint().metadata().contains_key("note"));

    saved = Settings { note: Some(String::new()), rate: None, labels: vec![], ..saved };
    saved.save_to(&path).unwrap();
    assert_eq!(Settings::load_from(&path).unwrap(), saved);
}

#[test]
fn malformed_entries_are_listed_with_the_expected_form() {
    let (_dir, path) = file(|writer| {
        writer.metadata([
            ("adam", "True"),
            ("i8", "128"),
            ("u64", "+1"),
            ("i128", ""),
            ("f32", "1e300"),
            ("f64", "0x7ff8"),
            ("title", ""),
            ("rate", "fast"),
            ("labels.1", "behind a gap"),
            ("nested.step", "1.0"),
            ("ignored", "by this struct"),
        ]);
    });
    let float = |bits, digits| {
        format!(
            "a decimal number that fits {bits}, or the bits of a NaN as 0x and {digits} hex digits"
        )
    };
    let entry = |key, expected: &str, found: &str| {
        format!("{key:?} in the metadata should be {expected}, found {found:?}")
    };
    let expected = [
        entry("adam", "true or false", "True"),
        entry("i8", "an integer that fits i8", "128"),
        entry("u64", "an integer that fits u64", "+1"),
        entry("i128", "an integer that fits i128", ""),
        r#""index" is missing in the metadata; it should be an integer that fits usize"#.into(),
        entry("f32", &float("f32", 8), "1e300"),
        entry("f64", &float("f64", 16), "0x7ff8"),
        entry("rate", &float("f64", 16), "fast"),
        entry("nested.step", "an integer that fits u32", "1.0"),
    ];
    assert_eq!(differences(&Settings::load_from(&path).unwrap_err()), expected);
}

#[derive(NamedArrays, Clone, Debug, PartialEq)]
struct Alias {
    weight: Array1<f32>,
    /// A text that is the name of a tensor looks like the alias of a tied tensor.
    best: String,
    other: Option<Array1<f32>>,
}

#[test]
fn a_text_that_names_a_tensor_stays_a_text() {
    let (_dir, path) = place();
    let saved = Alias { weight: array![1.0], best: "weight".into(), other: None };
    saved.save_to(&path).unwrap();
    assert_eq!(Alias::load_from(&path).unwrap(), saved);
}

#[test]
fn a_tied_tensor_loads_under_its_other_name() {
    #[derive(NamedArrays, Debug)]
    struct Tied {
        embed: Array1<f32>,
        head: Array1<f32>,
    }

    #[derive(NamedArrays, Debug)]
    struct OnlyHead {
        head: Array1<f32>,
    }

    let (_dir, path) = file(|writer| {
        writer.add("embed", &array![1.0_f32]).unwrap();
        writer.metadata([("head", "embed")]);
    });
    let loaded = Tied::load_from(&path).unwrap();
    assert_eq!((loaded.embed, loaded.head), (array![1.0], array![1.0]));
    assert_eq!(OnlyHead::load_from(&path).unwrap().head, array![1.0]);
}
