use std::fs;
use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use super::{AtomicDirectory, DirectoryPlace};
use crate::file::io::failpoint::{call_at, interrupt_everywhere, without};
use crate::file::io::lock::DirectoryLock;
use crate::file::io::testing::{names_in, place, place_in_memory};
use crate::file::save::{SaveOptions, save};
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::TensorView;

/// A directory of two files with the same content, under its hidden name.
fn new(path: &Path, content: &str) -> Result<AtomicDirectory> {
    let new = AtomicDirectory::create(path)?;
    for name in ["a", "b"] {
        fs::write(new.path().join(name), content).unwrap();
    }
    Ok(new)
}

/// Puts a directory at the path, replacing an old one.
fn put(path: &Path, content: &str) -> Result<()> {
    let new = new(path, content)?.sync()?;
    DirectoryPlace::hold(path)?.put(new)
}

fn remove(path: &Path) -> Result<bool> {
    DirectoryPlace::hold(path)?.remove()
}

/// Returns the content of the directory's two files, which must be the same; `None` if there is
/// none.
fn content(path: &Path) -> Option<String> {
    path.exists().then(|| {
        assert_eq!(names_in(path), ["a", "b"]);
        let [a, b] = ["a", "b"].map(|name| fs::read_to_string(path.join(name)).unwrap());
        assert_eq!(a, b);
        a
    })
}

/// A place with an old directory, and the path of that.
fn with_old() -> (TempDir, PathBuf) {
    let (dir, path) = place_in_memory("epoch");
    put(&path, "old").unwrap();
    (dir, path)
}

/// Returns `true` if the act has done its work although it has returned an error.
fn is_not_durable<T>(result: &Result<T>) -> bool {
    matches!(result, Err(error) if matches!(error.kind(), ErrorKind::NotDurable(_)))
}

#[test]
fn a_directory_is_created_atomically_and_not_replaced() {
    let (dir, path) = place("run/checkpoints/epoch");
    drop(new(&path, "one").unwrap());
    assert!(names_in(dir.path()).is_empty(), "new parents go, too");
    new(&path, "one").unwrap().commit().unwrap();
    assert_eq!(content(&path).unwrap(), "one");
    let error = new(&path, "two").unwrap().commit().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
    assert_eq!(error.file(), path.to_str());
    assert_eq!(content(&path).unwrap(), "one");
    assert_eq!(names_in(path.parent().unwrap()), ["epoch"]);
}

#[test]
fn an_interruption_leaves_the_new_directory_or_none() {
    let setup = || place_in_memory("run/epoch");
    let act = |(_, path): &(TempDir, PathBuf)| new(path, "new")?.commit();
    let steps = interrupt_everywhere(setup, act, |(dir, path), at, result| {
        let is_there = result.is_ok() || is_not_durable(&result);
        assert_eq!(content(&path).as_deref(), is_there.then_some("new"), "{at:?}");
        if at.is_some_and(|at| !at.killed) {
            let left = if is_there { &["run"][..] } else { &[] };
            assert_eq!(names_in(dir.path()), left, "{at:?}");
        }
        put(&path, "third").unwrap();
        assert_eq!(content(&path).unwrap(), "third");
        assert_eq!(names_in(path.parent().unwrap()), ["epoch"], "{at:?}");
    });
    // The directory, its parent and the parent's parent.
    assert_eq!(steps.iter().filter(|step| **step == "sync the directory").count(), 3, "{steps:?}");
}

#[cfg(unix)]
#[test]
fn whatever_is_at_the_path_stays() {
    use std::os::unix::fs::symlink;

    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    let make: [&dyn Fn(&Path); 4] = [
        &|path| fs::write(path, "a file").unwrap(),
        &|path| symlink(at("empty"), path).unwrap(),
        &|path| symlink("nothing", path).unwrap(),
        &|path| fs::create_dir_all(path.join("x")).unwrap(),
    ];
    for make in make {
        let path = at("epoch");
        // Something appears while the directory is written.
        let late = new(&path, "new").unwrap();
        make(&path);
        let before = fs::symlink_metadata(&path).unwrap();
        for new in [late, new(&path, "new").unwrap()] {
            let error = new.commit().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
        }
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.file_type(), before.file_type());
        fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
        assert_eq!(names_in(dir.path()), ["empty"]);
    }
}

