//! Sharded saves that are interrupted at every step.
//! Files under given names ([`named`]); several saves at once ([`races`]); the division into shards
//! ([`split`]).

mod named;
mod races;
mod split;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use tempfile::{TempDir, tempdir, tempdir_in};

use crate::checkpoint::{Checkpoint, LocalDirectory, ShardOptions, save_sharded, stage_sharded_to};
use crate::file::io::failpoint::{Interrupted, crash_at, fail_at, interrupt_everywhere};
use crate::file::io::testing::{directory_in_memory, names_in, save_until_clean};
use crate::file::load::LoadOptions;
use crate::file::save::SaveOptions;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{TensorBuf, TensorView};
use crate::save;

type Content = BTreeMap<String, Vec<u8>>;

/// The content of a directory before the save.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Before {
    Nothing,
    /// `model.safetensors`.
    Single,
    /// One file of another name.
    Other,
    /// This many shards and their index.
    Shards(usize),
    /// An index with other names, among them the name of a shard to come.
    Foreign,
    /// A malformed index, next to shards.
    Broken,
}

const BEFORE: [Before; 8] = [
    Before::Nothing,
    Before::Single,
    Before::Other,
    Before::Shards(2),
    Before::Shards(3),
    Before::Shards(4),
    Before::Foreign,
    Before::Broken,
];

fn options(shards: usize, durable: bool) -> ShardOptions {
    // 12 tensors of 1 byte each.
    let size = 12_usize.div_ceil(shards) as u64;
    ShardOptions::new()
        .max_shard_size(size.into())
        .save_options(SaveOptions::new().durable(durable))
}

/// 12 tensors: most have the same names in each version, and all have other values.
fn content(version: u8) -> Content {
    let names = (0..11).map(|i| format!("tensor {i:02}")).chain([format!("version {version}")]);
    names.zip(version * 20..).map(|(name, value)| (name, vec![value])).collect()
}

fn save_shards(directory: &Path, version: u8, options: &ShardOptions) -> Result<()> {
    let shape = [1];
    let content = content(version);
    let views =
        content.iter().map(|(name, bytes)| (name, TensorView::from_slice(&shape, bytes).unwrap()));
    save_sharded(directory, views, options).map(drop)
}

fn read(directory: &Path) -> Result<Content> {
    read_from(&Checkpoint::open(directory)?)
}

fn read_from(checkpoint: &Checkpoint) -> Result<Content> {
    let bufs = checkpoint.read_all(&LoadOptions::new().threads(1))?;
    let named = checkpoint.tensors().zip(bufs).map(|(tensor, buf)| (tensor.name().to_owned(), buf));
    Ok(named.map(|(name, buf): (_, TensorBuf)| (name, buf.bytes().to_vec())).collect())
}

/// Returns the number that fills all tensors of a directory, which have this many bytes.
pub(crate) fn fill_of(directory: &Path, len: usize) -> u8 {
    let checkpoint = Checkpoint::open(directory).unwrap();
    let tensors = checkpoint.read_all(&LoadOptions::new().threads(1)).unwrap();
    let bytes: Vec<u8> = tensors.iter().flat_map(TensorBuf::bytes).copied().collect();
    assert_eq!(bytes.len(), len);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture: {bytes:?}");
    bytes[0]
}

pub(super) fn prepare(before: Before) -> TempDir {
    let directory = directory_in_memory();
    let path = directory.path();
    fs::write(path.join("config.json"), "{}").unwrap();
    match before {
        Before::Nothing => {}
        Before::Single => save_shards(path, 1, &options(1, false)).unwrap(),
        Before::Other => {
            save_shards(path, 1, &options(1, false)).unwrap();
            fs::rename(path.join("model.safetensors"), path.join("other.safetensors")).unwrap();
        }
        Before::Shards(shards) => save_shards(path, 1, &options(shards, false)).unwrap(),
        Before::Foreign => {
            save_shards(path, 1, &options(3, false)).unwrap();
            let index = path.join("model.safetensors.index.json");
            let mut text = fs::read_to_string(&index).unwrap();
            for (from, to) in [
                (1, "model-00007-of-00009"),
                (2, "model-00002-of-00002"),
                (3, "model-00002-of-00002.replaced-1"),
            ] {
                let from = format!("model-0000{from}-of-00003");
                fs::rename(
                    path.join(format!("{from}.safetensors")),
                    path.join(format!("{to}.safetensors")),
                )
                .unwrap();
                text = text.replace(&from, to);
            }
            fs::write(index, text).unwrap();
        }
        Before::Broken => {
            save_shards(path, 1, &options(2, false)).unwrap();
            fs::write(path.join("model.safetensors.index.json"), "{}").unwrap();
        }
    }
    let loadable = !matches!(before, Before::Nothing | Before::Broken);
    assert_eq!(read(path).ok(), loadable.then(|| content(1)));
    directory
}

