//! Writing tensors: every byte once, by any thread, and each tensor whole.

use std::{io, thread};

use safetensors_core::save::StreamWriter;
use safetensors_testing::tensors::{broken, bytes_by};

use crate::support::*;

/// A writer of `a`, 10 bytes, and `b`, an F32 scalar, in a new directory.
fn started() -> (TempDir, PathBuf, StreamWriter) {
    let directory = tempdir().unwrap();
    let path = write(directory.path(), "model.safetensors", "the old file");
    let tensors = [("a", Dtype::U8, &[10][..]), ("b", Dtype::F32, &[])];
    let writer = StreamWriter::create(&path, tensors, &SaveOptions::new()).unwrap();
    (directory, path, writer)
}

#[track_caller]
fn assert_untouched(directory: &TempDir) {
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
    assert_eq!(fs::read(directory.path().join("model.safetensors")).unwrap(), b"the old file");
}

#[test]
fn a_tensor_that_was_not_declared_has_no_writer() {
    let (_directory, path, writer) = started();
    let error = writer.tensor("c").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TensorNotFound));
    assert_eq!((error.tensor(), error.file()), (Some("c"), path.to_str()));
}

#[test]
fn a_missing_byte_is_reported_at_any_position() {
    type Writes<'a> = &'a [(u64, &'a [u8])];
    let cases: [(Writes<'_>, u64, (u64, u64)); 6] = [
        (&[], 0, (0, 10)),
        (&[(0, &[1; 9])], 9, (9, 10)),
        (&[(1, &[1; 9])], 9, (0, 1)),
        (&[(6, &[1; 4]), (0, &[1; 5])], 9, (5, 6)),
        (&[(8, &[1]), (2, &[1]), (5, &[1])], 3, (0, 2)),
        (&[(0, &[1; 4]), (9, &[1])], 5, (4, 9)),
    ];
    for (writes, count, missing) in cases {
        let (directory, path, writer) = started();
        writer.tensor("b").unwrap().write_bytes_at(0, &[0; 4]).unwrap();
        let a = writer.tensor("a").unwrap();
        writes.iter().for_each(|(offset, bytes)| a.write_bytes_at(*offset, bytes).unwrap());
        assert_eq!(a.written(), count);
        let error = refused!(
            writer.finish(),
            ErrorKind::Incomplete { expected: 10, found, begin, end }
                if *found == count && (*begin, *end) == missing
        );
        assert_eq!((error.tensor(), error.file()), (Some("a"), path.to_str()));
        assert_untouched(&directory);
    }
}

/// The number of bytes is correct, but they are not the right ones. Counting alone would not find
/// that.
#[test]
fn no_byte_is_written_twice() {
    let (directory, path, writer) = started();
    let a = writer.tensor("a").unwrap();
    a.write_bytes_at(2, &[1; 4]).unwrap();
    for (offset, len, twice) in
        [(2, 4, (2, 6)), (0, 3, (2, 3)), (5, 5, (5, 6)), (3, 1, (3, 4)), (0, 10, (2, 6))]
    {
        let error = a.write_bytes_at(offset, &vec![9; len]).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::WrittenTwice { begin, end } if (*begin, *end) == twice),
            "{offset} {len}: {error}"
        );
        assert_eq!((error.tensor(), error.file()), (Some("a"), path.to_str()));
        assert_eq!(a.written(), 4);
    }
    a.write_bytes_at(0, &[2; 2]).unwrap();
    a.append(&[3_u8; 4]).unwrap();
    refused!(a.append(&[4_u8]), ErrorKind::WrittenPastEnd { expected: 10, found: 11 });
    writer.tensor("b").unwrap().write_bytes_at(0, &[0; 4]).unwrap();
    writer.finish().unwrap();
    let read = Checkpoint::open(&path).unwrap().tensor("a").unwrap().read().unwrap();
    assert_eq!(read.bytes(), [2, 2, 1, 1, 1, 1, 3, 3, 3, 3]);
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
}

#[test]
fn no_byte_is_written_past_the_end() {
    let (directory, _, writer) = started();
    let b = writer.tensor("b").unwrap();
    for (offset, len, reached) in
        [(4, 1, 5), (0, 5, 5), (3, 2, 5), (u64::MAX, 1, u64::MAX), (u64::MAX - 1, 4, u64::MAX)]
    {
        let error = b.write_bytes_at(offset, &vec![1; len]).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::WrittenPastEnd { expected: 4, found } if *found == reached),
            "{error}"
        );
        assert_eq!(error.tensor(), Some("b"));
    }
    b.write_bytes_at(4, &[]).unwrap();
    assert!(b.write_bytes_at(5, &[]).is_err());
    assert_eq!(b.written(), 0);
    drop(writer);
    assert_untouched(&directory);
}