#[cfg(unix)]
#[test]
fn the_mode_follows_the_umask_or_the_empty_directory() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (path, plain) = (dir.path().join("epoch"), dir.path().join("plain"));
    fs::create_dir(&plain).unwrap();
    put(&path, "one").unwrap();
    assert_eq!(mode(&path), mode(&plain));
    for (old, expected) in [(0o700, 0o700), (0o555, 0o755)] {
        fs::set_permissions(&plain, fs::Permissions::from_mode(old)).unwrap();
        new(&plain, "one").unwrap().commit().unwrap();
        assert_eq!(mode(&plain), expected);
        remove(&plain).unwrap();
        fs::create_dir(&plain).unwrap();
    }
}

/// Replaces the old directory, interrupted at each step. Returns how often the old directory and
/// the new one stayed.
fn interrupt_replacement() -> [usize; 2] {
    let mut stayed = [0; 2];
    let act = |(_, path): &(TempDir, PathBuf)| put(path, "new");
    interrupt_everywhere(with_old, act, |(dir, path), at, result| {
        let is_in_place = path.exists() && names_in(&path) == ["a", "b"];
        if is_in_place && at.is_some_and(|at| !at.killed) {
            assert_eq!(names_in(dir.path()), ["epoch"], "{at:?}");
        }
        // The only copies are no leftovers of another save.
        drop(AtomicDirectory::create(&path).unwrap());
        DirectoryPlace::clean(&path);
        let found = content(&path).unwrap();
        stayed[usize::from(found == "new")] += 1;
        // A process that was killed has returned nothing.
        if at.is_none_or(|at| !at.killed) && is_in_place {
            let is_done = result.is_ok() || is_not_durable(&result);
            assert_eq!(found, if is_done { "new" } else { "old" }, "{at:?}");
        }
        put(&path, "third").unwrap();
        assert_eq!(content(&path).unwrap(), "third");
        assert_eq!(names_in(dir.path()), ["epoch"], "{at:?}");
    });
    stayed
}

/// Also if the process is killed while nothing has the name: then the next one puts the new
/// directory in place.
#[test]
fn an_interruption_leaves_the_old_directory_or_the_new_one() {
    let stayed = interrupt_replacement();
    assert!(stayed.iter().all(|count| *count > 3), "{stayed:?}");
    // The old directory is removed file by file.
    let stayed = without("renaming of directories", interrupt_replacement);
    assert!(stayed.iter().all(|count| *count > 3), "{stayed:?}");
}

/// A process was killed, and then the place is used without [`DirectoryPlace::clean`].
#[test]
fn the_directory_of_a_killed_process_never_appears_later() {
    let mut old = 0;
    for feature in ["nothing", "renaming of directories"] {
        let act = |(_, path): &(TempDir, PathBuf)| without(feature, || put(path, "new"));
        interrupt_everywhere(with_old, act, |(_dir, path), at, _| {
            old += usize::from(!path.exists() || names_in(&path).len() < 2);
            put(&path, "newer").unwrap();
            DirectoryPlace::clean(&path);
            assert_eq!(content(&path).unwrap(), "newer", "{feature} {at:?}");
        });
        interrupt_everywhere(with_old, act, |(dir, path), at, _| {
            assert!(remove(&path).unwrap(), "{feature} {at:?}");
            DirectoryPlace::clean(&path);
            assert!(names_in(dir.path()).is_empty(), "{feature} {at:?}");
        });
    }
    assert!(old > 4, "{old}");
}

/// A process was killed while nothing had the name, and then another program took it.
#[test]
fn a_directory_that_took_a_free_name_stays() {
    let kill = |(_, path): &(TempDir, PathBuf)| put(path, "new");
    let mut free = 0;
    interrupt_everywhere(with_old, kill, |(_dir, path), at, _| {
        if !path.exists() {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("c"), "other").unwrap();
            DirectoryPlace::clean(&path);
            assert_eq!(names_in(&path), ["c"], "{at:?}");
            free += 1;
        }
    });
    assert!(free > 0);
}

