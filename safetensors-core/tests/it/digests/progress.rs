//! Progress of computing digests, and cancelling it.

use safetensors_core::Progress;

use super::*;
use crate::support::*;

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
    let (_dir, path) = place("model.safetensors");
    let data = pattern(3_000_000);
    save(&path, [("a", u8_tensor(&data)), ("b", u8_tensor(&data[..10]))], &SaveOptions::new())
        .unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let all: Vec<_> = checkpoint.tensors().collect();

    let counted = |total: u64, run: &dyn Fn(DigestOptions)| {
        let (seen, callback) = watch(usize::MAX);
        run(DigestOptions::new().progress(callback));
        check(&seen, total);
    };
    counted(3_000_010, &|options| drop(digest::hash_tensors(&all, &options).unwrap()));
    counted(3_000_010, &|options| {
        let hashes = digest::hash_files(&checkpoint, &options).unwrap();
        assert_eq!(hashes, digest::hash_files(&checkpoint, &DigestOptions::new()).unwrap());
    });
    counted(6_000_020, &|options| _ = record(&path, &options.sha256(true)).unwrap());
    let recorded = || Checkpoint::open(&path).unwrap();
    counted(6_000_020, &|options| drop(digest::verify(&recorded(), &options).unwrap()));
}

#[test]
fn a_callback_that_stops_ends_the_work_and_leaves_the_file() {
    let (_dir, path) = place("model.safetensors");
    save(&path, [("a", u8_tensor(&pattern(8_000_000)))], &SaveOptions::new().digests(true))
        .unwrap();
    let before = fs::read(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let all: Vec<_> = checkpoint.tensors().collect();
    let cancelled = |run: &dyn Fn(DigestOptions) -> Error| {
        let (seen, callback) = watch(2);
        let error = run(DigestOptions::new().progress(callback));
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
        assert_eq!(seen.lock().unwrap().len(), 2);
    };
    cancelled(&|options| digest::hash_tensors(&all, &options).unwrap_err());
    cancelled(&|options| digest::hash_files(&checkpoint, &options).unwrap_err());
    cancelled(&|options| digest::verify(&checkpoint, &options).unwrap_err());
    cancelled(&|options| record(&path, &options.sha256(true)).unwrap_err());
    assert_eq!(fs::read(&path).unwrap(), before);
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
