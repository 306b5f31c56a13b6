//! Digests: known values, data that has changed, and records that are not what they should be.
#![cfg(feature = "std")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use safetensors_core::digest::{self, Digest, Hasher, KEY, RecordOptions, TensorDigests, VerifiedFile, VerifyOptions};
use safetensors_core::edit::Edited;
use safetensors_core::save::write_to;
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, Limits, Metadata, ModelSpec, Result, Rewrite, SafeTensors, SaveOptions,
    ShardOptions, Sink, StreamWriter, TensorBuf, TensorSource, save, save_sharded, serialize,
};
use tempfile::{TempDir, tempdir};

/// Bytes, their XXH3-128 by python-xxhash 4.1.0 (`xxh3_128(..).hexdigest()`, which is what `xxhsum -H128` prints), and
/// their SHA-256 by Python's hashlib. The lengths are those at which XXH3 changes its way, one byte less than a piece,
/// and several pieces.
const KNOWN: &[(usize, &str, &str)] = &[
    (0, "99aa06d3014798d86001c324468d497f", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    (1, "495b62073ef70ca44c5cca45d0f4811f", "ca358758f6d27e6cf45272937977a748fd88391db679ceda7dc7bf1f005ee879"),
    (3, "46f66cb93538156515f7093b173d005c", "647674a296197442f518bcca323ec605dd8d098b2d4f22ee1fdcdd2bb753a189"),
    (8, "803c675a846cc6c256bb836ceb6d4baa", "4fb900ca3f5832fcc475b79bf07217bf0edfe9d39ea10f5cf624246ff68b47de"),
    (16, "da917c385cc874c00d463cb04ceffbaf", "99475c74958fe43140aefb9e700b493dafe19a8efd02d63770a415aeb14a2a43"),
    (17, "d443578f2c4e2fb495c34448580e19c8", "ab40fc588ad269c3e66b174f38b90af2257c31f62af9df7b4b678761f6d17e9e"),
    (128, "22c34350373a38ae5b77925b2c683a12", "43a42610c7b657d1ce21bf0255e86be7ea01aa9dddf0701f596e99a4c6f61001"),
    (129, "c4a7d8f7893f2090d6d9e73553568be1", "35b3c29046f207cfca0f9e23b9ed7f9fd19084699c413286eadbc80833f374b6"),
    (240, "e29d70b8920fd24bc6ed4333f79384f8", "ae35350e348015018df449ba88a0bb217aa15c463b368df1b1830dfa40f6b10f"),
    (241, "f91b3cb8ed0fa91a07525dbc14902c7f", "dfd2acfa4b2c7bf49c9ccb0184e4a3b613bdc3bc02d738828c1e5d5c2d6bb28c"),
    (1024, "f53a1b1e9f1efedfe2898655db7bc9ee", "8dcdcf24d5ee9e222bebf46f1b93b5b923970230faccd3ce268adfd31e3ef19f"),
    (1025, "a906cca0f6e772a7134c652ba3d6fb9e", "73245373598f9102701995d6fd6d5f0eea2f28407bccd99ed541d7d89a035f5c"),
    (1048575, "474af7ec6efb22050c429e859f731088", "14446dd49471dd263c478a8bd520ff2c4838ba97b15b4b53aaec61356f27b038"),
    (3158073, "5763da81fcaadfa0ae193e841c381b16", "cae1fc4fa88f9584ff5bbc1b0a59a0970515b10cb4517a979dacb35d2d2c1987"),
];

/// The bytes that [`KNOWN`] is about.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + 7) % 251) as u8).collect()
}

fn u8_tensor(bytes: &[u8]) -> TensorBuf {
    TensorBuf::from_vec(vec![bytes.len()], bytes.to_vec()).unwrap()
}

/// A record of these digests, right or wrong, as options to save with.
fn recording<'a>(digests: impl IntoIterator<Item = (&'a str, Digest)>) -> SaveOptions {
    let record: TensorDigests = digests.into_iter().collect();
    SaveOptions::new().metadata([(KEY, record.to_text())])
}

/// Saves tensors with right digests of some of them.
fn save_recorded(path: &Path, tensors: &[(&str, &[u8])], recorded: &[&str]) {
    let digests =
        tensors.iter().filter(|(name, _)| recorded.contains(name)).map(|(name, bytes)| (*name, Digest::of(bytes)));
    save(path, tensors.iter().map(|(name, bytes)| (*name, u8_tensor(bytes))), &recording(digests)).unwrap();
}

