//! Oddities of files and checkpoints that break no rule.

use safetensors_core::audit::{Finding, Severity};
use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::io::FileSource;

use crate::support::*;

const F32: &str = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;

fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn shard(dir: &Path, name: &str, tensors: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let view = TensorView::new(Dtype::U16, &[2], &[1, 0, 2, 0]).unwrap();
    save(&path, tensors.iter().map(|name| (*name, view)), &SaveOptions::new().durable(false))
        .unwrap();
    path
}

#[test]
fn every_departure_of_a_file_from_the_text_of_the_format() {
    let (_dir, path) = place("w.safetensors");
    assert_eq!(F32.len() % 8, 6);
    let many = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b\n":{"dtype":"U16","shape":[1],"data_offsets":[1,3]},"c":{"dtype":"U16","shape":[1],"data_offsets":[3,5]}}"#;
    let spaces = " ".repeat((8 - many.len() % 8) % 8);
    for (bytes, expected) in [
        (raw(&format!("{F32}  "), 4), &[][..]),
        (raw(&format!("{F32}{}", " ".repeat(10_002)), 4), &[]),
        (
            raw(&format!(" \t{F32}"), 4),
            &["the header starts with 2 bytes of white space, not with its opening brace"],
        ),
        (
            raw(&format!("{F32}\n "), 4),
            &["the header is padded with white space other than spaces"],
        ),
        (
            raw(&format!("{F32} "), 4),
            &[
                "the data starts at byte 63, not at a multiple of 8",
                "tensor \"w\" begins at byte 63, not at a multiple of 4",
            ],
        ),
        (
            raw(&format!("{many}{spaces}"), 5),
            &["tensor \"b\\n\" begins at byte 177, not at a multiple of 2, and 1 other tensor too"],
        ),
    ] {
        fs::write(&path, bytes).unwrap();
        let findings = Checkpoint::open(&path).unwrap().audit().unwrap();
        let expected: Vec<_> =
            expected.iter().map(|text| format!("{}: {text}", path.display())).collect();
        assert_eq!(findings.iter().map(Finding::to_string).collect::<Vec<_>>(), expected);
        assert!(findings.iter().all(|finding| finding.severity() == Severity::Departure));
    }
}

