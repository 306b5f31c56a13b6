//! Damaged and hostile deltas. Each is an error with the expected and the found value, and the base
//! stays unchanged.

use std::fs;

use safetensors_core::{Error, SaveOptions, TensorView, save};
use safetensors_delta::{Delta, ErrorKind};
use serde_json::Value;

use crate::support::{INDEX, Parts, SHARD, Scratch, Tensors, bytes, files, frame};

const OLD: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const NEW: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 9];
const XOR: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 14];

fn base() -> Tensors {
    Tensors::from([bytes("w", OLD), bytes("v", OLD)])
}

fn sound() -> Parts {
    Parts::new("xor", &[("w", &frame(&XOR), &NEW)])
}

fn overwriting(content: &[u8]) -> Parts {
    Parts::new("overwrite", &[("w", &frame(content), &NEW)])
}

/// Applies the delta to the base. An error leaves everything as it was.
fn apply(parts: &Parts) -> Result<(), Error> {
    let scratch = Scratch::new(&base());
    scratch.write_delta("delta", parts);
    let before = files(scratch.directory.path());
    let applied = scratch.apply(&["delta"]).map(|applied| {
        assert_eq!(applied["w"].2, NEW);
        assert_eq!(applied["v"].2, OLD);
    });
    if applied.is_err() {
        assert_eq!(files(scratch.directory.path()), before);
    }
    applied
}

/// Returns the message about the tensor `w` of a delta that is refused.
#[track_caller]
fn refused(parts: &Parts) -> String {
    let error = apply(parts).unwrap_err();
    assert_eq!(error.tensor(), Some("w"), "{error}");
    assert!(error.file().is_some_and(|file| file.ends_with(SHARD)), "{error}");
    error.to_string().split_once("tensor \"w\": ").unwrap().1.to_owned()
}

fn with_frame(frame: Vec<u8>) -> Parts {
    Parts { frames: vec![("w", frame)], ..sound() }
}

#[test]
fn the_deltas_that_the_others_are_variants_of_are_applied() {
    apply(&sound()).unwrap();
    apply(&overwriting(b"\x01\0\0\0\x07\0\0\0\x09")).unwrap();
    // A frame may lack the size of its content, and have a checksum.
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    std::io::Write::write_all(&mut encoder, &XOR).unwrap();
    apply(&with_frame(encoder.finish().unwrap())).unwrap();
}

#[test]
fn frames_that_are_damaged() {
    let sound = frame(&XOR);
    for len in 0..sound.len() {
        let message = refused(&with_frame(sound[..len].to_vec()));
        let cut = format!("its frame is cut off after {len} bytes");
        let expected = if len < 4 { "expected a zstd frame" } else { &cut };
        assert!(message.contains(expected), "{len}: {message}");
    }
    let mut damaged = sound.clone();
    // A reserved type of block.
    damaged[6] |= 6;
    assert!(refused(&with_frame(damaged)).contains("its frame is damaged: "));
    assert_eq!(
        refused(&with_frame(b"PK\x03\x04....".to_vec())),
        "expected a zstd frame, found 504b0304"
    );
}

#[test]
fn bytes_after_the_frame_are_refused() {
    let skippable = b"\x50\x2a\x4d\x18\x02\0\0\0ab";
    let one = frame(&XOR);
    let end = one.len();
    for rest in [&b"\0"[..], b"rubbish", skippable, &frame(&XOR), &frame(b"")] {
        let message = refused(&with_frame([&one, rest].concat()));
        let found = end + rest.len();
        let expected = format!("its zstd frame ends at byte {end}, but {found} bytes are there");
        assert_eq!(message, expected);
    }
    let message = refused(&with_frame([&skippable[..], &one].concat()));
    assert!(message.contains("skippable zstd frame"), "{message}");
}

#[test]
fn contents_of_another_size_are_refused() {
    for other in [&XOR[..7], &[&XOR[..], &[0]].concat(), &[0; 100_000]] {
        let message = refused(&with_frame(frame(other)));
        let found = other.len();
        assert_eq!(message, format!("its frame should have a content of 8 bytes, found {found}"));
    }
}

/// The header lacks the size of the content: a gigabyte, of a few kilobytes.
#[test]
fn a_bomb_gives_no_byte_more_than_the_tensor_has() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    for _ in 0..1024 {
        std::io::Write::write_all(&mut encoder, &[0; 1 << 14]).unwrap();
    }
    let bomb = with_frame(encoder.finish().unwrap());
    assert_eq!(refused(&bomb), "its frame holds more than the expected 8 bytes");
}