/// A directory with two shards and their index. Every tensor is recorded in its shard.
fn sharded() -> (TempDir, [PathBuf; 2]) {
    let directory = tempdir().unwrap();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let paths = shards.map(|name| directory.path().join(name));
    save_recorded(&paths[0], &[("a", &pattern(1000)), ("b", &[])], &["a", "b"]);
    save_recorded(&paths[1], &[("c", &pattern(17)), ("d", &pattern(2_000_000))], &["c", "d"]);
    let index = format!(
        r#"{{"metadata":{{}},"weight_map":{{"a":"{0}","b":"{0}","c":"{1}","d":"{1}"}}}}"#,
        shards[0], shards[1]
    );
    support::write(directory.path(), "model.safetensors.index.json", index);
    (directory, paths)
}

/// Where a tensor's byte lies in its file.
fn offset_of(path: &Path, tensor: &str, byte: u64) -> usize {
    (Checkpoint::open(path).unwrap().tensor(tensor).unwrap().file_offset() + byte) as usize
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

fn verify(path: &Path) -> Result<()> {
    digest::verify(&Checkpoint::open(path)?, &VerifyOptions::new()).map(drop)
}

/// Verifies a file in memory whose `__metadata__` has this record, and whose one tensor is the empty `w`.
fn verify_record(record: &str) -> Result<()> {
    let file = serialize([("w", u8_tensor(&[]))], &SaveOptions::new().metadata([(KEY, record)]))?;
    digest::verify_file(&SafeTensors::read_header(file, &Limits::default())?, &VerifyOptions::new()).map(drop)
}

#[test]
fn known_digests_of_whole_and_piecewise_data() {
    for (len, xxh3, _) in KNOWN {
        let bytes = pattern(*len);
        assert_eq!(Digest::of(&bytes).to_string(), *xxh3, "{len}");
        assert_eq!(Digest::parse(xxh3), Some(Digest::of(&bytes)));
        for piece in [1, 7, 64, 256, 1 << 20] {
            // Byte by byte only where that is quick.
            if len / piece < 10_000 {
                let mut hasher = Hasher::new();
                bytes.chunks(piece).for_each(|piece| hasher.update(piece));
                assert_eq!(hasher.finish().to_string(), *xxh3, "{len} in pieces of {piece}");
            }
        }
    }
}

#[test]
fn known_digests_of_tensors_and_data_in_a_file() {
    let directory = tempdir().unwrap();
    for (len, xxh3, sha256) in KNOWN {
        let path = directory.path().join("model.safetensors");
        save(&path, [("w", u8_tensor(&pattern(*len)))], &SaveOptions::new()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let found = digest::tensors(&[checkpoint.tensor("w").unwrap()], 0).unwrap();
        assert_eq!(found[0].to_string(), *xxh3);
        let mut spec = ModelSpec::new("a", "i", "t");
        spec.hash_sha256 = Some(digest::data_sha256(checkpoint.shards()[0].archive()).unwrap());
        assert_eq!(spec.to_metadata().unwrap()["modelspec.hash_sha256"], format!("0x{sha256}"));
    }
}

#[test]
fn a_digest_is_of_the_bytes_in_the_file() {
    let values = [1.5_f32, -2.0];
    let buf = TensorBuf::from_vec(vec![2], values.to_vec()).unwrap();
    let file = serialize([("w", buf)], &SaveOptions::new()).unwrap();
    let file = SafeTensors::read_header(file, &Limits::default()).unwrap();
    let little_endian = values.map(f32::to_le_bytes).concat();
    assert_eq!(digest::tensors(&[file.tensor("w").unwrap()], 1).unwrap(), [Digest::of(&little_endian)]);
}

#[test]
fn digests_come_in_the_order_asked_for_with_any_number_of_threads() {
    let (directory, _paths) = sharded();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let tensors = ["d", "a", "c", "b", "d"].map(|name| checkpoint.tensor(name).unwrap());
    let expected = [2_000_000, 1000, 17, 0, 2_000_000].map(|len| Digest::of(&pattern(len)));
    for threads in [0, 1, 2, 16] {
        assert_eq!(digest::tensors(&tensors, threads).unwrap(), expected);
    }
    assert_eq!(digest::tensors::<Vec<u8>>(&[], 0).unwrap(), []);
}

#[test]
fn what_was_checked_and_what_is_unrecorded() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    save_recorded(&path, &[("a", b"1"), ("b", b""), ("c", b"22"), ("d", b"")], &["b", "c"]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let files = digest::verify(&checkpoint, &VerifyOptions::new()).unwrap();
    let [VerifiedFile { file, checked, unrecorded, sha256: None, .. }] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!(*file, Some(path.as_path()));
    assert_eq!((checked.as_slice(), unrecorded.as_slice()), (&["b", "c"][..], &["a", "d"][..]));

    let error = digest::verify(&checkpoint, &VerifyOptions::new().require(true)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoDigest), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("a"), path.to_str()));
}

