//! Tied weights: what is kept, what is recorded, and what comes back. The oracle is Python's `safetensors.torch`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "std")]
mod support;

use std::collections::BTreeMap;

use safetensors_core::tied::{Resolved, Storage, Tied, Views, resolve};
use safetensors_core::{
    Dtype, Error, ErrorKind, Result, SafeTensors, SaveOptions, Sink, TensorBuf, TensorSource, TensorView, serialize,
};

/// A slice of some memory: which, how long it is in elements, and which of them.
#[derive(Clone, Debug)]
struct Slice {
    dtype: Dtype,
    shape: Vec<usize>,
    storage: Option<Storage>,
}

impl Slice {
    /// F32 elements `start..end` of a storage that has `len`.
    fn new(storage: u64, len: u64, start: u64, end: u64) -> Self {
        Self {
            dtype: Dtype::F32,
            shape: vec![(end - start) as usize],
            storage: Some(Storage { id: storage, byte_len: len * 4, range: start * 4..end * 4, contiguous: true }),
        }
    }

    fn whole(storage: u64, len: u64) -> Self {
        Self::new(storage, len, 0, len)
    }
}

impl TensorSource for Slice {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let bytes = self.shape.iter().product::<usize>() * self.dtype.bits() as usize / 8;
        sink(&vec![self.storage.as_ref().map_or(9, |storage| storage.id as u8); bytes])
    }

    fn storage(&self) -> Option<Storage> {
        self.storage.clone()
    }
}

fn aliases(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, kept)| ((*name).into(), (*kept).into())).collect()
}

fn not_covered(error: &Error) -> &[String] {
    match error.kind() {
        ErrorKind::NotCovered { names } => names,
        _ => unreachable!("{error}"),
    }
}

#[test]
#[cfg(feature = "std")]
fn the_same_names_as_safetensors_torch() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tied-names.json");
    let cases: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let strings = |value: &serde_json::Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let (mut refused, mut views) = (0, 0);
    for case in cases.as_array().unwrap() {
        let tensors: BTreeMap<String, (u64, u64, u64)> = serde_json::from_value(case["tensors"].clone()).unwrap();
        let len = |storage: u64| case["storages"][storage as usize].as_u64().unwrap();
        let tensors: Vec<_> = tensors
            .into_iter()
            .map(|(name, (storage, start, end))| (name, Slice::new(storage, len(storage), start, end)))
            .collect();
        let options = Tied::new().prefer(strings(&case["prefer"])).discard(strings(&case["discard"]));
        let expected: Option<BTreeMap<String, String>> = serde_json::from_value(case["aliases"].clone()).unwrap();
        let found = resolve(&tensors, &options.clone().views(Views::Drop));
        let Some(expected) = expected else {
            not_covered(&found.unwrap_err());
            resolve(&tensors, &options).unwrap_err();
            refused += 1;
            continue;
        };
        let found = found.unwrap();
        assert_eq!(found.aliases, expected, "{case}");
        let kept: Vec<_> = found.keep.iter().map(|&i| &tensors[i].0).collect();
        let all = tensors.iter().map(|(name, _)| name).filter(|name| !expected.contains_key(*name));
        assert_eq!(kept, all.collect::<Vec<_>>(), "{case}");
        // By default the same, unless something would be lost.
        let range = |name: &String| {
            let (_, slice) = tensors.iter().find(|(other, _)| other == name).unwrap();
            slice.storage.as_ref().unwrap().range.clone()
        };
        match resolve(&tensors, &options) {
            Ok(same) => assert_eq!(same, found),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::PartlyTied { .. }), "{error}");
                assert!(expected.iter().any(|(name, kept)| range(name) != range(kept)), "{case}");
                views += 1;
            }
        }
    }
    assert!(refused > 10 && views > 10);
}

#[test]
fn which_name_is_kept() {
    let shared = Slice::whole(1, 4);
    let tensors = ["c", "b", "a", "d"].map(|name| (name, shared.clone()));
    let kept = |options: Tied| {
        let resolved = resolve(&tensors, &options).unwrap();
        assert_eq!((resolved.keep.len(), resolved.aliases.len()), (1, 3));
        tensors[resolved.keep[0]].0
    };
    assert_eq!(kept(Tied::new()), "a");
    assert_eq!(kept(Tied::new().prefer(["d", "c", "x"])), "c");
    assert_eq!(kept(Tied::new().discard(["a", "b"])), "c");
    assert_eq!(kept(Tied::new().discard(["a", "b", "c", "d"])), "a");
    assert_eq!(kept(Tied::new().prefer(["d"]).discard(["d", "a"])), "d");
}

