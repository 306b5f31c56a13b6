//! The error about a directory without a checkpoint.
//! It names checkpoints one level down, and files with names that are not UTF-8.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::framework::NameList;
use safetensors_formats::Format;

use crate::terminal::text;

/// No file in the directories is read.
const LOOKED_INTO: usize = 1000;

/// Names the directories in this one with checkpoints or files of other formats, otherwise such
/// files in it. Skips hidden ones.
pub(crate) fn message(directory: &Path) -> Option<String> {
    let path = text::path(directory);
    if let Some(name) = not_utf8(directory) {
        let name = text::path(name.as_ref());
        return Some(format!(
            "{path}: the name of {name} is not UTF-8; rename it, or name the file"
        ));
    }
    let [files, directories] = entries(directory)?;
    let here = others(&files);
    let mut below = Vec::new();
    for name in directories.into_iter().take(LOOKED_INTO) {
        let inside = directory.join(&name);
        let Some([files, _]) = entries(&inside) else { continue };
        if CheckpointPath::find(&inside).is_ok()
            || Format::of_directory(files.iter().map(String::as_str)).is_some()
        {
            below.push(name);
        } else {
            below.extend(others(&files).iter().map(|file| format!("{name}/{file}")));
        }
    }
    let found = match below.len() {
        0 if here.is_empty() => return None,
        0 => {
            let found = NameList(&here);
            return Some(format!("{path}: expected a checkpoint, found {found}; name a file"));
        }
        1 => "found it".to_owned(),
        several => format!("found {}", text::count(several as u64)),
    };
    Some(format!("{path}: expected one checkpoint, {found} one level down: {}", NameList(&below)))
}

/// Returns the name of a file of tensors, or of an index, that is not UTF-8. It opens only if it is
/// named.
fn not_utf8(directory: &Path) -> Option<OsString> {
    let mut names = fs::read_dir(directory).ok()?.filter_map(Result::ok).map(|it| it.file_name());
    names.find(|name| name.to_str().is_none() && CheckpointPath::from_name(name).is_some())
}

/// Files and directories, each sorted.
fn entries(directory: &Path) -> Option<[Vec<String>; 2]> {
    let mut found = [Vec::new(), Vec::new()];
    for entry in fs::read_dir(directory).ok()?.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_directory = entry.path().is_dir();
        // The files of a trainer may be hidden.
        if !is_directory || !name.starts_with('.') {
            found[usize::from(is_directory)].push(name);
        }
    }
    found.iter_mut().for_each(|names| names.sort_unstable());
    Some(found)
}

/// Returns files of other formats, which are read when they are named.
fn others(files: &[String]) -> Vec<String> {
    let is_other = |name: &&String| {
        !name.starts_with('.')
            && Format::from_name(name).is_some_and(|format| !format.is_of_directories())
    };
    files.iter().filter(is_other).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs only on Linux: other systems refuse this name.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_with_a_name_that_is_not_utf_8_is_named() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;

        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(OsStr::from_bytes(b"\xff.txt")), "").unwrap();
        assert_eq!(message(dir.path()), None);
        fs::write(dir.path().join(OsStr::from_bytes(b"caf\xe9.safetensors")), "").unwrap();
        let says =
            ": the name of caf\u{fffd}.safetensors is not UTF-8; rename it, or name the file";
        assert!(message(dir.path()).unwrap().ends_with(says));
    }

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
        make("files/a.gguf");
        let files = message(dir.path()).unwrap();
        assert!(files.ends_with("found it one level down: \"files/a.gguf\""), "{files}");
        fs::remove_dir_all(dir.path().join("files")).unwrap();
        make("m00/.metadata");
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
        make("model.pt");
        assert_eq!(message(dir.path()), Some(expected));
        make("here/model.pt");
        make("here/empty/config.json");
        let here = message(&dir.path().join("here")).unwrap();
        let says = ": expected a checkpoint, found \"model.pt\"; name a file";
        assert!(here.ends_with(says), "{here}");
    }
}
