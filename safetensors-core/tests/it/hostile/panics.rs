//! A callback, a source or a closure of the caller panics. The other threads stop, the panic
//! reaches the caller, and no destination is changed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Duration;

use safetensors_core::checkpoint::MaxShardSize;
use safetensors_testing::tensors::bytes_by;

use crate::support::*;

/// The number of tensors. After a panic only few more may be begun.
const TENSORS: usize = 400;

/// The length of a tensor, long enough that the saves use several threads.
const LEN: usize = 64 << 10;

/// Slow tensors that count how often their bytes are asked for. One panics, late in the first tenth.
fn tensors(begun: &AtomicUsize) -> Vec<(String, impl TensorSource)> {
    let tensor = |i| {
        let source = bytes_by(LEN, move |sink| {
            begun.fetch_add(1, Ordering::SeqCst);
            if i == TENSORS / 10 {
                resume_unwind(Box::new("of the source"));
            }
            thread::sleep(Duration::from_millis(2));
            sink(&[1; LEN])
        });
        (format!("t{i:03}"), source)
    };
    (0..TENSORS).map(tensor).collect()
}

/// Asserts that `work` panics with this message.
#[track_caller]
fn assert_panics<T>(with: &str, work: impl FnOnce() -> T) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(work)) else { unreachable!("no panic") };
    assert_eq!(panic.downcast_ref::<&str>(), Some(&with));
}

fn old_file(directory: &Path) {
    let old = TensorBuf::from_vec(vec![1], vec![9_u8]).unwrap();
    save(directory.join("model.safetensors"), [("old", old)], &SaveOptions::new()).unwrap();
}

#[track_caller]
fn assert_untouched(directory: &Path) {
    assert_eq!(names_in(directory), ["model.safetensors"]);
    let checkpoint = Checkpoint::open(directory).unwrap();
    assert_eq!(checkpoint.tensor("old").unwrap().read().unwrap().bytes(), [9]);
}

#[test]
fn a_source_stops_the_other_threads_of_a_save() {
    let directory = tempdir().unwrap();
    old_file(directory.path());
    let begun = AtomicUsize::new(0);
    assert_panics("of the source", || {
        save(directory.path().join("model.safetensors"), tensors(&begun), &SaveOptions::new())
    });
    let begun = begun.into_inner();
    assert!(begun < TENSORS / 4, "{begun} of {TENSORS} begun all the same");
    assert_untouched(directory.path());
}

#[test]
fn a_source_in_a_late_shard_commits_no_shard() {
    let directory = tempdir().unwrap();
    old_file(directory.path());
    let begun = AtomicUsize::new(0);
    let options = ShardOptions::new().max_shard_size(MaxShardSize(8 * LEN as u64));
    assert_panics("of the source", || save_sharded(directory.path(), tensors(&begun), &options));
    assert!(begun.into_inner() < TENSORS / 4);
    assert_untouched(directory.path());
}

#[test]
fn a_progress_callback_stops_a_load_and_a_save() {
    let (directory, path) = place("model.safetensors");
    let tensor = |i: usize| TensorBuf::from_vec(vec![1 << 20], vec![i as u8; 1 << 20]).unwrap();
    let tensors: Vec<_> = (0..40).map(|i| (format!("t{i}"), tensor(i))).collect();
    save(&path, tensors_of(&tensors), &SaveOptions::new().durable(false)).unwrap();
    let before = fs::read(&path).unwrap();

    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = LoadOptions::new().threads(4).progress(panic_at_the_third());
    assert_panics("of the callback", || checkpoint.read_all(&options));
    let options = SaveOptions::new().progress(panic_at_the_third());
    assert_panics("of the callback", || save(&path, tensors_of(&tensors), &options));
    assert!(fs::read(&path).unwrap() == before);
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
}

fn tensors_of(tensors: &[(String, TensorBuf)]) -> Vec<(&str, &TensorBuf)> {
    tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect()
}

/// A callback that panics at its third call, and checks that no thread goes on calling it
/// afterwards.
fn panic_at_the_third() -> impl Fn(safetensors_core::Progress<'_>) -> ControlFlow<()> + Send + Sync
{
    let calls = AtomicUsize::new(0);
    move |_| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        if call == 2 {
            resume_unwind(Box::new("of the callback"));
        }
        // Up to eight other threads may have been about to call it already. Any further call would
        // come after the panic.
        assert!(call < 2 + 8, "called {call} times");
        thread::sleep(Duration::from_millis(1));
        ControlFlow::Continue(())
    }
}