#[test]
fn what_is_not_shared() {
    let mut unknown = Slice::whole(1, 4);
    unknown.storage = None;
    let mut no_elements = Slice::whole(1, 4);
    no_elements.shape = vec![0];
    let tensors = [
        ("a", unknown.clone()),
        ("b", unknown),
        ("other length", Slice::whole(1, 8)),
        ("other storage", Slice::whole(2, 4)),
        ("without elements", Slice::new(1, 4, 0, 0)),
        ("without elements 2", Slice::new(1, 4, 2, 2)),
        ("no storage 1", Slice::whole(3, 0)),
        ("no storage 2", Slice::whole(3, 0)),
        ("c", Slice::whole(1, 4)),
    ];
    let resolved = resolve(&tensors, &Tied::new()).unwrap();
    assert_eq!(resolved, Resolved { keep: Vec::from_iter(0..tensors.len()), aliases: BTreeMap::new() });
    assert_eq!(resolve::<&str, Slice>(&[], &Tied::new()).unwrap(), Resolved::default());
}

/// The published cases of the Python package: `A` of shape `[3, 3]` and `B`, its first row.
#[test]
fn a_part_of_another_tensor() {
    let (a, b) = (Slice::whole(1, 9), Slice::new(1, 9, 0, 3));
    let tensors = [("A", a.clone()), ("B", b.clone()), ("C", a.clone())];
    let dropped = resolve(&tensors, &Tied::new().views(Views::Drop)).unwrap();
    assert_eq!(dropped, Resolved { keep: vec![0], aliases: aliases(&[("B", "A"), ("C", "A")]) });

    let error = resolve(&tensors, &Tied::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PartlyTied { kept } if kept == "A"), "{error}");
    assert_eq!(error.tensor(), Some("B"));

    let saved = resolve(&tensors, &Tied::new().views(Views::Save)).unwrap();
    assert_eq!(saved, Resolved { keep: vec![0, 1], aliases: aliases(&[("C", "A")]) });

    for views in [Views::Refuse, Views::Drop] {
        let error = resolve(&[("B", b.clone())], &Tied::new().views(views)).unwrap_err();
        assert_eq!((not_covered(&error), error.tensor()), (&["B".to_owned()][..], Some("B")));
    }
}

#[test]
fn no_tensor_fills_the_storage() {
    let tensors = [("y", Slice::new(1, 9, 2, 6)), ("x", Slice::new(1, 9, 4, 9)), ("z", Slice::new(1, 9, 0, 1))];
    let error = resolve(&tensors[..2], &Tied::new()).unwrap_err();
    assert_eq!((not_covered(&error), error.tensor()), (&["x".to_owned(), "y".to_owned()][..], Some("x")));
    assert!(error.to_string().contains("\"x\", \"y\""), "{error}");
    let saved = resolve(&tensors, &Tied::new().views(Views::Save)).unwrap();
    assert_eq!(saved, Resolved { keep: vec![0, 1, 2], aliases: BTreeMap::new() });

    // Halves that do not overlap are not tied, but neither is whole.
    let halves = [("l", Slice::new(1, 8, 0, 4)), ("r", Slice::new(1, 8, 4, 8)), ("again", Slice::new(1, 8, 4, 8))];
    assert_eq!(not_covered(&resolve(&halves[..2], &Tied::new()).unwrap_err()), ["l"]);
    let saved = resolve(&halves, &Tied::new().views(Views::Save)).unwrap();
    assert_eq!(saved, Resolved { keep: vec![0, 2], aliases: aliases(&[("r", "again")]) });
}

