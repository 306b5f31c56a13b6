//! Files of PyTorch.

use std::path::{Path, PathBuf};

use safetensors_core::audit::Finding;
use safetensors_core::checkpoint::store::LocalStore;
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind as CoreKind, LoadOptions, Rewrite, SaveOptions,
};
use safetensors_formats::{ErrorKind, Format, Options, TensorFile, open_files};

use super::{assert_fixture, fixture, refused};

#[test]
fn files_of_pytorch_are_read() {
    for name in [
        "every_dtype.pt",
        "every_dtype_legacy.pt",
        "strided.pt",
        "strided_legacy.pt",
        "training.pt",
        "training_legacy.pt",
        "protocol_5.pt",
        "module.pt",
        "module_legacy.pt",
        "alone.pt",
        "deflated.pt",
    ] {
        let checkpoint = assert_fixture(&format!("pytorch/{name}"), &Options::new());
        let file = checkpoint.files()[0].safetensors().source();
        assert_eq!(file.format(), Format::Pytorch);
        assert_eq!(checkpoint.metadata()["format"], "pt");
        let checksums = file.verify_checksums().unwrap();
        assert_eq!(checksums == 0, name.contains("legacy"), "{name}: {checksums}");
    }
}

#[test]
fn tied_tensors_are_one_under_the_first_name() {
    for name in ["tied.pt", "tied_legacy.pt"] {
        let checkpoint = assert_fixture(&format!("pytorch/{name}"), &Options::new());
        let aliases: Vec<_> =
            checkpoint.aliases().map(|(alias, tensor)| (alias, tensor.name())).collect();
        assert_eq!(aliases, [("model.embed.weight", "lm_head.weight"), ("same", "again")]);
        // Names that overlap, or have another shape, are separate tensors.
        assert!(
            ["front", "back", "reshaped"]
                .iter()
                .all(|name| { checkpoint.tensors().any(|tensor| tensor.name() == *name) })
        );

        // The names stay names of the same tensor in the safetensors file.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        Rewrite::from_checkpoint(&checkpoint).save(&path, &SaveOptions::new()).unwrap();
        let saved = Checkpoint::open(&path).unwrap();
        assert_eq!(saved.aliases().count(), 2);
        assert_eq!(
            saved.tensor("model.embed.weight").unwrap().read().unwrap().bytes(),
            checkpoint.tensor("lm_head.weight").unwrap().read().unwrap().bytes()
        );
    }
}

#[test]
fn shards_are_one_checkpoint() {
    let folder = fixture("pytorch/sharded");
    let index = folder.join("pytorch_model.bin.index.json");
    let checkpoint = safetensors_formats::open(&index, &Options::new()).unwrap();
    let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
    assert_eq!(names, ["a", "tied", "b"]);
    assert_eq!(checkpoint.files().len(), 2);
    let b = checkpoint.tensor("b").unwrap().read().unwrap();
    assert_eq!(b.into_vec::<f32>().unwrap(), [0.0; 3]);
}