#[test]
fn a_file_without_digests_is_no_error_unless_they_are_required() {
    let file = serialize([("w", u8_tensor(b"1"))], &SaveOptions::new()).unwrap();
    let file = SafeTensors::read_header(file, &Limits::default()).unwrap();
    let verified = digest::verify_file(&file, &VerifyOptions::new()).unwrap();
    assert_eq!((verified.file, verified.checked.len(), verified.unrecorded), (None, 0, vec!["w"]));
    assert!(digest::verify_file(&file, &VerifyOptions::new().require(true)).is_err());
}

#[test]
fn every_flipped_byte_is_found_and_its_tensor_named() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let tensors: [(&str, &[u8]); 3] = [("a", b"0123"), ("b", b""), ("c", b"45")];
    save_recorded(&path, &tensors, &["a", "b", "c"]);
    for (name, bytes) in tensors {
        for byte in 0..bytes.len() {
            let offset = offset_of(&path, name, byte as u64);
            flip(&path, offset);
            let error = verify(&path).unwrap_err();
            let ErrorKind::DigestMismatch { algorithm, expected, found } = error.kind() else { panic!("{error}") };
            let mut changed = bytes.to_vec();
            changed[byte] ^= 0x10;
            assert_eq!(*algorithm, "XXH3-128");
            assert_eq!((expected, found), (&Digest::of(bytes).to_string(), &Digest::of(&changed).to_string()));
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
fn a_changed_header_is_no_changed_data() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let options = recording([("w", Digest::of(b"data"))]).metadata([("note", "old")]).align(512);
    save(&path, [("w", u8_tensor(b"data"))], &options).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let data = bytes.len() - 4;
    // The last byte of the padding, then a letter of other metadata.
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
    let files = digest::verify(&checkpoint, &VerifyOptions::new().require(true)).unwrap();
    let checked: Vec<_> = files.iter().map(|file| (file.file.unwrap(), file.checked.clone())).collect();
    assert_eq!(checked, [(paths[0].as_path(), vec!["a", "b"]), (&paths[1], vec!["c", "d"])]);

    // The first in file order is named, whatever thread finds its change first.
    let (c, d) = (offset_of(&paths[1], "c", 16), offset_of(&paths[1], "d", 1_999_999));
    flip(&paths[1], d);
    let named = |error: Error| (error.tensor().unwrap().to_string(), error.file().unwrap().to_string());
    let shard = paths[1].to_str().unwrap().to_string();
    assert_eq!(named(verify(directory.path()).unwrap_err()), ("d".into(), shard.clone()));
    flip(&paths[1], c);
    for threads in [1, 2, 8] {
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let error = digest::verify(&checkpoint, &VerifyOptions::new().threads(threads)).unwrap_err();
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
    support::write(directory.path(), "model.safetensors.index.json", index);
    verify(directory.path()).unwrap();
    flip(&two, offset_of(&two, "x", 0));
    let error = verify(directory.path()).unwrap_err();
    assert_eq!((error.tensor(), error.file()), (Some("x"), two.to_str()));
}

#[test]
fn a_file_that_has_become_shorter_is_an_error() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    save_recorded(&path, &[("w", &pattern(5000))], &["w"]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4000).unwrap();
    let error = digest::verify(&checkpoint, &VerifyOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
}

#[test]
fn a_record_of_a_tensor_that_is_not_there() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let options = recording([("w", Digest::of(b"1")), ("gone", Digest::of(b"2"))]);
    save(&path, [("w", u8_tensor(b"1"))], &options).unwrap();
    let error = verify(&path).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DigestWithoutTensor), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("gone"), path.to_str()));
}