/// A row that is repeated until it is as large as the storage does not have what the other rows have.
#[test]
fn a_part_that_is_broadcast() {
    let whole = Slice { shape: vec![3, 3], ..Slice::whole(1, 9) };
    let mut row = Slice { shape: vec![3, 3], ..Slice::new(1, 9, 0, 3) };
    row.storage.as_mut().unwrap().contiguous = false;
    let dropped = resolve(&[("a", row.clone()), ("b", whole)], &Tied::new().views(Views::Drop)).unwrap();
    assert_eq!(dropped, Resolved { keep: vec![1], aliases: aliases(&[("a", "b")]) });
    assert_eq!(not_covered(&resolve(&[("a", row)], &Tied::new()).unwrap_err()), ["a"]);
}

/// As large as the storage is not yet the same.
#[test]
fn the_same_bytes_as_another_tensor() {
    let a = Slice { shape: vec![2, 2], ..Slice::whole(1, 4) };
    let mut transposed = a.clone();
    transposed.storage.as_mut().unwrap().contiguous = false;
    let flat = Slice { shape: vec![4], ..a.clone() };
    let integers = Slice { dtype: Dtype::I32, ..a.clone() };
    for other in [transposed, flat, integers] {
        let tensors = [("a", a.clone()), ("b", other.clone()), ("c", a.clone())];
        let error = resolve(&tensors, &Tied::new()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::PartlyTied { kept } if kept == "a"), "{error}");
        assert_eq!(error.tensor(), Some("b"));
        let saved = resolve(&tensors, &Tied::new().views(Views::Save)).unwrap();
        assert_eq!(saved, Resolved { keep: vec![0, 1], aliases: aliases(&[("c", "a")]) });
    }
}

#[test]
fn names_that_could_not_be_saved() {
    let shared = Slice::whole(1, 4);
    for (names, twice) in [(["a", "a"], true), (["__metadata__", "a"], false)] {
        let tensors = names.map(|name| (name, shared.clone()));
        let error = resolve(&tensors, &Tied::new()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DuplicateTensor if twice) || !twice, "{error}");
        assert!(matches!(error.kind(), ErrorKind::ReservedName if !twice) || twice, "{error}");
        assert_eq!(error.tensor(), Some(names[0]));
    }
}

