//! Leftovers of killed saves, and their removal by the next save.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::{TempDir, tempdir};

use super::{TempDirectory, TempFile, create_new};
use crate::checkpoint::{Checkpoint, LocalDirectory, ShardOptions, save_sharded, stage_sharded_to};
use crate::file::io::failpoint::{Interrupted, call_at, interrupt_everywhere, without};
use crate::file::io::hidden::header_backup;
use crate::file::io::testing::{directory_in_memory, names_in, place, save_until_clean};
use crate::file::save::{
    AtomicFile, GrowingWriter, SaveOptions, StreamWriter, remove_temporaries, save,
};
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::tensor::{Sink, TensorBuf, TensorSource, TensorView};
use crate::model::edit::Edit;
use crate::model::rewrite::Rewrite;
use crate::ranks::RankRules;

const NAME: &str = "model.safetensors";

fn save_one(path: &Path) {
    save(path, [("w", TensorView::from_slice(&[1], &[1_u8]).unwrap())], &SaveOptions::new())
        .unwrap();
}

fn named<T>(f: impl FnOnce() -> T) -> T {
    without("files without a name", f)
}

#[test]
fn a_temporary_file_is_named_after_its_file_and_stays_while_in_use() {
    let (directory, path) = place(NAME);
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
    let (directory, path) = place(NAME);
    let mut file = AtomicFile::create(&path, &SaveOptions::new()).unwrap();
    file.write_all(b"new").unwrap();
    assert!(names_in(directory.path()).is_empty());
    file.commit().unwrap();
    assert_eq!(names_in(directory.path()), [NAME]);
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn the_next_save_removes_only_unlocked_leftovers() {
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

/// As on a file system with locks that do nothing: another save takes it for a leftover.
#[cfg(unix)]
#[test]
fn a_temporary_file_that_was_removed_is_saved_nevertheless() {
    let (directory, path) = place(NAME);
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

/// Saves that each end the process, by `end`, while they run.
fn save_and_end(directory: &Path, what: &str, end: fn()) -> Result<()> {
    let options = SaveOptions::new();
    let path = directory.join(NAME);
    match what {
        "file" => named(|| save(&path, [("w", Ends(end))], &options)),
        "shards" => {
            let options = ShardOptions::new().max_shard_size(1.into()).save_options(options);
            let shards = [("a", Ends(end)), ("b", Ends(end))];
            named(|| save_sharded(directory, shards, &options).map(drop))
        }
        "ranks" => save_ranks(directory, Ends(end)),
        "growing file" => named(|| {
            let writer = GrowingWriter::create(&path, &options)?;
            writer.add("w", &Ends(end))
        }),
        "edit" => named(|| Edit::open(&path)?.append([("a", Ends(end))]).apply().map(drop)),
        // Two files and a sharded save.
        _ => {
            let tensors = [("w", Dtype::U8, [1])];
            let path = directory.join("one");
            let _one = named(|| StreamWriter::create(path, tensors, &options))?;
            let _other = AtomicFile::create(directory.join("other"), &SaveOptions::new())?;
            save_and_end(&directory.join("new/model"), "shards", end)
        }
    }
}

/// Saves the files of two ranks; the last one has `tensor`.
fn save_ranks(directory: &Path, tensor: impl TensorSource + Send) -> Result<()> {
    let first = TensorBuf::from_vec(vec![2], vec![1_u8, 2])?;
    let rewrite = Rewrite::new().add("a", first)?.add("b", tensor)?;
    let rules = RankRules::new().parse_rule("a=split:0")?.parse_rule("b=replicate")?;
    let plan = rewrite.plan_ranks(&rules, 2, &SaveOptions::new())?;
    rewrite.save_ranks(directory, &plan, "attempt", &ShardOptions::new()).map(drop)
}

/// A save of a model to a directory.
type Save = fn(&Path) -> Result<()>;

/// The saves and edits that remove leftovers in the directory of a model.
const NEXT: [(&str, Save); 5] = [
    ("file", |directory| save(directory.join(NAME), tensors(), &SaveOptions::new())),
    ("shards", |directory| {
        let options = ShardOptions::new().max_shard_size(1.into());
        save_sharded(directory, tensors(), &options).map(drop)
    }),
    ("ranks", |directory| save_ranks(directory, TensorBuf::from_vec(vec![1], vec![3_u8])?)),
    ("growing file", |directory| {
        let writer = GrowingWriter::create(directory.join(NAME), &SaveOptions::new())?;
        writer.add("w", &tensors()[0].1)?;
        writer.finish().map(drop)
    }),
    ("edit", |directory| {
        Edit::open(directory.join(NAME))?.append([("a", tensors()[0].1)]).apply().map(drop)
    }),
];

fn tensors() -> [(&'static str, TensorView<'static>); 2] {
    ["a", "b"].map(|name| (name, TensorView::from_slice(&[1], &[1_u8]).unwrap()))
}

/// Not a test on its own: [`run_child`] runs it.
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
    let (_, module) = module_path!().split_once("::").unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::child"), "--nocapture"])
        .env("CHILD_DIRECTORY", directory)
        .env("CHILD_WHAT", what)
        .env("CHILD_END", end)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
}

/// For every kind of killed save, and every kind of next save.
#[test]
fn the_next_save_removes_leftovers_of_a_killed_process() {
    for (killed, _) in NEXT {
        for (next, save) in NEXT {
            let directory = tempdir().unwrap();
            let directory = directory.path();
            save_one(&directory.join(NAME));
            assert!(!run_child(directory, killed, "abort").success());
            let left = names_in(directory);
            assert!(left.len() >= 2 && left[0].starts_with(".model.safetensors."), "{left:?}");
            save(directory).unwrap();
            let names = names_in(directory);
            assert!(names.iter().all(|name| !name.starts_with('.')), "{killed}, {next}: {names:?}");
            Checkpoint::open(directory).unwrap();
        }
    }
}

#[test]
fn a_process_that_is_about_to_end_leaves_nothing() {
    for (what, place) in [
        ("file", ""),
        ("growing file", ""),
        ("shards", "new/model"),
        ("ranks", "new/model"),
        ("several", ""),
    ] {
        let directory = tempdir().unwrap();
        fs::write(directory.path().join("mine"), "").unwrap();
        let ended = run_child(&directory.path().join(place), what, "exit");
        assert_eq!(ended.code(), Some(7), "{what}");
        assert_eq!(names_in(directory.path()), ["mine"], "{what}");
    }
}

/// A directory that is in use and has no lock: only the file in it is locked.
#[cfg(unix)]
#[test]
fn another_process_leaves_the_directory_of_a_save_that_is_under_way() {
    let directory = tempdir().unwrap();
    let options = ShardOptions::new().max_shard_size(1.into());
    let mut place = LocalDirectory::create(directory.path(), &options).unwrap();
    let mut staged = stage_sharded_to(&mut place, tensors(), &options).unwrap();
    let hidden = directory.path().join(&names_in(directory.path())[0]);
    assert_eq!(names_in(&hidden)[0], ".lock");
    File::open(&hidden).unwrap().try_lock().unwrap();
    for (what, _) in NEXT.into_iter().filter(|(what, _)| *what != "edit") {
        assert!(!run_child(directory.path(), what, "abort").success());
        assert_eq!(names_in(&hidden).len(), 3, "{what}");
    }
    staged.commit().unwrap();
    drop(staged);
    drop(place);
    assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 2);
    NEXT[1].1(directory.path()).unwrap();
    let names = names_in(directory.path());
    assert!(names.iter().all(|name| !name.starts_with('.')), "{names:?}");
}

/// Another save may see a new directory before its lock is there, and takes it for a leftover.
#[test]
fn a_directory_that_is_removed_before_it_is_locked_is_made_again() {
    let (directory, path) = place(NAME);
    for n in 0.. {
        let other = path.clone();
        let make = || TempDirectory::create(&path);
        let (made, step) = call_at(n, move || save_one(&other), make);
        let made = made.unwrap();
        assert_eq!(names_in(made.path()), [".lock"], "{step:?}");
        save_one(&path);
        assert!(made.path().exists());
        drop(made);
        assert_eq!(names_in(directory.path()), [NAME], "{step:?}");
        if step.is_none() {
            assert_eq!(n, 1);
            break;
        }
    }
}

/// Each step fails, and the process is killed at each. The next save removes the leftovers of a
/// kill.
#[test]
fn a_save_with_a_hidden_directory_that_is_interrupted_anywhere_leaves_nothing() {
    let options = ShardOptions::new().max_shard_size(1.into());
    let act = |directory: &TempDir| save_sharded(directory.path().join("new"), tensors(), &options);
    let check = |directory: TempDir, interrupted: Option<Interrupted>, result: Result<_>| {
        let new = directory.path().join("new");
        if interrupted.is_some_and(|it| it.killed) && new.is_dir() {
            save_until_clean(&new, || save_one(&new.join(NAME)));
        }
        let is_there = new.is_dir();
        assert!(is_there || result.is_err(), "{interrupted:?}");
        let names = if is_there { names_in(&new) } else { Vec::new() };
        let is_clean = names.iter().all(|name| !name.starts_with('.'));
        assert!(is_clean, "{interrupted:?}: {names:?}");
        // A directory that was made for the save does not stay without its files.
        assert!(!names.is_empty() || !is_there, "{interrupted:?}: {result:?}");
    };
    let steps = interrupt_everywhere(directory_in_memory, act, check);
    assert!(steps.contains(&"lock the directory") && steps.len() > 10, "{steps:?}");
}

/// As for a user who may not write to a read-only directory, unlike an administrator.
#[cfg(unix)]
#[test]
fn a_hidden_directory_that_became_read_only_is_removed() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempdir().unwrap();
    let made = TempDirectory::create(&directory.path().join(NAME)).unwrap();
    let inner = made.path().join("new/inner");
    fs::create_dir_all(&inner).unwrap();
    fs::write(inner.join("file"), "").unwrap();
    std::os::unix::fs::symlink("/", inner.join("link")).unwrap();
    for path in [&inner.join("file"), &inner, &made.path().join("new"), made.path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o555)).unwrap();
    }
    drop(made);
    assert!(names_in(directory.path()).is_empty());
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
    // The lock file stays, because it cannot be distinguished from another writer's.
    assert!(names.iter().all(|name| [NAME, ".safetensors.lock"].contains(&&**name)), "{names:?}");
}

#[test]
fn the_next_save_removes_the_temporary_file_of_a_header_backup() {
    let directory = tempdir().unwrap();
    for name in ["model.safetensors", &"x".repeat(250)] {
        let path = directory.path().join(name);
        let left = named(|| TempFile::create(&header_backup(&path), true)).unwrap();
        // As if the process was killed: the lock is gone, and the file stays.
        let TempFile { name: hidden, file, .. } = left;
        std::mem::forget(hidden);
        let _ = file.unlock();
        drop(file);
        assert_eq!(names_in(directory.path()).len(), 1);
        save_one(&path);
        assert_eq!(names_in(directory.path()), [name]);
        fs::remove_file(&path).unwrap();
    }
}