#[test]
fn malformed_records() {
    let digest = Digest::of(b"");
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
        assert!(matches!(error.kind(), ErrorKind::BadDigestRecord { key: KEY, .. }), "{record}: {error}");
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
        let error = verify_record(&format!(r#"{{"w":{text:?}}}"#)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BadDigest { expected: 32, found } if found == text), "{error}");
        assert_eq!(error.tensor(), Some("w"));
    }
}

#[test]
fn names_of_any_kind_are_recorded() {
    let names = ["", "\"quoted\"", "back\\slash", "line\nbreak\u{0}", "层.weight", "\u{1f600}", "{\"w\":1}"];
    let digests: TensorDigests = names.iter().map(|name| (*name, Digest::of(name.as_bytes()))).collect();
    let mut metadata = Metadata::new();
    digests.write(&mut metadata);
    assert_eq!(TensorDigests::read(&metadata).unwrap(), Some(digests.clone()));
    // One object, compact and sorted, whose length does not depend on the digests.
    let json: serde_json::Value = serde_json::from_str(&metadata[KEY]).unwrap();
    assert_eq!(json.to_string(), metadata[KEY]);
    let others: TensorDigests = names.iter().map(|name| (*name, Digest::from_bytes([0; 16]))).collect();
    assert_eq!(others.to_text().len(), digests.to_text().len());

    let tensors = names.map(|name| (name, u8_tensor(name.as_bytes())));
    let file = serialize(tensors, &SaveOptions::new().metadata(metadata)).unwrap();
    let file = SafeTensors::read_header(file, &Limits::default()).unwrap();
    let verified = digest::verify_file(&file, &VerifyOptions::new().require(true)).unwrap();
    assert_eq!(verified.checked.len(), names.len());
}

#[test]
fn the_sha256_of_all_data_is_checked_where_it_is_recorded() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    // sha256("abcdef"), by Python's hashlib.
    let sha256 = "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721";
    let options = SaveOptions::new().metadata([("modelspec.hash_sha256", format!("0x{sha256}"))]);
    save(&path, [("a", u8_tensor(b"abc")), ("b", u8_tensor(b"def"))], &options).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let files = digest::verify(&checkpoint, &VerifyOptions::new()).unwrap();
    assert_eq!(files[0].sha256.unwrap()[..2], [0xbe, 0xf5]);
    assert_eq!(files[0].unrecorded, ["a", "b"]);

    flip(&path, offset_of(&path, "b", 2));
    let error = verify(&path).unwrap_err();
    let ErrorKind::DigestMismatch { algorithm: "SHA-256", expected, .. } = error.kind() else { panic!("{error}") };
    assert_eq!((expected.as_str(), error.tensor(), error.file()), (sha256, None, path.to_str()));
    // Unless that is not wanted.
    let checkpoint = Checkpoint::open(&path).unwrap();
    let files = digest::verify(&checkpoint, &VerifyOptions::new().sha256(false)).unwrap();
    assert_eq!(files[0].sha256, None);
}

#[test]
fn a_sha256_in_another_form() {
    for text in ["", "0x", "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721"] {
        let options = SaveOptions::new().metadata([("modelspec.hash_sha256", text)]);
        let file = serialize([("a", u8_tensor(b"abcdef"))], &options).unwrap();
        let file = SafeTensors::read_header(file, &Limits::default()).unwrap();
        let error = digest::verify_file(&file, &VerifyOptions::new()).unwrap_err();
        let ErrorKind::BadModelSpec { key, found: Some(found), .. } = error.kind() else { panic!("{error}") };
        assert_eq!((key.as_str(), found.as_str()), ("modelspec.hash_sha256", text));
    }
}

/// A source whose bytes come in pieces of this length.
struct Pieces {
    bytes: Vec<u8>,
    shape: [usize; 1],
    piece: usize,
}

impl TensorSource for Pieces {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        self.bytes.chunks(self.piece).try_for_each(sink)
    }
}

