//! Index files that must be refused, and some that look hostile and are harmless.

use std::fs::File;

use safetensors_core::error::IndexProblem;

use super::{write_index, write_shard};
use crate::support::*;

/// Opens an index with this text, next to the shard `s.safetensors` that has the tensors `a` and
/// `b`.
fn open(index: &str) -> Result<Checkpoint, Error> {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "s.safetensors", &[("a", 1), ("b", 2)]);
    let path = write(directory.path(), "model.safetensors.index.json", index);
    let opened = Checkpoint::open(&path);
    if let Err(error) = &opened {
        assert_eq!(error.file(), path.to_str(), "{error}");
    }
    opened
}

/// Asserts that the text is refused as an index, with an error that contains `says`.
#[track_caller]
fn refuses(index: &str, says: &str) {
    let error = open(index).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::BadIndex { problem: IndexProblem::Json(_) }),
        "{index}: {error}"
    );
    assert!(error.to_string().contains(says), "{index}: {says:?} is not in {error}");
}

#[test]
fn the_index_that_the_others_are_variants_of_opens() {
    let checkpoint =
        open(r#"{"metadata":{"total_size":1},"weight_map":{"a":"s.safetensors"}}"#).unwrap();
    assert_eq!(checkpoint.len(), 1);
}

#[test]
fn not_json() {
    refuses("", "EOF");
    refuses("weight_map: {}", "expected value");
    refuses(r#"{"weight_map":{"a":"s.safetensors"}"#, "EOF");
    refuses(r#"{"weight_map":{"a":"s.safetensors"},}"#, "trailing comma");
    refuses(r#"{"weight_map":{"a":"s.safetensors",}}"#, "trailing comma");
    refuses(r#"{"weight_map":{"a":"s.safetensors"}}{}"#, "trailing characters");
    refuses("{\"weight_map\":{\"a\":\"s.safetensors\"}}\0", "trailing characters");
    refuses("\u{feff}{\"weight_map\":{\"a\":\"s.safetensors\"}}", "expected value");
    refuses("{\"weight_map\":{\"a\nb\":\"s.safetensors\"}}", "control character");
    refuses(r#"{"weight_map":{"\ud800":"s.safetensors"}}"#, "hex escape");
}

#[test]
fn wrong_types() {
    for index in ["[]", "null", "1", "\"x\""] {
        refuses(index, "an object with a weight_map");
    }
    for weight_map in ["[]", "null", "1", "\"s.safetensors\"", r#"[["a","s.safetensors"]]"#] {
        refuses(
            &format!(r#"{{"weight_map":{weight_map}}}"#),
            "a weight_map from tensor names to file names",
        );
    }
    for file in ["1", "null", "[]", "{}", "true", r#"["s.safetensors"]"#] {
        refuses(&format!(r#"{{"weight_map":{{"a":{file}}}}}"#), "expected a string");
    }
}

#[test]
fn missing_and_empty_weight_map() {
    refuses("{}", "weight_map");
    refuses(r#"{"metadata":{"weight_map":{"a":"s.safetensors"}}}"#, "weight_map");
    let error = refused!(
        open(r#"{"weight_map":{}}"#),
        ErrorKind::BadIndex { problem: IndexProblem::Empty }
    );
    assert!(error.to_string().contains("weight_map is empty"));
}

#[test]
fn duplicate_keys_at_both_levels() {
    refuses(
        r#"{"weight_map":{"a":"s.safetensors"},"weight_map":{"b":"s.safetensors"}}"#,
        "\"weight_map\"",
    );
    refuses(
        r#"{"weight_map":{"a":"s.safetensors"},"weight\u005fmap":{"b":"s.safetensors"}}"#,
        "\"weight_map\"",
    );
    refuses(r#"{"metadata":{},"metadata":{},"weight_map":{"a":"s.safetensors"}}"#, "\"metadata\"");
    refuses(
        r#"{"weight_map":{"a":"s.safetensors","b":"s.safetensors","a":"s.safetensors"}}"#,
        "\"a\"",
    );
    refuses(r#"{"weight_map":{"a":"s.safetensors","\u0061":"s.safetensors"}}"#, "\"a\"");
}

#[test]
fn an_index_over_100_mb() {
    let (_directory, path) = place("model.safetensors.index.json");
    for found in [100_000_001, 1 << 33] {
        File::create(&path).unwrap().set_len(found).unwrap();
        let error = Checkpoint::open(&path).unwrap_err();
        let expected = |problem: &_| matches!(problem, IndexProblem::TooLarge { limit: 100_000_000, found: f } if *f == found);
        assert!(
            matches!(error.kind(), ErrorKind::BadIndex { problem } if expected(problem)),
            "{error}"
        );
        assert!(
            error.to_string().contains(&found.to_string())
                && error.to_string().contains("100000000"),
            "{error}"
        );
        assert_eq!(error.file(), path.to_str());
    }
}

/// Names that leave the folder on some system, or that no safetensors file has.
#[test]
fn unsafe_shard_names() {
    let directory = tempdir().unwrap();
    // This file would be found if a name were followed.
    write_shard(directory.path(), "secret.safetensors", &[("a", 1)]);
    let absolute = write_shard(directory.path(), "model/s.safetensors", &[("a", 1)]);
    let absolute = absolute.to_str().unwrap();
    for name in [
        "",
        "..",
        ".",
        "/",
        "../secret.safetensors",
        "./s.safetensors",
        "x/../../secret.safetensors",
        "x/../s.safetensors",
        "x//s.safetensors",
        "s.safetensors/",
        "/etc/passwd",
        "/x.safetensors",
        absolute,
        r"C:\x.safetensors",
        "C:/x.safetensors",
        "C:x.safetensors",
        r"\\server\share\x.safetensors",
        r"\\?\C:\x.safetensors",
        r"..\secret.safetensors",
        r"x\..\..\secret.safetensors",
        r"\x.safetensors",
        "s.safetensors:stream.safetensors",
        "file:///x.safetensors",
        "http://example.org/x.safetensors",
        "s.bin",
        "s.safetensors.bin",
        "s.SAFETENSORS",
        "safetensors",
        "s.safetensors\0",
        "s\0.safetensors",
        "s.safetensors ",
    ] {
        let index = write_index(directory.path(), "model/i.json", &[("a", name)]);
        let error = Checkpoint::open(&index).unwrap_err();
        let ErrorKind::BadIndex { problem: IndexProblem::UnsafeName { name: found } } =
            error.kind()
        else {
            unreachable!("{name:?}: {error}")
        };
        assert_eq!(found, name);
        assert_eq!(error.file(), index.to_str());
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
    }
}

#[test]
fn a_shard_below_the_folder_is_safe() {
    let directory = tempdir().unwrap();
    for name in [
        "s.safetensors",
        "deep/er/s.safetensors",
        "..s.safetensors",
        "a..b.safetensors",
        "é 中.safetensors",
    ] {
        write_shard(directory.path(), name, &[("a", 7)]);
        let index = write_index(directory.path(), "i.json", &[("a", name)]);
        assert_eq!(
            Checkpoint::open(index).unwrap().tensor("a").unwrap().read().unwrap().bytes(),
            [7],
            "{name}"
        );
    }
}

/// The nesting is so deep that a recursive parser would run out of stack.
#[test]
fn deep_nesting() {
    const DEPTH: usize = 1_000_000;
    for (opening, closing) in [("[", "]"), ("{\"x\":", "}")] {
        let nested = format!("{}1{}", opening.repeat(DEPTH), closing.repeat(DEPTH));
        let harmless = format!(r#"{{"metadata":{nested},"weight_map":{{"a":"s.safetensors"}}}}"#);
        // It may be skipped or refused.
        let opened = must_not_hang(move || open(&harmless).map(|checkpoint| checkpoint.len()));
        assert!(
            matches!(opened, Ok(1))
                || matches!(&opened, Err(e) if matches!(e.kind(), ErrorKind::BadIndex { .. }))
        );
        assert!(open(&format!(r#"{{"weight_map":{nested}}}"#)).is_err());
        assert!(open(&format!(r#"{{"weight_map":{{"a":{nested}}}}}"#)).is_err());
        assert!(open(&opening.repeat(DEPTH)).is_err());
    }
}
