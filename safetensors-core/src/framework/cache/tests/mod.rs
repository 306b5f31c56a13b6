//! The cache against a naive model of it, threads, and errors.

mod ahead;

use std::collections::VecDeque;
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;

use super::TensorCache;
use crate::checkpoint::Checkpoint;
use crate::file::io::{ReadAt, Requests};
use crate::file::load::{LoadOptions, QuantizedWeights};
use crate::file::save::{SaveOptions, save, serialize};
use crate::format::dtype::Dtype;
use crate::format::error::ErrorKind;
use crate::format::parallel::lock;
use crate::format::tensor::{Element, TensorBuf, TensorView};
use crate::framework::testing::Bufs;

fn first_of<T: Element>(tensor: &TensorBuf) -> T {
    tensor.as_slice::<T>().unwrap()[0]
}

/// Watches and disturbs the reads of a source.
#[derive(Default)]
struct Script {
    /// The offset of each read.
    reads: Mutex<Vec<u64>>,
    is_failing: AtomicBool,
    /// The calls that may wait at once, for a source that is far away.
    concurrency: Option<usize>,
    /// Whether the next read panics.
    panics: AtomicBool,
    /// Reads wait while this is set.
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Script {
    fn open(&self) {
        *lock(&self.is_closed) = false;
        self.opened.notify_all();
    }

    fn reads(&self) -> usize {
        lock(&self.reads).len()
    }

    fn read(&self, offset: u64) -> io::Result<()> {
        lock(&self.reads).push(offset);
        let mut is_closed = lock(&self.is_closed);
        while *is_closed {
            is_closed = self.opened.wait(is_closed).unwrap();
        }
        drop(is_closed);
        if self.panics.swap(false, Ordering::SeqCst) {
            resume_unwind(Box::new("of the source"));
        }
        let is_failing = self.is_failing.load(Ordering::SeqCst);
        if is_failing { Err(io::Error::other("of the source")) } else { Ok(()) }
    }
}

struct Scripted(Vec<u8>, Arc<Script>);

impl ReadAt for Scripted {
    fn byte_len(&self) -> u64 {
        self.0.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.1.read(offset)?;
        self.0.read_exact_at(buf, offset)
    }

    fn requests(&self) -> Option<Requests> {
        Some(Requests::new(1 << 20, self.1.concurrency?))
    }
}

/// A file with 40 experts of 16 bytes, the number of the expert four times, and some others.
fn file() -> Vec<u8> {
    let values: Vec<f32> = (0..160).map(|i| (i / 4) as f32).collect();
    let small = [-1_i8, 2, 3, 4];
    let tensors = [
        ("experts", TensorView::from_slice(&[40, 4], &values).unwrap()),
        ("none", TensorView::new(Dtype::F32, &[0, 4], &[]).unwrap()),
        ("small", TensorView::from_slice(&[4], &small).unwrap()),
    ];
    serialize(tensors, &SaveOptions::new().metadata([("tied", "small")])).unwrap()
}

/// A cache of [`file`]. Its script has not seen the reads of the header.
fn cache_with(budget: u64, options: &LoadOptions) -> (TensorCache<Bufs>, Arc<Script>) {
    cache_by(Script::default(), budget, options)
}

fn cache_by(
    script: Script,
    budget: u64,
    options: &LoadOptions,
) -> (TensorCache<Bufs>, Arc<Script>) {
    let script = Arc::new(script);
    let source = Scripted(file(), script.clone());
    let checkpoint = Checkpoint::from_source(source, "scripted").unwrap();
    lock(&script.reads).clear();
    (TensorCache::new(checkpoint, (), budget, options).unwrap(), script)
}

fn cache(budget: u64) -> (TensorCache<Bufs>, Arc<Script>) {
    cache_with(budget, &LoadOptions::new().threads(2))
}

fn experts(numbers: impl IntoIterator<Item = usize>) -> Vec<(&'static str, (usize,))> {
    numbers.into_iter().map(|number| ("experts", (number,))).collect()
}

#[track_caller]
fn get(cache: &TensorCache<Bufs>, expert: usize) {
    assert_eq!(first_of::<f32>(&cache.get("experts", (expert,)).unwrap()), expert as f32);
}

/// Numbers from a generator, below `below`.
fn random(below: usize) -> impl FnMut() -> usize {
    let mut state = 7_u64;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    }
}

