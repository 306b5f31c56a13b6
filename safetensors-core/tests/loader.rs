//! Reading many tensors at once: the same bytes with any number of threads, and errors that name
//! the tensor and file.
#![cfg(feature = "std")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use safetensors_core::io::FileSource;
use safetensors_core::load::read_tensors;
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, LazyTensor, LoadOptions, ReadAt, SafeTensors, SaveOptions,
    TensorBuf, TensorView, save,
};
use tempfile::tempdir;

/// `len` bytes that differ by position and seed.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31).wrapping_add(i >> 8).wrapping_add(seed) % 251) as u8)
        .collect()
}

/// Saves U8 tensors of these lengths, in this order, and returns their bytes.
fn save_tensors(path: &Path, lengths: &[usize]) -> Vec<Vec<u8>> {
    let data: Vec<_> = lengths.iter().enumerate().map(|(seed, len)| pattern(*len, seed)).collect();
    let shapes: Vec<_> = lengths.iter().map(|len| [*len]).collect();
    let views = data.iter().zip(&shapes).enumerate();
    let views = views.map(|(i, (data, shape))| {
        (format!("t{i:05}"), TensorView::new(Dtype::U8, shape, data).unwrap())
    });
    save(path, views, &SaveOptions::new().durable(false)).unwrap();
    data
}

#[test]
fn any_number_of_threads_reads_what_one_reads() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
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
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
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
fn a_file_truncated_after_it_was_opened() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    save_tensors(&path, &[100, 5 << 20, 100]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let cut = checkpoint.tensor("t00001").unwrap().file_offset() + (4 << 20) + 1;
    OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();

    // The first tensor still has all its bytes, but they may have changed. The second is cut, the
    // third is gone.
    let error = checkpoint.tensor("t00000").unwrap().read().unwrap_err();
    assert!(error.to_string().contains("has changed"), "{error}");
    let alone = ["t00001", "t00002"]
        .map(|name| (Some(name), checkpoint.tensor(name).unwrap().read().unwrap_err()));
    let together = [1, 2, 8].map(|threads| {
        (None, checkpoint.read_all(&LoadOptions::new().threads(threads)).unwrap_err())
    });
    for (name, error) in alone.into_iter().chain(together) {
        let ended = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
        assert!(matches!(error.kind(), ErrorKind::Io(error) if ended(error)), "{error}");
        assert_eq!(error.file(), path.to_str());
        match name {
            Some(name) => assert_eq!(error.tensor(), Some(name)),
            // The error names the tensor that a thread read first.
            None => assert!(matches!(error.tensor(), Some("t00001" | "t00002")), "{error}"),
        }
        assert!(error.to_string().contains(error.tensor().unwrap()), "{error}");
    }
    let error = checkpoint.read_all(&LoadOptions::new().threads(1)).unwrap_err();
    assert_eq!(error.tensor(), Some("t00001"), "one thread reads in order");
}

#[test]
fn a_byte_that_is_not_a_bool() {
    let header = concat!(
        r#"{"mask":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]},"#,
        r#""x":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}"#,
    );
    let directory = tempdir().unwrap();
    for (data, index, found) in
        [([0, 1, 2, 1, 9], 2, 2), ([255, 1, 0, 1, 9], 0, 255), ([0, 0, 0, 3, 9], 3, 3)]
    {
        let path = support::write(
            directory.path(),
            "model.safetensors",
            support::file_with(header, &data),
        );
        let checkpoint = Checkpoint::open(&path).unwrap();
        let alone = checkpoint.tensor("mask").unwrap().read().unwrap_err();
        let together = checkpoint.read_all(&LoadOptions::new()).unwrap_err();
        for error in [alone, together] {
            let expected = ErrorKind::InvalidBool { index, found };
            assert_eq!(format!("{:?}", error.kind()), format!("{expected:?}"));
            assert_eq!((error.file(), error.tensor()), (path.to_str(), Some("mask")));
            assert!(error.to_string().contains("\"mask\""), "{error}");
        }
        // The bytes can still be viewed.
        let archive = SafeTensors::parse(support::file_with(header, &data)).unwrap();
        let view = archive.view("mask").unwrap();
        assert_eq!(view.data(), &data[..4]);
        assert!(matches!(
            view.as_slice::<bool>().unwrap_err().kind(),
            ErrorKind::InvalidBool { .. }
        ));
        assert_eq!(checkpoint.tensor("x").unwrap().read().unwrap().bytes(), [9]);
    }
}

