//! Which files go along, and how.

use tempfile::tempdir;

use super::*;
use crate::checkpoint::store::{MemoryFile, MemoryStore, Store};
use crate::checkpoint::{ShardOptions, fill_of, save_sharded, save_sharded_to};
use crate::file::io::failpoint::{Interrupted, interrupt_everywhere};
use crate::file::save::{SaveOptions, save, serialize};
use crate::format::error::ErrorKind;
use crate::format::header::Limits;
use crate::format::tensor::TensorView;

fn tensor(fill: &[u8; 4]) -> [(&'static str, TensorView<'_>); 1] {
    [("w", TensorView::from_slice(&[4], fill).unwrap())]
}

/// A directory with a checkpoint and two other files.
fn model(path: &Path, fill: u8, text: &str) -> Checkpoint {
    fs::create_dir_all(path.join("custom_generate")).unwrap();
    save(path.join("model.safetensors"), tensor(&[fill; 4]), &SaveOptions::new()).unwrap();
    fs::write(path.join("config.json"), text).unwrap();
    fs::write(path.join("custom_generate/license"), text).unwrap();
    Checkpoint::open(path).unwrap()
}

#[test]
fn the_name_decides_whether_a_file_belongs_to_a_model() {
    for name in [
        "config.json",
        "tokenizer.model",
        "added_tokens.json",
        "tokens.txt",
        "keys.json",
        "chat_template.jinja",
        "LICENSE",
        "x.sig.md",
    ] {
        assert!(OtherFiles::belongs(name), "{name}");
    }
    for name in [
        "",
        "..",
        ".gitattributes",
        "a/b",
        "a\\b",
        "c:d",
        "latest",
        "manifest.json",
        "model.sig",
        "X.GGUF",
        "optimizer.pt",
        "model.safetensors.index.json",
        "token",
        "HF_TOKEN.txt",
        "client_secret.json",
        "Credentials",
        "id_rsa.pub",
        "server.KEY",
        "prod.env",
        "kaggle.json",
        "service-account.json",
        "Access-Key.txt",
        "private_key.json",
    ] {
        assert!(!OtherFiles::belongs(name), "{name}");
    }
}

