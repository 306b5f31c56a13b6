//! Helpers of several test files: files built byte by byte, and the contents of directories.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};

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

/// Writes a file of tensors of these names and lengths in bytes, and returns the length of the
/// data. The file is a hole except for its header. `element` is the number of bytes of an element.
pub(crate) fn write_hole(
    path: &Path,
    (dtype, element): (&str, u64),
    tensors: impl IntoIterator<Item = (String, u64)>,
) -> u64 {
    let (mut entries, mut end) = (Vec::new(), 0);
    for (name, len) in tensors {
        let (begin, shape) = (end, len / element);
        end += len;
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#
        ));
    }
    let header = file(format!("{{{}}}", entries.join(",")), 0);
    fs::write(path, &header).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(header.len() as u64 + end).unwrap();
    end
}

/// The names of everything in a directory, sorted.
pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
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