#[test]
#[allow(unsafe_code, reason = "mapping a file is a promise that it stays as it is")]
fn mapped_views_equal_what_is_read() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let data = save_tensors(&path, &[0, 1, 4096, 5 << 20, 0]);
    // SAFETY: the file lies in a temporary directory of this test, which does not change the file
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

/// A source of any length: a header, and zeros after it that are not stored.
#[derive(Debug)]
struct Sparse {
    start: Vec<u8>,
    len: u64,
}

impl Sparse {
    fn of_one_tensor(bytes: u64) -> Self {
        let header =
            format!(r#"{{"huge":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
        let start = support::file(header, 0);
        Self { len: start.len() as u64 + bytes, start }
    }
}

impl ReadAt for Sparse {
    fn byte_len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).ok().and_then(|offset| self.start.get(offset..));
        match start.filter(|start| start.len() >= buf.len()) {
            Some(start) => buf.copy_from_slice(&start[..buf.len()]),
            None => return Err(io::Error::other("beyond the header")),
        }
        Ok(())
    }
}

/// A sparse file can be longer than memory. Reading its tensor must be an error and not end the
/// process.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_tensor_larger_than_memory() {
    for bytes in [1 << 50, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX - 1000] {
        let archive = SafeTensors::from_source(Sparse::of_one_tensor(bytes)).unwrap();
        let tensor = archive.tensor("huge").unwrap();
        let alone = tensor.read().unwrap_err();
        let together =
            safetensors_core::load::read_tensors(&[tensor], &LoadOptions::new()).unwrap_err();
        for error in [alone, together] {
            let expected = ErrorKind::TooLargeForMemory { bytes };
            assert_eq!(format!("{:?}", error.kind()), format!("{expected:?}"));
            assert_eq!(error.tensor(), Some("huge"));
        }
    }
}

#[test]
fn a_source_that_fails() {
    let archive = SafeTensors::from_source(Sparse::of_one_tensor(100)).unwrap();
    let error = archive.tensor("huge").unwrap().read().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Io(_)) && error.to_string().contains("beyond the header"),
        "{error}"
    );
    assert_eq!((error.file(), error.tensor()), (None, Some("huge")));

    let error = archive.tensor("small").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound), "{error}");
    assert_eq!(error.tensor(), Some("small"));

    // A source that ends inside its header, although its length says otherwise.
    let broken = Sparse { start: vec![60, 0, 0, 0, 0, 0, 0, 0, b'{'], len: 1000 };
    let error = SafeTensors::from_source(broken).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
}

/// Bytes that are complete when they are parsed, and fewer when they are borrowed again.
#[test]
fn bytes_that_shrink() {
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Shrinks(Vec<u8>, AtomicBool);
    impl AsRef<[u8]> for Shrinks {
        fn as_ref(&self) -> &[u8] {
            if self.1.load(Ordering::Relaxed) { &self.0[..10] } else { &self.0 }
        }
    }

    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let archive =
        SafeTensors::parse(Shrinks(support::file(header, 4), AtomicBool::new(false))).unwrap();
    assert!(archive.view("a").is_ok());
    archive.source().1.store(true, Ordering::Relaxed);
    let view = archive.view("a").unwrap_err();
    assert!(matches!(view.kind(), ErrorKind::MissingData { expected: 4, found: 0 }), "{view}");
    let read = archive.tensor("a").unwrap().read().unwrap_err();
    assert!(matches!(read.kind(), ErrorKind::Io(_)), "{read}");
    assert_eq!((view.tensor(), read.tensor()), (Some("a"), Some("a")));
}

/// A source that counts calls.
struct Spy {
    bytes: Vec<u8>,
    calls: std::sync::atomic::AtomicUsize,
}

impl safetensors_core::ReadAt for Spy {
    fn byte_len(&self) -> u64 {
        self.bytes.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.bytes.read_exact_at(buf, offset)
    }

