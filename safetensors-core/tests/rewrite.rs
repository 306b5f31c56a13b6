//! Rewriting checkpoints: merging, selecting, renaming, casting and sharding anew, in bounded
//! memory.
#![cfg(feature = "std")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors_core::convert::Overflow;
use safetensors_core::rewrite::PlannedTensor;
use safetensors_core::save::Sink;
use safetensors_core::tied::Storage;
use safetensors_core::{
    Checkpoint, ConvertOptions, Dtype, ErrorKind, Rewrite, SaveOptions, ShardOptions, TensorBuf,
    TensorSource, TensorView, save, save_sharded,
};
use tempfile::TempDir;

fn floats(values: impl IntoIterator<Item = f32>) -> TensorBuf {
    let values: Vec<f32> = values.into_iter().collect();
    TensorBuf::from_vec(vec![values.len()], values).unwrap()
}

fn saved(
    dir: &TempDir,
    name: &str,
    tensors: &[(&str, TensorBuf)],
    metadata: &[(&str, &str)],
) -> PathBuf {
    let path = dir.path().join(name);
    let options = SaveOptions::new().metadata(metadata.iter().copied());
    save(&path, tensors.iter().map(|(name, buf)| (name, buf)), &options).unwrap();
    path
}

type Tensors = Vec<(String, Dtype, Vec<u8>)>;
type Aliases = Vec<(String, String)>;

/// The name, dtype and bytes of every tensor, and each alias with the name of its tensor.
fn content(path: &Path) -> (Tensors, Aliases) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut tensors: Vec<_> = checkpoint
        .tensors()
        .map(|tensor| {
            (tensor.name().to_owned(), tensor.dtype(), tensor.read().unwrap().bytes().to_vec())
        })
        .collect();
    tensors.sort();
    let aliases = checkpoint
        .aliases()
        .map(|(alias, tensor)| (alias.to_owned(), tensor.name().to_owned()))
        .collect();
    (tensors, aliases)
}