/// The names in a listing of a store may lead anywhere.
#[test]
fn files_go_along_from_store_to_store() {
    let bytes = serialize(tensor(&[1; 4]), &SaveOptions::new()).unwrap();
    let texts = [
        "config.json",
        "custom_generate/a/license",
        "custom_generate/a/b/c",
        "a\\b",
        "x.bin",
        "additional_chat_templates/y.bin",
        "additional_chat_templates/z",
        "venv/z",
    ];
    let files = texts.map(|name| (format!("gpt/{name}"), name.as_bytes().to_vec()));
    let large = ("gpt/data.txt".to_owned(), vec![0; MOST as usize + 1]);
    let model = ("gpt/model.safetensors".to_owned(), bytes);
    let store = MemoryStore::from_iter(files.into_iter().chain([large, model]));
    let gpt = Checkpoint::open_in(store.clone(), "gpt", &Limits::default()).unwrap();
    let others = OtherFiles::new(&gpt, Path::new("elsewhere")).unwrap();
    assert_eq!(others.names().collect::<Vec<_>>(), ["config.json", "custom_generate/a/license"]);
    let left =
        ["a\\b", "additional_chat_templates", "custom_generate/a/b", "data.txt", "venv", "x.bin"];
    assert_eq!(others.left_out(), left.map(PathBuf::from));
    let mut out = MemoryStore::default();
    let options = ShardOptions::new().other_files(others);
    save_sharded_to(&mut out, tensor(&[2; 4]), &options).unwrap();
    let out = Checkpoint::open_in(out, "", &Limits::default()).unwrap();
    let found = out.read_beside("custom_generate/a/license", 99).unwrap().unwrap();
    assert_eq!(found.1, b"custom_generate/a/license");
    let file = Checkpoint::open_in(store, "gpt/model.safetensors", &Limits::default()).unwrap();
    assert_eq!(OtherFiles::new(&file, Path::new("elsewhere")).unwrap().names().len(), 0);
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_an_error() {
    struct Changing(PathBuf);
    impl Write for Changing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            fs::write(&self.0, "longer than before")?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let dir = tempdir().unwrap();
    let checkpoint = model(dir.path(), 1, "{}");
    let others = OtherFiles::new(&checkpoint, Path::new("elsewhere")).unwrap();
    let config = dir.path().join("config.json");
    let error = others.write_to("config.json", &mut Changing(config.clone())).unwrap_err();
    assert!(error.to_string().contains("chang"), "{error}");
    assert_eq!(error.file(), config.to_str());
}

#[test]
fn files_that_are_there_already_need_not_be_copied() {
    let dir = tempdir().unwrap();
    let checkpoint = model(&dir.path().join("in"), 1, "same");
    for (text, expected) in [("same", 0), ("som", 2), ("same and more", 2)] {
        model(&dir.path().join("out"), 2, text);
        let out = dir.path().join("out");
        let mut others = OtherFiles::new(&checkpoint, &out).unwrap();
        others.remove_equal(&out);
        assert_eq!(others.names().len(), expected, "{text}");
    }
}

/// No tensors are ever next to the files of another model.
#[test]
fn the_old_model_or_the_new_one_wherever_a_save_is_interrupted() {
    let from = tempdir().unwrap();
    let checkpoint = model(from.path(), 2, "new");
    let setup = || {
        let dir = tempdir().unwrap();
        model(dir.path(), 1, "old");
        dir
    };
    let act = |dir: &tempfile::TempDir| {
        let others = OtherFiles::new(&checkpoint, dir.path())?;
        let options = ShardOptions::new().other_files(others);
        save_sharded(dir.path(), tensor(&[2; 4]), &options)
    };
    let check = |dir: tempfile::TempDir, at: Option<Interrupted>, result: Result<_>| {
        let texts = ["config.json", "custom_generate/license"];
        let texts = texts.map(|name| fs::read_to_string(dir.path().join(name)).unwrap());
        let is_new = fill_of(dir.path(), 4) == 2;
        if is_new {
            assert_eq!(texts, ["new", "new"], "{at:?}");
        }
        let Err(error) = result else { return assert!(is_new, "{at:?}") };
        let is_in_place =
            matches!(error.kind(), ErrorKind::NotDurable(_) | ErrorKind::LeftBehind(_));
        if at.is_some_and(|it| !it.killed) && !is_in_place {
            assert_eq!((texts, is_new), (["old", "old"].map(String::from), false), "{at:?}");
        }
    };
    let steps = interrupt_everywhere(setup, act, check);
    assert!(steps.iter().filter(|step| **step == "copy").count() == 2, "{steps:?}");
}

/// A model without some of its files must not look complete.
#[test]
fn only_a_listing_that_is_denied_is_passed_over() {
    struct Failing(MemoryStore, io::ErrorKind);
    impl Store for Failing {
        type File = MemoryFile<Vec<u8>>;

        fn open(&self, path: &Path) -> Result<Self::File> {
            self.0.open(path)
        }

        fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
            Store::kind(&self.0, path)
        }

        fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
            Err(Error::io(self.1.into(), directory))
        }
    }
    use io::ErrorKind::{NotFound, Other, PermissionDenied, TimedOut};
    for (kind, expected) in
        [(NotFound, Some(false)), (PermissionDenied, Some(true)), (Other, None), (TimedOut, None)]
    {
        let weights = serialize(tensor(&[1; 4]), &SaveOptions::new()).unwrap();
        let store = MemoryStore::from_iter([("m/model.safetensors", weights)]);
        let opened = Checkpoint::open_in(Failing(store, kind), "m", &Limits::default()).unwrap();
        let others = OtherFiles::new(&opened, Path::new("elsewhere"));
        assert_eq!(others.ok().map(|others| others.is_refused()), expected, "{kind}");
    }
}

#[test]
fn an_address_that_is_also_the_destination_keeps_its_files() {
    let weights = serialize(tensor(&[1; 4]), &SaveOptions::new()).unwrap();
    let files = [("s3://b/m/model.safetensors", weights), ("s3://b/m/config.json", b"{}".to_vec())];
    let store = MemoryStore::from_iter(files);
    let opened = Checkpoint::open_in(store, "s3://b/m", &Limits::default()).unwrap();
    for (destination, expected) in [("s3://b/m", 0), ("s3://b/m/", 0), ("s3://b/n", 1)] {
        let others = OtherFiles::new(&opened, Path::new(destination)).unwrap();
        assert_eq!(others.names().len(), expected, "{destination}");
    }
}

/// The files of a directory, each with its name as text.
fn listed(names: &[&str]) -> OtherFiles {
    let weights = serialize(tensor(&[1; 4]), &SaveOptions::new()).unwrap();
    let files = names.iter().map(|name| (format!("m/{name}"), name.as_bytes().to_vec()));
    let weights = ("m/weights.safetensors".to_owned(), weights);
    let store = MemoryStore::from_iter(files.chain([weights]));
    let opened = Checkpoint::open_in(store, "m", &Limits::default()).unwrap();
    OtherFiles::new(&opened, Path::new("elsewhere")).unwrap()
}