#[test]
fn digests_are_recorded_while_saving() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    for align in [8, 4096] {
        let options = SaveOptions::new()
            .metadata([("format", "pt"), (KEY, "of some other data")])
            .align(align)
            .durable(false)
            .digests(true);
        let tensors = || {
            KNOWN.iter().zip([1 << 20, 1, 2, 3].into_iter().cycle()).map(|((len, ..), piece)| {
                let piece = if *len < 10_000 { piece } else { 100_003 };
                (format!("\"{len}\""), Pieces { bytes: pattern(*len), shape: [*len], piece })
            })
        };
        save(&path, tensors(), &options).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let files = digest::verify(&checkpoint, &VerifyOptions::new().require(true)).unwrap();
        assert_eq!(files[0].checked.len(), KNOWN.len());
        assert_eq!(checkpoint.metadata()["format"], "pt");
        let record = TensorDigests::read(checkpoint.metadata()).unwrap().unwrap();
        for (len, xxh3, _) in KNOWN {
            assert_eq!(record.get(&format!("\"{len}\"")).unwrap().to_string(), *xxh3);
        }
        // All ways to write make the same bytes.
        let saved = fs::read(&path).unwrap();
        assert!(serialize(tensors(), &options).unwrap() == saved);
        let mut piped = Vec::new();
        write_to(&mut piped, tensors(), &options).unwrap();
        assert!(piped == saved);
    }
}

#[test]
fn a_file_without_tensors_records_that_there_are_none() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let options = SaveOptions::new().digests(true);
    save(&path, <[(&str, TensorBuf); 0]>::default(), &options).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().metadata()[KEY], "{}");
    verify(&path).unwrap();
    assert_eq!(serialize(<[(&str, TensorBuf); 0]>::default(), &options).unwrap(), fs::read(&path).unwrap());
}

#[test]
fn digests_of_tensors_that_are_streamed_in_any_order() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let bytes = pattern(3_158_073);
    let names = ["in order", "backwards", "hole first", "whole", "after a failure", "empty"];
    let options = SaveOptions::new().durable(false).digests(true);
    let declared = names.map(|name| (name, Dtype::U8, [if name == "empty" { 0 } else { bytes.len() }]));
    let writer = StreamWriter::create(&path, declared, &options).unwrap();
    let whole = |bytes: &[u8]| Pieces { bytes: bytes.to_vec(), shape: [3_158_073], piece: 100_000 };

    let pieces = || bytes.chunks(70_001).enumerate().map(|(i, piece)| (i as u64 * 70_001, piece));
    for (_, piece) in pieces() {
        writer.tensor("in order").unwrap().append(piece).unwrap();
    }
    let backwards: Vec<_> = pieces().collect();
    std::thread::scope(|scope| {
        for some in backwards.chunks(10) {
            let tensor = writer.tensor("backwards").unwrap();
            scope.spawn(move || some.iter().rev().for_each(|(offset, piece)| tensor.write_at(*offset, piece).unwrap()));
        }
    });
    let tensor = writer.tensor("hole first").unwrap();
    for range in [0..10, 20..3_158_073, 10..20] {
        tensor.write_at(range.start as u64, &bytes[range]).unwrap();
    }
    writer.tensor("whole").unwrap().write_from(&whole(&bytes)).unwrap();
    // Other bytes first, which are taken back because they are too few.
    let tensor = writer.tensor("after a failure").unwrap();
    tensor.write_from(&whole(&[7; 1_234_567])).unwrap_err();
    tensor.write_from(&whole(&bytes)).unwrap();
    writer.finish().unwrap();

    let checkpoint = Checkpoint::open(&path).unwrap();
    digest::verify(&checkpoint, &VerifyOptions::new().require(true)).unwrap();
    let record = TensorDigests::read(checkpoint.metadata()).unwrap().unwrap();
    for name in names {
        let expected = if name == "empty" { Digest::of(b"") } else { Digest::of(&bytes) };
        assert_eq!(record.get(name), Some(expected), "{name}");
    }
}

#[test]
fn every_shard_of_a_save_records_its_own_tensors() {
    let directory = tempdir().unwrap();
    let names = ["a", "b", "c"];
    let options = ShardOptions::new().max_shard_size(20.into()).save(SaveOptions::new().digests(true));
    let saved =
        save_sharded(directory.path(), names.map(|name| (name, u8_tensor(name.repeat(10).as_bytes()))), &options);
    assert_eq!(saved.unwrap().files.len(), 2);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let files = digest::verify(&checkpoint, &VerifyOptions::new().require(true)).unwrap();
    let checked: Vec<_> = files.iter().map(|file| file.checked.clone()).collect();
    assert_eq!(checked, [vec!["a", "b"], vec!["c"]]);
}

