//! Deltas of checkpoints with other tensors and other metadata, which only this crate applies.

use std::collections::BTreeMap;
use std::fs;

use safetensors_core::{Checkpoint, Dtype, Error, Metadata};
use safetensors_delta::{Chain, Change, Delta, Encoding, ErrorKind, make};
use serde_json::Value;

use crate::support::{
    INDEX, Parts, Scratch, Tensors, bytes, content, files, frame, quick, read, views, write,
};

fn old() -> Tensors {
    let f32s = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensors::from([
        ("bias".into(), (Dtype::F32, vec![2, 2], f32s(&[1.0, 2.0, 3.0, 4.0]))),
        ("cast".into(), (Dtype::F32, vec![2], f32s(&[1.0, 2.0]))),
        bytes("gone", [1, 2, 3]),
        bytes("noise", (0..200).map(|i: u32| (i * i % 251) as u8).collect::<Vec<_>>()),
        bytes("same", [9; 40]),
        bytes("w", [7; 300]),
    ])
}

fn new() -> Tensors {
    let mut new = old();
    new.remove("gone");
    new.get_mut("bias").unwrap().1 = vec![4];
    new.insert("cast".into(), (Dtype::BF16, vec![2], vec![0x80, 0x3f, 0, 0x40]));
    // The difference of these is as hard to compress as the old bytes.
    new.get_mut("noise").unwrap().2.fill(0);
    new.get_mut("w").unwrap().2[299] = 8;
    new.extend([bytes("added", [5; 30]), bytes("empty", [])]);
    new.insert("scalar".into(), (Dtype::F64, vec![], vec![1; 8]));
    new.insert("sub-byte".into(), (Dtype::F4, vec![3, 2], vec![1, 2, 3]));
    new
}

fn changes(delta: &Delta) -> BTreeMap<String, &'static str> {
    let word = |change| match change {
        Change::Changed => "changed",
        Change::Added { .. } => "added",
        Change::Replaced { .. } => "replaced",
        Change::Removed => "removed",
        _ => "other",
    };
    delta.changes().map(|(name, change)| (name.to_owned(), word(change))).collect()
}

fn metadata() -> [(&'static str, &'static str); 2] {
    [("format", "pt"), ("note", "line\nline")]
}

#[test]
fn other_tensors_and_other_metadata_come_back() {
    let scratch = Scratch::new(&old());
    fs::write(scratch.path("base/config.json"), "{}").unwrap();
    for (encoding, word) in
        [(Encoding::Xor, "xor-or-whole"), (Encoding::Overwrite, "overwrite-or-whole")]
    {
        let options = quick().encoding(encoding).metadata(metadata()).overwrite(true);
        let delta = scratch.make("delta", &new(), &options).unwrap();
        let index = fs::read(scratch.path("delta").join(INDEX)).unwrap();
        let index: Value = serde_json::from_slice(&index).unwrap();
        assert_eq!(index["metadata"]["delta_encoding"], word);
        assert_eq!(delta.encoding(), encoding);
        let expected = [
            ("added", "added"),
            ("bias", "replaced"),
            ("cast", "replaced"),
            ("empty", "added"),
            ("gone", "removed"),
            ("noise", "replaced"),
            ("scalar", "added"),
            ("sub-byte", "added"),
            ("w", "changed"),
        ];
        assert_eq!(changes(&delta), expected.map(|(name, it)| (name.into(), it)).into());
        let cast = Change::Replaced { dtype: Dtype::BF16, shape: &[2] };
        assert!(delta.changes().any(|it| it == ("cast", cast)));
        assert_eq!(content(&delta, "noise"), [0; 200]);
        assert_eq!(delta.metadata().unwrap()["note"], "line\nline");
        delta.verify().unwrap();

        let chain = Chain::new([delta]).unwrap();
        let base = Checkpoint::open(scratch.path("base")).unwrap();
        chain.verify(&base, &quick()).unwrap();
        chain.apply(&base, scratch.path("applied"), &quick().overwrite(true)).unwrap();
        assert_eq!(read(&scratch.path("applied")), new());
        let applied = Checkpoint::open(scratch.path("applied")).unwrap();
        assert_eq!(
            applied.metadata(),
            &Metadata::from(metadata().map(|(k, v)| (k.into(), v.into())))
        );
        assert_eq!(fs::read(scratch.path("applied/config.json")).unwrap(), b"{}");

        // Squashing a single delta gives an equal one, which others can follow.
        chain.squash(&base, scratch.path("squashed"), &options).unwrap();
        let bytes = |name: &str| files(&scratch.path(name)).into_values().collect::<Vec<_>>();
        assert_eq!(bytes("squashed"), bytes("delta"));
        let back = quick().versions("000001", "000002").overwrite(true);
        let back = make(&applied, views(&old()), scratch.path("back"), &back).unwrap();
        let there = Delta::open(scratch.path("delta")).unwrap();
        assert_eq!(back.result_digest(), there.base_digest());
        let both = Chain::new([there, back]).unwrap();
        both.squash(&base, scratch.path("both"), &options).unwrap();
        let both = Delta::open(scratch.path("both")).unwrap();
        assert_eq!((both.tensors().count(), both.base_digest()), (0, both.result_digest()));
    }
}

