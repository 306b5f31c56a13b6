//! What killed saves leave behind, and how the next save removes it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::tempdir;

use super::{TempFile, create_new};
use crate::checkpoint::{Checkpoint, ShardOptions, save_sharded};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::io::failpoint::without;
use crate::io::hidden::header_backup;
use crate::io::testing::names_in;
use crate::save::{AtomicFile, SaveOptions, StreamWriter, remove_temporaries, save};
use crate::tensor::{Sink, TensorSource, TensorView};

const NAME: &str = "model.safetensors";

fn save_one(path: &Path) {
    save(path, [("w", TensorView::from_slice(&[1], &[1_u8]).unwrap())], &SaveOptions::new())
        .unwrap();
}

fn named<T>(f: impl FnOnce() -> T) -> T {
    without("files without a name", f)
}

#[test]
fn a_temporary_file_says_whose_it_is_and_is_left_alone_while_it_is_used() {
    let directory = tempdir().unwrap();
    let path = directory.path().join(NAME);
    let mut file = named(|| AtomicFile::create(&path, &SaveOptions::new())).unwrap();
    file.write_all(b"new").unwrap();
    let names = names_in(directory.path());
    assert!(names.len() == 1 && names[0].starts_with(".model.safetensors."), "{names:?}");
    assert!(names[0].ends_with(".tmp") && names[0].len() == 1 + NAME.len() + 1 + 6 + 4);
    save_one(&path);
    assert_eq!(names_in(directory.path()), [&*names[0], NAME]);
    file.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names_in(directory.path()), [NAME]);
    drop(named(|| AtomicFile::create(&path, &SaveOptions::new())).unwrap());
    assert_eq!(names_in(directory.path()), [NAME]);
}

/// Linux makes files without a name on the file systems that are usual for temporary files.
#[cfg(target_os = "linux")]
#[test]
fn a_file_has_no_name_until_it_is_complete() {
    let directory = tempdir().unwrap();
    let path = directory.path().join(NAME);
    let mut file = AtomicFile::create(&path, &SaveOptions::new()).unwrap();
    file.write_all(b"new").unwrap();
    assert!(names_in(directory.path()).is_empty());
    file.commit().unwrap();
    assert_eq!(names_in(directory.path()), [NAME]);
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn the_next_save_removes_what_nobody_holds_and_nothing_else() {
    let directory = tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at(".model.safetensors.aaaaaa.tmp"), "left over").unwrap();
    fs::create_dir(at(".model.safetensors.bbbbbb.tmp")).unwrap();
    fs::write(at(".model.safetensors.bbbbbb.tmp/file"), "left over").unwrap();
    fs::create_dir(at(".model.safetensors.bbbbbb.tmp/directory")).unwrap();
    fs::write(at(".model.safetensors.bbbbbb.tmp/.lock"), "").unwrap();
    let others = [
        ".model.safetensors.cccccc.tmp",
        ".model.safetensors.dddddd.tmp",
        ".model.safetensors.eeeee.tmp",
        ".other.safetensors.ffffff.tmp",
    ];
    #[cfg(unix)]
    std::os::unix::fs::symlink(".", at(others[0])).unwrap();
    #[cfg(not(unix))]
    fs::create_dir(at(others[0])).unwrap();
    #[cfg(not(unix))]
    let _used = File::create(at(others[0]).join(".lock")).unwrap();
    fs::write(at(others[1]), "held").unwrap();
    let held = File::options().read(true).write(true).open(at(others[1])).unwrap();
    held.lock().unwrap();
    fs::write(at(others[2]), "another name").unwrap();
    fs::write(at(others[3]), "another file's").unwrap();
    save_one(&at(NAME));
    assert_eq!(names_in(directory.path()), [&others[..], &[NAME]].concat());
    // Not only by closing the file: a process that another test starts may hold it open, too.
    // Wine reports an error although it unlocks the file.
    let _ = held.unlock();
    drop(held);
    save_one(&at(NAME));
    assert_eq!(names_in(directory.path()), [others[0], others[2], others[3], NAME]);
}

/// As on a file system whose locks do nothing: another save takes it for a leftover.
#[cfg(unix)]
#[test]
fn a_temporary_file_that_was_removed_is_saved_nevertheless() {
    let directory = tempdir().unwrap();
    let path = directory.path().join(NAME);
    let mut file = named(|| AtomicFile::create(&path, &SaveOptions::new())).unwrap();
    file.write_all(b"new").unwrap();
    fs::remove_file(directory.path().join(&names_in(directory.path())[0])).unwrap();
    file.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names_in(directory.path()), [NAME]);
}

/// A tensor that ends the process, by `end`, when it is asked for its bytes.
struct Ends(fn());

impl TensorSource for Ends {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &[1]
    }

    fn write_to(&self, _: &mut Sink<'_>) -> Result<()> {
        (self.0)();
        unreachable!()
    }
}

