//! Plans: they describe the output, and refuse the same as a save.

use safetensors_core::checkpoint::save_sharded_to;
use safetensors_core::error::{IndexProblem, TieProblem};
use safetensors_testing::tensors::unread;

use super::{content, floats, saved};
use crate::support::*;

#[test]
fn a_plan_equals_the_written_file() {
    let dir = tempdir().unwrap();
    let tensors =
        [("embed", floats([1.0, 2.0])), ("norm", floats([3.0])), ("up", floats([4.0, 5.0]))];
    let path = saved(&dir, "a.safetensors", &tensors, &[("a.head", "embed"), ("format", "pt")]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let rewrite = Rewrite::from_checkpoint(&checkpoint)
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
fn a_plan_refuses_the_same_as_a_save() {
    type IsExpected = fn(&ErrorKind) -> bool;

    let dir = tempdir().unwrap();
    let path = saved(
        &dir,
        "a.safetensors",
        &[("a", floats([1.0])), ("b", floats([2.0]))],
        &[("alias", "a")],
    );
    let checkpoint = Checkpoint::open(&path).unwrap();
    let rename =
        |new: &'static str| Rewrite::from_checkpoint(&checkpoint).rename(move |_| new.to_owned());
    let sharded = ShardOptions::new();
    let cases: [(&str, IsExpected); 2] = [
        ("same", |kind| matches!(kind, ErrorKind::DuplicateTensor)),
        ("__metadata__", |kind| matches!(kind, ErrorKind::ReservedName)),
    ];
    for (new, is_expected) in cases {
        let errors = [
            rename(new).plan(&SaveOptions::new()).map(|_| ()).unwrap_err(),
            rename(new).plan_sharded(&sharded).map(|_| ()).unwrap_err(),
            rename(new).save(dir.path().join("b.safetensors"), &SaveOptions::new()).unwrap_err(),
        ];
        for error in errors {
            assert!(is_expected(error.kind()) && error.tensor() == Some(new), "{error}");
        }
    }
    let taken = SaveOptions::new().metadata([("alias", "something else")]);
    refused!(
        Rewrite::from_checkpoint(&checkpoint).plan(&taken).map(|_| ()),
        ErrorKind::Tie { problem: TieProblem::NotRecorded { .. } }
    );
    refused!(
        Rewrite::from_checkpoint(&checkpoint).plan(&SaveOptions::new().align(7)).map(|_| ()),
        ErrorKind::BadAlignment { .. }
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// An index that no reader accepts is found by the plan, and before a shard is written.
#[test]
fn an_index_over_the_limits() {
    let (_dir, to) = place("new");
    let many = (0..1_000_000).rev().map(|i| (format!("{i:06}"), ""));
    let options = ShardOptions::new().metadata(many).max_shard_size(1.into());
    let too_many = |error: &Error| {
        matches!(
            error.kind(),
            ErrorKind::BadIndex { problem: IndexProblem::TooManyEntries { limit: 1_000_000 } }
        )
    };
    let rewrite: Rewrite<'_> =
        Rewrite::new().add("a", unread(1)).unwrap().add("b", unread(1)).unwrap();
    let error = rewrite.plan_sharded(&options).unwrap_err();
    assert!(too_many(&error), "{error}");
    let error = save_sharded(&to, [("a", unread(1)), ("b", unread(1))], &options).unwrap_err();
    assert!(too_many(&error) && error.file() == to.to_str(), "{error}");
    let (mut store, tensors) = (MemoryStore::default(), [("a", unread(1)), ("b", unread(1))]);
    let error = save_sharded_to(&mut store, tensors, &options).unwrap_err();
    assert!(too_many(&error), "{error}");
    assert!(!to.exists());
}
