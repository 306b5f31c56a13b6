//! Checkpoints in other stores than the local disk: they are the same from every store.

use std::io;

use safetensors_core::audit::Finding;
use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry};

use crate::support::*;

/// The files of a checkpoint, by name.
type Files = BTreeMap<&'static str, Vec<u8>>;

fn file(tensors: &[(&str, u8)], metadata: &[(&str, &str)]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, value)| {
        (*name, TensorView::from_slice(&[1], std::slice::from_ref(value)).unwrap())
    });
    serialize(views, &SaveOptions::new().metadata(metadata.iter().copied())).unwrap()
}

const INDEX: &str = "model.safetensors.index.json";

/// Two shards, one of them in a subdirectory, and an alias.
fn sharded() -> Files {
    let index = r#"{"metadata": {"total_size": 2, "head": "a"},
        "weight_map": {"a": "one.safetensors", "b": "deep/two.safetensors"}}"#;
    Files::from([
        (INDEX, index.as_bytes().to_vec()),
        ("one.safetensors", file(&[("a", 1)], &[])),
        ("deep/two.safetensors", file(&[("b", 2), ("hidden", 9)], &[])),
        ("config.json", b"{}".to_vec()),
    ])
}

/// Checks a checkpoint of these files, in any store, opened from the directory `root`.
fn check_sharded<S: ReadAt>(checkpoint: &Checkpoint<S>, root: &str) {
    let read = |name: &str| checkpoint.tensor(name).unwrap().read().unwrap().bytes().to_vec();
    assert_eq!((read("a"), read("b"), read("head")), (vec![1], vec![2], vec![1]));
    assert_eq!(checkpoint.len(), 2);
    assert_eq!(checkpoint.index_path(), Some(&*Path::new(root).join(INDEX)));
    let paths: Vec<_> = checkpoint.files().iter().map(|shard| shard.path().to_owned()).collect();
    let expected =
        ["deep/two.safetensors", "one.safetensors"].map(|name| Path::new(root).join(name));
    assert_eq!(paths, expected);
    assert_eq!(checkpoint.aliases().map(|(name, _)| name).collect::<Vec<_>>(), ["head"]);
    checkpoint.check_unchanged().unwrap();
    let findings = checkpoint.audit().unwrap();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].to_string().contains(r#"leaves out tensor "hidden""#), "{findings:?}");
}

fn memory(files: &Files) -> MemoryStore {
    files.iter().map(|(name, bytes)| (*name, bytes.clone())).collect()
}

fn disk(files: &Files) -> tempfile::TempDir {
    let directory = tempdir().unwrap();
    for (name, bytes) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    directory
}

/// A store as another crate may write it: files under `hub://`, which another thread delivers.
struct Remote(Files);

impl Remote {
    const ROOT: &'static str = "hub://owner/name";

    fn name(path: &Path) -> Option<String> {
        let path = path.to_str()?.strip_prefix(Self::ROOT)?;
        Some(path.trim_start_matches(['/', '\\']).replace('\\', "/"))
    }
}

impl Store for Remote {
    type File = Vec<u8>;

    fn open(&self, path: &Path) -> Result<Vec<u8>> {
        let name = Self::name(path).unwrap_or_default();
        let file = std::thread::scope(|scope| {
            scope.spawn(|| self.0.get(name.as_str()).cloned()).join().unwrap()
        });
        file.ok_or_else(|| Error::from(ErrorKind::Io(io::ErrorKind::NotFound.into())))
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        let Some(name) = Self::name(path) else { return Ok(None) };
        Ok(if self.0.contains_key(name.as_str()) {
            Some(FileKind::File)
        } else {
            name.is_empty().then_some(FileKind::Directory)
        })
    }

    fn list(&self, _: &Path) -> Result<Vec<StoreEntry>> {
        let names = self.0.keys().filter(|name| !name.contains('/'));
        Ok(names.map(|name| StoreEntry { name: (*name).into(), kind: FileKind::File }).collect())
    }
}