/// Other programs read it then.
#[test]
fn a_delta_of_bytes_alone_uses_the_shared_format() {
    let scratch = Scratch::new(&old());
    let mut new = old();
    new.get_mut("noise").unwrap().2.fill(0);
    let base = scratch.base.metadata().clone();
    scratch.make("silent", &new, &quick()).unwrap();
    let delta = scratch.make("told", &new, &quick().metadata(base)).unwrap();
    assert_eq!(changes(&delta), [("noise".into(), "changed")].into());
    let bytes = |name: &str| files(&scratch.path(name)).into_values().collect::<Vec<_>>();
    assert_eq!(bytes("told"), bytes("silent"));
    let index = String::from_utf8(bytes("told").pop().unwrap()).unwrap();
    assert!(index.contains("\"delta_encoding\": \"xor\"") && !index.contains(".added"), "{index}");
}

#[test]
fn a_sharded_base_becomes_one_file_unless_the_result_is_the_base() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let base = write(&path("base"), &old(), 250);
    assert!(base.files().len() > 2);
    let there = make(&base, views(&new()), path("1"), &quick()).unwrap();
    Chain::new([there]).unwrap().apply(&base, path("out"), &quick()).unwrap();
    assert_eq!(read(&path("out")), new());
    assert_eq!(files(&path("out")).len(), 1);
    let between = Checkpoint::open(path("out")).unwrap();
    let options = quick().versions("000001", "000002");
    let back = make(&between, views(&old()), path("2"), &options).unwrap();
    let chain = Chain::new([back, Delta::open(path("1")).unwrap()]).unwrap();
    chain.verify(&base, &quick()).unwrap();
    chain.apply(&base, path("back"), &quick()).unwrap();
    assert_eq!(
        files(&path("back")).into_values().collect::<Vec<_>>(),
        files(&path("base")).into_values().collect::<Vec<_>>()
    );
}

