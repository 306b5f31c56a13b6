//! Other sources than whole files: longer than memory, failing, changing, and read range by range.

use std::io;
use std::sync::atomic::AtomicBool;

use safetensors_core::io::{FileSource, ReadRange};

use super::pattern;
use crate::support::*;

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
        let start = file(header, 0);
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
#[test]
fn a_tensor_larger_than_memory() {
    #[cfg(target_pointer_width = "64")]
    let lengths = [1 << 50, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX - 1000];
    #[cfg(not(target_pointer_width = "64"))]
    let lengths = [1 << 31, u64::from(u32::MAX)];
    for bytes in lengths {
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

    let error = refused!(archive.tensor("small"), ErrorKind::TensorNotFound);
    assert_eq!(error.tensor(), Some("small"));

    // A source that ends inside its header, although its length says otherwise.
    let broken = Sparse { start: vec![60, 0, 0, 0, 0, 0, 0, 0, b'{'], len: 1000 };
    refused!(SafeTensors::from_source(broken), ErrorKind::Io(_));
}

/// Bytes that are complete when they are parsed, and fewer when they are borrowed again.
#[test]
fn bytes_that_shrink() {
    struct Shrinks(Vec<u8>, AtomicBool);
    impl AsRef<[u8]> for Shrinks {
        fn as_ref(&self) -> &[u8] {
            if self.1.load(Ordering::Relaxed) { &self.0[..10] } else { &self.0 }
        }
    }

    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let archive = SafeTensors::parse(Shrinks(file(header, 4), AtomicBool::new(false))).unwrap();
    assert!(archive.view("a").is_ok());
    archive.source().1.store(true, Ordering::Relaxed);
    let view = archive.view("a").unwrap_err();
    assert!(matches!(view.kind(), ErrorKind::MissingData { expected: 4, found: 0 }), "{view}");
    let read = archive.tensor("a").unwrap().read().unwrap_err();
    assert!(matches!(read.kind(), ErrorKind::Io(_)), "{read}");
    assert_eq!((view.tensor(), read.tensor()), (Some("a"), Some("a")));
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
    let file = Changing(serialize([("w", &buf)], &SaveOptions::new()).unwrap());
    let error = refused!(SafeTensors::from_source(file), ErrorKind::Io(_));
    assert!(error.to_string().contains("it has changed"), "{error}");
}

#[test]
fn ranges_of_a_file_in_any_order_and_at_impossible_places() {
    let (_dir, path) = place("bytes");
    fs::write(&path, pattern(100, 0)).unwrap();
    let source = FileSource::open(&path).unwrap();
    let read = |places: [(u64, usize); 3]| {
        let mut bufs = places.map(|(_, len)| vec![0; len]);
        let ranges = places.iter().zip(&mut bufs);
        let mut ranges: Vec<_> =
            ranges.map(|((offset, _), bytes)| ReadRange { offset: *offset, bytes }).collect();
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

/// A file with a header that another program overwrites after it was read, within the resolution of
/// the times of the file system.
struct Rewritten {
    /// The file as it is at first, and later.
    versions: [Vec<u8>; 2],
    /// How many reads of the header's text see the first version.
    reads: usize,
    read: AtomicUsize,
    is_recent: bool,
}

impl ReadAt for Rewritten {
    fn byte_len(&self) -> u64 {
        self.versions[0].len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.read.fetch_add(1, Ordering::SeqCst);
        self.versions[usize::from(read >= self.reads)].read_exact_at(buf, offset)
    }

    fn may_change_unseen(&self) -> bool {
        self.is_recent
    }
}

/// The times of a file that was just written do not show another write, so its header is read twice
/// and compared.
#[test]
fn the_header_of_a_young_file_is_read_twice() {
    // The text has more than a MiB, which is compared at once.
    let file = |name: char| {
        let room = " ".repeat(3 << 19);
        let text =
            format!(r#"{{{room}"{name}":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}}}"#);
        file(text, 2)
    };
    // Reads: the length, the text; then the length and two pieces of the text again.
    for (versions, reads, is_recent, is_found) in [
        ([file('a'), file('a')], 2, true, false),
        ([file('a'), file('b')], 2, true, true),
        ([file('a'), file('b')], 4, true, true),
        ([file('a'), file('b')], 5, true, false),
        ([file('a'), file('b')], 2, false, false),
    ] {
        let source = Rewritten { versions, reads, read: AtomicUsize::new(0), is_recent };
        let opened = SafeTensors::from_source(source);
        assert_eq!(opened.is_err(), is_found, "{reads} {is_recent}");
        if let Err(error) = opened {
            assert!(error.to_string().contains("the header changed while it was read"), "{error}");
        }
    }
    // A length that was overwritten, and nothing else.
    let mut marked = file('a');
    marked[7] = 1;
    let versions = [file('a'), marked];
    let source = Rewritten { versions, reads: 2, read: AtomicUsize::new(0), is_recent: true };
    assert!(SafeTensors::from_source(source).is_err());
}