#[test]
fn a_hostile_index_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let shard = "pytorch_model-00001-of-00002.bin";
    std::fs::copy(fixture("pytorch/sharded").join(shard), dir.path().join(shard)).unwrap();
    let path = dir.path().join("pytorch_model.bin.index.json");
    for (index, says) in [
        (r#"{"weight_map":{"a":"../x.bin"}}"#.to_owned(), "plain relative path, found \"../x"),
        (r#"{"weight_map":{"a":"/etc/x.bin"}}"#.into(), "plain relative path"),
        (r#"{"weight_map":{"a":"C:x.bin"}}"#.into(), "plain relative path"),
        (r#"{"weight_map":{"a":"x\\y.bin"}}"#.into(), "plain relative path"),
        (r#"{"weight_map":{}}"#.into(), "empty"),
        (r#"{"weight_map":{"a":"x","a":"y"}}"#.into(), r#"two entries are named "a""#),
        (r#"{"weight_map":{"a":"x"},"weight_map":{}}"#.into(), "duplicate field"),
        ("{".into(), "EOF"),
        (format!(r#"{{"weight_map":{{"missing":{shard:?}}}}}"#), "which does not have it"),
        (r#"{"weight_map":{"a":"absent.bin"}}"#.into(), "absent.bin: "),
    ] {
        std::fs::write(&path, &index).unwrap();
        let error = open_files(LocalStore, &path, &Options::new()).unwrap_err().to_string();
        assert!(error.contains(says), "{index}: {error}");
    }
}

/// Writes two shards that both have `w`, and also `v` or `u`, and an index.
fn shards(directory: &Path, index: &str) -> PathBuf {
    let other = b"\x02\0\0\0\0\0\0\0\0\0\x40\x40\0\0\x80\x40";
    for (name, key, data) in [("one.bin", "v", DATA), ("two.bin", "u", &other[..])] {
        let fields = b"K\0K\x02\x85K\x01\x85";
        let pickle = dictionary(&[(key, fields), ("w", fields)]);
        std::fs::write(directory.join(name), legacy(&pickle, KEYS, data)).unwrap();
    }
    let path = directory.join("pytorch_model.bin.index.json");
    std::fs::write(&path, format!(r#"{{"weight_map":{{{index}}}}}"#)).unwrap();
    path
}

#[test]
fn the_index_determines_the_tensors_of_a_shard() {
    let dir = tempfile::tempdir().unwrap();
    // `w` is in both files, and `u` in one, but the index does not name it.
    let index = shards(dir.path(), r#""v":"one.bin","w":"two.bin""#);
    let checkpoint = safetensors_formats::open(&index, &Options::new()).unwrap();
    let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
    assert_eq!(names, ["v", "w"]);
    let w = checkpoint.tensor("w").unwrap().read().unwrap();
    assert_eq!(w.into_vec::<f32>().unwrap(), [3.0, 4.0]);
    // In each file, both names belong to one tensor, and one name stays.
    for (file, tensor) in checkpoint.files().iter().zip(["w", "u"]) {
        let (path, tensor) = (file.path().to_owned(), tensor.to_owned());
        let finding = Finding::UnindexedTensors { file: path, tensor, others: 0 };
        assert_eq!(file.safetensors().source().findings(), [finding]);
    }
    assert_eq!(checkpoint.aliases().count(), 0);

    // By itself, a shard has all of its tensors.
    let shard = TensorFile::open(dir.path().join("one.bin"), &Options::new()).unwrap();
    assert!(shard.has("v") && shard.has("w") && shard.findings().is_empty());

    let index = shards(dir.path(), r#""v":"one.bin","u":"one.bin","x":"two.bin""#);
    let error = open_files(LocalStore, &index, &Options::new()).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::NotInShard { shard } if shard == "one.bin"));
    assert_eq!((error.tensor(), error.file()), (Some("u"), index.to_str()));
}

#[test]
fn a_wrong_total_size_of_an_index_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    // Each tensor has two F32.
    let index = shards(dir.path(), r#""v":"one.bin","u":"two.bin""#);
    for (size, found) in [("16", None), ("16.0", None), ("null", None), ("17", Some(17))] {
        let map = r#""weight_map":{"v":"one.bin","u":"two.bin"}"#;
        let text = format!(r#"{{"metadata":{{"total_size":{size}}},{map}}}"#);
        std::fs::write(&index, text).unwrap();
        let files = open_files(LocalStore, &index, &Options::new()).unwrap();
        let findings = files.iter().flat_map(|(_, file)| file.findings());
        let sizes: Vec<_> = findings
            .filter_map(|finding| match finding {
                Finding::WrongTotalSize { file, expected, found } => {
                    assert_eq!((file, *expected), (&index, 16));
                    Some(*found)
                }
                _ => None,
            })
            .collect();
        assert_eq!(sizes, Vec::from_iter(found), "{size}");
    }
}

#[test]
fn the_error_of_a_truncated_archive_names_its_format() {
    for (name, kind) in
        [("pytorch/tied.pt", "a PyTorch checkpoint (.pt"), ("stored.npz", "a NumPy archive (.npz)")]
    {
        let whole = std::fs::read(fixture(name)).unwrap();
        for len in [100, whole.len() / 2, whole.len() - 1] {
            let error = refused(&whole[..len], &Options::new());
            let says =
                format!("truncated after {len} bytes, before the list of members at the end");
            assert!(error.contains(&says) && error.contains(kind), "{error}");
            let format = Format::detect(&&whole[..len]).unwrap();
            assert_eq!(format == Some(Format::Npz), name == "stored.npz", "{format:?}");
        }
    }
}

#[cfg(unix)]
#[test]
fn an_index_that_is_no_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pytorch_model.bin.index.json");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let zero = dir.path().join("zero.json");
    std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
    for path in [path, zero] {
        let error = open_files(LocalStore, path, &Options::new()).unwrap_err().to_string();
        assert!(error.contains("expected a regular file"), "{error}");
    }
}

#[test]
fn unreadable_files_and_tensors_are_refused_by_name() {
    let open =
        |name: &str| TensorFile::open(fixture(&format!("pytorch/refused/{name}")), &Options::new());
    for (name, says) in [
        ("exported.pt2", "an archive of torch.export, which is not read"),
        ("plain.pkl", "not one that PyTorch's save has written"),
    ] {
        let error = open(name).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains(name), "{error}");
    }

    // Tensors inside an unknown object are listed, and an error once they are read.
    for (name, listed, class) in [
        ("sparse.pt", "s", "torch._utils._rebuild_sparse_tensor"),
        ("nested_class.pt", "x", "__main__.Holder"),
    ] {
        let checkpoint = Checkpoint::from_source(open(name).unwrap(), name).unwrap();
        let file = checkpoint.files()[0].safetensors().source();
        assert_eq!(file.stored(listed).unwrap().type_name, class);
        assert!(!file.stored(listed).unwrap().is_readable);
        let error = checkpoint.read_all(&LoadOptions::new()).unwrap_err().to_string();
        let says =
            format!("{name}: tensor {listed:?}: a tensor inside {class:?}, which is not read");
        assert!(error.starts_with(&says), "{error}");
        assert!(
            Rewrite::from_checkpoint(&checkpoint).save("/nowhere/x", &SaveOptions::new()).is_err()
        );
    }

    // A tensor of an unknown type does not hide the others.
    let checkpoint = Checkpoint::from_source(open("complex128.pt").unwrap(), "c.pt").unwrap();
    let fine = checkpoint.tensor("fine").unwrap().read().unwrap();
    assert_eq!(fine.into_vec::<f32>().unwrap(), [1.0]);
    let file = checkpoint.files()[0].safetensors().source();
    let stored = file.stored("wide").unwrap();
    assert_eq!((stored.type_name.as_str(), stored.byte_len), ("complex128", 32));
    assert_eq!(stored.shape, [2]);
    assert!(!stored.is_readable && !stored.is_quantised && file.stored("fine").is_none());
    let error = checkpoint.tensor("wide").unwrap().read().unwrap_err().to_string();
    assert_eq!(
        error,
        "c.pt: tensor \"wide\": the elements are complex128, which has no dtype in the format"
    );
    assert!(Rewrite::from_checkpoint(&checkpoint).save("/nowhere/x", &SaveOptions::new()).is_err());
}

/// A legacy file with one pickle.
pub(super) fn legacy(pickle: &[u8], keys: &[u8], data: &[u8]) -> Vec<u8> {
    let start = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    let system = b"\x80\x02}X\x0d\0\0\0little_endian\x88s.";
    [&start[..], system, b"\x80\x02", pickle, keys, data].concat()
}

/// A storage of two floats with the key `0`, on the stack.
pub(super) const STORAGE: &[u8] =
    b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x02Nt\x51";

/// A tensor with these fields behind its storage, as the value of the key `w`.
pub(super) fn tensor(fields: &[u8]) -> Vec<u8> {
    dictionary(&[("w", fields)])
}

/// A dictionary of such tensors, with single letters as keys.
fn dictionary(items: &[(&str, &[u8])]) -> Vec<u8> {
    let mut pickle = b"}".to_vec();
    for (key, fields) in items {
        pickle.extend([b"X\x01\0\0\0", key.as_bytes()].concat());
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n(");
        pickle.extend([STORAGE, fields, b"\x89ccollections\nOrderedDict\n)RtRs"].concat());
    }
    pickle.push(b'.');
    pickle
}

pub(super) const KEYS: &[u8] = b"\x80\x02]X\x01\0\0\x000a.";
pub(super) const DATA: &[u8] = b"\x02\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40";

#[test]
fn a_file_by_hand_is_read_and_each_wrong_field_is_named() {
    let whole = legacy(&tensor(b"K\0K\x02\x85K\x01\x85"), KEYS, DATA);
    let file = TensorFile::from_source(whole, "a file", &Options::new()).unwrap();
    let checkpoint = Checkpoint::from_source(file, "a file").unwrap();
    let w = checkpoint.tensor("w").unwrap().read().unwrap();
    assert_eq!((w.dtype(), w.into_vec::<f32>().unwrap()), (Dtype::F32, vec![1.0, 2.0]));

    // More than 32 bits count.
    let far = if usize::BITS < 64 { "the shape of a tensor" } else { "overflows 64 bits" };
    for (fields, says) in [
        (&b"K\x01K\x02\x85K\x01\x85"[..], "from element 1 on reaches past the 2 elements"),
        (b"K\0K\x02\x85K\x02\x85", "strides [2]"),
        (b"K\0K\x03\x85K\x01\x85", "shape [3]"),
        (b"K\0J\xff\xff\xff\xff\x85K\x01\x85", "the shape of a tensor is not a tuple of numbers"),
        (b"J\xff\xff\xff\xffK\x02\x85K\x01\x85", "the offset of a tensor is not a number"),
        (b"K\0K\x02\x85)", "1 dimensions and 0 strides"),
        (b"K\0NK\x01\x85", "the shape of a tensor"),
        // More bytes than any file of this length can hold: one element, repeated.
        (b"K\0J\xff\xff\xff\x7f\x85K\0\x85", "may have 67108864 at most"),
        (b"K\0\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85K\0\x85", far),
        (b"K\0J\xff\xff\xff\x7fJ\xff\xff\xff\x7fK\x02\x87K\0K\0K\0\x87", "overflows 64 bits"),
    ] {
        let error = refused(&legacy(&tensor(fields), KEYS, DATA), &Options::new());
        assert!(error.contains(says), "{error}");
    }
    let good = tensor(b"K\0K\x02\x85K\x01\x85");
    for (keys, data, says) in [
        (&b"\x80\x02]."[..], DATA, "its storage \"0\" is not in the file"),
        (b"\x80\x02](X\x01\0\0\x000X\x01\0\0\x000e.", &[DATA, DATA].concat(), "listed twice"),
        (b"\x80\x02]X\x01\0\0\x001a.", DATA, "no tensor has it"),
        (KEYS, b"\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "another size"),
        (KEYS, &DATA[..15], "the file ends inside the storage \"0\""),
        (b"\x80\x02N.", DATA, "no list"),
    ] {
        let error = refused(&legacy(&good, keys, data), &Options::new());
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_key_that_is_in_a_dictionary_twice_is_an_error() {
    let (front, back) = (&b"K\0K\x01\x85K\x01\x85"[..], &b"K\x01K\x01\x85K\x01\x85"[..]);
    let good = legacy(&dictionary(&[("w", front), ("v", back)]), KEYS, DATA);
    assert!(TensorFile::from_source(good, "a file", &Options::new()).unwrap().has("v"));

    let twice = legacy(&dictionary(&[("w", front), ("w", back)]), KEYS, DATA);
    let error = TensorFile::from_source(twice, "a file", &Options::new()).unwrap_err();
    assert_eq!(error.to_string(), "a file: tensor \"w\": its dictionary has this key twice");
    assert!(matches!(error.other(), Some(ErrorKind::DuplicateDictKey)));

    // For Python the second value, which is no tensor, would be the only one.
    let mut hidden = dictionary(&[("w", front)]);
    hidden.pop();
    hidden.extend(b"X\x01\0\0\0wNs.");
    let error = refused(&legacy(&hidden, KEYS, DATA), &Options::new());
    assert!(error.contains("has this key twice"), "{error}");

    // Of one name, but of two keys: the number 1 and the text "1".
    let mut number = dictionary(&[("1", front)]);
    number.pop();
    let mut with_number = dictionary(&[("1", back)])[1..].to_vec();
    with_number.splice(..6, *b"K\x01");
    number.extend(with_number);
    let error = refused(&legacy(&number, KEYS, DATA), &Options::new());
    assert!(error.contains("\"1\": duplicate tensor name"), "{error}");
}

#[test]
fn an_empty_tensor_without_a_dtype_does_not_hide_the_others() {
    for (class, name) in [("ComplexDoubleStorage", "complex128"), ("QUInt8Storage", "quint8")] {
        let storage = [
            b"(X\x07\0\0\0storagectorch\n",
            class.as_bytes(),
            b"\nX\x01\0\0\x001X\x03\0\0\0cpuK\0Nt\x51",
        ];
        let mut pickle = dictionary(&[("w", b"K\0K\x02\x85K\x01\x85")]);
        pickle.pop();
        pickle.extend(b"X\x01\0\0\0ectorch._utils\n_rebuild_tensor_v2\n(");
        pickle.extend([&storage.concat()[..], b"K\0K\0K\x03\x86K\x03K\x01\x86\x89}tRs."].concat());
        let keys = b"\x80\x02](X\x01\0\0\x000X\x01\0\0\x001e.";
        let file = legacy(&pickle, keys, &[DATA, &[0; 8]].concat());
        let file = TensorFile::from_source(file, "a file", &Options::new()).unwrap();
        let stored = file.stored("e").unwrap().clone();
        assert_eq!((stored.type_name.as_str(), stored.byte_len), (name, 0));
        assert_eq!((&*stored.shape, stored.is_readable), (&[0, 3][..], false));

        let checkpoint = Checkpoint::from_source(file, "a file").unwrap();
        let w = checkpoint.tensor("w").unwrap().read().unwrap();
        assert_eq!(w.into_vec::<f32>().unwrap(), [1.0, 2.0]);
        let error = checkpoint.tensor("e").unwrap().read().unwrap_err().to_string();
        assert!(error.contains(&format!("\"e\": the elements are {name}, which")), "{error}");
        assert!(checkpoint.read_all(&LoadOptions::new()).is_err());
    }
}

#[test]
fn a_hostile_pickle_is_bounded() {
    let mut nested = b"}X\x01\0\0\0w".to_vec();
    nested.extend(b"]".repeat(100_000));
    nested.extend(b"a".repeat(99_999));
    nested.extend(b"s.");
    // A list that has itself, next to a tensor.
    let cycle = [&b"]q\0(h\0h\0h\0h\0"[..], STORAGE, b"e."].concat();
    // Each list has the one before it twice: 2⁴⁰ ways to the innermost.
    let mut doubling = b"]q\0(ctorch._utils\n_rebuild_tensor\n(".to_vec();
    doubling.extend(STORAGE);
    doubling.extend(b"K\0K\x02\x85K\x01\x85tRe");
    for i in 0..40_u8 {
        doubling.extend([b']', b'q', i + 1, b'(', b'h', i, b'h', i, b'e']);
    }
    doubling.push(b'.');
    let length = b"X\xff\xff\xff\xffabc.".to_vec();
    let long = b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc.".to_vec();
    for (pickle, says) in [
        (nested, "deeper than the limit of 100"),
        (cycle, "deeper than the limit of 100"),
        (doubling, "bytes of memory"),
        (length, "over the limit of 67108864 bytes"),
        (long, "over the limit of 67108864 bytes"),
        (b"h\x05.".to_vec(), "value 5 of its memo"),
        (b"a.".to_vec(), "empty stack"),
        (b"t.".to_vec(), "mark"),
        (b"\x99.".to_vec(), "the opcode 0x99 is unknown"),
        (b"\x80\x09.".to_vec(), "protocol 9"),
        (b"}(K\x01u.".to_vec(), "has no value"),
        (b"cos\nsystem\nX\x02\0\0\0ls\x85Rb.".to_vec(), "empty stack"),
    ] {
        let has_storage = pickle.windows(STORAGE.len()).any(|part| part == STORAGE);
        let (keys, data) = if has_storage { (KEYS, DATA) } else { (&b"\x80\x02]."[..], &b""[..]) };
        let error = refused(&legacy(&pickle, keys, data), &Options::new());
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn code_is_only_a_name() {
    // `os.system("touch ...")` next to a tensor: an object without tensors, which is skipped.
    let dir = tempfile::tempdir().unwrap();
    let command = format!("touch {}", dir.path().join("ran").display());
    let mut pickle = b"}(X\x01\0\0\0ecos\nsystem\n".to_vec();
    pickle.push(b'X');
    pickle.extend((command.len() as u32).to_le_bytes());
    pickle.extend(command.as_bytes());
    pickle.extend(b"\x85R");
    pickle.extend(&tensor(b"K\0K\x02\x85K\x01\x85")[1..]);
    // The tensor's own dictionary is not there: its key and value join this one.
    let end = pickle.len() - 2;
    pickle.truncate(end);
    pickle.extend(b"u.");
    let file = legacy(&pickle, KEYS, DATA);
    let file = TensorFile::from_source(file, "a file", &Options::new()).unwrap();
    assert!(file.has("w") && !file.has("e"));
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn errors_have_a_kind() {
    let sparse = safetensors_formats::open(fixture("pytorch/refused/sparse.pt"), &Options::new());
    let error = sparse.unwrap().tensor("s").unwrap().read().unwrap_err();
    assert_eq!(error.tensor(), Some("s"));
    let exported = TensorFile::open(fixture("pytorch/refused/exported.pt2"), &Options::new());
    assert!(matches!(exported.unwrap_err().other(), Some(ErrorKind::Exported)));
}
