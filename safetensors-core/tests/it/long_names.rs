//! Names that are as long as the file system takes, and longer ones.

use safetensors_core::ranks::{RankRules, RankSaver};
use safetensors_core::save::{AtomicDirectory, AtomicFile, GrowingWriter, StreamWriter};

use crate::support::*;

const SUFFIX: &str = ".safetensors";

/// A function that writes to a path, which leads to a directory of this name for some.
type Write = fn(&Path) -> Result<()>;

const FILES: [(&str, Write); 7] = [
    ("save", |path| save(path, tensors(), &SaveOptions::new())),
    ("stream", |path| {
        let writer = StreamWriter::create(path, [("a", Dtype::U8, [1])], &SaveOptions::new())?;
        writer.tensor("a")?.append(&[1_u8])?;
        writer.finish()
    }),
    ("file", |path| AtomicFile::create(path, &SaveOptions::new())?.commit()),
    ("rewrite", |path| Rewrite::new().add("a", tensors()[0].1)?.save(path, &SaveOptions::new())),
    ("growing file", |path| {
        let writer = GrowingWriter::create(path, &SaveOptions::new())?;
        writer.add("a", &tensors()[0].1)?;
        writer.finish().map(drop)
    }),
    ("edit", |path| {
        save(path, tensors(), &SaveOptions::new())?;
        Edit::open(path)?.set_metadata([("key", "x".repeat(1000))]).apply()?;
        // The header is written in place, with a backup next to the file.
        let edit = Edit::open(path)?.in_place(true).set_metadata([("key", "y".repeat(1000))]);
        edit.apply().map(drop)
    }),
    ("directory", |path| AtomicDirectory::create(path)?.commit()),
];

/// Saves with this name of a single file. The names of shards and of the index are longer.
const SHARDED: [(&str, Write); 3] = [
    ("shards", |path| save_sharded(parent(path), tensors(), &options(path)).map(drop)),
    ("ranks by one process", |path| {
        let rewrite = Rewrite::new().add("a", tensors()[0].1)?.add("b", tensors()[1].1)?;
        let plan = rewrite.plan_ranks(&rules(), 2, &SaveOptions::new())?;
        rewrite.save_ranks(parent(path), &plan, "attempt", &options(path)).map(drop)
    }),
    ("ranks", |path| {
        let shapes = tensors().map(|(name, _)| (name, Dtype::U8, vec![1]));
        let plan = rules().plan_tensors(shapes, 2)?;
        for rank in 0..2 {
            RankSaver::new(&plan, rank, "attempt").save(parent(path), tensors(), &options(path))?;
        }
        Ok(())
    }),
];

fn tensors() -> [(&'static str, TensorView<'static>); 2] {
    ["a", "b"].map(|name| (name, TensorView::from_slice(&[1], &[1_u8]).unwrap()))
}

fn rules() -> RankRules {
    RankRules::new().parse_rule("*=replicate").unwrap()
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap()
}

fn options(path: &Path) -> ShardOptions {
    let name = path.file_name().unwrap().to_str().unwrap();
    let pattern = format!("{}{{suffix}}{SUFFIX}", name.strip_suffix(SUFFIX).unwrap());
    ShardOptions::new().max_shard_size(1.into()).file_pattern(pattern.parse().unwrap())
}

/// Returns names of these lengths, with one-byte letters and longer ones.
fn names(lens: std::ops::RangeInclusive<usize>) -> impl Iterator<Item = String> {
    lens.flat_map(|len| {
        let len = len - SUFFIX.len();
        ["x", "é", "權"]
            .map(|unit| unit.repeat(len / unit.len()) + &"y".repeat(len % unit.len()) + SUFFIX)
    })
}

/// Twice: the second time, something of this name is there already.
fn write_twice(what: &str, write: Write, name: &str) -> bool {
    let (_directory, path) = place(Path::new("model").join(name));
    fs::create_dir(parent(&path)).unwrap();
    let results = [write(&path), write(&path)];
    let mut names = names_in(parent(&path));
    names.retain(|name| !name.ends_with(".index.json"));
    for result in &results {
        if let Err(error) = result {
            let is_attempt = error.to_string().contains("attempt");
            assert!(
                is_attempt || error.to_string().contains(" bytes is longer than"),
                "{what}: {error}"
            );
        }
    }
    if results[0].is_err() {
        assert!(names.is_empty(), "{what}: {names:?}");
        return false;
    }
    assert!(names.iter().all(|name| !name.starts_with('.')), "{what}: {names:?}");
    if parent(&path).join(name).is_file() && what != "file" {
        Checkpoint::open(&path).unwrap();
    } else if names.len() > 1 {
        Checkpoint::open(parent(&path)).unwrap();
    }
    true
}

#[cfg(unix)]
#[test]
fn names_of_files_may_have_255_bytes_and_longer_ones_are_refused_before_anything_is_written() {
    for (what, write) in FILES {
        for name in names(240..=258) {
            assert_eq!(write_twice(what, write, &name), name.len() <= 255, "{what}: {name}");
        }
    }
}

#[cfg(unix)]
#[test]
fn names_of_shards_that_are_too_long_are_refused_before_anything_is_written() {
    for (what, write) in SHARDED {
        for name in names(212..=256) {
            // The second names that a commit gives to old shards are the longest.
            assert_eq!(write_twice(what, write, &name), name.len() <= 220, "{what}: {name}");
        }
    }
}
