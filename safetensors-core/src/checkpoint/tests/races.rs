//! Saves and readers that meet in one directory, at each step of a save.

use std::cell::Cell;
#[cfg(unix)]
use std::fs::FileTimes;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(unix)]
use std::time::SystemTime;

use super::{Before, content, options, prepare, read, read_from, save_shards};
use crate::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry, Version};
use crate::checkpoint::{Checkpoint, Contention, ShardOptions};
use crate::file::io::FileSource;
use crate::file::io::failpoint::{call_at, without};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::Limits;

/// The local disk, except that version 2 is saved just before a file is opened: before file number
/// `at`, or before each one.
struct Busy {
    directory: PathBuf,
    options: ShardOptions,
    at: Option<usize>,
    opened: AtomicUsize,
}

impl Store for Busy {
    type File = FileSource;

    fn open(&self, path: &Path) -> Result<FileSource> {
        let opened = self.opened.fetch_add(1, Ordering::SeqCst);
        if self.at.is_none_or(|at| at == opened) {
            save_shards(&self.directory, 2, &self.options)?;
        }
        LocalStore.open(path)
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        LocalStore.kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        LocalStore.list(directory)
    }

    fn version(&self, path: &Path) -> Result<Option<Version>> {
        LocalStore.version(path)
    }
}

fn busy(directory: &Path, shards: usize, at: Option<usize>) -> Arc<Busy> {
    let directory = directory.to_owned();
    Arc::new(Busy { directory, options: options(shards, false), at, opened: AtomicUsize::new(0) })
}

fn open_in(store: &Arc<Busy>) -> Result<Checkpoint> {
    Checkpoint::open_in(store.clone(), &store.directory, &Limits::default())
}

