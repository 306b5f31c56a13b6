//! Checks of a directory's content, for unit tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::string::String;
use std::time::Duration;
use std::vec::Vec;

use tempfile::{TempDir, tempdir};

/// Returns a new directory, and the path of a file in it.
pub(crate) fn place(name: &str) -> (TempDir, PathBuf) {
    let directory = tempdir().unwrap();
    let path = directory.path().join(name);
    (directory, path)
}

/// Returns the names in a directory, sorted.
pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Saves by `save` until a directory has no hidden file. One time is enough, except that a process
/// which another test starts holds every lock of this one, until it runs its own program.
pub(crate) fn save_until_clean(directory: &Path, save: impl Fn()) {
    let is_hidden = |name: &String| name.starts_with('.');
    for _ in 0..100 {
        save();
        if !names_in(directory).iter().any(is_hidden) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!names_in(directory).iter().any(is_hidden), "{:?}", names_in(directory));
}
