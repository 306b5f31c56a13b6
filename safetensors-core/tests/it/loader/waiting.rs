//! A source with calls that wait, such as one behind a network: few calls, many at once.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use std::{io, ops, thread};

use safetensors_core::io::{ReadRange, Requests};
use safetensors_core::load::read_slices;
use safetensors_core::slice::RankPart;

use super::pattern;
use crate::support::*;

const MIB: usize = 1 << 20;

/// Notes the ranges of each call, and how many calls wait at once.
struct Far {
    bytes: Vec<u8>,
    requests: Option<Requests>,
    calls: Mutex<Vec<Vec<ops::Range<u64>>>>,
    waiting: AtomicUsize,
    most_waiting: AtomicUsize,
    /// How many calls must have waited at once before any is answered, or ten seconds have passed.
    expected: AtomicUsize,
    is_broken: AtomicBool,
}

impl Far {
    fn new(bytes: Vec<u8>, requests: Option<Requests>) -> Self {
        Self {
            bytes,
            requests,
            calls: Mutex::default(),
            waiting: AtomicUsize::new(0),
            most_waiting: AtomicUsize::new(0),
            expected: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
        }
    }
}

impl ReadAt for Far {
    fn byte_len(&self) -> u64 {
        self.bytes.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    }

    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_waiting.fetch_max(waiting, Ordering::SeqCst);
        let range = |range: &ReadRange<'_>| range.offset..range.offset + range.bytes.len() as u64;
        self.calls.lock().unwrap().push(ranges.iter().map(range).collect());
        let start = Instant::now();
        let are_all_there =
            || self.most_waiting.load(Ordering::SeqCst) >= self.expected.load(Ordering::SeqCst);
        while !are_all_there() && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        // An additional call would come during this time.
        thread::sleep(Duration::from_millis(20));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if self.is_broken.load(Ordering::SeqCst) {
            Err(io::Error::other("no answer"))
        } else {
            self.bytes.read_ranges_at(ranges)
        }
    }

    fn requests(&self) -> Option<Requests> {
        self.requests
    }
}

/// Returns a checkpoint with a distant file, with calls of 1 MiB, twelve at once.
fn far(tensors: &[(String, TensorBuf)]) -> Checkpoint<Far> {
    let requests = Requests::new(MIB + 5, 12);
    assert_eq!(requests.byte_len, MIB);
    open(tensors, Some(requests))
}

fn open(tensors: &[(String, TensorBuf)], requests: Option<Requests>) -> Checkpoint<Far> {
    let bytes = serialize(tensors.iter().map(|(name, buf)| (name, buf)), &SaveOptions::new());
    let checkpoint = Checkpoint::from_source(Far::new(bytes.unwrap(), requests), "far").unwrap();
    source(&checkpoint).calls.lock().unwrap().clear();
    checkpoint
}

fn source(checkpoint: &Checkpoint<Far>) -> &Far {
    checkpoint.files()[0].safetensors().source()
}

fn calls(checkpoint: &Checkpoint<Far>) -> Vec<Vec<ops::Range<u64>>> {
    std::mem::take(&mut source(checkpoint).calls.lock().unwrap())
}

fn bytes(name: &str, len: usize, seed: usize) -> (String, TensorBuf) {
    (name.into(), TensorBuf::from_vec(vec![len], pattern(len, seed)).unwrap())
}

#[test]
fn a_large_tensor_is_read_by_many_calls_at_once() {
    let tensors = [bytes("large", 24 * MIB + 17, 1)];
    let checkpoint = far(&tensors);
    source(&checkpoint).expected.store(12, Ordering::SeqCst);
    let read = checkpoint.read_all(&LoadOptions::new()).unwrap();
    assert_eq!(read[0].bytes(), tensors[0].1.bytes());
    assert_eq!(calls(&checkpoint).len(), 25);
    assert_eq!(source(&checkpoint).most_waiting.load(Ordering::SeqCst), 12);

    // A number of threads that the caller sets counts.
    let checkpoint = far(&tensors);
    source(&checkpoint).expected.store(3, Ordering::SeqCst);
    checkpoint.read_all(&LoadOptions::new().threads(3)).unwrap();
    assert_eq!(source(&checkpoint).most_waiting.load(Ordering::SeqCst), 3);
}

