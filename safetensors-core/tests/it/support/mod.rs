//! Helpers of most test files: names of the core, files built byte by byte, and the contents of
//! directories.

pub(crate) mod odd;

pub(crate) use std::collections::BTreeMap;
pub(crate) use std::fs;
pub(crate) use std::ops::ControlFlow;
pub(crate) use std::path::{Path, PathBuf};
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
pub(crate) use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, thread};

pub(crate) use safetensors_core::checkpoint::store::MemoryStore;
pub(crate) use safetensors_core::convert::Overflow;
pub(crate) use safetensors_core::edit::Edit;
use safetensors_core::io::ReadRange;
use safetensors_core::slice::RankPart;
pub(crate) use safetensors_core::{
    Checkpoint, ConvertOptions, Dtype, Error, ErrorKind, LazyTensor, Limits, LoadOptions, Metadata,
    ReadAt, Result, Rewrite, SafeTensors, SaveOptions, ShardOptions, TensorBuf, TensorSource,
    TensorView, save, save_sharded, serialize,
};
pub(crate) use safetensors_testing::files::{copy_all, names_in, place};
pub(crate) use safetensors_testing::tensors::{file_bytes, repeated};
pub(crate) use tempfile::{TempDir, tempdir};

/// Returns the system's kind of an error that it caused.
#[track_caller]
pub(crate) fn io_kind(error: &Error) -> io::ErrorKind {
    let ErrorKind::Io(of_system) = error.kind() else { panic!("{error}") };
    of_system.kind()
}

/// A file: the length of `header`, `header`, and `data` zero bytes.
pub(crate) fn file(header: impl AsRef<[u8]>, data: usize) -> Vec<u8> {
    file_with(header, &vec![0; data])
}

/// A file: the length of `header`, `header`, and `data`.
pub(crate) fn file_with(header: impl AsRef<[u8]>, data: &[u8]) -> Vec<u8> {
    let header = header.as_ref();
    [&(header.len() as u64).to_le_bytes()[..], header, data].concat()
}

/// Writes a file and returns its path.
pub(crate) fn write(directory: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, bytes).unwrap();
    path
}

/// Makes a FIFO. A program that opens it like a regular file waits forever.
#[cfg(unix)]
pub(crate) fn make_fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Runs `f`, and fails if it does not end, instead of waiting forever.
pub(crate) fn must_not_hang<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(f()));
    receiver.recv_timeout(Duration::from_secs(30)).unwrap()
}

/// Compares parts of a computed tensor with the same parts of the whole: parts of ranks, and ranges
/// of bytes that begin and end inside a number, a row and a group.
pub(crate) fn check_parts<S: ReadAt>(tensor: LazyTensor<'_, S>, what: &str) {
    let whole = tensor.read().unwrap();
    for (dim, &len) in tensor.shape().iter().enumerate() {
        for (rank, ranks) in [(0, 2), (1, 2), (2, 3)] {
            if len < ranks || !len.is_multiple_of(ranks) {
                continue;
            }
            let part = RankPart::new(dim, rank, ranks);
            let read = tensor.slice(part).unwrap().read_with(&LoadOptions::new()).unwrap();
            let wanted = whole.view().unwrap().slice(part).unwrap().to_buf().unwrap();
            assert_eq!(read.bytes(), wanted.bytes(), "{what}: {rank} of {ranks}, dim {dim}");
        }
    }
    let bytes = file_bytes(&whole);
    let row = bytes.len() / tensor.shape()[0];
    for range in [0..1, 3..row + 1, 37.min(bytes.len() / 2)..bytes.len() - 1, 4..8] {
        let mut found = vec![0; range.len()];
        let offset = tensor.file_offset() + range.start as u64;
        let mut ranges = [ReadRange { offset, bytes: &mut found }];
        tensor.source().read_ranges_at(&mut ranges).unwrap();
        assert_eq!(found, bytes[range], "{what}");
    }
}
