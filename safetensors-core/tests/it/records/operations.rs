//! Each operation of a file with every record, also if a manifest describes it.

use safetensors_core::digest::{DigestOptions, KEY};
use safetensors_core::ranks::RankRules;
use safetensors_core::save::{GrowingWriter, StreamWriter, write_to};

use super::{NAME, SHA256, assert_refused, bytes, compared, create, describe, digests, taken};
use crate::support::*;

/// An operation on the file at a path. Returns the path of the result.
type Operation = (&'static str, fn(&Path) -> Result<PathBuf>, (usize, bool, bool));

fn rewritten(path: &Path, to: &str, change: fn(Rewrite<'_>) -> Rewrite<'_>) -> Result<PathBuf> {
    let to = path.with_file_name(to);
    let checkpoint = Checkpoint::open(path)?;
    change(Rewrite::from_checkpoint(&checkpoint)).save(&to, &SaveOptions::new())?;
    Ok(to)
}

fn written(path: &Path, bytes: Vec<u8>) -> Result<PathBuf> {
    let to = path.with_file_name("written.safetensors");
    fs::write(&to, bytes).map_err(ErrorKind::Io)?;
    Ok(to)
}

/// The change of an edit, and the records that remain.
type Change = (&'static str, fn(Edit<'static>) -> Result<Edit<'static>>, (usize, bool, bool));

const EDITS: &[Change] = &[
    (
        "set metadata in place",
        |edit| Ok(edit.in_place(true).set_metadata([("k", "w")])),
        (3, true, true),
    ),
    ("set metadata in a new file", |edit| Ok(edit.set_metadata([("k", "w")])), (3, true, true)),
    ("remove the digests of tensors", |edit| Ok(edit.remove_metadata([KEY])), (0, true, true)),
    ("rename", |edit| Ok(edit.rename([("a", "b"), ("b", "x")])), (3, true, true)),
    ("remove", |edit| Ok(edit.remove(["a"])), (2, false, true)),
    ("append", |edit| Ok(edit.append([("d", bytes(&[3]))])), (3, false, true)),
    ("append nothing", |edit| Ok(edit.append([("d", bytes(&[0]))])), (3, true, true)),
    ("replace", |edit| Ok(edit.remove(["a"]).append([("a", bytes(&[3]))])), (2, false, true)),
    (
        "record, rename",
        |edit| Ok(edit.record_digests(&digests(true))?.rename([("a", "z")])),
        (3, true, true),
    ),
    ("record, remove", |edit| edit.remove(["a"]).record_digests(&digests(true)), (2, true, true)),
    (
        "record, append",
        |edit| Ok(edit.record_digests(&digests(true))?.append([("d", bytes(&[3]))])),
        (4, true, true),
    ),
    (
        "record, append nothing",
        |edit| {
            let edit = edit.in_place(true).record_digests(&digests(true))?;
            Ok(edit.append([("d", bytes(&[0]))]))
        },
        (4, true, true),
    ),
    (
        "record, replace and rename",
        |edit| {
            let edit = edit.remove(["a"]).append([("a", bytes(&[3]))]).rename([("b", "z")]);
            edit.record_digests(&digests(true))
        },
        (3, true, true),
    ),
    (
        "record no SHA-256, append",
        |edit| Ok(edit.record_digests(&digests(false))?.append([("d", bytes(&[3]))])),
        (4, false, true),
    ),
    (
        "record the SHA-256 alone, append",
        |edit| {
            let options = DigestOptions::new().tensors(false).sha256(true);
            edit.append([("d", bytes(&[3]))]).record_digests(&options)
        },
        (3, true, true),
    ),
    (
        "record, then not",
        |edit| {
            let edit = edit.record_digests(&digests(true))?.append([("d", bytes(&[3]))]);
            Ok(edit.remove_metadata([KEY, SHA256]))
        },
        (0, false, true),
    ),
    (
        "record, clear",
        |edit| Ok(edit.record_digests(&digests(true))?.clear_metadata()),
        (0, false, false),
    ),
];

/// The operations that change the file itself.
const CHANGES: &[Operation] = &[
    ("rewrite", |path| rewritten(path, NAME, |it| it), (0, false, false)),
    (
        "cast",
        |path| {
            rewritten(path, NAME, |it| {
                it.cast(&ConvertOptions::new(), |_, _| Some(Dtype::U16)).unwrap()
            })
        },
        (0, false, false),
    ),
    (
        "write shards",
        |path| {
            let checkpoint = Checkpoint::open(path)?;
            let options = ShardOptions::new().max_shard_size(6.into());
            Rewrite::from_checkpoint(&checkpoint).save_sharded(path.parent().unwrap(), &options)?;
            Ok(path.parent().unwrap().into())
        },
        (0, false, false),
    ),
    (
        "grow",
        |path| {
            let writer = GrowingWriter::resume(path, &SaveOptions::new())?;
            writer.add("d", &bytes(&[3]))?;
            writer.finish()?;
            Ok(path.into())
        },
        (4, false, false),
    ),
    (
        "save",
        |path| {
            let (tensors, options) = taken(path)?;
            save(path, tensors, &options)?;
            Ok(path.into())
        },
        (0, false, false),
    ),
];

/// The operations that write another file, with the metadata of this one.
const COPIES: &[Operation] = &[
    (
        "select",
        |path| rewritten(path, "new.safetensors", |it| it.select(|name, _| name == "a")),
        (0, false, false),
    ),
    (
        "write for ranks",
        |path| {
            let (to, checkpoint) = (path.with_file_name("ranks"), Checkpoint::open(path)?);
            let rewrite = Rewrite::from_checkpoint(&checkpoint);
            let rules = RankRules::new().parse_rule("b=split:0")?.parse_rule("*=replicate")?;
            let plan = rewrite.plan_ranks(&rules, 2, &SaveOptions::new())?;
            rewrite.save_ranks(&to, &plan, "divide", &ShardOptions::new())?;
            Ok(to)
        },
        (0, false, true),
    ),
    (
        "save with digests",
        |path| {
            let (tensors, options) = taken(path)?;
            let to = path.with_file_name("new.safetensors");
            save(&to, tensors, &options.digests(true))?;
            Ok(to)
        },
        (2, false, false),
    ),
    (
        "save in shards",
        |path| {
            let (tensors, options) = taken(path)?;
            let to = path.with_file_name("shards");
            let options = ShardOptions::new().max_shard_size(6.into()).save_options(options);
            save_sharded(&to, tensors, &options)?;
            assert!(
                !fs::read_to_string(to.join("model.safetensors.index.json")).unwrap().contains(KEY)
            );
            Ok(to)
        },
        (0, false, false),
    ),
    (
        "serialize",
        |path| {
            let (tensors, options) = taken(path)?;
            written(path, serialize(tensors, &options)?)
        },
        (0, false, false),
    ),
    (
        "write to a pipe",
        |path| {
            let ((tensors, options), mut pipe) = (taken(path)?, Vec::new());
            write_to(&mut pipe, tensors, &options.digests(true))?;
            written(path, pipe)
        },
        (2, false, false),
    ),
    (
        "stream",
        |path| {
            let (to, (_, options)) = (path.with_file_name("new.safetensors"), taken(path)?);
            let writer = StreamWriter::create(&to, [("a", Dtype::U8, [2])], &options)?;
            writer.tensor("a")?.append(&[1_u8, 2])?;
            writer.finish()?;
            Ok(to)
        },
        (0, false, false),
    ),
    (
        "grow from nothing",
        |path| {
            let (to, (_, options)) = (path.with_file_name("new.safetensors"), taken(path)?);
            let writer = GrowingWriter::create(&to, &options)?;
            writer.add("d", &bytes(&[3]))?;
            writer.finish()?;
            Ok(to)
        },
        (0, false, false),
    ),
];

/// Runs an operation on a file with all records, which a manifest may describe. Afterwards the result
/// has the expected ones, or the file has not changed and the operation is refused.
fn check(
    name: &str,
    operation: &dyn Fn(&Path) -> Result<PathBuf>,
    expected: (usize, bool, bool),
    is_refused: bool,
) {
    let directory = tempdir().unwrap();
    let path = create(directory.path());
    assert_eq!(compared(&path), (3, true, true));
    if is_refused {
        describe(&path, directory.path());
        let (before, names) = (fs::read(&path).unwrap(), names_in(directory.path()));
        let error = operation(&path).err().unwrap_or_else(|| panic!("{name} changed the file"));
        assert_refused(name, &error);
        assert_eq!(fs::read(&path).unwrap(), before, "{name}");
        assert_eq!(names_in(directory.path()), names, "{name}");
        return;
    }
    let to = operation(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(compared(&to), expected, "{name}");
}

#[test]
fn after_each_operation_every_record_is_right_or_gone() {
    for (name, change, expected) in EDITS {
        let operation = |path: &Path| {
            change(Edit::open(path)?)?.apply()?;
            Ok(path.into())
        };
        check(name, &operation, *expected, false);
        check(name, &operation, *expected, true);
    }
    for (name, operation, expected) in CHANGES {
        check(name, operation, *expected, false);
        check(name, operation, *expected, true);
    }
    for (name, operation, expected) in COPIES {
        check(name, operation, *expected, false);
    }
}

#[test]
fn a_file_that_a_manifest_describes_is_read() {
    for (name, operation, expected) in COPIES {
        let directory = tempdir().unwrap();
        let path = create(directory.path());
        describe(&path, directory.path());
        let to = operation(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(compared(&to), *expected, "{name}");
    }
}