#[test]
fn a_reader_that_a_save_overtakes_reads_one_of_the_two() {
    for before in [Before::Single, Before::Other, Before::Shards(2), Before::Shards(3)] {
        for shards in [1, 2, 3] {
            for at in 0.. {
                let directory = prepare(before);
                let store = busy(directory.path(), shards, Some(at));
                let found = read_from(&open_in(&store).unwrap()).unwrap();
                let whole = found == content(1) || found == content(2);
                assert!(whole, "{before:?} -> {shards} shards, at file {at}: {found:?}");
                if store.opened.load(Ordering::SeqCst) <= at {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_checkpoint_that_changes_whenever_it_is_opened_is_an_error() {
    let directory = prepare(Before::Shards(2));
    let error = open_in(&busy(directory.path(), 2, None)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KeepsChanging { attempts: 50 }), "{error}");
    assert_eq!(error.file(), directory.path().to_str());
    assert_eq!(read(directory.path()).unwrap(), content(2));
}

/// The local disk, except that a number of the first opened files get another time of change just
/// afterwards.
#[cfg(unix)]
struct Touching {
    times: AtomicUsize,
}

#[cfg(unix)]
impl Store for Touching {
    type File = FileSource;

    fn open(&self, path: &Path) -> Result<FileSource> {
        let source = LocalStore.open(path)?;
        let left = |times: usize| times.checked_sub(1);
        if self.times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            // The clock of the file system moves on.
            std::thread::sleep(std::time::Duration::from_millis(30));
            let file = std::fs::File::open(path).unwrap();
            file.set_times(FileTimes::new().set_accessed(SystemTime::now())).unwrap();
        }
        Ok(source)
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        LocalStore.kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        LocalStore.list(directory)
    }
}

/// As a file does that is opened while another save takes one of its names away.
#[cfg(unix)]
#[test]
fn a_file_that_seems_to_have_changed_while_it_was_opened_is_opened_again() {
    let directory = prepare(Before::Single);
    let open = |times| {
        let store = Arc::new(Touching { times: AtomicUsize::new(times) });
        Checkpoint::open_in(store, directory.path(), &Limits::default())
    };
    assert_eq!(read_from(&open(1).unwrap()).unwrap(), content(1));
    let error = open(2).unwrap_err();
    assert!(error.to_string().contains("has changed since it was opened"), "{error}");
}

/// An open checkpoint still reads the old files, and `check_unchanged` reports the save.
#[test]
fn a_save_after_a_checkpoint_was_opened_is_noticed() {
    for before in [Before::Shards(2), Before::Foreign] {
        let directory = prepare(before);
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        checkpoint.check_unchanged().unwrap();
        save_shards(directory.path(), 2, &options(2, false)).unwrap();
        assert_eq!(read_from(&checkpoint).unwrap(), content(1));
        let error = checkpoint.check_unchanged().unwrap_err();
        assert_eq!(error.file(), checkpoint.index_path().unwrap().to_str());
        assert!(error.to_string().contains("the index has changed"), "{error}");
    }
}

/// Saves version 3 to `path` just before the `n`th step of a save of version 2 there, and returns
/// both results and whether there was such a step.
fn meet(
    path: &Path,
    n: usize,
    first: &ShardOptions,
    second: impl FnOnce(&Path) -> Result<()> + 'static,
) -> (Result<()>, Option<Result<()>>, bool) {
    let outcome = Rc::new(Cell::new(None));
    let (told, directory) = (outcome.clone(), path.to_owned());
    let call = move || {
        let saved = second(&directory);
        if saved.is_ok() {
            assert_eq!(read(&directory).unwrap(), content(3));
        }
        told.set(Some(saved));
    };
    let (saved, reached) = call_at(n, call, || save_shards(path, 2, first));
    (saved, outcome.take(), reached.is_some())
}

fn is(result: &Result<()>, kind: fn(&ErrorKind) -> bool) -> bool {
    result.as_ref().is_err_and(|error: &Error| kind(error.kind()))
}

/// On some network file systems locks have no effect. Even there a save that succeeds has saved a
/// complete checkpoint, and the files that another writer saved last are not removed.
#[test]
fn where_locks_do_nothing_a_mixture_is_never_reported_as_done() {
    let mut overtaken = 0;
    for before in [Before::Nothing, Before::Single, Before::Shards(2), Before::Shards(3)] {
        for (first, second) in [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)] {
            for n in 0.. {
                let directory = prepare(before);
                let path = directory.path();
                let (saved, other, reached) = without("locks", || {
                    meet(path, n, &options(first, false), move |path| {
                        save_shards(path, 3, &options(second, false))
                    })
                });
                let context = format!("{before:?}, {first} and {second} shards, step {n}");
                if !reached {
                    saved.unwrap();
                    break;
                }
                other.unwrap().unwrap();
                match saved {
                    Ok(()) => {
                        let found = read(path).unwrap();
                        assert!(found == content(2) || found == content(3), "{context}: {found:?}");
                    }
                    // The other save has succeeded, so its checkpoint must be there.
                    Err(error) => {
                        let found = read(path).unwrap();
                        assert_eq!(found, content(3), "{context}: {error}");
                        overtaken += 1;
                    }
                }
            }
        }
    }
    assert!(overtaken > 20, "{overtaken}");
}

/// The other save runs in its own thread. It must not wait for the first one, which waits for
/// that thread.
#[cfg(unix)]
#[test]
fn saves_exclude_each_other() {
    let (mut busy, mut done) = (0, 0);
    for before in [Before::Single, Before::Shards(2)] {
        for (first, second) in [(1, 2), (2, 1), (2, 2), (3, 2)] {
            for n in 0.. {
                let directory = prepare(before);
                let path = directory.path();
                let (saved, other, reached) = meet(path, n, &options(first, false), move |path| {
                    let options = options(second, false).contention(Contention::Fail);
                    std::thread::scope(|scope| {
                        scope.spawn(|| save_shards(path, 3, &options)).join().unwrap()
                    })
                });
                let context = format!("{before:?}, {first} and {second} shards, step {n}");
                saved.unwrap();
                assert_eq!(read(path).unwrap(), content(2), "{context}");
                match other {
                    Some(Ok(())) => done += 1,
                    Some(other) => {
                        assert!(is(&other, |kind| matches!(kind, ErrorKind::DirectoryBusy)));
                        busy += 1;
                    }
                    None => assert!(!reached),
                }
                if !reached {
                    break;
                }
            }
        }
    }
    assert!(busy > 20 && done > 8, "{busy} busy, {done} done");
}

#[test]
fn a_save_that_is_not_to_meet_another_fails_if_it_does() {
    for (before, shards) in [(Before::Nothing, 2), (Before::Shards(2), 2), (Before::Single, 1)] {
        let directory = prepare(before);
        let path = directory.path();
        let options = options(shards, false).contention(Contention::Fail);
        let own = options.clone();
        // The step that writes the first file, after the save has begun.
        let (saved, other, _) = meet(path, 2, &options, move |path| save_shards(path, 3, &own));
        other.unwrap().unwrap();
        assert!(is(&saved, |kind| matches!(kind, ErrorKind::DirectoryBusy)), "{saved:?}");
        assert_eq!(saved.unwrap_err().file(), path.to_str());
        assert_eq!(read(path).unwrap(), content(3));
        save_shards(path, 2, &options).unwrap();
        assert_eq!(read(path).unwrap(), content(2));
    }
}