#[test]
fn a_rewrite_that_changes_nothing_gives_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = saved(
        &dir,
        "a.safetensors",
        &[("x", floats([1.0, 2.0])), ("y", floats([3.0]))],
        &[("format", "pt")],
    );
    let before = fs::read(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    Rewrite::of(&checkpoint).save(dir.path().join("b.safetensors"), &SaveOptions::new()).unwrap();
    assert_eq!(fs::read(dir.path().join("b.safetensors")).unwrap(), before);
    // The destination may also be the source.
    Rewrite::of(&checkpoint).save(&path, &SaveOptions::new()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn shards_become_one_file_and_one_file_becomes_shards() {
    let dir = tempfile::tempdir().unwrap();
    let tensors: Vec<_> =
        (0..20).map(|i| (format!("layer.{i}"), floats((0..i * 100).map(|j| j as f32)))).collect();
    let named = tensors.iter().map(|(name, buf)| (name, buf));
    let small = ShardOptions::new().max_shard_size(10_000.into());
    save_sharded(dir.path().join("shards"), named, &small).unwrap();
    let before = content(&dir.path().join("shards"));

    let sharded = Checkpoint::open(dir.path().join("shards")).unwrap();
    assert!(sharded.files().len() > 5);
    let one = dir.path().join("one.safetensors");
    Rewrite::of(&sharded).save(&one, &SaveOptions::new()).unwrap();
    assert_eq!(content(&one), before);

    let one = Checkpoint::open(one).unwrap();
    let larger = ShardOptions::new().max_shard_size(30_000.into());
    let shards = Rewrite::of(&one).save_sharded(dir.path().join("again"), &larger).unwrap();
    assert!((2..sharded.files().len()).contains(&shards.files.len()), "{shards:?}");
    assert_eq!(content(&dir.path().join("again")), before);
}

#[test]
fn merging_selecting_renaming_and_casting() {
    let dir = tempfile::tempdir().unwrap();
    let base = saved(
        &dir,
        "base.safetensors",
        &[("w", floats([1.0, 2.0])), ("b", floats([3.0]))],
        &[("a", "base")],
    );
    let ids = TensorBuf::from_vec(vec![1], vec![7_i64]).unwrap();
    let other = saved(
        &dir,
        "other.safetensors",
        &[("w", floats([9.0])), ("ids", ids)],
        &[("a", "other"), ("b", "other")],
    );
    let (base, other) = (Checkpoint::open(base).unwrap(), Checkpoint::open(other).unwrap());
    let to = dir.path().join("merged.safetensors");

    let error = Rewrite::of(&base).merge(&other).save(&to, &SaveOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    assert_eq!(error.tensor(), Some("w"));
    assert!(!to.exists());

    let mut rewrite = Rewrite::of(&base)
        .rename(|name| format!("base.{name}"))
        .merge(&other)
        .select(|name, tensor| name != "w" && tensor.byte_len() > 0)
        .cast(&ConvertOptions::new(), |_, tensor| {
            (tensor.dtype() == Dtype::F32).then_some(Dtype::F16)
        })
        .unwrap();
    rewrite.metadata_mut().insert("c".into(), "added".into());
    let planned: Vec<_> =
        rewrite.tensors().map(|(name, planned)| (name.to_owned(), planned.dtype())).collect();
    assert_eq!(
        planned,
        [
            ("base.b".to_owned(), Dtype::F16),
            ("base.w".to_owned(), Dtype::F16),
            ("ids".to_owned(), Dtype::I64)
        ]
    );
    rewrite.save(&to, &SaveOptions::new().metadata([("b", "options")])).unwrap();
    let (tensors, _) = content(&to);
    let halves = |values: &[f32]| {
        values.iter().flat_map(|&value| half::f16::from_f32(value).to_le_bytes()).collect()
    };
    assert_eq!(tensors[0], ("base.b".into(), Dtype::F16, halves(&[3.0])));
    assert_eq!(tensors[1], ("base.w".into(), Dtype::F16, halves(&[1.0, 2.0])));
    assert_eq!(tensors[2], ("ids".into(), Dtype::I64, 7_i64.to_le_bytes().to_vec()));
    let merged = Checkpoint::open(&to).unwrap();
    let metadata: Vec<_> =
        merged.metadata().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(metadata, [("a", "base"), ("b", "options"), ("c", "added")]);
}

#[test]
fn tied_weights_stay_tied_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = saved(
        &dir,
        "tied.safetensors",
        &[("embed", floats([1.0, 2.0])), ("norm", floats([3.0]))],
        &[("head", "embed"), ("format", "pt")],
    );
    let tied = Checkpoint::open(&path).unwrap();
    let to = dir.path().join("to.safetensors");
    let options = SaveOptions::new();
    let names = |path: &Path| {
        let (tensors, aliases) = content(path);
        (tensors.into_iter().map(|(name, ..)| name).collect::<Vec<_>>(), aliases)
    };
    let alias = |alias: &str, kept: &str| vec![(alias.to_owned(), kept.to_owned())];

    Rewrite::of(&tied).save(&to, &options).unwrap();
    assert_eq!(names(&to), (vec!["embed".into(), "norm".into()], alias("head", "embed")));

    Rewrite::of(&tied).rename(|name| format!("model.{name}")).save(&to, &options).unwrap();
    assert_eq!(
        names(&to),
        (vec!["model.embed".into(), "model.norm".into()], alias("model.head", "model.embed"))
    );

    // The kept name is left out, so the alias becomes the tensor.
    Rewrite::of(&tied).select(|name, _| name != "embed").save(&to, &options).unwrap();
    assert_eq!(names(&to), (vec!["head".into(), "norm".into()], vec![]));
    assert_eq!(Checkpoint::open(&to).unwrap().metadata().len(), 1, "the old record is gone");

    // Cast to one dtype, the names stay tied. Cast to different dtypes, they become two tensors.
    let cast = |names: &'static [&str]| {
        Rewrite::of(&tied)
            .cast(&ConvertOptions::new(), |name, _| names.contains(&name).then_some(Dtype::BF16))
            .unwrap()
    };
    cast(&["embed", "head"]).save(&to, &options).unwrap();
    assert_eq!(names(&to), (vec!["embed".into(), "norm".into()], alias("head", "embed")));
    cast(&["head"]).save(&to, &options).unwrap();
    assert_eq!(names(&to), (vec!["embed".into(), "head".into(), "norm".into()], vec![]));

    Rewrite::of(&tied)
        .save_sharded(dir.path().join("dir"), &ShardOptions::new().max_shard_size(8.into()))
        .unwrap();
    assert_eq!(
        names(&dir.path().join("dir")),
        (vec!["embed".into(), "norm".into()], alias("head", "embed"))
    );
}

/// If aliases are kept without their tensor, the first takes its place.
#[test]
fn aliases_without_their_tensor_are_cast_as_a_tensor_is() {
    let dir = tempfile::tempdir().unwrap();
    let path =
        saved(&dir, "tied.safetensors", &[("e", floats([1.0, 2.0]))], &[("a", "e"), ("b", "e")]);
    let tied = Checkpoint::open(&path).unwrap();
    let to = dir.path().join("to.safetensors");
    let cast = |which: &'static str| {
        let rewrite = Rewrite::of(&tied).select(|name, _| name != "e");
        let cast = |name: &str, tensor: &PlannedTensor<'_>| match which {
            "tensors" => (!tensor.is_alias()).then_some(Dtype::BF16),
            _ => (name == which).then_some(Dtype::BF16),
        };
        rewrite.cast(&ConvertOptions::new(), cast).unwrap().save(&to, &SaveOptions::new()).unwrap();
        let (tensors, aliases) = content(&to);
        (tensors.into_iter().map(|(name, dtype, _)| (name, dtype)).collect::<Vec<_>>(), aliases)
    };
    let both = (vec![("a".to_owned(), Dtype::BF16)], vec![("b".to_owned(), "a".to_owned())]);
    assert_eq!(cast("tensors"), both);
    assert_eq!(cast("a"), both);
    assert_eq!(
        cast("b"),
        (vec![("a".to_owned(), Dtype::F32), ("b".to_owned(), Dtype::BF16)], vec![])
    );
    // Leaving out one alias keeps the other.
    let one = Rewrite::of(&tied).select(|name, _| name != "e").without(|name, _| name == "a");
    assert_eq!(one.tensors().map(|(name, _)| name).collect::<Vec<_>>(), ["b"]);
}