/// The change of the tensor `x` by each link of a chain.
#[test]
fn a_later_link_may_remove_a_tensor_that_an_earlier_one_added() {
    let kept = || bytes("kept", [1, 2, 3]);
    let x =
        |dtype, shape: &[usize], value: u8| ("x".into(), (dtype, shape.to_vec(), vec![value; 8]));
    let steps = [
        Tensors::from([kept()]),
        Tensors::from([kept(), x(Dtype::U8, &[8], 1)]),
        Tensors::from([kept(), x(Dtype::U8, &[8], 2)]),
        Tensors::from([kept(), x(Dtype::F32, &[2], 2)]),
        Tensors::from([kept(), x(Dtype::F32, &[2], 3)]),
        Tensors::from([kept()]),
        Tensors::from([kept(), x(Dtype::I64, &[1], 4)]),
    ];
    let scratch = Scratch::new(&steps[0]);
    let mut names = Vec::new();
    for (number, step) in steps.iter().enumerate().skip(1) {
        let base = write(&scratch.path("step"), &steps[number - 1], u64::MAX);
        let options = quick().versions((number - 1).to_string(), number.to_string());
        make(&base, views(step), scratch.path(&number.to_string()), &options).unwrap();
        fs::remove_dir_all(scratch.path("step")).unwrap();
        names.push(number.to_string());
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!(&scratch.apply(&names).unwrap(), step, "{number}");
        let deltas = names.iter().map(|name| Delta::open(scratch.path(name)).unwrap());
        let chain = Chain::new(deltas).unwrap();
        chain.verify(&scratch.base, &quick()).unwrap();
        let squashed = format!("squashed-{number}");
        chain.squash(&scratch.base, scratch.path(&squashed), &quick()).unwrap();
        let made = quick().versions("0", number.to_string());
        scratch.make(&format!("made-{number}"), step, &made).unwrap();
        let bytes = |name: &str| files(&scratch.path(name)).into_values().collect::<Vec<_>>();
        assert_eq!(bytes(&squashed), bytes(&format!("made-{number}")));
    }
    // A link is found that is wrong in a tensor which a later one removes.
    let wrong = scratch.path("2").join(crate::support::SHARD);
    fs::copy(scratch.path("1").join(crate::support::SHARD), wrong).unwrap();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let error = scratch.apply(&names).unwrap_err();
    assert_eq!(error.tensor(), Some("x"));
    assert!(
        matches!(error.other(), Some(ErrorKind::WrongTensor { version, .. }) if version == "2")
    );
}

/// More deltas than are applied at a time go through a file without a name.
#[test]
fn a_long_chain_is_applied_in_passes() {
    let scratch = Scratch::new(&Tensors::from([bytes("w", [0; 9]), bytes("v", [3; 5])]));
    let names: Vec<_> = (1..=150_u8)
        .map(|number| {
            let mut new = [0; 9];
            new[0] = number;
            let mut difference = [0; 9];
            difference[0] = number ^ (number - 1);
            let mut parts = Parts::new("xor", &[("w", &frame(&difference), &new)]);
            parts.metadata["base_version"] = (number - 1).to_string().into();
            parts.metadata["version"] = number.to_string().into();
            scratch.write_delta(&format!("d{number}"), &parts);
            format!("d{number}")
        })
        .collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(scratch.apply(&names).unwrap()["w"].2, [150, 0, 0, 0, 0, 0, 0, 0, 0]);
    // Each link is checked, in any pass.
    for (wrong, by) in [("d20", "20"), ("d64", "64"), ("d65", "65"), ("d150", "150")] {
        let mut parts = Parts::new("xor", &[("w", &frame(&[1; 9]), &[])]);
        parts.metadata["base_version"] = (by.parse::<u8>().unwrap() - 1).to_string().into();
        parts.metadata["version"] = by.into();
        let kept = files(&scratch.path(wrong));
        scratch.write_delta(wrong, &parts);
        let error = scratch.apply(&names).unwrap_err();
        assert!(
            matches!(error.other(), Some(ErrorKind::WrongTensor { version, .. }) if version == by)
        );
        kept.into_iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    }
    let left: Vec<_> = fs::read_dir(scratch.directory.path()).unwrap().collect();
    assert_eq!(left.len(), 152);
}

const KEY: &str = "safetensors_bridge.";