#[test]
fn windows_and_dictionaries_that_take_memory() {
    let header =
        |rest: &[u8]| refused(&with_frame([&b"\x28\xb5\x2f\xfd"[..], rest, &[1, 0, 0]].concat()));
    // A window of 16 MiB, and of the most that a header can say.
    for window in [14 << 3, 0xff] {
        let says = "its frame needs a larger window than the limit of 8388608 bytes";
        assert_eq!(header(&[0, window]), says);
    }
    let single = header(&[&[0xe0][..], &(1_u64 << 40).to_le_bytes()].concat());
    assert_eq!(single, "its frame should have a content of 8 bytes, found 1099511627776");
    assert_eq!(header(&[0x23, 1, 0, 0, 0, 8]), "its frame needs a dictionary");
}

#[test]
fn positions_that_are_wrong() {
    let many = [&9_u32.to_le_bytes()[..], &[0; 45]].concat();
    for (content, says) in [
        (
            &b"\x02\0\0\0\x07\0\0\0\x07\0\0\0\x09\x09"[..],
            "position 7 to be overwritten should be above the one before it, 7",
        ),
        (
            b"\x02\0\0\0\x07\0\0\0\x03\0\0\0\x09\x03",
            "position 3 to be overwritten should be above the one before it, 7",
        ),
        (
            b"\x01\0\0\0\x08\0\0\0\x09",
            "position 8 to be overwritten is outside of the tensor, which has 8 bytes",
        ),
        (&many, "9 positions are to be overwritten, but the tensor has only 8 bytes"),
        (b"\x01\0\0\0\x07\0\0\0", "its frame should have a content of 9 bytes, found 8"),
        (b"\xff\xff\xff\xff", "its frame should have a content of 21474836479 bytes, found 4"),
        (b"\x01", "its frame should have a content of 4 bytes, found 1"),
        (b"", "its frame should have a content of 4 bytes, found 0"),
    ] {
        assert_eq!(refused(&overwriting(content)), says);
    }
}

#[test]
fn checksums_that_are_wrong() {
    let with = |checksum: Option<&str>| {
        let mut parts = sound();
        parts.checksums.remove("w");
        parts.checksums.extend(checksum.map(|it| ("w".into(), it.to_owned())));
        parts
    };
    let message = refused(&with(Some(&"0".repeat(32))));
    assert!(message.starts_with("its xxh3-128 after the delta \"000001\" should be 0000"));
    assert!(message.contains("the base is another one, or the delta is damaged"), "{message}");
    assert_eq!(refused(&with(None)), "__metadata__ has no checksum of it");
    let right = sound().checksums["w"].clone();
    for wrong in [&right[1..], &right.to_uppercase(), "", &format!(" {}", &right[1..])] {
        let message = refused(&with(Some(wrong)));
        assert!(
            message.starts_with("its checksum should be 32 lower-case hex digits"),
            "{message}"
        );
    }
}

#[test]
fn a_delta_of_another_base_is_refused() {
    let mut parts = sound();
    parts.frames = vec![("x", frame(&XOR))];
    parts.checksums = [("x".into(), "0".repeat(32))].into();
    let error = apply(&parts).unwrap_err();
    assert_eq!(error.tensor(), Some("x"));
    assert!(error.to_string().ends_with("the base has no such tensor"), "{error}");
}

#[test]
fn fields_that_are_missing_or_unknown() {
    const ENCODINGS: &str = "xor, overwrite, xor-or-whole or overwrite-or-whole";
    let fields = [
        ("version", "a version", None),
        ("base_version", "a version", None),
        ("delta_encoding", ENCODINGS, Some("bsdiff")),
        ("compression_format", "zstd", Some("lz4")),
        ("checksum_format", "blake3, xxh3-128 or adler32", Some("md5")),
        ("safetensors_bridge.base_blake3", "64 lower-case hex digits", Some("00")),
    ];
    for (key, expected, wrong) in fields {
        let with = |value: Option<Value>| {
            let mut parts = sound();
            let metadata = parts.metadata.as_object_mut().unwrap();
            metadata.remove(key);
            metadata.extend(value.map(|value| (key.to_owned(), value)));
            apply(&parts).unwrap_err().to_string()
        };
        let says = |message: String, found: &str| {
            let expected =
                format!("{INDEX}: {key} in the index should be {expected}, found {found}");
            assert!(message.ends_with(&expected), "{message}");
        };
        if let Some(wrong) = wrong {
            says(with(Some(wrong.into())), &format!("{wrong:?}"));
        }
        if !key.starts_with("safetensors") && key != "delta_encoding" {
            says(with(None), "no such text");
            says(with(Some(7.into())), "no such text");
        }
    }
    // Without the key that makes a delta of it, it is a checkpoint.
    let mut parts = sound();
    parts.metadata.as_object_mut().unwrap().remove("delta_encoding");
    assert!(apply(&parts).unwrap_err().to_string().contains("expected a delta"));
}

