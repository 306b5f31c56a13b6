//! Tensors read by any number of threads, in one call or in several, some or all of them.

use std::ops::Range;

use safetensors_core::io::FileSource;
use safetensors_core::load::read_tensors;
use safetensors_testing::read_at::NotingSource;

use super::save_tensors;
use crate::support::*;

#[test]
fn any_number_of_threads_reads_the_same_bytes() {
    let (_directory, path) = place("model.safetensors");
    // Lengths around the size of the pieces that threads read, and of several pieces.
    let piece = 4 << 20;
    let data =
        save_tensors(&path, &[0, 1, 3, piece - 1, piece, piece + 1, 0, 2 * piece + 12_345, 7]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    for threads in [0, 1, 2, 8, 100] {
        let bufs = checkpoint.read_all(&LoadOptions::new().threads(threads)).unwrap();
        assert_eq!(bufs.len(), data.len());
        for ((tensor, buf), data) in checkpoint.tensors().zip(bufs).zip(&data) {
            assert!(buf.bytes() == data, "{} by {threads} threads", tensor.name());
            assert!(tensor.read().unwrap().bytes() == data, "{} alone", tensor.name());
            assert_eq!((buf.dtype(), buf.shape()), (tensor.dtype(), tensor.shape()));
        }
    }
}

#[test]
fn thousands_of_tiny_tensors() {
    let (_directory, path) = place("model.safetensors");
    let lengths: Vec<_> = (0..5000).map(|i| i % 9).collect();
    let data = save_tensors(&path, &lengths);
    let checkpoint = Checkpoint::open(&path).unwrap();
    for threads in [1, 2, 8] {
        let bufs = checkpoint.read_all(&LoadOptions::new().threads(threads)).unwrap();
        assert!(bufs.iter().map(|buf| buf.bytes()).eq(&data), "{threads} threads");
    }
    for (i, data) in data.iter().enumerate().step_by(97) {
        assert_eq!(checkpoint.tensor(&format!("t{i:05}")).unwrap().read().unwrap().bytes(), data);
    }
}

#[test]
fn an_empty_checkpoint() {
    let directory = tempdir().unwrap();
    for (name, lengths) in [("nothing", &[][..]), ("no bytes", &[0, 0, 0])] {
        let path = directory.path().join(name);
        save_tensors(&path, lengths);
        let checkpoint = Checkpoint::open(&path).unwrap();
        for threads in [0, 1, 8] {
            let bufs = checkpoint.read_all(&LoadOptions::new().threads(threads)).unwrap();
            assert_eq!(
                bufs.iter().map(|buf| buf.bytes().len()).collect::<Vec<_>>(),
                lengths,
                "{name}"
            );
        }
    }
}

#[test]
#[allow(unsafe_code, reason = "mapping a file is a promise that it stays as it is")]
fn mapped_views_equal_read_tensors() {
    let (_directory, path) = place("model.safetensors");
    let data = save_tensors(&path, &[0, 1, 4096, 5 << 20, 0]);
    // SAFETY: the file is in a temporary directory of this test, which does not change the file
    // while it is mapped.
    let mapped = unsafe { Checkpoint::mmap(&path) }.unwrap();
    let read = Checkpoint::open(&path).unwrap();
    assert_eq!(mapped.len(), data.len());
    for ((tensor, same), data) in mapped.tensors().zip(read.tensors()).zip(&data) {
        let view = tensor.view().unwrap();
        assert_eq!(
            (tensor.name(), view.dtype(), view.shape()),
            (same.name(), same.dtype(), same.shape())
        );
        assert!(view.data() == data && same.read().unwrap().bytes() == data, "{}", tensor.name());
        assert!(
            tensor.read().unwrap().bytes() == data,
            "{}: read out of the mapping",
            tensor.name()
        );
    }
    let bufs = mapped.read_all(&LoadOptions::new().threads(2)).unwrap();
    assert!(bufs.iter().map(|buf| buf.bytes()).eq(&data));
}

/// Opens a file of these bytes.
fn spied(bytes: Vec<u8>) -> Checkpoint<NotingSource> {
    let checkpoint = Checkpoint::from_source(NotingSource::new(bytes), "spied on").unwrap();
    checkpoint.files()[0].safetensors().source().take_calls();
    checkpoint
}

/// Returns what calls have read since the last time, sorted.
fn calls(checkpoint: &Checkpoint<NotingSource>) -> Vec<Range<u64>> {
    let calls = checkpoint.files()[0].safetensors().source().take_calls();
    assert!(calls.iter().all(|ranges| ranges.is_sorted_by_key(|range| range.start)));
    let whole = |ranges: &Vec<Range<u64>>| ranges[0].start..ranges.last().unwrap().end;
    let mut calls: Vec<_> = calls.iter().map(whole).collect();
    calls.sort_unstable_by_key(|call| call.start);
    calls
}

#[test]
fn small_neighbours_are_read_in_one_call_and_large_tensors_in_several() {
    let small: Vec<_> =
        (0..5000_u32).map(|i| TensorBuf::from_vec(vec![10], vec![i; 10]).unwrap()).collect();
    let large = TensorBuf::from_vec(vec![10 << 20], vec![7_u8; 10 << 20]).unwrap();
    let tensors = small
        .iter()
        .enumerate()
        .map(|(i, buf)| (format!("{i:05}"), buf))
        .chain([("large".into(), &large)]);
    let bytes = serialize(tensors, &SaveOptions::new()).unwrap();
    let checkpoint = spied(bytes);
    let bufs = checkpoint.read_all(&LoadOptions::new()).unwrap();
    for (tensor, buf) in
        checkpoint.tensors().zip(&bufs).filter(|(tensor, _)| tensor.name() != "large")
    {
        let expected: u32 = tensor.name().parse().unwrap();
        assert_eq!(buf.as_slice::<u32>().unwrap(), [expected; 10]);
    }
    let calls = calls(&checkpoint).len();
    assert_eq!(calls, 1 + 3, "5,000 small tensors are one call, 10 MiB are three");
}

#[test]
fn calls_for_a_large_tensor_end_at_multiples_of_4_mib_in_the_file() {
    const JOB: u64 = 4 << 20;
    let file = |before: u64, len: u64| {
        let bufs = [("a", before), ("b", len)].map(|(name, len)| {
            let bytes = repeated(len as usize, 251, |i| i as u8);
            (name, TensorBuf::from_vec(vec![bytes.len()], bytes).unwrap())
        });
        serialize(bufs, &SaveOptions::new()).unwrap()
    };
    for len in [JOB - 1, JOB, JOB + 1, 2 * JOB + 5] {
        let header = file(JOB - 1000, len).len() as u64 - (JOB - 1000) - len;
        for begin in [JOB - 1, JOB, JOB + 1] {
            let bytes = file(begin - header, len);
            let end = bytes.len() as u64;
            assert_eq!(end, begin + len);
            let checkpoint = spied(bytes.clone());
            let read = checkpoint.read_named(["b"], &LoadOptions::new()).unwrap();
            assert!(read[0].bytes() == &bytes[begin as usize..]);
            let mut at = begin;
            for call in calls(&checkpoint) {
                assert_eq!(call.start, at);
                assert!(call.end == end || call.end % JOB == 0, "{call:?} of {begin}..{end}");
                assert!(call.end - at <= JOB, "{call:?}");
                at = call.end;
            }
            assert_eq!(at, end);
        }
    }
}

#[test]
fn progress_reaches_the_total_and_can_cancel() {
    let (_dir, path) = place("model.safetensors");
    let large = TensorBuf::from_vec(vec![9 << 20], vec![1_u8; 9 << 20]).unwrap();
    let empty = TensorBuf::from_vec::<f32>(vec![0], vec![]).unwrap();
    save(&path, [("large", &large), ("empty", &empty)], &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let options = LoadOptions::new().progress({
        let seen = Arc::clone(&seen);
        move |progress| {
            assert_eq!((progress.bytes_total, progress.tensor), (9 << 20, "large"));
            seen.lock().unwrap().push(progress.bytes_done);
            ControlFlow::Continue(())
        }
    });
    checkpoint.read_all(&options).unwrap();
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    assert_eq!((seen.len(), seen.last()), (3, Some(&(9 << 20))));

    refused!(
        checkpoint.read_all(&LoadOptions::new().progress(|_| ControlFlow::Break(()))),
        ErrorKind::Cancelled
    );
}

#[test]
fn some_tensors_by_a_filter_or_by_name() {
    let (_dir, path) = place("model.safetensors");
    let bufs = ["a.x", "a.y", "b.x"]
        .map(|name| (name, TensorBuf::from_vec(vec![3], name.as_bytes().to_vec()).unwrap()));
    save(&path, bufs.iter().map(|(name, buf)| (name, buf)), &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = LoadOptions::new();
    let some: Vec<_> =
        checkpoint.tensors().filter(|tensor| tensor.name().ends_with(".x")).collect();
    assert_eq!(some.iter().map(LazyTensor::name).collect::<Vec<_>>(), ["a.x", "b.x"]);
    let bufs = read_tensors(&some, &options).unwrap();
    assert!(some.iter().zip(&bufs).all(|(tensor, buf)| buf.bytes() == tensor.name().as_bytes()));
    assert!(read_tensors::<FileSource>(&[], &options).unwrap().is_empty());

    let named = checkpoint.read_named(["b.x", "a.y", "b.x"], &options).unwrap();
    assert_eq!(named.iter().map(TensorBuf::bytes).collect::<Vec<_>>(), [b"b.x", b"a.y", b"b.x"]);
    let error =
        refused!(checkpoint.read_named(["a.x", "c.x"], &options), ErrorKind::TensorNotFound);
    assert_eq!((error.tensor(), error.file()), (Some("c.x"), path.to_str()));
}
