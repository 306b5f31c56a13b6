//! Saves into one directory at the same time, and readers that open it all the while.

use std::sync::atomic::{AtomicBool, AtomicU8};
use std::thread;

use crate::support::*;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Saves six tensors with the version as their value, in this number of files.
fn save_version(directory: &Path, version: u8, files: usize) {
    let bytes = [version];
    let tensors = NAMES.map(|name| (name, TensorView::from_slice(&[1], &bytes).unwrap()));
    let options = ShardOptions::new().save_options(SaveOptions::new().durable(false));
    let size = NAMES.len().div_ceil(files) as u64;
    let saved = save_sharded(directory, tensors, &options.max_shard_size(size.into())).unwrap();
    assert_eq!(saved.files.len(), files);
}

/// The version in the directory, which all tensors must have. `None` if it changes whenever it is
/// opened.
fn read_version(directory: &Path) -> Option<u8> {
    let checkpoint = match Checkpoint::open(directory) {
        Err(error) if matches!(error.kind(), ErrorKind::KeepsChanging { .. }) => return None,
        opened => opened.unwrap(),
    };
    let bufs = checkpoint.read_named(NAMES, &LoadOptions::new().threads(1)).unwrap();
    let versions: Vec<_> = bufs.iter().map(|buf| buf.bytes()[0]).collect();
    assert!(versions.iter().all(|&version| version == versions[0]), "a mixture: {versions:?}");
    Some(versions[0])
}

/// Lets writers save in different numbers of files while readers open the directory, until it was
/// opened `opens` times.
#[cfg_attr(not(unix), allow(dead_code, reason = "its test is for Unix"))]
fn race(directory: &Path, writers: &[&[usize]], opens: usize) {
    save_version(directory, 0, writers[0][0]);
    let (version, opened, given_up) = (AtomicU8::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for files in writers {
            scope.spawn(|| {
                for &files in files.iter().cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    save_version(directory, version.fetch_add(1, Ordering::Relaxed), files);
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while opened.fetch_add(1, Ordering::Relaxed) < opens {
                        let is_read = read_version(directory).is_some();
                        given_up.fetch_add(usize::from(!is_read), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let ends: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    let (given_up, saves) = (given_up.into_inner(), version.into_inner());
    println!("{opens} opens, {given_up} given up, {saves} saves modulo 256, no mixture");
    assert!(given_up * 20 < opens, "{given_up} of {opens} opens were given up");
    read_version(directory).unwrap();
    let names = names_in(directory);
    assert!(!names.iter().any(|name| name.starts_with('.')), "{names:?}");
}

fn directory() -> tempfile::TempDir {
    // Saves are faster in memory, so they meet more often.
    safetensors_testing::files::directory_in_memory()
}

#[cfg(unix)]
#[test]
fn readers_never_see_a_mixture_of_two_saves() {
    race(directory().path(), &[&[3], &[3]], 2000);
    race(directory().path(), &[&[2], &[3, 2]], 1000);
    race(directory().path(), &[&[1, 3], &[3, 2, 1]], 1000);
}

/// Saving a single file replaces it in one step, with any other writers.
#[test]
fn a_file_that_another_writer_saves_is_not_removed() {
    let directory = directory();
    let path = directory.path().join("model.safetensors");
    thread::scope(|scope| {
        scope.spawn(|| (0..100).for_each(|i| save_version(directory.path(), i, 2)));
        for version in 0..100_u8 {
            let bytes = [version];
            let tensors = NAMES.map(|name| (name, TensorView::from_slice(&[1], &bytes).unwrap()));
            save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
        }
    });
    assert!(read_version(directory.path()).is_some());
}