#[test]
fn a_rewritten_checkpoint_does_not_record_the_digests_of_its_sources() {
    let (directory, _paths) = sharded();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert!(checkpoint.metadata().contains_key(KEY));
    let path = directory.path().join("one.safetensors");
    Rewrite::of(&checkpoint).rename(|name| format!("model.{name}")).save(&path, &SaveOptions::new()).unwrap();
    let rewritten = Checkpoint::open(&path).unwrap();
    assert!(!rewritten.metadata().contains_key(KEY));
    // Unless new ones are asked for.
    Rewrite::of(&checkpoint).save(&path, &SaveOptions::new().digests(true)).unwrap();
    let rewritten = Checkpoint::open(&path).unwrap();
    digest::verify(&rewritten, &VerifyOptions::new().require(true)).unwrap();
}

#[test]
fn a_save_that_fails_leaves_the_old_file() {
    let directory = tempdir().unwrap();
    let path = support::write(directory.path(), "model.safetensors", "the old file");
    let short = Pieces { bytes: vec![1; 3], shape: [4], piece: 2 };
    let error = save(&path, [("w", short)], &SaveOptions::new().digests(true)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SourceLength { expected: 4, found: 3 }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"the old file");
    assert_eq!(support::names_in(directory.path()), ["model.safetensors"]);
}

#[test]
fn a_pipe_gets_nothing_when_a_source_fails_while_it_is_hashed() {
    let short = Pieces { bytes: vec![1; 3], shape: [4], piece: 2 };
    let mut piped = Vec::new();
    let error = write_to(&mut piped, [("w", short)], &SaveOptions::new().digests(true)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SourceLength { expected: 4, found: 3 }), "{error}");
    assert_eq!((error.tensor(), piped.len()), (Some("w"), 0));
}

#[test]
fn digests_are_recorded_in_a_file_that_exists() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let plain = SaveOptions::new().metadata([("format", "pt")]).align(4096);
    save(&path, [("a", u8_tensor(b"abc")), ("b", u8_tensor(b"def")), ("c", u8_tensor(b""))], &plain).unwrap();
    let data = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        ["a", "b", "c"].map(|name| checkpoint.tensor(name).unwrap().read().unwrap().bytes().to_vec())
    };
    let before = data(&path);

    // There is room in the header.
    assert_eq!(digest::record(&path, &RecordOptions::new()).unwrap(), Edited::InPlace);
    assert_eq!(digest::record(&path, &RecordOptions::new()).unwrap(), Edited::Unchanged);
    let metadata = Checkpoint::open(&path).unwrap().metadata().clone();
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["format", KEY]);
    let record = TensorDigests::read(&metadata).unwrap().unwrap();
    assert!(record.iter().eq([("a", Digest::of(b"abc")), ("b", Digest::of(b"def")), ("c", Digest::of(b""))]));
    verify(&path).unwrap();

    // The other digest alone leaves the first as it was, right or wrong.
    flip(&path, offset_of(&path, "b", 0));
    assert!(verify(&path).is_err());
    digest::record(&path, &RecordOptions::new().tensors(false).sha256(true).durable(false)).unwrap();
    let error = verify(&path).unwrap_err();
    assert_eq!(error.tensor(), Some("b"));
    // Recording anew takes the data as it is.
    digest::record(&path, &RecordOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(digest::verify(&checkpoint, &VerifyOptions::new().require(true)).unwrap()[0].sha256.is_some());
    flip(&path, offset_of(&path, "b", 0));
    assert_eq!(data(&path), before);
}

#[test]
fn digests_that_do_not_fit_into_the_header_make_a_new_file() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let bytes = pattern(100_000);
    save(&path, [("w", u8_tensor(&bytes))], &SaveOptions::new()).unwrap();
    assert_eq!(digest::record(&path, &RecordOptions::new()).unwrap(), Edited::Rewritten);
    assert_eq!(Checkpoint::open(&path).unwrap().tensor("w").unwrap().read().unwrap().bytes(), bytes);
    verify(&path).unwrap();
    assert_eq!(support::names_in(directory.path()), ["model.safetensors"]);
}

#[test]
fn changed_data_that_is_forgotten() {
    let mut metadata = Metadata::from([("format".into(), "pt".into())]);
    assert!(!digest::forget(&mut metadata));
    metadata.insert("modelspec.hash_sha256".into(), "0x".into());
    metadata.insert(KEY.into(), "malformed".into());
    assert!(digest::forget(&mut metadata));
    assert_eq!(metadata, Metadata::from([("format".into(), "pt".into())]));
}