/// The bytes of slices of some experts each.
fn bytes_kept(kept: &VecDeque<(usize, usize)>) -> u64 {
    kept.iter().map(|(_, len)| *len as u64 * 16).sum()
}

#[test]
fn the_least_recently_used_slice_is_dropped() {
    for room in [0, 16, 17, 100, 160, 1000] {
        let (cache, script) = cache(room);
        let mut next = random(40);
        let mut kept = VecDeque::new();
        let (mut hits, mut misses) = (0, 0);
        for _ in 0..500 {
            // From 1 to 3 experts at once.
            let (first, len) = (next().min(37), 1 + next() % 3);
            let bytes = len as u64 * 16;
            let slice = cache.get("experts", (first..first + len,));
            if bytes > room {
                let error = slice.unwrap_err();
                let ErrorKind::OverBudget { bytes: found, budget } = error.kind() else {
                    panic!("{error}")
                };
                assert_eq!((*found, *budget), (bytes, room));
                assert_eq!((error.file(), error.tensor()), (Some("scripted"), Some("experts")));
                continue;
            }
            let slice = slice.unwrap();
            assert_eq!(slice.shape(), [len, 4]);
            assert_eq!(slice.as_slice::<f32>().unwrap()[len * 4 - 1], (first + len - 1) as f32);
            match kept.iter().position(|kept| *kept == (first, len)) {
                Some(at) => {
                    hits += 1;
                    kept.remove(at);
                }
                None => misses += 1,
            }
            kept.push_back((first, len));
            while bytes_kept(&kept) > room {
                kept.pop_front();
            }
            let stats = cache.stats();
            assert_eq!((stats.hits, stats.misses), (hits, misses));
            assert_eq!(stats.bytes_kept, bytes_kept(&kept));
            assert_eq!(script.reads(), misses as usize);
        }
        assert!(room < 100 || hits > 0);
    }
}

#[test]
fn the_same_bytes_are_one_slice() {
    let (cache, script) = cache(1 << 10);
    let whole = cache.get("experts", ()).unwrap();
    assert_eq!(whole.shape(), [40, 4]);
    cache.get("experts", (.., ..)).unwrap();
    cache.get("experts", (0..40,)).unwrap();
    get(&cache, 39);
    cache.get("experts", (-1, 0..4)).unwrap();
    assert_eq!(script.reads(), 2);
    // Another shape is another tensor.
    assert_eq!(cache.get("experts", (39..,)).unwrap().shape(), [1, 4]);
    // An alias is the tensor itself, in the dtype that the library has.
    assert_eq!(first_of::<i16>(&cache.get("tied", ()).unwrap()), -1);
    assert!(Arc::ptr_eq(&cache.get("small", ()).unwrap(), &cache.get("tied", ()).unwrap()));
    assert_eq!(cache.stats().bytes_kept, 640 + 16 + 16 + 8);
}

#[test]
fn nothing_takes_no_budget() {
    let (cache, _) = cache(0);
    for _ in 0..2 {
        assert_eq!(cache.get("none", ()).unwrap().shape(), [0, 4]);
        assert_eq!(cache.get("experts", (3..3,)).unwrap().shape(), [0, 4]);
    }
    assert_eq!((cache.stats().hits, cache.stats().bytes_kept), (2, 0));
    cache.read_ahead([("none", ())]).unwrap();
    cache.read_ahead(experts([])).unwrap();
    let error = cache.read_ahead(experts([1])).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OverBudget { bytes: 16, budget: 0 }), "{error}");
    assert!(error.to_string().contains("takes 16 bytes, but the budget is 0 bytes"), "{error}");
}