#[test]
fn a_checkpoint_of_shards_from_anywhere() {
    let (files, limits) = (sharded(), Limits::default());
    let on_disk = disk(&files);
    let root = on_disk.path().to_str().unwrap();
    for path in [root.into(), on_disk.path().join(INDEX)] {
        check_sharded(&Checkpoint::open(&path).unwrap(), root);
        check_sharded(&Checkpoint::open_in(LocalStore, &path, &limits).unwrap(), root);
        let open = |path: &Path| fs::read(path).map_err(|error| ErrorKind::Io(error).into());
        check_sharded(&Checkpoint::open_by(&path, &limits, open).unwrap(), root);
    }

    check_sharded(&Checkpoint::open_in(memory(&files), "", &limits).unwrap(), "");
    check_sharded(&Checkpoint::open_in(memory(&files), INDEX, &limits).unwrap(), "");
    let below: MemoryStore<Arc<[u8]>> =
        files.iter().map(|(name, bytes)| (format!("x/y/{name}"), bytes.clone().into())).collect();
    for path in ["x/y", "x/y/model.safetensors.index.json"] {
        let checkpoint = Checkpoint::open_in(below.clone(), path, &limits).unwrap();
        check_sharded(&checkpoint, "x/y");
        let stored = checkpoint.into_stored().unwrap();
        assert_eq!(stored.tensor("b").unwrap().view().unwrap().data(), [2]);
    }

    let remote = Arc::new(Remote(files.clone()));
    let checkpoint = Checkpoint::open_in(remote.clone(), Remote::ROOT, &limits).unwrap();
    check_sharded(&checkpoint, Remote::ROOT);
    let of_index = format!("{}/{INDEX}", Remote::ROOT);
    check_sharded(&Checkpoint::open_in(remote, of_index, &limits).unwrap(), Remote::ROOT);
}

/// None of the files is on the disk.
#[test]
fn a_function_supplies_files_that_are_nowhere() {
    let files = sharded();
    let opened = std::sync::Mutex::new(Vec::new());
    let open = |path: &Path| -> Result<Vec<u8>> {
        opened.lock().unwrap().push(path.to_owned());
        let name = path.strip_prefix("/nowhere").unwrap().to_str().unwrap();
        let file = files.get(&*name.replace('\\', "/")).cloned();
        file.ok_or_else(|| ErrorKind::Io(io::ErrorKind::NotFound.into()).into())
    };
    let limits = Limits::default();
    let one = Checkpoint::open_by("/nowhere/one.safetensors", &limits, open).unwrap();
    assert_eq!(one.tensor("a").unwrap().view().unwrap().data(), [1]);
    assert_eq!(*opened.lock().unwrap(), [PathBuf::from("/nowhere/one.safetensors")]);

    let index = Path::new("/nowhere").join(INDEX);
    check_sharded(&Checkpoint::open_by(&index, &limits, open).unwrap(), "/nowhere");
    // A path with another ending is also a file, because the disk has no directory of that name.
    let error = refused!(Checkpoint::open_by("/nowhere/none", &limits, open), ErrorKind::Io(_));
    assert_eq!(error.file(), Some("/nowhere/none"));
}

#[test]
fn a_directory_named_like_an_index_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join(INDEX);
    fs::create_dir(&index).unwrap();
    let files = sharded();
    let open = |path: &Path| Ok(files[path.file_name().unwrap().to_str().unwrap()].clone());
    let opened = Checkpoint::open_by(&index, &Limits::default(), open);
    refused!(opened, ErrorKind::NotAFile { found: "a directory" });
}

#[test]
fn a_directory_opens_the_same_in_every_store() {
    let (first, second) = (file(&[("a", 1)], &[]), file(&[("a", 2)], &[]));
    let map = br#"{"weight_map": {"a": "two.safetensors"}}"#;
    let files: Files =
        [("two.safetensors", second.clone()), ("other.safetensors.index.json", map.to_vec())]
            .into_iter()
            .collect();
    let both = |files: &Files| {
        let on_disk = Checkpoint::open(disk(files).path()).map(|checkpoint| value(&checkpoint));
        let limits = Limits::default();
        let in_memory = Checkpoint::open_in(memory(files), "", &limits);
        let in_memory = in_memory.map(|checkpoint| value(&checkpoint));
        match (on_disk, in_memory) {
            (Ok(on_disk), Ok(in_memory)) => {
                assert_eq!(on_disk, in_memory);
                Ok(on_disk)
            }
            (Err(on_disk), Err(in_memory)) => {
                let found = |error: &Error| match error.kind() {
                    ErrorKind::NoCheckpoint { found, below } => (found.clone(), below.clone()),
                    _ => unreachable!("{error}"),
                };
                assert_eq!(found(&on_disk), found(&in_memory));
                Err(found(&on_disk))
            }
            (on_disk, in_memory) => unreachable!("{on_disk:?}, {in_memory:?}"),
        }
    };
    fn value<S: ReadAt>(checkpoint: &Checkpoint<S>) -> u8 {
        checkpoint.tensor("a").unwrap().read().unwrap().bytes()[0]
    }
    assert_eq!(both(&files), Ok(2));
    let mut more = files.clone();
    more.insert("more.safetensors.index.json", map.to_vec());
    more.insert("unet/x.safetensors", first.clone());
    let found = ["more.safetensors.index.json", "other.safetensors.index.json", "two.safetensors"];
    let below = vec!["unet/x.safetensors".to_owned()];
    assert_eq!(both(&more), Err((found.map(String::from).into(), below)));
    more.insert("model.safetensors", first);
    assert_eq!(both(&more), Ok(1));
    more.remove("model.safetensors");
    more.insert(INDEX, map.to_vec());
    assert_eq!(both(&more), Ok(2));
    assert_eq!(both(&Files::from([("x/y", Vec::new())])), Err((vec![], vec![])));
}

