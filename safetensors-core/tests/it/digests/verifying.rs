//! The changes that `verify` finds, and the records that it refuses.

use super::*;

#[test]
fn checked_and_unrecorded_tensors_are_listed() {
    let (_directory, path) = place("model.safetensors");
    save_recorded(&path, &[("a", b"1"), ("b", b""), ("c", b"22"), ("d", b"")], &["b", "c"]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let files = digest::verify(&checkpoint, &DigestOptions::new()).unwrap();
    let [VerifiedFile { file, checked, unrecorded, sha256: None, .. }] = files.as_slice() else {
        panic!("{files:?}")
    };
    assert_eq!(*file, path.as_path());
    assert_eq!((checked.as_slice(), unrecorded.as_slice()), (&["b", "c"][..], &["a", "d"][..]));

    let error = refused!(
        digest::verify(&checkpoint, &DigestOptions::new().require_digests(true)),
        ErrorKind::NoDigest
    );
    assert_eq!((error.tensor(), error.file()), (Some("a"), path.to_str()));
}

#[test]
fn a_file_without_digests_is_an_error_only_if_they_are_required() {
    let file = serialize([("w", u8_tensor(b"1"))], &SaveOptions::new()).unwrap();
    let file = Checkpoint::from_source(file, "bytes").unwrap();
    let verified = digest::verify(&file, &DigestOptions::new()).unwrap().remove(0);
    let found = (verified.file, verified.checked.len(), verified.unrecorded);
    assert_eq!(found, (Path::new("bytes"), 0, vec!["w"]));
    assert!(digest::verify(&file, &DigestOptions::new().require_digests(true)).is_err());
}

#[test]
fn every_flipped_byte_is_reported_with_its_tensor() {
    let (_directory, path) = place("model.safetensors");
    let tensors: [(&str, &[u8]); 3] = [("a", b"0123"), ("b", b""), ("c", b"45")];
    save_recorded(&path, &tensors, &["a", "b", "c"]);
    for (name, bytes) in tensors {
        for byte in 0..bytes.len() {
            let offset = offset_of(&path, name, byte as u64);
            flip(&path, offset);
            let error = verify(&path).unwrap_err();
            let ErrorKind::DigestMismatch { algorithm, expected, found } = error.kind() else {
                panic!("{error}")
            };
            let mut changed = bytes.to_vec();
            changed[byte] ^= 0x10;
            assert_eq!(*algorithm, "XXH3-128");
            assert_eq!(
                (expected, found),
                (&Digest::compute(bytes).to_string(), &Digest::compute(&changed).to_string())
            );
            assert_eq!((error.tensor(), error.file()), (Some(name), path.to_str()));
            assert_eq!(
                error.to_string(),
                format!(
                    "{}: tensor {name:?}: the data has changed: its XXH3-128 should be {expected}, found {found}",
                    path.display()
                )
            );
            flip(&path, offset);
            verify(&path).unwrap();
        }
    }
}

#[test]
fn a_changed_header_is_not_changed_data() {
    let (_directory, path) = place("model.safetensors");
    let options = SaveOptions::new().digests(true).metadata([("note", "old")]).align(512);
    save(&path, [("w", u8_tensor(b"data"))], &options).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let data = bytes.len() - 4;
    // Change the last byte of the padding, then a letter of other metadata.
    assert_eq!(bytes[data - 1], b' ');
    bytes[data - 1] = b'\n';
    let note = bytes.windows(3).position(|text| text == b"old").unwrap();
    bytes[note] = b'O';
    fs::write(&path, bytes).unwrap();
    verify(&path).unwrap();
}

#[test]
fn shards_are_verified_each_by_its_own_record() {
    let (directory, paths) = sharded();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let files = digest::verify(&checkpoint, &DigestOptions::new().require_digests(true)).unwrap();
    let checked: Vec<_> = files.iter().map(|file| (file.file, file.checked.clone())).collect();
    assert_eq!(checked, [(paths[0].as_path(), vec!["a", "b"]), (&paths[1], vec!["c", "d"])]);

    // The error names the first changed tensor in file order, for any order in which threads find
    // changes.
    let (c, d) = (offset_of(&paths[1], "c", 16), offset_of(&paths[1], "d", 1_999_999));
    flip(&paths[1], d);
    let named =
        |error: Error| (error.tensor().unwrap().to_string(), error.file().unwrap().to_string());
    let shard = paths[1].to_str().unwrap().to_string();
    assert_eq!(named(verify(directory.path()).unwrap_err()), ("d".into(), shard.clone()));
    flip(&paths[1], c);
    for threads in [1, 2, 8] {
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let error =
            digest::verify(&checkpoint, &DigestOptions::new().threads(threads)).unwrap_err();
        assert_eq!(named(error), ("c".into(), shard.clone()));
    }
}

#[test]
fn a_tensor_that_the_index_takes_from_elsewhere_is_verified_too() {
    let directory = tempdir().unwrap();
    let [one, two] = ["a.safetensors", "b.safetensors"].map(|name| directory.path().join(name));
    save_recorded(&one, &[("x", b"one")], &["x"]);
    save_recorded(&two, &[("x", b"two"), ("y", b"y")], &["x", "y"]);
    let index = r#"{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#;
    write(directory.path(), "model.safetensors.index.json", index);
    verify(directory.path()).unwrap();
    flip(&two, offset_of(&two, "x", 0));
    let error = verify(directory.path()).unwrap_err();
    assert_eq!((error.tensor(), error.file()), (Some("x"), two.to_str()));
}

#[test]
fn a_file_that_has_become_shorter_is_an_error() {
    let (_directory, path) = place("model.safetensors");
    save_recorded(&path, &[("w", &pattern(5000))], &["w"]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4000).unwrap();
    let error = refused!(digest::verify(&checkpoint, &DigestOptions::new()), ErrorKind::Io(_));
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
}

#[test]
fn a_file_that_has_become_longer_is_an_error_though_all_digests_agree() {
    let (_directory, path) = place("model.safetensors");
    save_recorded(&path, &[("w", &pattern(5000))], &["w"]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let len = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len + 1).unwrap();
    let error = refused!(digest::verify(&checkpoint, &DigestOptions::new()), ErrorKind::Io(_));
    assert_eq!((error.tensor(), error.file()), (None, path.to_str()));
}

#[test]
fn a_record_of_a_tensor_that_is_not_there() {
    let (_directory, path) = place("model.safetensors");
    let record = record_of([("w", Digest::compute(b"1")), ("gone", Digest::compute(b"2"))]);
    save_with(&path, &[("w", b"1")], record);
    let error = refused!(verify(&path), ErrorKind::DigestWithoutTensor);
    assert_eq!((error.tensor(), error.file()), (Some("gone"), path.to_str()));
}

#[test]
fn malformed_records() {
    let digest = Digest::compute(b"");
    verify_record(&format!(r#"{{"w":"{digest}"}}"#)).unwrap();
    verify_record(&format!(" {{ \"\\u0077\" : \"{digest}\" }}\n")).unwrap();
    verify_record("{}").unwrap();

    for record in [
        String::new(),
        "null".into(),
        "[]".into(),
        format!("\"{digest}\""),
        format!(r#"{{"w":"{digest}""#),
        format!(r#"{{"w":"{digest}"}} {{}}"#),
        format!(r#"{{"w":"{digest}",}}"#),
        format!(r#"{{"w":"{digest}","w":"{digest}"}}"#),
        format!(r#"{{"w":"{digest}","\u0077":"{digest}"}}"#),
        r#"{"w":1}"#.into(),
        r#"{"w":null}"#.into(),
        r#"{"w":{}}"#.into(),
        format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)),
        r#"{"\ud800":"x"}"#.into(),
    ] {
        let error = verify_record(&record).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::BadDigestRecord { key: KEY, .. }),
            "{record}: {error}"
        );
        assert!(error.to_string().contains(KEY));
    }

    let upper_case = digest.to_string().to_uppercase();
    let too_long = format!("{digest}0");
    for text in [
        "",
        "0",
        &upper_case,
        &too_long,
        &too_long[2..],
        "0x99aa06d3014798d86001c324468d49",
        "é9aa06d3014798d86001c324468d497",
    ] {
        let error = refused!(
            verify_record(&format!(r#"{{"w":{text:?}}}"#)),
            ErrorKind::BadDigest { expected: 32, found } if found == text
        );
        assert_eq!(error.tensor(), Some("w"));
    }
}

#[test]
fn names_of_any_kind_are_recorded() {
    let names = [
        "",
        "\"quoted\"",
        "back\\slash",
        "line\nbreak\u{0}",
        "层.weight",
        "\u{1f600}",
        "{\"w\":1}",
    ];
    let digests: TensorDigests =
        names.iter().map(|name| (*name, Digest::compute(name.as_bytes()))).collect();
    let mut metadata = Metadata::new();
    metadata.insert(KEY.into(), digests.to_string());
    assert_eq!(TensorDigests::from_metadata(&metadata).unwrap(), Some(digests.clone()));
    // The record is one JSON object, compact and sorted. Its length does not depend on the digests.
    let json: serde_json::Value = serde_json::from_str(&metadata[KEY]).unwrap();
    assert_eq!(json.to_string(), metadata[KEY]);
    let others: TensorDigests = names.iter().map(|name| (*name, Digest::from([0; 16]))).collect();
    assert_eq!(others.to_string().len(), digests.to_string().len());

    let (_directory, path) = place("model.safetensors");
    save_with(&path, &names.map(|name| (name, name.as_bytes())), metadata);
    let file = Checkpoint::open(&path).unwrap();
    let verified = digest::verify(&file, &DigestOptions::new().require_digests(true)).unwrap();
    assert_eq!(verified[0].checked.len(), names.len());
}

#[test]
fn the_sha256_of_all_data_is_checked_where_it_is_recorded() {
    let (_directory, path) = place("model.safetensors");
    // sha256("abcdef"), by Python's hashlib.
    let sha256 = "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721";
    let entry = ("modelspec.hash_sha256", format!("0x{sha256}"));
    save_with(&path, &[("a", b"abc"), ("b", b"def")], [entry]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let files = digest::verify(&checkpoint, &DigestOptions::new()).unwrap();
    assert_eq!(files[0].sha256.unwrap().to_string(), sha256);
    assert_eq!(files[0].unrecorded, ["a", "b"]);

    flip(&path, offset_of(&path, "b", 2));
    let error = verify(&path).unwrap_err();
    let ErrorKind::DigestMismatch { algorithm: "SHA-256", expected, .. } = error.kind() else {
        panic!("{error}")
    };
    assert_eq!((expected.as_str(), error.tensor(), error.file()), (sha256, None, path.to_str()));
    // The SHA-256 is not checked if the options turn it off.
    let checkpoint = Checkpoint::open(&path).unwrap();
    let files = digest::verify(&checkpoint, &DigestOptions::new().sha256(false)).unwrap();
    assert_eq!(files[0].sha256, None);
}

#[test]
fn a_sha256_in_another_form() {
    for text in ["", "0x", "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721"] {
        let (_directory, path) = place("model.safetensors");
        save_with(&path, &[("a", b"abcdef")], [("modelspec.hash_sha256", text.to_owned())]);
        let error = verify(&path).unwrap_err();
        let ErrorKind::BadModelSpec { key, found, .. } = error.kind() else { panic!("{error}") };
        assert_eq!((*key, found.as_str()), ("modelspec.hash_sha256", text));
    }
}