/// The index and the files disagree. A reader that takes all files would apply tensors that we do
/// not.
#[test]
fn an_index_that_does_not_fit_its_files() {
    let scratch = Scratch::new(&base());
    let refused = |change: &dyn Fn(&mut Value)| {
        scratch.write_delta("delta", &sound());
        let index = scratch.path("delta").join(INDEX);
        let mut json: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
        change(&mut json["weight_map"]);
        fs::write(&index, json.to_string()).unwrap();
        let error = scratch.apply(&["delta"]).unwrap_err();
        fs::remove_dir_all(scratch.path("delta")).unwrap();
        error
    };
    let error = refused(&|map| map["v"] = SHARD.into());
    assert_eq!(error.tensor(), Some("v"));
    let error = refused(&|map| map.as_object_mut().unwrap().clear());
    assert!(matches!(error.other(), Some(ErrorKind::StrayFile)), "{error}");

    // A second tensor, in the same file or another one, which the index does not name.
    let two = Parts::new("xor", &[("w", &frame(&XOR), &NEW), ("v", &frame(&XOR), &NEW)]);
    scratch.write_delta("delta", &two);
    let only = format!(r#"{{"metadata":{},"weight_map":{{"w":"{SHARD}"}}}}"#, two.metadata);
    fs::write(scratch.path("delta").join(INDEX), only).unwrap();
    let error = scratch.apply(&["delta"]).unwrap_err();
    assert_eq!(error.tensor(), Some("v"));
    assert!(matches!(error.other(), Some(ErrorKind::Unindexed)), "{error}");
    fs::remove_dir_all(scratch.path("delta")).unwrap();
    for name in ["old.safetensors", "model.safetensors"] {
        scratch.write_delta("delta", &sound());
        fs::copy(scratch.path("delta").join(SHARD), scratch.path("delta").join(name)).unwrap();
        let path = scratch.path("delta").join(INDEX);
        let error = Delta::open(path).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::StrayFile)), "{error}");
        assert!(error.file().unwrap().ends_with(name));
        // Another index that names it makes no difference.
        let other = format!(r#"{{"weight_map":{{"w":"{name}"}}}}"#);
        fs::write(scratch.path("delta/other.safetensors.index.json"), other).unwrap();
        let error = Delta::open(scratch.path("delta").join(INDEX)).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::StrayFile)), "{error}");
        fs::remove_dir_all(scratch.path("delta")).unwrap();
    }
}

#[test]
fn differences_that_are_no_rows_of_bytes() {
    let scratch = Scratch::new(&base());
    scratch.write_delta("delta", &sound());
    let file = scratch.path("delta").join(SHARD);
    let options = SaveOptions::new().metadata(sound().checksums);
    let square = TensorView::from_slice(&[2, 2], &[0_u8; 4]).unwrap();
    save(&file, [("w", square)], &options).unwrap();
    let error = scratch.apply(&["delta"]).unwrap_err();
    let says = "should be U8 with one dimension, found U8 with 2";
    assert!(error.to_string().ends_with(says), "{error}");
    save(&file, [("w", TensorView::from_slice(&[1], &[0_i8]).unwrap())], &options).unwrap();
    let error = scratch.apply(&["delta"]).unwrap_err();
    assert!(error.to_string().ends_with("found I8 with 1"), "{error}");
}

/// The damage that `verify` finds without the base.
#[test]
fn verify_detects_damage_without_the_base() {
    let scratch = Scratch::new(&base());
    let verify = |parts: &Parts| {
        scratch.write_delta("delta", parts);
        Delta::open(scratch.path("delta")).unwrap().verify()
    };
    verify(&sound()).unwrap();
    verify(&overwriting(b"\x01\0\0\0\x07\0\0\0\x09")).unwrap();
    let mut cut = frame(&XOR);
    cut.pop();
    for wrong in [
        with_frame(cut),
        with_frame([frame(&XOR), frame(&XOR)].concat()),
        overwriting(b"\x02\0\0\0\x07\0\0\0\x07\0\0\0\x09\x09"),
        overwriting(b"\x01\0\0\0\x07\0\0\0\x09\x09"),
    ] {
        assert_eq!(verify(&wrong).unwrap_err().tensor(), Some("w"));
    }
    // Without a base, only the header of the frame can limit its size.
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    std::io::Write::write_all(&mut encoder, &XOR).unwrap();
    let error = verify(&with_frame(encoder.finish().unwrap())).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::UnknownContentSize)), "{error}");
}
