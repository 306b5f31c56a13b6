//! Progress of computing digests, and cancelling it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use safetensors_core::Progress;

use super::*;

/// Pairs of bytes done and bytes in all.
type Seen = Arc<Mutex<Vec<(u64, u64)>>>;

/// A callback that records its calls, and stops the work after `most` calls.
fn watch(most: usize) -> (Seen, impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static) {
    let seen = Seen::default();
    let told = Arc::clone(&seen);
    (seen, move |progress| {
        let mut told = told.lock().unwrap();
        told.push((progress.bytes_done, progress.bytes_total));
        if told.len() >= most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// Asserts that calls are at most 2 MiB apart, that each reports this total, and that the last one
/// reaches it.
fn check(seen: &Mutex<Vec<(u64, u64)>>, total: u64) {
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    assert!(seen.iter().all(|&(_, of)| of == total), "{seen:?}");
    assert_eq!(seen.last(), Some(&(total, total)));
    assert!(seen.windows(2).all(|pair| pair[1].0 - pair[0].0 <= 2 << 20), "{seen:?}");
}

#[test]
fn every_byte_counts_once_for_each_digest_of_it() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let data = pattern(3_000_000);
    save(&path, [("a", u8_tensor(&data)), ("b", u8_tensor(&data[..10]))], &SaveOptions::new())
        .unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let all: Vec<_> = checkpoint.tensors().collect();

    let (seen, callback) = watch(usize::MAX);
    digest::hash_tensors(&all, &DigestOptions::new().progress(callback)).unwrap();
    check(&seen, 3_000_010);

    let (seen, callback) = watch(usize::MAX);
    let hashes = digest::hash_files(&checkpoint, &DigestOptions::new().progress(callback)).unwrap();
    check(&seen, 3_000_010);
    assert_eq!(hashes, digest::hash_files(&checkpoint, &DigestOptions::new()).unwrap());

    let (seen, callback) = watch(usize::MAX);
    record(&path, &DigestOptions::new().sha256(true).progress(callback)).unwrap();
    check(&seen, 6_000_020);

    let (seen, callback) = watch(usize::MAX);
    let files = Checkpoint::open(&path).unwrap();
    digest::verify(&files, &DigestOptions::new().progress(callback)).unwrap();
    check(&seen, 6_000_020);
}

#[test]
fn a_callback_that_stops_ends_the_work_and_leaves_the_file() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    save(&path, [("a", u8_tensor(&pattern(8_000_000)))], &SaveOptions::new().digests(true))
        .unwrap();
    let before = fs::read(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let all: Vec<_> = checkpoint.tensors().collect();
    let calls = AtomicU64::new(0);
    let expect = |seen: &Seen, error: Error| {
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
        assert_eq!(seen.lock().unwrap().len(), 2);
        calls.fetch_add(1, Ordering::Relaxed);
    };
    let (seen, callback) = watch(2);
    expect(
        &seen,
        digest::hash_tensors(&all, &DigestOptions::new().progress(callback)).unwrap_err(),
    );
    let (seen, callback) = watch(2);
    expect(
        &seen,
        digest::hash_files(&checkpoint, &DigestOptions::new().progress(callback)).unwrap_err(),
    );
    let (seen, callback) = watch(2);
    expect(
        &seen,
        digest::verify(&checkpoint, &DigestOptions::new().progress(callback)).unwrap_err(),
    );
    let (seen, callback) = watch(2);
    let options = DigestOptions::new().sha256(true).progress(callback);
    expect(&seen, record(&path, &options).unwrap_err());
    assert_eq!((calls.into_inner(), fs::read(&path).unwrap()), (4, before));
}

#[test]
fn the_sha256_of_each_file_and_of_one_that_changes() {
    let (directory, paths) = sharded();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let expected: Vec<_> = checkpoint
        .files()
        .iter()
        .flat_map(|shard| {
            let one = Checkpoint::open(shard.path()).unwrap();
            digest::hash_files(&one, &DigestOptions::new()).unwrap()
        })
        .collect();
    for threads in [1, 4] {
        assert_eq!(
            digest::hash_files(&checkpoint, &DigestOptions::new().threads(threads)).unwrap(),
            expected
        );
    }
    let file = fs::OpenOptions::new().append(true).open(&paths[0]).unwrap();
    file.set_len(fs::metadata(&paths[0]).unwrap().len() + 1).unwrap();
    let error = digest::hash_files(&checkpoint, &DigestOptions::new()).unwrap_err();
    assert!(
        error.to_string().contains("has changed") && error.file() == paths[0].to_str(),
        "{error}"
    );
}
