//! Tied weights stay tied, under the name that their file has.

use safetensors_core::rewrite::PlannedTensor;

use super::{content, floats, saved};
use crate::support::*;

#[test]
fn tied_weights_stay_tied_under_any_name() {
    let dir = tempdir().unwrap();
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

    Rewrite::from_checkpoint(&tied).save(&to, &options).unwrap();
    assert_eq!(names(&to), (vec!["embed".into(), "norm".into()], alias("head", "embed")));

    Rewrite::from_checkpoint(&tied)
        .rename(|name| format!("model.{name}"))
        .save(&to, &options)
        .unwrap();
    assert_eq!(
        names(&to),
        (vec!["model.embed".into(), "model.norm".into()], alias("model.head", "model.embed"))
    );

    // The kept name is skipped, so the alias becomes the tensor.
    Rewrite::from_checkpoint(&tied).select(|name, _| name != "embed").save(&to, &options).unwrap();
    assert_eq!(names(&to), (vec!["head".into(), "norm".into()], vec![]));
    assert_eq!(Checkpoint::open(&to).unwrap().metadata().len(), 1, "the old record is gone");

    // Cast to one dtype, the names stay tied. Cast to different dtypes, they become two tensors.
    let cast = |names: &'static [&str]| {
        Rewrite::from_checkpoint(&tied)
            .cast(&ConvertOptions::new(), |name, _| names.contains(&name).then_some(Dtype::BF16))
            .unwrap()
    };
    cast(&["embed", "head"]).save(&to, &options).unwrap();
    assert_eq!(names(&to), (vec!["embed".into(), "norm".into()], alias("head", "embed")));
    cast(&["head"]).save(&to, &options).unwrap();
    assert_eq!(names(&to), (vec!["embed".into(), "head".into(), "norm".into()], vec![]));

    Rewrite::from_checkpoint(&tied)
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
    let dir = tempdir().unwrap();
    let path =
        saved(&dir, "tied.safetensors", &[("e", floats([1.0, 2.0]))], &[("a", "e"), ("b", "e")]);
    let tied = Checkpoint::open(&path).unwrap();
    let to = dir.path().join("to.safetensors");
    let cast = |which: &'static str| {
        let rewrite = Rewrite::from_checkpoint(&tied).select(|name, _| name != "e");
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
    let one = Rewrite::from_checkpoint(&tied)
        .select(|name, _| name != "e")
        .exclude(|name, _| name == "a");
    assert_eq!(one.tensors().map(|(name, _)| name).collect::<Vec<_>>(), ["b"]);
}

/// Other readers find a tensor only by its name in the file, so that name must not change to an
/// alias.
#[test]
fn a_tied_tensor_keeps_the_name_that_its_file_has() {
    let dir = tempdir().unwrap();
    let tied = [("embed", floats([1.0, 2.0])), ("norm", floats([3.0]))];
    // "a" sorts before "embed". So does "an alias by accident", a metadata entry that only looks
    // like an alias.
    let path =
        saved(&dir, "tied.safetensors", &tied, &[("a", "embed"), ("an alias by accident", "norm")]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let to = dir.path().join("to.safetensors");
    Rewrite::from_checkpoint(&checkpoint).save(&to, &SaveOptions::new()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), fs::read(&to).unwrap());

    Rewrite::from_checkpoint(&checkpoint)
        .rename(|name| format!("model.{name}"))
        .save(&to, &SaveOptions::new())
        .unwrap();
    let names: Vec<_> = content(&to).0.into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["model.embed", "model.norm"]);
}