#[test]
fn small_tensors_are_read_together_despite_gaps() {
    let tensors: Vec<_> = (0..40).map(|i| bytes(&format!("{i:02}"), 10_000 + i, i)).collect();
    let (requests, local) = (far(&tensors), open(&tensors, None));
    let names = ["03", "04", "17", "39"];
    for (checkpoint, expected) in [(&requests, 1), (&local, 3)] {
        let read = checkpoint.read_named(names, &LoadOptions::new()).unwrap();
        for (buf, name) in read.iter().zip(names) {
            assert_eq!(buf.bytes(), tensors[name.parse::<usize>().unwrap()].1.bytes());
        }
        assert_eq!(calls(checkpoint).len(), expected);
    }
}

#[test]
fn converted_elements_come_by_large_calls() {
    let values: Vec<f32> = (0..MIB).map(|i| i as f32).collect();
    let tensors = [("w".to_owned(), TensorBuf::from_vec(vec![MIB], values.clone()).unwrap())];
    let checkpoint = far(&tensors);
    let read = checkpoint.read_all(&LoadOptions::new().floats_as(Dtype::F64)).unwrap();
    let expected: Vec<_> = values.iter().map(|&value| f64::from(value)).collect();
    assert_eq!(read[0].as_slice::<f64>().unwrap(), expected);
    // 8 MiB in memory, a call for each: half that number of bytes of the file.
    let calls = calls(&checkpoint);
    assert_eq!(calls.len(), 8);
    assert!(calls.iter().flatten().all(|range| range.end - range.start == MIB as u64 / 2));
}

#[test]
fn the_runs_of_a_slice_come_by_one_call() {
    // Rows of 8 KiB, with 2 KiB for a rank; and rows of 64 bytes with gaps that are read too.
    for (rows, columns, ranges) in [(100, 8192, 100), (4000, 64, 1)] {
        let table = TensorBuf::from_vec(vec![rows, columns], pattern(rows * columns, 5)).unwrap();
        let expected =
            table.view().unwrap().slice((.., columns / 4..columns / 2)).unwrap().to_buf().unwrap();
        let checkpoint = far(&[("table".to_owned(), table)]);
        let part = checkpoint.tensor("table").unwrap().slice(RankPart::new(1, 1, 4)).unwrap();
        assert_eq!(part.read().unwrap().bytes(), expected.bytes());
        let alone = calls(&checkpoint);
        assert_eq!(alone.iter().map(Vec::len).collect::<Vec<_>>(), [ranges]);
        let together = read_slices(&[part], &LoadOptions::new()).unwrap();
        assert_eq!(together[0].bytes(), expected.bytes());
        assert_eq!(calls(&checkpoint).concat().len(), ranges);
    }
}

#[test]
fn tensors_are_saved_by_large_pieces() {
    let tensors = [bytes("w", 3 * MIB, 2)];
    let checkpoint = far(&tensors);
    let copy = serialize([("w", checkpoint.tensor("w").unwrap())], &SaveOptions::new()).unwrap();
    assert_eq!(copy, source(&checkpoint).bytes);
    assert_eq!(calls(&checkpoint).len(), 3);
}

#[test]
fn a_failed_call_is_not_repeated_for_each_tensor() {
    let tensors: Vec<_> = (0..40).map(|i| bytes(&format!("{i:02}"), 1000, i)).collect();
    let checkpoint = far(&tensors);
    source(&checkpoint).is_broken.store(true, Ordering::SeqCst);
    let error = refused!(checkpoint.read_all(&LoadOptions::new()), ErrorKind::Io(_));
    assert_eq!((error.file(), error.tensor()), (Some("far"), None));
    assert_eq!(calls(&checkpoint).len(), 1);
    let error = checkpoint.read_named(["07"], &LoadOptions::new()).unwrap_err();
    assert_eq!((error.file(), error.tensor()), (Some("far"), Some("07")));
}

#[test]
fn views_need_no_calls() {
    let view = TensorView::from_slice(&[1], &[1_u8]).unwrap();
    assert!(view.data().requests().is_none());
}
