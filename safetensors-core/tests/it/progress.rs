//! The progress that a save reports, and the leftovers of a cancelled save.

use safetensors_core::checkpoint::save_sharded_to;
use safetensors_core::checkpoint::store::Store;
use safetensors_core::save::{StreamWriter, write_to};
use safetensors_testing::tensors::{broken, bytes_by};

use crate::support::*;

const MIB: u64 = 1 << 20;

/// How many MiB are between two reports. A big-endian machine brings elements into the order of
/// files in a small buffer, piece by piece.
const PIECE: u64 = if cfg!(target_endian = "big") { 1 } else { 4 };

fn bytes(len: u64) -> TensorBuf {
    TensorBuf::from_vec(vec![len as usize], vec![7_u8; len as usize]).unwrap()
}

/// Bytes done, bytes in all, and the tensor.
type Seen = Arc<Mutex<Vec<(u64, u64, String)>>>;

/// Options that note each call, in order of the bytes.
fn noting() -> (SaveOptions, impl Fn() -> Vec<(u64, u64, String)>) {
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let options = SaveOptions::new().durable(false).progress(move |progress| {
        seen.lock().unwrap().push((
            progress.bytes_done,
            progress.bytes_total,
            progress.tensor.to_owned(),
        ));
        ControlFlow::Continue(())
    });
    let take = move || {
        let mut seen = std::mem::take(&mut *noted.lock().unwrap());
        seen.sort();
        seen
    };
    (options, take)
}

