//! Checks of a directory, for unit tests.

use std::path::Path;
use std::string::String;
use std::time::Duration;

pub(crate) use safetensors_testing::files::{
    copy_all, directory_in_memory, names_in, place, place_in_memory,
};
pub(crate) use safetensors_testing::tensors::repeated;

/// Saves until a directory has no hidden file.
// Once is enough, except while a process that another test starts holds every lock of this one,
// until it runs its own program.
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