#[test]
fn bad_names_and_indices_are_errors_before_a_read() {
    let (cache, script) = cache(1 << 10);
    let error = cache.get("expert", (0,)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound), "{error}");
    assert_eq!(error.similar(), ["experts"]);
    for error in [
        cache.get("experts", (40,)).unwrap_err(),
        cache.get("experts", (usize::MAX,)).unwrap_err(),
        cache.get("experts", (isize::MIN,)).unwrap_err(),
        cache.read_ahead(experts([1, 40])).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::IndexOutOfBounds { .. }), "{error}");
    }
    let error = cache.get("small", (0, 0)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooManyIndices { .. }), "{error}");
    assert_eq!(script.reads(), 0);
}

#[test]
fn many_threads_read_a_slice_once() {
    let (cache, script) = cache(1 << 10);
    let begin = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                begin.wait();
                (0..40).for_each(|expert| get(&cache, expert));
            });
        }
    });
    assert_eq!(script.reads(), 40);
    let stats = cache.stats();
    assert_eq!((stats.hits + stats.misses, stats.bytes_read), (320, 640));
}

#[test]
fn the_budget_holds_for_many_threads() {
    let (cache, _) = cache(64);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let cache = &cache;
            scope.spawn(move || {
                let mut next = random(38);
                (0..thread).for_each(|_| _ = next());
                for i in 0..400 {
                    let first = next();
                    if i % 7 == thread {
                        cache.read_ahead(experts(first..(first + 5).min(40))).unwrap();
                    }
                    // From one expert to all of the budget.
                    let len = [1, 2, 4][i % 3].min(40 - first);
                    let slice = cache.get("experts", (first..first + len,)).unwrap();
                    assert_eq!(first_of::<f32>(&slice), first as f32);
                    assert!(cache.stats().bytes_kept <= 64);
                }
            });
        }
    });
}

#[test]
fn a_changed_file_is_an_error_of_the_next_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, file()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let cache = TensorCache::<Bufs>::new(checkpoint, (), 64, &LoadOptions::new()).unwrap();
    get(&cache, 1);
    std::thread::sleep(Duration::from_millis(20));
    let mut changed = file();
    *changed.last_mut().unwrap() = 0;
    std::fs::write(&path, changed).unwrap();
    for _ in 0..2 {
        let error = cache.get("experts", (2,)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
    cache.read_ahead(experts([3])).unwrap();
    assert!(cache.get("experts", (3,)).is_err());
    // As it was read before.
    get(&cache, 1);
    assert_eq!(cache.stats().bytes_kept, 16);
}

#[test]
fn slices_come_in_the_dtype_of_the_options_and_count_so() {
    let (cache, _) = cache_with(32, &LoadOptions::new().floats_as(Dtype::F64));
    assert_eq!(first_of::<f64>(&cache.get("experts", (7,)).unwrap()), 7.0);
    assert_eq!(cache.stats().bytes_kept, 32);
    let none = LoadOptions::new().all_as(Dtype::F4);
    let error = cache_with(32, &none).0.read_ahead([("small", ())]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoConversion { .. }), "{error}");
}

#[test]
fn quantised_weights_are_refused_or_numbers_or_codes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let codes = [0x38_u8, 0x40, 0x38, 0x40];
    let scales = [0.5_f32, 2.0].map(f32::to_le_bytes).concat();
    let tensors = [
        ("w", TensorView::new(Dtype::F8_E4M3, &[2, 2], &codes).unwrap()),
        ("w_scale", TensorView::new(Dtype::F32, &[2, 1], &scales).unwrap()),
    ];
    save(&path, tensors, &SaveOptions::new()).unwrap();
    let cache = |quantized| {
        let options = LoadOptions::new().quantized(quantized);
        TensorCache::<Bufs>::new(Checkpoint::open(&path).unwrap(), (), 64, &options).unwrap()
    };
    let error = cache(QuantizedWeights::Refuse).get("w", (1,)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
    let row = cache(QuantizedWeights::Numbers).get("w", (1,)).unwrap();
    assert_eq!(row.as_slice::<f32>().unwrap(), [2.0, 4.0]);
    let row = cache(QuantizedWeights::Stored).get("w", (1,)).unwrap();
    assert_eq!((row.dtype(), row.bytes()), (Dtype::F8_E4M3, &codes[2..]));
}