#[test]
fn saved_once_and_recorded() {
    let buf = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    let equal = buf.clone();
    let tensors = [("b", &buf), ("c", &equal), ("a", &buf)];
    let options = SaveOptions::new().metadata([("format", "pt")]);

    let plain = SafeTensors::parse(serialize(tensors, &options).unwrap()).unwrap();
    assert_eq!((plain.tensors().len(), plain.metadata().len()), (3, 1));

    let options = options.tied(Tied::new());
    let file = serialize(tensors, &options).unwrap();
    let tied = SafeTensors::parse(&file).unwrap();
    assert_eq!(tied.tensors().map(|tensor| tensor.name()).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(*tied.metadata(), aliases(&[("b", "a"), ("format", "pt")]));
    // Nothing to tie, nothing recorded.
    let others = [("c", &equal), ("a", &buf)];
    let untied = SaveOptions::new().metadata([("format", "pt")]);
    assert_eq!(serialize(others, &options).unwrap(), serialize(others, &untied).unwrap());

    // An entry of the user's that says the same is fine; one that says something else would hide the name.
    assert_eq!(serialize(tensors, &options.clone().metadata([("b", "a")])).unwrap(), file);
    let error = serialize(tensors, &options.metadata([("b", "mine")])).unwrap_err();
    let ErrorKind::TieNotRecorded { kept, found } = error.kind() else { unreachable!("{error}") };
    assert_eq!((kept.as_str(), found.as_str(), error.tensor()), ("a", "mine", Some("b")));
}

#[test]
fn storages_of_views_and_buffers() {
    let buf = TensorBuf::from_vec(vec![2], vec![1_u8, 2]).unwrap();
    let copy = buf.clone();
    assert_eq!(TensorSource::storage(&buf), TensorSource::storage(&&buf));
    assert_ne!(TensorSource::storage(&buf), TensorSource::storage(&copy));
    let view = TensorView::from_slice(&[2], buf.bytes()).unwrap();
    let boxed: Box<dyn TensorSource> = Box::new(view);
    assert_eq!(boxed.storage(), TensorSource::storage(&buf));
}

#[cfg(feature = "std")]
mod files {
    use std::path::{Path, PathBuf};

    use safetensors_core::framework::{self, load};
    use safetensors_core::{Checkpoint, ErrorKind, Framework, LoadOptions, ShardOptions, Support, save, save_sharded};
    use tempfile::tempdir;

    use super::support::{file_with, write};
    use super::*;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
    }

    fn names(checkpoint: &Checkpoint) -> Vec<(String, String)> {
        checkpoint.aliases().map(|(alias, tensor)| (alias.to_owned(), tensor.name().to_owned())).collect()
    }

    /// Made by `safetensors.torch.save_model`, and by `huggingface_hub` with the names in the index.
    #[test]
    fn files_of_the_python_libraries() {
        for (name, shards) in [("tied.safetensors", 1), ("tied-sharded", 2)] {
            let checkpoint = Checkpoint::open(fixture(name)).unwrap();
            assert_eq!(checkpoint.shards().len(), shards);
            let kept = "decoder.weight";
            let expected = ["embed.weight", "lm_head.weight"].map(|alias| (alias.to_owned(), kept.to_owned()));
            assert_eq!(names(&checkpoint), expected);
            for name in [kept, "embed.weight", "lm_head.weight"] {
                let weight = checkpoint.tensor(name).unwrap();
                assert_eq!((weight.name(), weight.shape()), (kept, &[3, 2][..]));
                assert_eq!(weight.read().unwrap().into_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
            }
            assert_eq!((checkpoint.len(), checkpoint.tensors().count()), (2, 2));
            assert_eq!(
                checkpoint.tensor("decoder.bias").unwrap().read().unwrap().as_slice::<f32>().unwrap(),
                [-1.0, -2.0, -3.0]
            );
            for name in ["format", "title", "pt", "total_size", "embed"] {
                let error = checkpoint.tensor(name).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::TensorNotFound), "{error}");
            }
        }
    }

    /// What we save of a tied model is what Python saves, up to the order in the header.
    #[test]
    fn the_same_file_as_save_model() {
        let python = Checkpoint::open(fixture("tied.safetensors")).unwrap();
        let weight = python.tensor("decoder.weight").unwrap().read().unwrap();
        let bias = python.tensor("decoder.bias").unwrap().read().unwrap();
        let tensors = [
            ("embed.weight", &weight),
            ("decoder.weight", &weight),
            ("decoder.bias", &bias),
            ("lm_head.weight", &weight),
        ];
        let options = SaveOptions::new().metadata([("format", "pt"), ("title", "tied")]).tied(Tied::new());
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        save(&path, tensors, &options).unwrap();
        let ours = Checkpoint::open(&path).unwrap();
        assert_eq!(ours.metadata(), python.metadata());
        let infos = |checkpoint: &Checkpoint| {
            checkpoint.tensors().map(|tensor| format!("{:?}", tensor.info())).collect::<Vec<_>>()
        };
        assert_eq!(infos(&ours), infos(&python));
    }

    #[test]
    fn several_files_record_the_names_in_the_index() {
        let directory = tempdir().unwrap();
        let shared = Slice::whole(7, 4);
        let tensors = [("z", shared.clone()), ("own", Slice::whole(8, 4)), ("a", shared.clone())];
        let options = SaveOptions::new().durable(false).tied(Tied::new().prefer(["z"]));
        let sharded = ShardOptions::new().max_shard_size(16.into()).save(options.clone());
        let saved = save_sharded(directory.path(), tensors.clone(), &sharded).unwrap();
        assert_eq!((saved.files.len(), saved.total_size), (2, 32));
        let index = std::fs::read(directory.path().join("model.safetensors.index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        assert_eq!(index["metadata"], serde_json::json!({"a": "z", "total_size": 32}));
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        assert_eq!(names(&checkpoint), [("a".into(), "z".into())]);
        assert_eq!(checkpoint.tensor("a").unwrap().read().unwrap().bytes(), [7; 16]);
        for shard in checkpoint.shards() {
            assert_eq!(*shard.archive().metadata(), aliases(&[("format", "pt")]));
        }

        // One file records them itself.
        let one = ShardOptions::new().save(options.clone());
        assert_eq!(save_sharded(directory.path(), tensors.clone(), &one).unwrap().files, ["model.safetensors"]);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        assert_eq!(*checkpoint.metadata(), aliases(&[("a", "z"), ("format", "pt")]));

        // Untied, each name has its own bytes, and each counts.
        let untied = ShardOptions::new().max_shard_size(16.into()).save(SaveOptions::new().durable(false));
        let saved = save_sharded(directory.path(), tensors, &untied).unwrap();
        assert_eq!((saved.files.len(), saved.total_size), (3, 48));

        // Names that mean something else there.
        for name in ["total_size", "a"] {
            let tensors = [(name, shared.clone()), ("own", Slice::whole(8, 4)), ("z", shared.clone())];
            let sharded = ShardOptions::new().max_shard_size(16.into());
            let error = save_sharded(directory.path(), tensors, &sharded.save(options.clone().metadata([("a", "x")])))
                .unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::TieNotRecorded { .. }), "{error}");
            assert_eq!((error.tensor(), error.file()), (Some(name), directory.path().to_str()));
        }
        assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 3);
    }

    #[test]
    fn metadata_of_another_meaning() {
        let directory = tempdir().unwrap();
        let header = r#"{"__metadata__":{"a":"b","alias":"a","chain":"alias","other":"nothing","self":"self","":"b"},
            "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        let path = write(directory.path(), "model.safetensors", file_with(header, &[1, 2]));
        let checkpoint = Checkpoint::open(&path).unwrap();
        // A tensor's own name goes first; a name of a name is none.
        assert_eq!(names(&checkpoint), [("".into(), "b".into()), ("alias".into(), "a".into())]);
        assert_eq!(checkpoint.tensor("a").unwrap().read().unwrap().bytes(), [1]);
        assert_eq!(checkpoint.tensor("").unwrap().read().unwrap().bytes(), [2]);
        assert!(checkpoint.get("chain").is_none() && checkpoint.get("self").is_none());
    }

    #[test]
    fn errors_name_the_file() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("model.safetensors");
        let tensors = [("a", Slice::whole(1, 9)), ("b", Slice::new(1, 9, 0, 3))];
        let error = save(&path, tensors, &SaveOptions::new().tied(Tied::new())).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::PartlyTied { .. }), "{error}");
        assert_eq!((error.file(), error.tensor()), (path.to_str(), Some("b")));
        assert!(!path.exists());
    }

    /// A framework whose tensors are buffers.
    struct Bufs;

    impl Framework for Bufs {
        const NAME: &'static str = "bufs";
        type Tensor = TensorBuf;
        type Device = ();

        fn support(_: Dtype) -> Support {
            Support::Exact
        }

        fn from_exact(buf: TensorBuf, (): &()) -> Result<TensorBuf> {
            Ok(buf)
        }

        fn source(tensor: &TensorBuf) -> Result<impl TensorSource + '_> {
            Ok(tensor)
        }
    }

    #[test]
    fn frameworks_get_all_names() {
        let checkpoint = Checkpoint::open(fixture("tied-sharded")).unwrap();
        let all = load::<Bufs>(&checkpoint, &(), &LoadOptions::new()).unwrap();
        assert_eq!(
            all.keys().collect::<Vec<_>>(),
            ["decoder.bias", "decoder.weight", "embed.weight", "lm_head.weight"]
        );
        let weight = [0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0];
        assert!(
            all.iter()
                .filter(|(name, _)| name.ends_with("weight"))
                .all(|(_, buf)| buf.as_slice::<f32>().unwrap() == weight)
        );
        let saved = load::<Bufs>(&checkpoint, &(), &LoadOptions::new().aliases(false)).unwrap();
        assert_eq!(saved.keys().collect::<Vec<_>>(), ["decoder.bias", "decoder.weight"]);

        // And back: one buffer under two names is one tensor.
        let directory = tempdir().unwrap();
        let tensors = [("x", &all["embed.weight"]), ("y", &all["embed.weight"]), ("bias", &all["decoder.bias"])];
        let options = SaveOptions::new().tied(Tied::new());
        let saved = framework::save_sharded::<Bufs>(
            directory.path(),
            tensors,
            &ShardOptions::new().max_shard_size(24.into()).save(options),
        );
        assert_eq!(saved.unwrap().files.len(), 2);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        assert_eq!(names(&checkpoint), [("y".into(), "x".into())]);
    }
}