#[test]
fn of_many_threads_that_write_one_byte_one_does() {
    let (_directory, path) = place("model.safetensors");
    let writer =
        StreamWriter::create(&path, [("a", Dtype::U8, [200])], &SaveOptions::new().durable(false))
            .unwrap();
    let winners = Mutex::new([0_u8; 200]);
    let losses = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 1..=8_u8 {
            let (a, winners, losses) = (writer.tensor("a").unwrap(), &winners, &losses);
            scope.spawn(move || {
                for offset in 0..200_usize {
                    match a.write_bytes_at(offset as u64, &[thread]) {
                        Ok(()) => winners.lock().unwrap()[offset] = thread,
                        Err(error) => {
                            assert!(
                                matches!(error.kind(), ErrorKind::WrittenTwice { .. }),
                                "{error}"
                            );
                            losses.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(losses.into_inner(), 7 * 200);
    writer.finish().unwrap();
    let read = Checkpoint::open(&path).unwrap().tensor("a").unwrap().read().unwrap();
    assert_eq!(read.bytes(), winners.into_inner().unwrap());
}

#[test]
fn appending_from_many_threads_loses_nothing() {
    let (_directory, path) = place("model.safetensors");
    let writer = StreamWriter::create(
        &path,
        [("a", Dtype::U8, [8 * 300])],
        &SaveOptions::new().durable(false),
    )
    .unwrap();
    thread::scope(|scope| {
        for thread in 0..8_u8 {
            let a = writer.tensor("a").unwrap();
            scope.spawn(move || (0..100).for_each(|_| a.append(&[thread; 3]).unwrap()));
        }
    });
    writer.finish().unwrap();
    let read = Checkpoint::open(&path).unwrap().tensor("a").unwrap().read().unwrap();
    let (triples, rest) = read.bytes().as_chunks::<3>();
    assert!(rest.is_empty());
    for thread in 0..8 {
        assert_eq!(triples.iter().filter(|triple| **triple == [thread; 3]).count(), 100);
    }
}

#[test]
fn a_dropped_writer_leaves_nothing() {
    let (directory, _, writer) = started();
    writer.tensor("a").unwrap().append(&[1_u8; 10]).unwrap();
    // The file that is being written need not have a name.
    assert!(names_in(directory.path()).len() <= 2);
    drop(writer);
    assert_untouched(&directory);
}

#[test]
fn tensors_without_bytes_need_no_writing() {
    let (_directory, path) = place("model.safetensors");
    StreamWriter::create(&path, [("empty", Dtype::F32, [3, 0])], &SaveOptions::new())
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().tensor("empty").unwrap().shape(), [3, 0]);
    let none: [(&str, Dtype, [usize; 0]); 0] = [];
    StreamWriter::create(&path, none, &SaveOptions::new()).unwrap().finish().unwrap();
    assert!(Checkpoint::open(&path).unwrap().is_empty());
}

/// A source of 12 bytes that gives `pieces` of 4 bytes each, and then fails if `fails` is set.
fn in_pieces(pieces: u8, fails: bool) -> impl TensorSource {
    bytes_by(12, move |sink| {
        (0..pieces).try_for_each(|piece| sink(&[piece; 4]))?;
        if fails { Err(broken("the source broke")) } else { Ok(()) }
    })
}

#[test]
fn a_source_must_write_all_its_bytes() {
    let (_directory, path) = place("model.safetensors");
    let writer =
        StreamWriter::create(&path, [("a", Dtype::U8, [12])], &SaveOptions::new()).unwrap();
    let a = writer.tensor("a").unwrap();
    for (pieces, fails) in [(2, true), (3, true), (2, false), (4, false)] {
        let error = a.write_from(&in_pieces(pieces, fails)).unwrap_err();
        if fails {
            assert!(error.to_string().contains("the source broke"), "{error}");
        } else {
            let found = 4 * pieces as u64;
            assert!(
                matches!(error.kind(), ErrorKind::SourceLength { expected: 12, found: f } if *f == found),
                "{error}"
            );
        }
        assert_eq!((error.tensor(), error.file(), a.written()), (Some("a"), path.to_str(), 0));
    }
    let bytes = [0_u8; 12];
    refused!(
        a.write_from(&TensorView::new(Dtype::I8, &[12], &bytes).unwrap()),
        ErrorKind::WrongDtype { expected: Dtype::U8, found: Dtype::I8 }
    );
    let error = a.write_from(&TensorView::new(Dtype::U8, &[3, 4], &bytes).unwrap()).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::WrongShape { expected, found } if expected == &[12] && found == &[3, 4])
    );
    assert_eq!((error.tensor(), error.file()), (Some("a"), path.to_str()));

    a.write_from(&in_pieces(3, false)).unwrap();
    refused!(a.write_from(&in_pieces(3, false)), ErrorKind::WrittenTwice { begin: 0, end: 4 });
    writer.finish().unwrap();
    let read = Checkpoint::open(&path).unwrap().tensor("a").unwrap().read().unwrap();
    assert_eq!(read.bytes(), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
}

/// A reader is copied into a tensor: one of the right length, one that is too short, and one that
/// is too long.
#[test]
fn a_reader_is_copied_into_a_tensor() {
    for (given, fits) in [(100_000, true), (99_999, false), (100_001, false)] {
        let (_directory, path) = place("model.safetensors");
        let writer =
            StreamWriter::create(&path, [("a", Dtype::U8, [100_000])], &SaveOptions::new())
                .unwrap();
        let copied = io::copy(&mut &vec![5_u8; given][..], &mut writer.tensor("a").unwrap());
        assert_eq!(copied.is_ok() && writer.finish().is_ok(), fits, "{given}");
        assert_eq!(path.exists(), fits);
    }
}