/// Saves of which each ends the process, by `end`, while it is under way.
fn save_and_end(directory: &Path, what: &str, end: fn()) -> Result<()> {
    let options = SaveOptions::new();
    match what {
        "file" => named(|| save(directory.join(NAME), [("w", Ends(end))], &options)),
        "shards" => {
            let options = ShardOptions::new().max_shard_size(1.into()).save_options(options);
            let shards = [("a", Ends(end)), ("b", Ends(end))];
            named(|| save_sharded(directory.join("new/model"), shards, &options).map(drop))
        }
        // Two files and a sharded save.
        _ => {
            let tensors = [("w", Dtype::U8, [1])];
            let path = directory.join("one");
            let _one = named(|| StreamWriter::create(path, tensors, &options))?;
            let _other = AtomicFile::create(directory.join("other"), &SaveOptions::new())?;
            save_and_end(directory, "shards", end)
        }
    }
}

/// Not a test by itself: what [`run_child`] runs.
#[test]
fn child() {
    let (Ok(directory), Ok(what), Ok(end)) =
        (std::env::var("CHILD_DIRECTORY"), std::env::var("CHILD_WHAT"), std::env::var("CHILD_END"))
    else {
        return;
    };
    let end = match &*end {
        // This ends the process without running destructors.
        "abort" => || std::process::abort(),
        _ => || {
            remove_temporaries();
            std::process::exit(7)
        },
    };
    save_and_end(directory.as_ref(), &what, end).unwrap();
}

/// Runs [`child`] in a separate process, and returns how it ended.
fn run_child(directory: &Path, what: &str, end: &str) -> std::process::ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "save::temporary::tests::child", "--nocapture"])
        .env("CHILD_DIRECTORY", directory)
        .env("CHILD_WHAT", what)
        .env("CHILD_END", end)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn the_next_save_removes_what_a_killed_process_left() {
    let directory = tempdir().unwrap();
    assert!(!run_child(directory.path(), "file", "abort").success());
    let left = names_in(directory.path());
    assert!(left.len() == 1 && left[0].starts_with(".model.safetensors."), "{left:?}");
    save_one(&directory.path().join(NAME));
    assert_eq!(names_in(directory.path()), [NAME]);

    let directory = tempdir().unwrap();
    assert!(!run_child(directory.path(), "shards", "abort").success());
    let model = directory.path().join("new/model");
    let left = names_in(&model);
    let prefix = ".model.safetensors.index.json.";
    assert!(left.len() == 1 && left[0].starts_with(prefix), "{left:?}");
    let tensors = ["a", "b"].map(|name| (name, TensorView::from_slice(&[1], &[1_u8]).unwrap()));
    save_sharded(&model, tensors, &ShardOptions::new().max_shard_size(1.into())).unwrap();
    assert_eq!(names_in(&model).len(), 3);
    assert_eq!(Checkpoint::open(&model).unwrap().len(), 2);
}

#[test]
fn a_process_that_is_about_to_end_leaves_nothing() {
    for what in ["file", "shards", "several"] {
        let directory = tempdir().unwrap();
        fs::write(directory.path().join("mine"), "").unwrap();
        assert_eq!(run_child(directory.path(), what, "exit").code(), Some(7), "{what}");
        assert_eq!(names_in(directory.path()), ["mine"], "{what}");
    }
}

/// Some network file systems give a file another number each time. Then each new file seems to have
/// been replaced.
#[test]
fn where_files_have_no_lasting_numbers_a_save_ends() {
    let directory = tempdir().unwrap();
    let tensors = [("w", TensorView::from_slice(&[1], &[1_u8]).unwrap())];
    without("lasting numbers of files", || {
        save_sharded(directory.path(), tensors, &ShardOptions::new()).unwrap();
        let path = directory.path().join(NAME);
        TempFile::named(&path, |path| create_new(path, 0o600)).unwrap().persist(&path).unwrap();
    });
    let names = names_in(directory.path());
    // The lock file stays, because it cannot be told from that of another writer.
    assert!(names.iter().all(|name| [NAME, ".safetensors.lock"].contains(&&**name)), "{names:?}");
}

#[test]
fn the_next_save_removes_the_temporary_file_of_a_header_backup() {
    let directory = tempdir().unwrap();
    for name in ["model.safetensors", &"x".repeat(250)] {
        let path = directory.path().join(name);
        let left = named(|| TempFile::create(&header_backup(&path), true)).unwrap();
        // As if the process was killed: the lock is gone, and the file stays.
        let TempFile { name: hidden, file } = left;
        std::mem::forget(hidden);
        let _ = file.unlock();
        drop(file);
        assert_eq!(names_in(directory.path()).len(), 1);
        save_one(&path);
        assert_eq!(names_in(directory.path()), [name]);
        fs::remove_file(&path).unwrap();
    }
}