/// Until the last file of the old directory is gone, its first one identifies it.
#[test]
fn a_directory_that_cannot_be_moved_is_removed_file_by_file() {
    for feature in ["renaming of directories", "space for directories"] {
        let mut left = Vec::new();
        let act = |(_, path): &(TempDir, PathBuf)| without(feature, || remove(path));
        interrupt_everywhere(with_old, act, |(dir, path), at, result| {
            let is_done = *result.as_ref().unwrap_or(&is_not_durable(&result));
            assert_eq!(!path.exists(), is_done, "{feature} {at:?}");
            left.push(if path.exists() { names_in(&path) } else { vec!["none".into()] });
            put(&path, "third").unwrap();
            assert_eq!(content(&path).unwrap(), "third");
            assert_eq!(names_in(dir.path()), ["epoch"], "{at:?}");
        });
        left.sort();
        left.dedup();
        assert_eq!(left, [&[][..], &["a"], &["a", "b"], &["none"]], "{feature}");
    }
}

/// Others may wait for the lock.
#[test]
fn files_are_synced_and_leftovers_removed_without_the_lock() {
    const LEFT: &str = ".epoch.aB3dE6.tmp";
    let puts: fn(&Path) = |path| put(path, "new").unwrap();
    let removes: fn(&Path) = |path| assert!(remove(path).unwrap());
    for (act, looked_at) in [(puts, "sync the file"), (removes, "move aside")] {
        let mut looked = 0;
        for n in 0.. {
            let (dir, path) = with_old();
            let left = dir.path().join(LEFT);
            fs::create_dir(&left).unwrap();
            let (sender, receiver) = std::sync::mpsc::channel();
            let (place, is_left) = (dir.path().to_owned(), left.clone());
            let look = move || {
                let is_free = DirectoryLock::try_for(&place).unwrap().is_some();
                sender.send(is_free || is_left.exists()).unwrap();
            };
            let ((), step) = call_at(n, look, || act(&path));
            assert!(!left.exists());
            if step == Some(looked_at) {
                assert!(receiver.recv().unwrap(), "{looked_at}");
                looked += 1;
            } else if step.is_none() {
                break;
            }
        }
        assert!(looked > 0);
    }
}

#[test]
fn an_interrupted_removal_leaves_the_directory_or_nothing() {
    let mut removed = 0;
    let act = |(_, path): &(TempDir, PathBuf)| remove(path);
    interrupt_everywhere(with_old, act, |(dir, path), at, result| {
        let is_done = *result.as_ref().unwrap_or(&is_not_durable(&result));
        assert_eq!(content(&path).as_deref(), (!is_done).then_some("old"), "{at:?}");
        removed += usize::from(is_done);
        DirectoryPlace::clean(&path);
        assert_eq!(content(&path).is_none(), is_done, "{at:?}");
        put(&path, "third").unwrap();
        assert_eq!(names_in(dir.path()), ["epoch"], "{at:?}");
    });
    // At the end of both rounds, and where it is not durable.
    assert_eq!(removed, 4);
}

