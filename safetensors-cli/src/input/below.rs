//! The error about a directory that has no checkpoint, but has some one level down.

use std::fs;
use std::path::Path;

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::framework::NameList;

use crate::terminal::text;

/// The most directories that are looked into. Each is listed, and no file in it is read.
const LOOKED_INTO: usize = 1000;

/// Says how many directories in this one open as a checkpoint, and names some. `None` if there is
/// none. Hidden directories are left out.
pub(crate) fn message(directory: &Path) -> Option<String> {
    let entries = fs::read_dir(directory).ok()?.filter_map(Result::ok);
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names
        .filter(|name| !name.starts_with('.') && directory.join(name).is_dir())
        .take(LOOKED_INTO)
        .collect();
    names.sort_unstable();
    names.retain(|name| CheckpointPath::find(directory.join(name)).is_ok());
    let found = match names.len() {
        0 => return None,
        1 => "found it".to_owned(),
        several => format!("found {}", text::count(several as u64)),
    };
    let path = text::path(directory);
    Some(format!("{path}: expected one checkpoint, {found} one level down: {}", NameList(&names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_open_as_a_checkpoint_are_counted_and_some_are_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(message(dir.path()), None);
        let make = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        for name in ["a/config.json", ".b/model.safetensors", "c/1.safetensors", "c/2.safetensors"]
        {
            make(name);
        }
        assert_eq!(message(dir.path()), None);
        make("m00/model.safetensors");
        let one = message(dir.path()).unwrap();
        assert!(
            one.ends_with(": expected one checkpoint, found it one level down: \"m00\""),
            "{one}"
        );
        (0..30).for_each(|i| make(&format!("m{i:02}/model.safetensors")));
        let expected = format!(
            "{}: expected one checkpoint, found 30 one level down: \"m00\", \"m01\", \"m02\", \
             \"m03\", \"m04\", \"m05\", \"m06\", \"m07\" and 22 more",
            dir.path().display()
        );
        assert_eq!(message(dir.path()), Some(expected));
    }
}