#[test]
fn only_the_directory_of_a_model_takes_files_along() {
    for (names, taken) in [
        (&["credentials.json", "cv.pdf", "venv/lib.py"][..], &[][..]),
        (&["config.json", "cv.txt", "venv/lib.py"], &["config.json", "cv.txt"]),
        (&["adapter_config.json", "x/config.json"], &["adapter_config.json"]),
        (&["x/config.json"], &[]),
        (&["modules.json"], &["modules.json"]),
    ] {
        let others = listed(names);
        assert_eq!(others.names().collect::<Vec<_>>(), taken, "{names:?}");
        assert_eq!(others.left_out().is_empty(), names.len() == taken.len(), "{names:?}");
    }
}

#[test]
fn a_checkpoint_with_an_index_is_a_model() {
    let dir = tempdir().unwrap();
    let options = ShardOptions::new().max_shard_size(crate::checkpoint::MaxShardSize(4));
    let tensors = ["a", "b"].map(|name| (name, TensorView::from_slice(&[4], &[1_u8; 4]).unwrap()));
    save_sharded(dir.path(), tensors, &options).unwrap();
    fs::write(dir.path().join("LICENSE"), "").unwrap();
    let opened = Checkpoint::open(dir.path()).unwrap();
    assert!(opened.index_path().is_some());
    let others = OtherFiles::new(&opened, Path::new("elsewhere")).unwrap();
    assert_eq!(others.names().collect::<Vec<_>>(), ["LICENSE"]);
}

#[test]
fn settings_name_the_folders_of_a_model() {
    let store = |settings: &str, text: &str| {
        let weights = serialize(tensor(&[1; 4]), &SaveOptions::new()).unwrap();
        let texts = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"];
        let texts = texts.map(|name| (format!("m/{name}"), b"x".to_vec()));
        let more = [
            ("m/model.safetensors".to_owned(), weights),
            (format!("m/{settings}"), text.as_bytes().to_vec()),
        ];
        MemoryStore::from_iter(texts.into_iter().chain(more))
    };
    let dense = ["2_Dense/config.json", "2_Dense/model.safetensors"];
    for (settings, text, taken) in [
        (
            "modules.json",
            r#"[{"path": ""}, {"path": "1_Pooling"}]"#,
            &["1_Pooling/config.json"][..],
        ),
        ("modules.json", r#"[{"path": "2_Dense"}, {"no": 1}, 7, {"path": "../x"}]"#, &dense),
        ("model_index.json", r#"{"1_Pooling": [], "2_Dense": []}"#, &["1_Pooling/config.json"]),
        ("config.json", r#"[{"path": "2_Dense"}]"#, &[]),
        ("modules.json", "[{", &[]),
    ] {
        let opened = Checkpoint::open_in(store(settings, text), "m", &Limits::default()).unwrap();
        let others = OtherFiles::new(&opened, Path::new("elsewhere")).unwrap();
        let expected: Vec<_> = [settings].into_iter().chain(taken.iter().copied()).collect();
        assert_eq!(others.names().collect::<Vec<_>>(), expected, "{text}");
        // Weights of a part of a pipeline are another checkpoint, and the pipeline needs them.
        let missing = if settings == "model_index.json" { &["2_Dense"][..] } else { &[] };
        assert!(others.missing().iter().map(Path::new).eq(missing.iter().map(Path::new)), "{text}");
    }
}

#[test]
fn the_files_that_go_along_are_bounded() {
    let names: Vec<_> = (0..MOST_FILES + 5).map(|number| format!("{number:04}.txt")).collect();
    let mut names: Vec<_> = names.iter().map(String::as_str).collect();
    names.push("0000.config/config.json");
    names.push("config.json");
    let others = listed(&names);
    assert_eq!((others.names().len(), others.left_out().len()), (MOST_FILES, 7));

    let dir = tempdir().unwrap();
    model(dir.path(), 1, "{}");
    fs::create_dir(dir.path().join("2_Dense")).unwrap();
    fs::write(dir.path().join("modules.json"), r#"[{"path": "2_Dense"}]"#).unwrap();
    let large = |name: &str, bytes| {
        fs::File::create(dir.path().join(name)).unwrap().set_len(bytes).unwrap();
    };
    large("2_Dense/model.safetensors", MOST + 1);
    ["a", "b", "c", "d"].iter().for_each(|name| large(name, MOST));
    let opened = Checkpoint::open(dir.path()).unwrap();
    let others = OtherFiles::new(&opened, Path::new("elsewhere")).unwrap();
    let expected = ["a", "b", "c", "config.json", "modules.json", "custom_generate/license"];
    assert_eq!(others.names().collect::<Vec<_>>(), expected);
    let dense = PathBuf::from("2_Dense/model.safetensors");
    assert_eq!(others.left_out(), [dense.clone(), "d".into()]);
    assert_eq!(others.missing(), [dense]);
}