/// Returns the files of a directory after a save of this many shards.
fn names_after(before: Before, shards: usize) -> Vec<String> {
    let mut names = BTreeSet::from(["config.json".to_owned()]);
    if before == Before::Other {
        names.insert("other.safetensors".into());
    }
    match shards {
        1 => _ = names.insert("model.safetensors".into()),
        _ => {
            names.insert("model.safetensors.index.json".into());
            names.extend(
                (1..=shards).map(|shard| format!("model-{shard:05}-of-{shards:05}.safetensors")),
            );
        }
    }
    names.into_iter().collect()
}

/// Asserts that a directory opens as one of two versions, whole, and says whether it is the second.
fn is_new(directory: &Path, before: Before, context: &str) -> bool {
    match read(directory) {
        Ok(found) if found == content(2) => true,
        Ok(found) => {
            assert_eq!(found, content(1), "{context}");
            false
        }
        // If nothing opened before the save, nothing need open now.
        Err(_) if matches!(before, Before::Nothing | Before::Broken) => false,
        Err(error) => unreachable!("{context}: {error}"),
    }
}

#[test]
fn an_interrupted_save_leaves_the_old_checkpoint_or_the_new_one() {
    let mut steps = BTreeSet::new();
    for (before, shards) in BEFORE.into_iter().flat_map(|before| [1, 2, 3].map(|n| (before, n))) {
        let mut was_new = false;
        // With the steps that wait for the disk, but not each time, because they do wait.
        let act = |place: &TempDir| save_shards(place.path(), 2, &options(shards, shards == 2));
        let check = |place: TempDir, interrupted: Option<Interrupted>, result: Result<()>| {
            let path = place.path();
            let context = format!("{before:?} -> {shards} shards, {interrupted:?}, {result:?}");
            let new = is_new(path, before, &context);
            assert!(if result.is_ok() { new } else { interrupted.is_some() }, "{context}");
            // The error distinguishes the two.
            if let Err(error) = &result {
                let says_new =
                    matches!(error.kind(), ErrorKind::NotDurable(_) | ErrorKind::LeftBehind(_));
                assert!(says_new == new || before == Before::Other, "{context}");
            }
            // Once the directory opens as the new checkpoint, it does so at all later steps. A step
            // that has a substitute does not interrupt the save.
            assert!(new || !was_new, "{context}");
            was_new = new && result.is_err();
            if !interrupted.is_some_and(|it| it.killed) {
                let names = names_in(path);
                let is_clean = names.iter().all(|name| !name.starts_with('.'));
                assert!(is_clean, "{context}: {names:?}");
            }
            // The next save succeeds, and removes the leftovers of the interrupted one.
            save_until_clean(path, || save_shards(path, 2, &options(shards, false)).unwrap());
            assert!(is_new(path, before, &context));
            assert_eq!(names_in(path), names_after(before, shards));
        };
        steps.extend(interrupt_everywhere(|| prepare(before), act, check));
    }
    let expected = [
        "create",
        "link",
        "remove",
        "remove the renamed file",
        "rename",
        "sync the directory",
        "sync the file",
        "write the index",
    ];
    assert!(expected.iter().all(|step| steps.contains(step)), "{steps:?}");
}

/// If any step of a commit fails, the stage commits again. A failure before leaves nothing.
#[test]
fn a_commit_that_failed_can_be_repeated() {
    let mut repeated = 0;
    for (before, shards) in BEFORE.into_iter().flat_map(|before| [1, 3].map(|n| (before, n))) {
        let act = |directory: &TempDir| -> Result<bool> {
            let options = options(shards, true);
            let content = content(2);
            let views = content
                .iter()
                .map(|(name, bytes)| (name, TensorView::from_slice(&[1], bytes).unwrap()));
            let mut place = LocalDirectory::create(directory.path(), &options)?;
            let mut staged = stage_sharded_to(&mut place, views, &options)?;
            Ok(staged.commit().is_err() && staged.commit().map(|_| true)?)
        };
        interrupt_everywhere(
            || prepare(before),
            act,
            |directory, interrupted, result| {
                let context = format!("{before:?}, {shards} shards, {interrupted:?}, {result:?}");
                let new = is_new(directory.path(), before, &context);
                match result {
                    Ok(is_second) => {
                        assert!(new, "{context}");
                        repeated += usize::from(is_second);
                        assert_eq!(names_in(directory.path()), names_after(before, shards));
                    }
                    Err(_) if interrupted.is_some_and(|it| it.killed) => {}
                    Err(_) => {
                        assert!(!new, "{context}");
                        let names = names_in(directory.path());
                        assert!(names.iter().all(|name| !name.starts_with('.')), "{context}");
                    }
                }
            },
        );
    }
    assert!(repeated > 100, "{repeated}");
}