/// Options that cancel a save once it has written this much.
fn cancelling(at: u64) -> SaveOptions {
    SaveOptions::new().durable(false).progress(move |progress| {
        if progress.bytes_done >= at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

#[test]
fn a_large_tensor_is_reported_piece_by_piece() {
    let (_dir, path) = place("a.safetensors");
    let (options, seen) = noting();
    for _ in 0..2 {
        save(&path, [("large", bytes(9 * MIB))], &options).unwrap();
        let told = seen();
        // Each save with the same options counts from zero.
        let of = |done: u64| (done * MIB, 9 * MIB, "large".to_owned());
        let steps: Vec<_> = (PIECE..9).step_by(PIECE as usize).chain([9]).map(of).collect();
        assert_eq!(told, steps);
    }
    let read = Checkpoint::open(&path).unwrap().tensor("large").unwrap().read().unwrap();
    assert!(read.bytes() == bytes(9 * MIB).bytes());
}

#[test]
fn many_small_tensors_are_reported_together() {
    let dir = tempdir().unwrap();
    let (options, seen) = noting();
    let tensor = bytes(100);
    let tensors = || (0..20_000).map(|i| (format!("layer.{i}"), &tensor));
    save(dir.path().join("a.safetensors"), tensors(), &options).unwrap();
    let told = seen();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!((told[1].0, told[1].1), (2_000_000, 2_000_000));
    // A save without bytes reports nothing.
    save(dir.path().join("a.safetensors"), [("empty", bytes(0))], &options).unwrap();
    assert!(seen().is_empty());
}

#[test]
fn the_files_of_a_sharded_save_are_counted_together() {
    let dir = tempdir().unwrap();
    let (options, seen) = noting();
    let tensors = [("a", bytes(3 * MIB)), ("b", bytes(2 * MIB)), ("c", bytes(MIB))];
    let shards = ShardOptions::new().max_shard_size((3 * MIB).into()).save_options(options);
    assert_eq!(save_sharded(dir.path(), tensors, &shards).unwrap().files.len(), 2);
    let told = seen();
    assert!(told.iter().all(|(_, total, _)| *total == 6 * MIB), "{told:?}");
    // The two tensors of the second file are written at the same time.
    let calls = if PIECE == 1 { 6 } else { 3 };
    let middle = told[calls / 2 - 1].0;
    assert_eq!((told.len(), middle, told[calls - 1].0), (calls, 3 * MIB, 6 * MIB), "{told:?}");

    // A rewrite counts the bytes that are written: each tensor once, after its cast.
    let (options, seen) = noting();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let a = checkpoint.tensor("a").unwrap();
    let rewrite = Rewrite::from_checkpoint(&checkpoint).add("again", a).unwrap();
    let rewrite = rewrite
        .cast(&ConvertOptions::new(), |name, _| (name == "c").then_some(Dtype::F32))
        .unwrap();
    let total = rewrite.plan(&options).unwrap().total_size();
    assert_eq!(total, 12 * MIB);
    rewrite.save(dir.path().join("one.safetensors"), &options).unwrap();
    let told = seen();
    assert_eq!(told.last().map(|(done, total, _)| (*done, *total)), Some((total, total)));
}

#[test]
fn a_cancelled_save_leaves_the_old_file() {
    let (dir, path) = place("a.safetensors");
    save(&path, [("old", bytes(10))], &SaveOptions::new()).unwrap();
    let old = fs::read(&path).unwrap();
    let tensors = || [("a", bytes(6 * MIB)), ("b", bytes(2 * MIB))];
    // Cancelled at the first piece, in the middle, and after the last byte.
    for at in [1, 5 * MIB, 8 * MIB] {
        let error = refused!(save(&path, tensors(), &cancelling(at)), ErrorKind::Cancelled);
        assert_eq!(error.file(), path.to_str());
        assert_eq!(fs::read(&path).unwrap(), old);
        assert_eq!(names_in(dir.path()), ["a.safetensors"]);
        let shards =
            ShardOptions::new().max_shard_size((6 * MIB).into()).save_options(cancelling(at));
        refused!(save_sharded(dir.path(), tensors(), &shards), ErrorKind::Cancelled);
        assert_eq!(names_in(dir.path()), ["a.safetensors"]);
    }
}

#[test]
fn files_that_go_to_a_writer_are_reported_too() {
    let tensors = [("a", bytes(9 * MIB)), ("b", bytes(10))];
    let (options, seen) = noting();
    let mut out = Vec::new();
    write_to(&mut out, tensors.iter().map(|(name, buf)| (name, buf)), &options).unwrap();
    let total = 9 * MIB + 10;
    let told: Vec<_> = seen().into_iter().map(|(done, of, _)| (done, of)).collect();
    let pieces = (PIECE..9).step_by(PIECE as usize).chain([9]).map(|done| done * MIB);
    let steps: Vec<_> = pieces.chain([total]).map(|done| (done, total)).collect();
    assert_eq!(told, steps);

    let options = ShardOptions::new().max_shard_size(MIB.into()).save_options(cancelling(5 * MIB));
    let mut store = MemoryStore::default();
    refused!(save_sharded_to(&mut store, tensors, &options), ErrorKind::Cancelled);
    assert!(store.list(Path::new("")).unwrap().is_empty());
}

#[test]
fn bytes_that_are_written_again_count_once() {
    let dir = tempdir().unwrap();
    let (options, seen) = noting();
    let path = dir.path().join("a.safetensors");
    let writer = StreamWriter::create(&path, [("a", Dtype::U8, [2 << 20])], &options).unwrap();
    let breaking = bytes_by(2 << 20, |sink| {
        sink(&[0; 1 << 20])?;
        Err(broken("the source broke"))
    });
    writer.tensor("a").unwrap().write_from(&breaking).unwrap_err();
    writer.tensor("a").unwrap().write_from(&bytes(2 * MIB)).unwrap();
    writer.finish().unwrap();
    // Where pieces have 1 MiB, the first is reported again, and the count does not rise.
    let again = (PIECE == 1).then_some(MIB);
    let steps: Vec<_> = [MIB].into_iter().chain(again).chain([2 * MIB]).collect();
    assert_eq!(seen().iter().map(|(done, ..)| *done).collect::<Vec<_>>(), steps);
}

#[test]
fn a_callback_that_panics_leaves_no_hole() {
    let (dir, path) = place("a.safetensors");
    let options = SaveOptions::new()
        .durable(false)
        .progress(|_| std::panic::resume_unwind(Box::new("callback")));
    let writer =
        StreamWriter::create(&path, [("a", Dtype::U8, [(9 * MIB) as usize])], &options).unwrap();
    let bytes = vec![7; (9 * MIB) as usize];
    let written = std::thread::scope(|scope| {
        scope.spawn(|| writer.tensor("a").unwrap().write_bytes_at(0, &bytes)).join()
    });
    assert!(written.is_err());
    assert_eq!(writer.tensor("a").unwrap().written(), 0);
    // The file is not committed, even if other threads write more.
    assert!(matches!(writer.finish().unwrap_err().kind(), ErrorKind::Cancelled));
    assert!(names_in(dir.path()).is_empty());
}

#[test]
fn a_callback_that_cancels_is_not_called_again() {
    let (_dir, path) = place("a.safetensors");
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let options = SaveOptions::new().durable(false).progress(move |_| {
        *counted.lock().unwrap() += 1;
        ControlFlow::Break(())
    });
    let writer = StreamWriter::create(&path, [("a", Dtype::U8, [MIB as usize])], &options).unwrap();
    for _ in 0..3 {
        let error =
            writer.tensor("a").unwrap().write_bytes_at(0, &vec![7; MIB as usize]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    }
    assert_eq!(*calls.lock().unwrap(), 1);
}
