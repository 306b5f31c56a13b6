//! The output of a rewrite: equal tensors in other files, and other tensors, names and dtypes.

use super::{content, floats, saved};
use crate::support::*;

/// Units and names of dimensions describe the tensor that they described before.
#[test]
fn attributes_follow_their_tensors() {
    let dir = tempdir().unwrap();
    let tensors = ["u", "v"].map(|name| (name, floats([1.0])));
    let saved = |name, metadata: &[_]| saved(&dir, name, &tensors, metadata);
    let a = saved("a.safetensors", &[("attribute:u#units", "m"), ("attribute:v#units", "K")]);
    let b = saved("b.safetensors", &[("attribute:u#units", "s"), ("attribute:none#units", "g")]);
    let [a, b] = [a, b].map(|path| Checkpoint::open(path).unwrap());
    let units = |rewrite: Rewrite<'_>| {
        let path = dir.path().join("c.safetensors");
        rewrite.save(&path, &SaveOptions::new()).unwrap();
        let metadata = Checkpoint::open(path).unwrap().metadata().clone();
        metadata.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
    };
    let swap = |name: &str| if name == "u" { "v".to_owned() } else { "u".to_owned() };
    let swapped = units(Rewrite::from_checkpoint(&a).rename(swap));
    assert_eq!(swapped, ["attribute:u#units=K", "attribute:v#units=m"]);
    let replaced = Rewrite::from_checkpoint(&a).select(|name, _| name == "v").rename(swap);
    assert_eq!(units(replaced), ["attribute:u#units=K"]);
    let path = a.files()[0].path();
    // One of two tensors with the same name stays, and with it the description of that name.
    let merged = Rewrite::from_checkpoint(&a)
        .exclude(|name, _| name == "u")
        .merge(&b)
        .exclude(|name, tensor| name == "v" && tensor.tensor().unwrap().file() == Some(path));
    let expected = ["attribute:none#units=g", "attribute:u#units=s", "attribute:v#units=K"];
    assert_eq!(units(merged), expected);
}

#[test]
fn a_rewrite_that_changes_nothing_gives_the_same_file() {
    let dir = tempdir().unwrap();
    let path = saved(
        &dir,
        "a.safetensors",
        &[("x", floats([1.0, 2.0])), ("y", floats([3.0]))],
        &[("format", "pt")],
    );
    let before = fs::read(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    Rewrite::from_checkpoint(&checkpoint)
        .save(dir.path().join("b.safetensors"), &SaveOptions::new())
        .unwrap();
    assert_eq!(fs::read(dir.path().join("b.safetensors")).unwrap(), before);
    // The destination may also be the source.
    Rewrite::from_checkpoint(&checkpoint).save(&path, &SaveOptions::new()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn shards_become_one_file_and_one_file_becomes_shards() {
    let dir = tempdir().unwrap();
    let tensors: Vec<_> =
        (0..20).map(|i| (format!("layer.{i}"), floats((0..i * 100).map(|j| j as f32)))).collect();
    let named = tensors.iter().map(|(name, buf)| (name, buf));
    let small = ShardOptions::new().max_shard_size(10_000.into());
    save_sharded(dir.path().join("shards"), named, &small).unwrap();
    let before = content(&dir.path().join("shards"));

    let sharded = Checkpoint::open(dir.path().join("shards")).unwrap();
    assert!(sharded.files().len() > 5);
    let one = dir.path().join("one.safetensors");
    Rewrite::from_checkpoint(&sharded).save(&one, &SaveOptions::new()).unwrap();
    assert_eq!(content(&one), before);

    let one = Checkpoint::open(one).unwrap();
    let larger = ShardOptions::new().max_shard_size(30_000.into());
    let shards =
        Rewrite::from_checkpoint(&one).save_sharded(dir.path().join("again"), &larger).unwrap();
    assert!((2..sharded.files().len()).contains(&shards.files.len()), "{shards:?}");
    assert_eq!(content(&dir.path().join("again")), before);
}

#[test]
fn merging_selecting_renaming_and_casting() {
    let dir = tempdir().unwrap();
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

    let error = refused!(
        Rewrite::from_checkpoint(&base).merge(&other).save(&to, &SaveOptions::new()),
        ErrorKind::DuplicateTensor
    );
    assert_eq!(error.tensor(), Some("w"));
    assert!(!to.exists());

    let mut rewrite = Rewrite::from_checkpoint(&base)
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
fn errors_name_the_tensor_and_its_file_and_nothing_is_left_behind() {
    let dir = tempdir().unwrap();
    let complex =
        TensorBuf::from_vec(vec![1], vec![num_complex::Complex::new(1.0_f32, 2.0)]).unwrap();
    let path = saved(&dir, "a.safetensors", &[("c", complex), ("w", floats([1e6]))], &[]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = ConvertOptions::new().overflow(Overflow::Error);
    let cast = |which: &'static str| {
        Rewrite::from_checkpoint(&checkpoint)
            .cast(&options, move |name, _| (name == which).then_some(Dtype::F16))
    };
    let error = refused!(cast("c"), ErrorKind::NoConversion { .. });
    assert_eq!((error.tensor(), error.file()), (Some("c"), path.to_str()));

    let error = refused!(
        cast("w").unwrap().save(dir.path().join("b.safetensors"), &SaveOptions::new()),
        ErrorKind::DoesNotFit { index: 0, to: Dtype::F16, .. }
    );
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
    let error = cast("w").unwrap().save_sharded(dir.path(), &ShardOptions::new()).unwrap_err();
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