/// A valid delta that adds, replaces, removes and changes, with another text for this entry.
fn hostile(key: &str, value: &str) -> (Scratch, Result<Tensors, Error>) {
    let scratch = Scratch::new(&Tensors::from([bytes("w", [1]), bytes("r", [2]), bytes("g", [3])]));
    let whole = frame(&[5; 4]);
    let parts = [("w", &frame(&[4])[..], &[5][..]), ("r", &whole, &[5; 4]), ("a", &whole, &[5; 4])];
    let mut parts = Parts::new("xor-or-whole", &parts);
    let sound =
        [("added", r#"["a","F32",[1]]"#), ("replaced", r#"["r","U8",[4]]"#), ("removed", "\"g\"")];
    for (key, value) in sound {
        parts.metadata[format!("{KEY}{key}")] = value.into();
    }
    if !key.is_empty() {
        parts.metadata[key] = value.into();
    }
    scratch.write_delta("delta", &parts);
    let before = files(scratch.directory.path());
    let applied = scratch.apply(&["delta"]);
    if applied.is_err() {
        assert_eq!(files(scratch.directory.path()), before);
    }
    (scratch, applied)
}

#[track_caller]
fn refused(key: &str, value: &str, tensor: Option<&str>, message: &str) {
    let (_, applied) = hostile(key, value);
    let error = applied.unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
    assert_eq!(error.tensor(), tensor, "{error}");
    assert!(error.file().is_some(), "{error}");
}

#[test]
fn hostile_entries_are_named() {
    let (scratch, sound) = hostile("", "");
    let expected =
        [bytes("w", [5]), bytes("r", [5; 4]), ("a".into(), (Dtype::F32, vec![1], vec![5; 4]))];
    assert_eq!(sound.unwrap(), expected.into());
    drop(scratch);
    let [added, replaced, removed, metadata] =
        ["added", "replaced", "removed", "metadata"].map(|key| format!("{KEY}{key}"));
    refused(&added, r#"["a","F33",[1]]"#, Some("a"), "unknown dtype \"F33\"");
    refused(&added, r#"["a","F4",[3]]"#, Some("a"), "do not fill whole bytes");
    refused(&added, r#"["a","F64",[4294967296,4294967296]]"#, Some("a"), "overflows 64 bits");
    refused(
        &added,
        r#"["a","F64",[1152921504606846976]]"#,
        Some("a"),
        "a content of 9223372036854775808 bytes, found 4",
    );
    refused(&added, r#"["a","F32",[2]]"#, Some("a"), "a content of 8 bytes, found 4");
    refused(&added, r#"["a","F32",[0]]"#, Some("a"), "a content of 0 bytes, found 4");
    refused(&replaced, r#"["r","U8",[3]]"#, Some("r"), "a content of 3 bytes, found 4");
    for bad in ["[", "a", r#"["a","F32"]"#, r#"["a","F32",[-1]]"#, r#"["a","F32",[1],0]"#, "\n"] {
        refused(&added, bad, None, "should be lines of [name, dtype, shape] in JSON, found");
    }
    let many = format!(r#"["a","F32",[{}]]"#, vec!["1"; 1025].join(","));
    refused(&added, &many, None, "more dimensions than the limit of 1024");
    let twice = "[\"a\",\"F32\",[1]]\n[\"a\",\"F32\",[1]]";
    refused(&added, twice, Some("a"), "duplicate tensor name");
    refused(&removed, "\"g\"\n\"g\"", Some("g"), "duplicate tensor name");
    refused(&removed, "g", None, "should be lines of names in JSON, found \"g\"");
    refused(&removed, &"\"g\"\n".repeat(1_000_001), None, "1000000");
    // Names that do not fit the base or each other.
    refused(&removed, "\"q\"", Some("q"), "changes or removes it, but the base has no such tensor");
    refused(&removed, "\"a\"", Some("a"), "the delta has it as added and as removed");
    refused(&removed, "\"r\"", Some("r"), "the delta has it as replaced and as removed");
    refused(&removed, "\"w\"", Some("w"), "the delta has it as changed and as removed");
    refused(&added, r#"["r","U8",[4]]"#, Some("r"), "the delta has it as added and as replaced");
    refused(&added, "", Some("a"), "changes or removes it, but the base has no such tensor");
    refused(
        &added,
        "[\"a\",\"F32\",[1]]\n[\"q\",\"U8\",[0]]",
        Some("q"),
        "it is added, but no file has its bytes",
    );
    refused(
        &added,
        "[\"a\",\"F32\",[1]]\n[\"w\",\"U8\",[1]]",
        Some("w"),
        "adds it, but the base has a tensor of this name",
    );
    refused(
        &replaced,
        "[\"r\",\"U8\",[4]]\n[\"g\",\"U8\",[4]]",
        Some("g"),
        "replaced and as removed",
    );
    // The metadata.
    refused(&metadata, "[\"k\"]", None, "lines of [key, value] in JSON, found");
    refused(&metadata, "[\"k\",\"1\"]\n[\"k\",\"2\"]", None, "duplicate key \"k\" in __metadata__");
    refused(&metadata, &"[\"k\",\"1\"]\n".repeat(100_001), None, "the limit of 100000");
    // Other readers would take it, and ignore the unknown parts.
    for plain in ["xor", "overwrite"] {
        refused("delta_encoding", plain, None, "added in the index should be absent unless");
    }
    refused(
        "delta_encoding",
        "whole",
        None,
        "xor, overwrite, xor-or-whole or overwrite-or-whole, found \"whole\"",
    );
}

/// The size of a delta's result is known before a byte is decompressed, and making one has the same
/// limit.
#[test]
fn entire_tensors_are_limited_by_their_compressed_bytes_and_the_base() {
    const LEN: usize = (64 << 20) + 1;
    let scratch = Scratch::new(&Tensors::from([bytes("w", [1])]));
    // The header of a frame with a window of 1 KiB that promises `LEN` bytes, and no block.
    let claim = [&b"\x28\xb5\x2f\xfd\xc0\0"[..], &(LEN as u64).to_le_bytes()].concat();
    let mut parts = Parts::new("xor-or-whole", &[("a", &claim, &[])]);
    parts.metadata[format!("{KEY}added")] = format!(r#"["a","U8",[{LEN}]]"#).into();
    scratch.write_delta("delta", &parts);
    let error = scratch.apply(&["delta"]).unwrap_err();
    let is_refused = |error: &Error| {
        let (limit, found) = (64 << 20, LEN as u64);
        matches!(error.other(), Some(&ErrorKind::TooExpanded { limit: l, found: f })
            if (l, f) == (limit, found))
    };
    assert!(is_refused(&error), "{error}");
    assert!(error.to_string().contains(INDEX), "{error}");

    // A base of `LEN` bytes explains them.
    for (len, is_fine) in [(1, false), (LEN, true)] {
        let scratch = Scratch::new(&Tensors::from([bytes("w", vec![0; len])]));
        let base = Checkpoint::open(scratch.path("base")).unwrap();
        let new = Tensors::from([bytes("a", vec![0; LEN])]);
        let made = make(&base, views(&new), scratch.path("made"), &quick());
        assert_eq!(made.is_ok(), is_fine);
        match made {
            Ok(delta) => Chain::new([delta]).unwrap().verify(&base, &quick()).unwrap(),
            Err(error) => assert!(is_refused(&error), "{error}"),
        }
    }
}

/// Whole tensors are checked without a base, too.
#[test]
fn an_entire_tensor_with_a_wrong_checksum_is_refused_without_the_base() {
    let scratch = Scratch::new(&Tensors::from([bytes("w", [1])]));
    let mut parts = Parts::new("xor-or-whole", &[("a", &frame(&[5; 4]), &[6; 4])]);
    parts.metadata[format!("{KEY}added")] = r#"["a","U8",[4]]"#.into();
    scratch.write_delta("delta", &parts);
    let verified = Delta::open(scratch.path("delta")).unwrap().verify();
    for error in [verified.unwrap_err(), scratch.apply(&["delta"]).unwrap_err()] {
        assert_eq!(error.tensor(), Some("a"), "{error}");
        assert!(matches!(error.other(), Some(ErrorKind::WrongTensor { .. })), "{error}");
    }
    // Its frame has its size.
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    std::io::Write::write_all(&mut encoder, &[6; 4]).unwrap();
    parts.frames = vec![("a", encoder.finish().unwrap())];
    scratch.write_delta("delta", &parts);
    let error = scratch.apply(&["delta"]).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::UnknownContentSize)), "{error}");
}
