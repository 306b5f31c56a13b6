//! Files and directories.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors_core::Dtype;
use tempfile::TempDir;

/// A new directory, and the path of a file in it.
pub fn place(name: impl AsRef<Path>) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    (directory, path)
}

/// A new directory, in memory where the system has a place for it. Saves that wait for a disk spend
/// most of their time on it, and some tests make thousands of saves.
pub fn directory_in_memory() -> TempDir {
    #[cfg(unix)]
    if rustix::fs::statvfs("/dev/shm").is_ok_and(|it| it.f_bavail * it.f_frsize >= 1 << 30) {
        return tempfile::tempdir_in("/dev/shm").unwrap();
    }
    tempfile::tempdir().unwrap()
}

/// A new directory in memory, and the path of a file in it: see [`directory_in_memory`].
pub fn place_in_memory(name: impl AsRef<Path>) -> (TempDir, PathBuf) {
    let directory = directory_in_memory();
    let path = directory.path().join(name);
    (directory, path)
}

/// Writes a file of tensors with these names, dtypes and shapes, and returns the length of the data
/// in bytes. The file is a hole except for its header, so it takes no room on the disk.
pub fn write_hole(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, Dtype, Vec<u64>)>,
) -> u64 {
    let (mut entries, mut end) = (Vec::new(), 0);
    for (name, dtype, shape) in tensors {
        let begin = end;
        end += shape.iter().product::<u64>() * u64::from(dtype.bits()) / 8;
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        ));
    }
    let mut header = format!("{{{}}}", entries.join(",")).into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
    end
}

/// Returns the names of everything in a directory, sorted.
pub fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Returns the paths of all files below a directory, from it and with `/`, and their bytes.
pub fn files_below(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for name in names_in(directory) {
        let path = directory.join(&name);
        if path.is_dir() {
            let below = files_below(&path).into_iter();
            found.extend(below.map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            found.push((name, fs::read(path).unwrap()));
        }
    }
    found
}

/// Copies all that is in a directory to another, which is made if it is missing.
pub fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in names_in(from) {
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() { copy_all(&from, &to) } else { _ = fs::copy(from, to).unwrap() }
    }
}