/// Other readers find a tensor only by its name in the file, so that name must not change to an
/// alias.
#[test]
fn a_tied_tensor_keeps_the_name_that_its_file_has() {
    let dir = tempfile::tempdir().unwrap();
    let tied = [("embed", floats([1.0, 2.0])), ("norm", floats([3.0]))];
    // "a" sorts before "embed". So does "an alias by accident", a metadata entry that only looks
    // like an alias.
    let path =
        saved(&dir, "tied.safetensors", &tied, &[("a", "embed"), ("an alias by accident", "norm")]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let to = dir.path().join("to.safetensors");
    Rewrite::of(&checkpoint).save(&to, &SaveOptions::new()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), fs::read(&to).unwrap());

    Rewrite::of(&checkpoint)
        .rename(|name| format!("model.{name}"))
        .save(&to, &SaveOptions::new())
        .unwrap();
    let names: Vec<_> = content(&to).0.into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["model.embed", "model.norm"]);
}

#[test]
fn tensors_from_elsewhere_are_merged_cast_and_tied() {
    let dir = tempfile::tempdir().unwrap();
    let path = saved(&dir, "a.safetensors", &[("w", floats([1.0, 2.0]))], &[("format", "pt")]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let values = [3.0_f32, 4.0];
    let shared = TensorView::from_slice(&[2], &values).unwrap();
    let of_another_shape = TensorView::from_slice(&[2, 1], &values).unwrap();
    let to = dir.path().join("to.safetensors");
    let rewrite = Rewrite::of(&checkpoint)
        .add("z", shared)
        .unwrap()
        .add("b", shared)
        .unwrap()
        .add("column", of_another_shape)
        .unwrap()
        .add("owned", floats([1e6]))
        .unwrap();
    let sources: Vec<_> =
        rewrite.tensors().map(|(_, planned)| planned.tensor().is_some()).collect();
    assert_eq!(sources, [true, false, false, false, false]);
    let half = |name: &str| (name != "column").then_some(Dtype::BF16);
    let rewrite = rewrite
        .rename(|name| format!("m.{name}"))
        .cast(&ConvertOptions::new(), |name, _| half(&name[2..]));
    rewrite.unwrap().save(&to, &SaveOptions::new()).unwrap();
    let (tensors, aliases) = content(&to);
    let dtypes: Vec<_> = tensors.iter().map(|(name, dtype, _)| (name.as_str(), *dtype)).collect();
    let expected = [
        ("m.b", Dtype::BF16),
        ("m.column", Dtype::F32),
        ("m.owned", Dtype::BF16),
        ("m.w", Dtype::BF16),
    ];
    assert_eq!(dtypes, expected);
    assert_eq!(aliases, [("m.z".to_owned(), "m.b".to_owned())]);
    assert_eq!(
        tensors[0].2,
        [3.0, 4.0].map(half::bf16::from_f32).map(half::bf16::to_le_bytes).concat()
    );

    let strict = ConvertOptions::new().overflow(Overflow::Error);
    let cast =
        Rewrite::new().add("owned", floats([1e6])).unwrap().cast(&strict, |_, _| Some(Dtype::F16));
    let error = cast.unwrap().save(&to, &SaveOptions::new()).unwrap_err();
    assert_eq!((error.tensor(), error.file()), (Some("owned"), to.to_str()));
    assert_eq!(content(&to).0.len(), 4, "the file is as it was");
}

/// A tensor that fills only a part of its storage, such as a framework's view.
#[derive(Clone)]
struct Part(TensorBuf, std::ops::Range<u64>);

impl TensorSource for Part {
    fn dtype(&self) -> Dtype {
        self.0.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> safetensors_core::Result<()> {
        self.0.write_to(sink)
    }

    fn storage(&self) -> Option<Storage> {
        Some(Storage { id: 1, byte_len: 100, range: self.1.clone(), contiguous: true })
    }
}

#[test]
fn a_tensor_from_elsewhere_that_fills_a_part_of_its_storage_is_one_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("to.safetensors");
    let (start, middle) = (Part(floats([1.0]), 0..4), Part(floats([2.0]), 2..6));
    let rewrite = Rewrite::new().add("a", start.clone()).unwrap().add("b", start).unwrap();
    rewrite.add("c", middle).unwrap().save(&to, &SaveOptions::new()).unwrap();
    assert_eq!(
        content(&to).0.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
}

#[test]
fn a_plan_is_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let tensors =
        [("embed", floats([1.0, 2.0])), ("norm", floats([3.0])), ("up", floats([4.0, 5.0]))];
    let path = saved(&dir, "a.safetensors", &tensors, &[("a.head", "embed"), ("format", "pt")]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let rewrite = Rewrite::of(&checkpoint)
        .rename(|name| format!("m.{name}"))
        .cast(&ConvertOptions::new(), |name, _| (name == "m.up").then_some(Dtype::F64))
        .unwrap();

    let plan = rewrite.plan(&SaveOptions::new()).unwrap();
    let planned: Vec<_> = plan
        .tensors()
        .map(|(name, tensor)| {
            (name, tensor.source_name(), tensor.source_dtype(), tensor.dtype(), tensor.byte_len())
        })
        .collect();
    let expected = [
        ("m.embed", "embed", Dtype::F32, Dtype::F32, 8),
        ("m.norm", "norm", Dtype::F32, Dtype::F32, 4),
        ("m.up", "up", Dtype::F32, Dtype::F64, 16),
    ];
    assert_eq!(planned, expected);
    assert_eq!((plan.total_size(), plan.files().len()), (28, 0));
    assert_eq!(
        plan.aliases().iter().collect::<Vec<_>>(),
        [(&"m.a.head".to_owned(), &"m.embed".to_owned())]
    );
    let alias = rewrite.tensors().find(|(name, _)| *name == "m.a.head").unwrap().1;
    assert_eq!(alias.source_name(), "a.head");

    let options = ShardOptions::new().max_shard_size(12.into());
    let plan = rewrite.plan_sharded(&options).unwrap();
    let shards: Vec<(String, Vec<String>)> = plan
        .files()
        .map(|(file, tensors)| {
            (file.to_owned(), tensors.map(|(name, _)| name.to_owned()).collect())
        })
        .collect();
    assert_eq!((plan.tensors().len(), plan.total_size()), (3, 28));
    let saved = rewrite.save_sharded(dir.path().join("shards"), &options).unwrap();
    assert_eq!(saved.total_size, 28);
    assert_eq!(saved.files, shards.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>());
    for (file, names) in shards {
        let mut found: Vec<_> = content(&dir.path().join("shards").join(file))
            .0
            .into_iter()
            .map(|(name, ..)| name)
            .collect();
        found.sort();
        assert_eq!(found, names);
    }
}

#[test]
fn a_plan_refuses_what_a_save_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let path = saved(
        &dir,
        "a.safetensors",
        &[("a", floats([1.0])), ("b", floats([2.0]))],
        &[("alias", "a")],
    );
    let checkpoint = Checkpoint::open(&path).unwrap();
    let rename = |new: &'static str| Rewrite::of(&checkpoint).rename(move |_| new.to_owned());
    let sharded = ShardOptions::new();
    for (new, expected) in [("same", "duplicate tensor name"), ("__metadata__", "is reserved")] {
        let errors = [
            rename(new).plan(&SaveOptions::new()).map(|_| ()).unwrap_err(),
            rename(new).plan_sharded(&sharded).map(|_| ()).unwrap_err(),
            rename(new).save(dir.path().join("b.safetensors"), &SaveOptions::new()).unwrap_err(),
        ];
        for error in errors {
            assert!(error.to_string().contains(expected) && error.tensor() == Some(new), "{error}");
        }
    }
    let taken = SaveOptions::new().metadata([("alias", "something else")]);
    let error = Rewrite::of(&checkpoint).plan(&taken).map(|_| ()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TieNotRecorded { .. }), "{error}");
    let error =
        Rewrite::of(&checkpoint).plan(&SaveOptions::new().align(7)).map(|_| ()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BadAlignment { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn errors_name_the_tensor_and_its_file_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let complex =
        TensorBuf::from_vec(vec![1], vec![num_complex::Complex::new(1.0_f32, 2.0)]).unwrap();
    let path = saved(&dir, "a.safetensors", &[("c", complex), ("w", floats([1e6]))], &[]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = ConvertOptions::new().overflow(Overflow::Error);
    let cast = |which: &'static str| {
        Rewrite::of(&checkpoint)
            .cast(&options, move |name, _| (name == which).then_some(Dtype::F16))
    };
    let error = cast("c").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoConversion { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("c"), path.to_str()));

    let error =
        cast("w").unwrap().save(dir.path().join("b.safetensors"), &SaveOptions::new()).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::DoesNotFit { index: 0, to: Dtype::F16, .. }),
        "{error}"
    );
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
    let error = cast("w").unwrap().save_sharded(dir.path(), &ShardOptions::new()).unwrap_err();
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Re-shards and casts a checkpoint of 20 GiB, and measures the peak memory. Most of the checkpoint
/// is a hole in a sparse file.
///
/// `cargo test --release -p safetensors-core --test rewrite -- --ignored --nocapture` (writes 15
/// GiB to the temp dir)
#[test]
#[ignore = "writes 15 GiB"]
fn twenty_gibibytes_are_sharded_anew_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let tensors = 20_u64;
    let each = 1_u64 << 30;
    let entries: Vec<_> = (0..tensors)
        .map(|i| {
            format!(
                r#""layer.{i:02}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}}"#,
                each / 4,
                i * each,
                (i + 1) * each
            )
        })
        .collect();
    let json = format!("{{{}}}", entries.join(","));
    let mut file = File::create(&path).unwrap();
    file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    file.write_all(json.as_bytes()).unwrap();
    file.set_len(8 + json.len() as u64 + tensors * each).unwrap();
    drop(file);

    let checkpoint = Checkpoint::open(&path).unwrap();
    let started = std::time::Instant::now();
    let saved = Rewrite::of(&checkpoint)
        .cast(&ConvertOptions::new(), |name, _| (name < "layer.10").then_some(Dtype::BF16))
        .unwrap()
        .save_sharded(
            dir.path().join("shards"),
            &ShardOptions::new().save_options(SaveOptions::new().durable(false)),
        )
        .unwrap();
    assert_eq!(saved.total_size, 15 << 30);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    println!("{} files in {:.1?}, {peak}", saved.files.len(), started.elapsed());
    let peak: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak < 256 * 1024, "{peak} KiB");
}