#[test]
fn an_index_with_missing_tensors_and_a_wrong_size() {
    let dir = tempdir().unwrap();
    let one = shard(dir.path(), "model-00001-of-00002.safetensors", &["a", "lost", "lost too"]);
    shard(dir.path(), "model-00002-of-00002.safetensors", &["b"]);
    let stray = shard(dir.path(), "stray.safetensors", &["c"]);
    let index = dir.path().join("model.safetensors.index.json");
    let map = |total: &str| {
        let map = r#""weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}"#;
        fs::write(&index, format!("{{{total}{map}}}")).unwrap();
        Checkpoint::open(&index).unwrap().audit().unwrap()
    };
    let unindexed = Finding::UnindexedTensors { file: one, tensor: "lost".into(), others: 1 };
    let stray = Finding::StrayFile { file: stray };
    assert_eq!(map(r#""metadata":{"total_size":8},"#), [unindexed.clone(), stray.clone()]);
    assert_eq!(map(""), [unindexed.clone(), stray.clone()], "what is not said is not wrong");
    let wrong = Finding::WrongTotalSize { file: index.clone(), expected: 8, found: 7 };
    assert_eq!(map(r#""metadata":{"total_size":7},"#), [unindexed, wrong.clone(), stray]);
    assert_eq!(wrong.severity(), Severity::Warning);
    assert_eq!(
        wrong.to_string(),
        format!("{}: total_size is 7, but the tensors have 8 bytes", index.display())
    );
}

#[test]
fn a_file_that_another_index_names_is_not_a_stray() {
    let dir = tempdir().unwrap();
    let index = |name: &str, file: &str| {
        let path = dir.path().join(name);
        fs::write(&path, format!(r#"{{"weight_map":{{"a":"{file}"}}}}"#)).unwrap();
        path
    };
    shard(dir.path(), "model-00001-of-00001.safetensors", &["a"]);
    shard(dir.path(), "model.fp16-00001-of-00001.safetensors", &["a"]);
    let full = index("model.safetensors.index.json", "model-00001-of-00001.safetensors");
    let half = index("model.fp16.safetensors.index.json", "model.fp16-00001-of-00001.safetensors");
    fs::create_dir(dir.path().join("folder.safetensors")).unwrap();
    assert_eq!(Checkpoint::open(&full).unwrap().audit().unwrap(), []);
    assert_eq!(Checkpoint::open(&half).unwrap().audit().unwrap(), []);
    // An index that cannot be read names no file.
    fs::write(&half, "{").unwrap();
    let file = dir.path().join("model.fp16-00001-of-00001.safetensors");
    assert_eq!(Checkpoint::open(&full).unwrap().audit().unwrap(), [Finding::StrayFile { file }]);
    assert!(matches!(
        CheckpointPath::Index(half).files().unwrap_err().kind(),
        ErrorKind::BadIndex { .. }
    ));
    let files = CheckpointPath::Index(full).files().unwrap();
    assert_eq!(files, [dir.path().join("model-00001-of-00001.safetensors")]);
}

/// Windows and macOS find it so, and list the name of the file. Elsewhere a second name is a link.
#[test]
fn a_shard_that_the_index_names_in_other_case_is_not_a_stray() {
    let (dir, index) = place("model.safetensors.index.json");
    let shard_of = |name, tensor| shard(dir.path(), name, &[tensor]);
    let listed = shard_of("model-00001-of-00001.safetensors", "a");
    fs::write(&index, r#"{"weight_map":{"a":"Model-00001-of-00001.safetensors"}}"#).unwrap();
    let named = dir.path().join("Model-00001-of-00001.safetensors");
    let counts = !named.exists();
    if counts {
        fs::hard_link(&listed, &named).unwrap();
    }
    let file = shard_of("stray.safetensors", "b");
    let opened = Checkpoint::open(&index).unwrap();
    assert_eq!(opened.audit().unwrap(), [Finding::StrayFile { file: file.clone() }]);
    if counts {
        fs::remove_file(&listed).unwrap();
        fs::copy(&named, &listed).unwrap();
        let strays = [listed, file].map(|file| Finding::StrayFile { file });
        assert_eq!(Checkpoint::open(&index).unwrap().audit().unwrap(), strays);
    }
}

#[test]
fn bool_bytes_other_than_0_and_1() {
    let (_dir, path) = place("w.safetensors");
    let header = concat!(
        r#"{"f":{"dtype":"BOOL","shape":[300000],"data_offsets":[0,300000]},"#,
        r#""g":{"dtype":"BOOL","shape":[3],"data_offsets":[300000,300003]},"#,
        r#""u":{"dtype":"U8","shape":[1],"data_offsets":[300003,300004]}}"#
    );
    let mut bytes = raw(header, 300_004);
    let start = bytes.len() - 300_004;
    bytes[start..].fill(1);
    bytes[start + 300_003] = 9;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().audit_values().unwrap(), []);
    for at in [290_000, 299_999] {
        bytes[start + at] = 7;
    }
    fs::write(&path, &bytes).unwrap();
    let findings = Checkpoint::open(&path).unwrap().audit_values().unwrap();
    let expected = "element 290000 of the BOOL tensor \"f\" should be 0 or 1, found 7, and 1 other element too";
    assert_eq!(
        findings.iter().map(Finding::to_string).collect::<Vec<_>>(),
        [format!("{}: {expected}", path.display())]
    );
    assert_eq!(findings[0].severity(), Severity::Warning);
}

#[test]
fn layouts_of_files_without_and_with_padding() {
    let layout =
        |bytes: Vec<u8>| Checkpoint::from_source(bytes, "a").unwrap().files()[0].layout().unwrap();
    let none = layout(raw("{}", 0));
    assert_eq!(
        (none.header_len, none.padding, none.data_start, none.data_alignment),
        (2, 0, 10, 2)
    );
    let padded = layout(raw(&format!("\n{F32}{}", " ".repeat(9000)), 4));
    assert_eq!((padded.leading_space, padded.padding, padded.is_padding_foreign), (1, 9000, false));
}

#[test]
fn checkpoint_paths_are_recognised_by_name_and_in_directories() {
    assert_eq!(
        CheckpointPath::from_name("a/b.safetensors"),
        Some(CheckpointPath::File("a/b.safetensors".into()))
    );
    for other in ["a.safetensors/..", "a.safetensors.tmp", "index.json", ""] {
        assert_eq!(CheckpointPath::from_name(other), None, "{other}");
    }
    let dir = tempdir().unwrap();
    // The contents of the files do not matter.
    fs::write(dir.path().join("broken.safetensors"), b"").unwrap();
    let found = CheckpointPath::find(dir.path()).unwrap();
    assert_eq!(found, CheckpointPath::File(dir.path().join("broken.safetensors")));
    assert_eq!(found.files().unwrap(), [dir.path().join("broken.safetensors")]);
    fs::write(dir.path().join("x.safetensors.index.json"), b"").unwrap();
    let found = CheckpointPath::find(dir.path()).unwrap();
    assert_eq!(found, CheckpointPath::Index(dir.path().join("x.safetensors.index.json")));
}

#[test]
fn an_open_file_under_another_name() {
    let dir = tempdir().unwrap();
    let path = shard(dir.path(), "a.safetensors", &["a"]);
    let open = || {
        let file = FileSource::from_file(fs::File::open(&path)?, "standard input")?;
        Checkpoint::from_source(file, "standard input")
    };
    let checkpoint = open().unwrap();
    assert_eq!(checkpoint.files()[0].path(), Path::new("standard input"));
    assert_eq!(checkpoint.tensor("a").unwrap().read().unwrap().as_slice::<u16>().unwrap(), [1, 2]);
    assert_eq!(checkpoint.tensor("b").unwrap_err().file(), Some("standard input"));
    fs::write(&path, b"bad").unwrap();
    let error = open().unwrap_err();
    assert!(error.to_string().starts_with("standard input: too short"), "{error}");
    #[cfg(unix)]
    for (path, kind) in [(Path::new("/dev/null"), "a special file"), (dir.path(), "a directory")] {
        let opened = FileSource::from_file(fs::File::open(path).unwrap(), "pipe");
        refused!(opened, ErrorKind::NotAFile { found } if *found == kind);
    }
}

#[test]
fn an_index_that_the_directory_does_not_open_as() {
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let file = shard(dir.path(), "model.safetensors", &["a"]);
    shard(dir.path(), "model-00001-of-00001.safetensors", &["a"]);
    let index = at("model.safetensors.index.json");
    let findings = |path: &Path| Checkpoint::open(path).unwrap().audit().unwrap();
    assert_eq!(findings(dir.path()), []);
    fs::write(&index, r#"{"weight_map":{"a":"model-00001-of-00001.safetensors"}}"#).unwrap();
    let expected = [Finding::ShadowedIndex { file: file.clone(), index: index.clone() }];
    assert_eq!(findings(dir.path()), expected);
    assert_eq!(findings(&index), expected);
    assert_eq!(expected[0].severity(), Severity::Warning);
    assert_eq!(
        expected[0].to_string(),
        format!(
            "{}: the directory opens as this file and not as model.safetensors.index.json next \
             to it, which does not name it",
            file.display()
        )
    );
    // Opened by its own path, the file has no finding about the index.
    assert_eq!(findings(&file), []);
    fs::write(&index, r#"{"weight_map":{"a":"model.safetensors"}}"#).unwrap();
    assert_eq!(findings(dir.path()), []);
    fs::write(&index, "{").unwrap();
    assert_eq!(findings(dir.path()), expected);
}