#[test]
fn errors_name_the_path_in_the_store() {
    let limits = Limits::default();
    let mut files = sharded();
    let open = |files: &Files| Checkpoint::open_in(memory(files), "", &limits).unwrap_err();
    files.remove("one.safetensors");
    let error = open(&files);
    assert_eq!((error.file(), error.tensor()), (Some("one.safetensors"), Some("a")));
    files.insert("one.safetensors", file(&[("x", 1)], &[]));
    let error = open(&files);
    assert!(matches!(error.kind(), ErrorKind::NotInShard { .. }), "{error}");
    assert_eq!((error.file(), error.tensor()), (Some(INDEX), Some("a")));
    files.insert(INDEX, b"{}".to_vec());
    let error = open(&files);
    assert!(matches!(error.kind(), ErrorKind::BadIndex { .. }), "{error}");
    assert_eq!(error.file(), Some(INDEX));
    let missing = Checkpoint::open_in(memory(&files), "none/x.safetensors", &limits).unwrap_err();
    assert_eq!(io_kind(&missing), io::ErrorKind::NotFound, "{missing}");
    assert_eq!(missing.file(), Some("none/x.safetensors"));
    let error = Checkpoint::open_in(MemoryStore::<Vec<u8>>::default(), "", &limits).unwrap_err();
    assert_eq!(error.file(), Some(""));
}

/// If a store cannot find out whether an index exists, that is an error. It does not count as a
/// missing index.
#[test]
fn a_store_that_fails_is_not_an_empty_one() {
    struct Broken;

    impl Store for Broken {
        type File = Vec<u8>;

        fn open(&self, _: &Path) -> Result<Vec<u8>> {
            unreachable!()
        }

        fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
            match path.to_str() {
                Some("m") => Ok(Some(FileKind::Directory)),
                _ => Err(ErrorKind::Io(io::ErrorKind::TimedOut.into()).into()),
            }
        }

        fn list(&self, _: &Path) -> Result<Vec<StoreEntry>> {
            Ok(vec![StoreEntry { name: "one.safetensors".into(), kind: FileKind::File }])
        }
    }

    let error = Checkpoint::open_in(Broken, "m", &Limits::default()).unwrap_err();
    assert_eq!(io_kind(&error), io::ErrorKind::TimedOut, "{error}");
    assert_eq!(error.file(), Path::new("m").join("model.safetensors").to_str());
}

/// A backup of a header belongs to the store of the file, and not to a disk that has the same path.
#[test]
fn audits_look_for_backups_in_the_store() {
    let limits = Limits::default();
    let (one, backup) = (file(&[("a", 1)], &[]), b"STheadr1".to_vec());
    let files = Files::from([
        ("model.safetensors", one.clone()),
        (".model.safetensors.header-backup", backup.clone()),
    ]);
    let on_disk = disk(&files);
    let path = on_disk.path().join("model.safetensors");
    let beside = on_disk.path().join(".model.safetensors.header-backup");
    let finding = |file: &Path, backup: &Path| {
        vec![Finding::HeaderBackup { file: file.into(), backup: backup.into() }]
    };
    assert_eq!(Checkpoint::open(&path).unwrap().audit().unwrap(), finding(&path, &beside));
    let several = Checkpoint::open_files([&path]).unwrap();
    assert_eq!(several.audit().unwrap(), finding(&path, &beside));

    // The same path, but the bytes are not from the disk.
    assert_eq!(Checkpoint::from_source(one.clone(), &path).unwrap().audit().unwrap(), []);
    let in_memory = MemoryStore::from_iter([(path.to_str().unwrap(), one)]);
    assert_eq!(Checkpoint::open_in(in_memory, &path, &limits).unwrap().audit().unwrap(), []);

    let (file, beside) = ("model.safetensors", "./.model.safetensors.header-backup");
    let in_memory = Checkpoint::open_in(memory(&files), file, &limits).unwrap();
    assert_eq!(in_memory.audit().unwrap(), finding(file.as_ref(), beside.as_ref()));
}