    fn read_ranges_at(
        &self,
        ranges: &mut [safetensors_core::io::ReadRange<'_>],
    ) -> std::io::Result<()> {
        self.calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(ranges.is_sorted_by_key(|range| range.offset));
        ranges.iter_mut().try_for_each(|range| self.bytes.read_exact_at(range.bytes, range.offset))
    }
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
    let bytes = safetensors_core::serialize(tensors, &SaveOptions::new()).unwrap();
    let path = std::path::Path::new("spy.safetensors");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(path), &bytes).unwrap();
    let open = |_: &std::path::Path| Ok(Spy { bytes: bytes.clone(), calls: Default::default() });
    let checkpoint = Checkpoint::open_by(dir.path().join(path), &Default::default(), open).unwrap();
    let bufs = checkpoint.read_all(&LoadOptions::new()).unwrap();
    for (tensor, buf) in
        checkpoint.tensors().zip(&bufs).filter(|(tensor, _)| tensor.name() != "large")
    {
        let expected: u32 = tensor.name().parse().unwrap();
        assert_eq!(buf.as_slice::<u32>().unwrap(), [expected; 10]);
    }
    let calls = checkpoint.files()[0]
        .safetensors()
        .source()
        .calls
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(calls, 1 + 3, "5,000 small tensors are one call, 10 MiB are three");
}

#[test]
fn progress_reaches_the_total_and_can_cancel() {
    use std::ops::ControlFlow;
    use std::sync::{Arc, Mutex};

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
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

    let error =
        checkpoint.read_all(&LoadOptions::new().progress(|_| ControlFlow::Break(()))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
}

#[test]
fn a_file_that_changes_while_it_is_open_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let buf = TensorBuf::from_vec(vec![4], vec![1_u8, 2, 3, 4]).unwrap();
    save(&path, [("w", &buf)], &SaveOptions::new()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Set the time far into the past, so that the write below certainly changes it.
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.read_all(&LoadOptions::new()).unwrap();

    std::os::unix::fs::FileExt::write_all_at(
        &file,
        &[9],
        std::fs::metadata(&path).unwrap().len() - 1,
    )
    .unwrap();
    let errors = [
        checkpoint.read_all(&LoadOptions::new()).unwrap_err(),
        checkpoint.tensor("w").unwrap().read().unwrap_err(),
        checkpoint.tensor("w").unwrap().slice((1..,)).unwrap().read().unwrap_err(),
        checkpoint
            .tensor("w")
            .unwrap()
            .read_as(safetensors_core::Dtype::F32, &Default::default())
            .unwrap_err(),
        safetensors_core::Rewrite::of(&checkpoint)
            .save(dir.path().join("b"), &SaveOptions::new())
            .unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("has changed since it was opened"), "{error}");
        assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
    }
}

#[test]
fn a_source_that_changes_while_its_header_is_read() {
    #[derive(Debug)]
    struct Changing(Vec<u8>);

    impl ReadAt for Changing {
        fn byte_len(&self) -> u64 {
            self.0.byte_len()
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            self.0.read_exact_at(buf, offset)
        }

        fn check_unchanged(&self) -> io::Result<()> {
            Err(io::Error::other("it has changed"))
        }
    }

    let buf = TensorBuf::from_vec(vec![1], vec![1_u8]).unwrap();
    let file = Changing(safetensors_core::serialize([("w", &buf)], &SaveOptions::new()).unwrap());
    let error = SafeTensors::from_source(file).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    assert!(error.to_string().contains("it has changed"), "{error}");
}

#[test]
fn ranges_of_a_file_in_any_order_and_at_impossible_places() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bytes");
    std::fs::write(&path, pattern(100, 0)).unwrap();
    let source = safetensors_core::io::FileSource::open(&path).unwrap();
    let read = |places: [(u64, usize); 3]| {
        let mut bufs = places.map(|(_, len)| vec![0; len]);
        let ranges = places.iter().zip(&mut bufs);
        let mut ranges: Vec<_> = ranges
            .map(|((offset, _), bytes)| safetensors_core::io::ReadRange { offset: *offset, bytes })
            .collect();
        source.read_ranges_at(&mut ranges).map(|()| bufs.concat())
    };
    let bytes = pattern(100, 0);
    let expected = [&bytes[50..60], &bytes[60..60], &bytes[60..100]].concat();
    assert_eq!(read([(50, 10), (60, 0), (60, 40)]).unwrap(), expected);
    let expected = [&bytes[50..60], &bytes[0..5], &bytes[5..9]].concat();
    assert_eq!(read([(50, 10), (0, 5), (5, 4)]).unwrap(), expected);
    for past_the_end in [
        [(90, 10), (100, 1), (0, 1)],
        [(u64::MAX - 1, 4), (0, 1), (1, 1)],
        [(i64::MAX as u64, 1); 3],
    ] {
        read(past_the_end).unwrap_err();
    }
}

#[test]
fn some_tensors_by_name_or_by_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
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
    let error = checkpoint.read_named(["a.x", "c.x"], &options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("c.x"), path.to_str()));
}