/// A caller that finds something wrong between the two steps drops the stage.
#[test]
fn a_stage_that_has_begun_and_is_dropped_ends_the_lock() {
    let directory = prepare(Before::Shards(2));
    let options = options(2, false);
    let content = content(2);
    let views =
        || content.iter().map(|(name, bytes)| (name, TensorView::from_slice(&[1], bytes).unwrap()));
    let mut place = LocalDirectory::create(directory.path(), &options).unwrap();
    stage_sharded_to(&mut place, views(), &options).unwrap().begin().unwrap();
    assert_eq!(read(directory.path()).unwrap(), self::content(1));
    save_shards(directory.path(), 3, &options).unwrap();
    stage_sharded_to(&mut place, views(), &options).unwrap().commit().unwrap();
    assert_eq!(read(directory.path()).unwrap(), content);
}

#[test]
fn a_save_that_is_interrupted_after_another_that_was() {
    for shards in [1, 2] {
        for first in 0..200 {
            let mut finished = false;
            for second in 0..200 {
                let directory = prepare(Before::Shards(2));
                let path = directory.path();
                let options = options(shards, false);
                let (_, failed) = crash_at(first, || save_shards(path, 3, &options));
                finished = failed.is_none();
                let before_second = read(path).unwrap();
                assert!(before_second == content(1) || before_second == content(3));
                let (_, failed) = crash_at(second, || save_shards(path, 2, &options));
                let found = read(path).unwrap();
                assert!(
                    found == before_second || found == content(2),
                    "{shards} shards, steps {first} and {second}"
                );
                save_shards(path, 2, &options).unwrap();
                assert_eq!(names_in(path), names_after(Before::Shards(2), shards));
                assert_eq!(read(path).unwrap(), content(2));
                if failed.is_none() {
                    break;
                }
            }
            if finished {
                break;
            }
        }
    }
}

#[test]
fn without_links_old_shards_are_copied() {
    let directory = prepare(Before::Shards(2));
    let path = directory.path();
    // The step at which the first link is made.
    let link = (0..100)
        .find(|&n| {
            let other = prepare(Before::Shards(2));
            fail_at(n, || save_shards(other.path(), 2, &options(2, false))).1 == Some("link")
        })
        .unwrap();
    let (result, failed) = fail_at(link, || save_shards(path, 2, &options(2, false)));
    assert_eq!(failed, Some("link"));
    result.unwrap();
    assert_eq!(read(path).unwrap(), content(2));
    assert_eq!(names_in(path), names_after(Before::Shards(2), 2));
}

#[test]
fn leftovers_of_a_crash_are_no_checkpoint() {
    let directory = prepare(Before::Single);
    let leftover = directory.path().join(".abc.safetensors.tmp");
    fs::create_dir(&leftover).unwrap();
    save(
        leftover.join("model-00001-of-00002.safetensors"),
        [("x", TensorView::from_slice(&[1], &[1_u8]).unwrap())],
        &SaveOptions::new(),
    )
    .unwrap();
    assert_eq!(read(directory.path()).unwrap(), content(1));
}

/// Returns the steps of a save, in order.
fn steps_of(save: impl Fn(&Path) -> Result<()>, directory: &Path) -> Vec<&'static str> {
    let check = |_: TempDir, interrupted: Option<Interrupted>, result: Result<()>| {
        assert!(interrupted.is_some() || result.is_ok(), "{result:?}");
    };
    interrupt_everywhere(|| tempdir_in(directory).unwrap(), |inside| save(inside.path()), check)
}

/// A new directory is not on the disk before its parent is.
#[test]
fn the_parents_of_new_directories_are_synchronised() {
    let directory = tempdir().unwrap();
    let durable = options(2, true);
    let count = |steps: &[&str]| steps.iter().filter(|step| **step == "sync the directory").count();
    let here = steps_of(|path| save_shards(path, 2, &durable), directory.path());
    let deep = steps_of(|path| save_shards(&path.join("a/b/c"), 2, &durable), directory.path());
    assert_eq!(count(&deep), count(&here) + 3, "{here:?} {deep:?}");
    let volatile = options(2, false);
    let deep = steps_of(|path| save_shards(&path.join("a/b/c"), 2, &volatile), directory.path());
    assert_eq!(count(&deep), 0);
    // The last of these steps is for the parents, and its error shows that the files are there.
    let path = directory.path().join("new");
    let (result, _) = fail_at(here.len(), || save_shards(&path, 2, &durable));
    assert!(matches!(result.unwrap_err().kind(), ErrorKind::NotDurable(_)));
    assert_eq!(read(&path).unwrap(), content(2));
}