#[test]
fn holding_a_directory_locks_it_and_changes_nothing() {
    let (dir, path) = with_old();
    assert!(!remove(&dir.path().join("none")).unwrap());
    DirectoryPlace::hold(dir.path().join("none/none")).unwrap_err();
    let held = DirectoryPlace::hold(&path).unwrap();
    assert!(DirectoryLock::try_for(dir.path()).unwrap().is_none());
    drop(held);
    assert_eq!(content(&path).as_deref(), Some("old"));
    assert!(remove(&path).unwrap());
    assert!(names_in(dir.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn only_the_link_to_a_directory_goes() {
    let (dir, path) = with_old();
    let link = dir.path().join("link");
    for replaces in [false, true] {
        std::os::unix::fs::symlink("epoch", &link).unwrap();
        if replaces {
            put(&link, "new").unwrap();
        } else {
            remove(&link).unwrap();
        }
        assert_eq!(content(&path).as_deref(), Some("old"));
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_dir());
    assert_eq!(names_in(dir.path()), ["epoch", "link"]);
}

#[cfg(unix)]
#[test]
fn only_leftovers_of_a_killed_process_are_removed() {
    let (dir, path) = place("epoch");
    let used = AtomicDirectory::create(&path).unwrap();
    let others = [".epoch-1.aB3dE6.tmp", ".epoch.aB3dE.tmp", "epoch.aB3dE6.tmp"];
    for name in others.into_iter().chain([".epoch.aB3dE6.tmp"]) {
        fs::create_dir_all(dir.path().join(name).join("new")).unwrap();
        fs::write(dir.path().join(name).join(".lock"), "").unwrap();
    }
    DirectoryPlace::clean(&path);
    assert!(used.path().exists());
    drop(used);
    assert_eq!(names_in(dir.path()), others);
}

#[test]
fn errors_name_the_file_at_its_destination() {
    let (_dir, path) = place("epoch");
    let new = AtomicDirectory::create(&path).unwrap();
    fs::create_dir(new.path().join("w")).unwrap();
    let weight = TensorView::from_slice(&[1], &[1_u8]).unwrap();
    let error = save(new.path().join("w"), [("w", weight)], &SaveOptions::new()).unwrap_err();
    assert_eq!(new.locate(error).file(), path.join("w").to_str());
}

/// Two writers of a directory, and a reader that opens its file.
#[test]
fn a_reader_finds_a_complete_directory_or_none() {
    let (dir, path) = with_old();
    std::thread::scope(|scope| {
        let writers = ["one", "two"]
            .map(|content| scope.spawn(|| (0..20).for_each(|_| put(&path, content).unwrap())));
        while !writers.iter().all(|writer| writer.is_finished()) {
            if let Ok(text) = fs::read_to_string(path.join("a")) {
                assert!(["old", "one", "two"].contains(&&*text));
            }
        }
    });
    content(&path).unwrap();
    assert_eq!(names_in(dir.path()), ["epoch"]);
}

/// Not a test on its own: it runs on an overlay file system.
#[test]
fn child() {
    let Some(merged) = std::env::var_os("CHILD_MERGED").map(PathBuf::from) else { return };
    let path = merged.join("epoch");
    let renamed = fs::rename(&path, merged.join("other")).unwrap_err();
    assert_eq!(renamed.kind(), std::io::ErrorKind::CrossesDevices);
    for content in ["new", "newer"] {
        put(&path, content).unwrap();
        assert_eq!(self::content(&path).unwrap(), content);
    }
    let other = merged.join("removed");
    assert_eq!(content(&other).unwrap(), "lower");
    remove(&other).unwrap();
    assert_eq!(names_in(&merged), ["epoch"]);
}

/// Lower layers as containers have them.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_of_a_lower_layer_is_replaced_and_removed() {
    const MOUNT: &str = r#"
        mount -t tmpfs none "$1" && cd "$1" && mkdir -p lower upper work merged || exit 77
        for name in epoch removed; do
            mkdir lower/$name; printf lower > lower/$name/a; printf lower > lower/$name/b
        done
        layers=lowerdir=lower,upperdir=upper,workdir=work
        mount -t overlay -o $layers,redirect_dir=off overlay merged || exit 77
        CHILD_MERGED="$1/merged" exec "$2" --exact "$3::child"
    "#;
    let dir = tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let mut run = std::process::Command::new("unshare");
    let (_, module) = module_path!().split_once("::").unwrap();
    run.args(["--mount", "sh", "-c", MOUNT, "sh"]).arg(dir.path()).arg(program).arg(module);
    match run.output() {
        Ok(output) if output.status.success() => {
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        }
        // `unshare` ends with 1 if it may not, and the script with 77. A test program that fails
        // ends with 101, or by a signal.
        Ok(output) if !matches!(output.status.code(), Some(1 | 77)) => {
            panic!("{}: {}", output.status, String::from_utf8_lossy(&output.stdout))
        }
        output => eprintln!("SKIPPED: no overlay file system can be mounted here: {output:?}"),
    }
}
