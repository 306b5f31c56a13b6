//! Deltas with their base in the same directory.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors_core::{Checkpoint, ErrorKind as CoreKind, SaveOptions, TensorView, save};
use safetensors_delta::{ErrorKind, Options, make_linked, open_linked};
use tempfile::{TempDir, tempdir};

use crate::support::{INDEX, quick};

struct Files {
    directory: TempDir,
}

impl Files {
    /// Makes versions of a file with mostly equal values.
    fn new() -> Self {
        let files = Self { directory: tempdir().unwrap() };
        for version in 1..=3 {
            files.save(&files.path(&format!("{version}.safetensors")), version);
        }
        files
    }

    fn save(&self, path: &Path, version: u16) {
        // Numbers that do not compress.
        let number = |i: u32| (i.wrapping_mul(2_654_435_769) ^ (i * i) << 7).wrapping_mul(i | 1);
        let mut values: Vec<_> = (0..4000).map(number).collect();
        values[usize::from(version)] = 7;
        let tensors = [("w", TensorView::from_slice(&[4000], &values).unwrap())];
        let options = SaveOptions::new().durable(false).digests(true);
        save(path, tensors, &options.metadata([("version", version.to_string())])).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn make(&self, base: &str, new: &str) -> Result<bool, safetensors_core::Error> {
        let options = quick().versions("one", "other");
        make_linked(self.path(base), self.path(new), self.path("delta"), &options)
    }

    /// Returns the bytes of the file that the delta represents.
    fn whole(&self) -> Vec<u8> {
        let (base, chain) = open_linked(self.path("delta")).unwrap();
        chain.verify(&base, &quick()).unwrap();
        let out = self.path("out");
        chain.apply(&base, &out, &quick().overwrite(true)).unwrap();
        fs::read(out.join("model.safetensors")).unwrap()
    }
}

#[test]
fn a_linked_delta_needs_neither_file_by_its_old_name() {
    let files = Files::new();
    let new = fs::read(files.path("2.safetensors")).unwrap();
    assert!(files.make("1.safetensors", "2.safetensors").unwrap());
    // Another file takes the name of the base.
    files.save(&files.path("1.safetensors"), 9);
    assert!(files.whole() == new);
    fs::remove_file(files.path("1.safetensors")).unwrap();
    fs::remove_file(files.path("2.safetensors")).unwrap();
    assert!(files.whole() == new);
    // Its base is also the base of others.
    let base = "delta/one/model.safetensors";
    let to = files.path("next");
    let made = make_linked(files.path(base), files.path("3.safetensors"), &to, &quick());
    assert!(made.unwrap());
    fs::remove_dir_all(files.path("delta")).unwrap();
    fs::rename(to, files.path("delta")).unwrap();
    assert!(files.whole() == fs::read(files.path("3.safetensors")).unwrap());
}

#[test]
fn no_delta_is_made_if_it_would_not_be_smaller() {
    let files = Files::new();
    let small = [1.0_f32];
    let view = TensorView::from_slice(&[1], &small).unwrap();
    save(files.path("small"), [("w", view)], &SaveOptions::new()).unwrap();
    assert!(!files.make("1.safetensors", "small").unwrap());
    // The other way round, all is new.
    assert!(!files.make("small", "1.safetensors").unwrap());
    #[cfg(target_os = "linux")]
    if let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm")
        && is_on_another_device(elsewhere.path(), files.directory.path())
    {
        let base = elsewhere.path().join("1.safetensors");
        fs::copy(files.path("1.safetensors"), &base).unwrap();
        let (new, to) = (files.path("2.safetensors"), files.path("delta"));
        assert!(!make_linked(base, new, to, &quick()).unwrap());
    }
    let left = fs::read_dir(files.directory.path()).unwrap().count();
    assert_eq!(left, 4, "no directory is left");
}

/// Each name that comes or goes moves the time of a file's last change.
#[test]
fn a_base_that_is_open_stays_readable() {
    let files = Files::new();
    let base = files.path("1.safetensors");
    let open = Checkpoint::open(&base).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    let values: Vec<_> = (1..5000_u32).map(|i| i.wrapping_mul(i).wrapping_mul(40_503)).collect();
    let tensors = [("other", TensorView::from_slice(&[4999], &values).unwrap())];
    save(files.path("unrelated"), tensors, &SaveOptions::new()).unwrap();
    assert!(!files.make("1.safetensors", "unrelated").unwrap());
    open.tensor("w").unwrap().read().unwrap();
    open.check_unchanged().unwrap();
    // As in a training that keeps the last two: a name is made, and another one removed.
    let delta = |name: &str| files.path(name);
    let make = |to: &str| {
        assert!(make_linked(&base, files.path("2.safetensors"), delta(to), &quick()).unwrap());
    };
    make("a");
    let later = Checkpoint::open(&base).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(30));
    make("b");
    fs::remove_dir_all(delta("a")).unwrap();
    for open in [&open, &later] {
        open.tensor("w").unwrap().read().unwrap();
        open.check_unchanged().unwrap();
    }
}

#[cfg(target_os = "linux")]
fn is_on_another_device(one: &Path, other: &Path) -> bool {
    use std::os::linux::fs::MetadataExt;
    let device = |path: &Path| fs::metadata(path).unwrap().st_dev();
    device(one) != device(other)
}

/// A second name of the symbolic link would lead to nothing.
#[cfg(unix)]
#[test]
fn the_file_behind_a_symbolic_link_gets_a_second_name() {
    let files = Files::new();
    std::os::unix::fs::symlink("1.safetensors", files.path("link")).unwrap();
    assert!(files.make("link", "2.safetensors").unwrap());
    fs::remove_file(files.path("1.safetensors")).unwrap();
    assert!(files.whole() == fs::read(files.path("2.safetensors")).unwrap());
}

#[test]
fn a_base_that_is_missing_or_changed_is_an_error() {
    let files = Files::new();
    let error = files.make("0.safetensors", "2.safetensors").unwrap_err();
    assert_eq!(error.file(), files.path("0.safetensors").to_str());
    let error = files.make("", "2.safetensors").unwrap_err();
    assert!(matches!(error.kind(), CoreKind::NotAFile { .. }), "{error}");
    assert!(files.make("1.safetensors", "2.safetensors").unwrap());
    let error = files.make("1.safetensors", "3.safetensors").unwrap_err();
    assert!(matches!(error.kind(), CoreKind::FileExists), "{error}");
    let index = r#"{"metadata":{},"weight_map":{"w":"1.safetensors"}}"#;
    fs::write(files.path("index.json"), index).unwrap();
    let (base, to) = (files.path("index.json"), files.path("other"));
    let error = make_linked(base, files.path("2.safetensors"), to, &quick()).unwrap_err();
    assert!(matches!(error.kind(), CoreKind::NotAFile { .. }), "{error}");

    let base = files.path("delta/one/model.safetensors");
    fs::remove_file(&base).unwrap();
    let error = open_linked(files.path("delta")).unwrap_err();
    assert_eq!(error.file().map(Path::new), Some(&*base));
    fs::copy(files.path("3.safetensors"), &base).unwrap();
    let (base, chain) = open_linked(files.path("delta")).unwrap();
    let error = chain.verify(&base, &quick()).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::WrongTensor { .. })), "{error}");
}

#[test]
fn a_base_is_in_the_directory_of_the_delta() {
    let files = Files::new();
    let (base, new) = (files.path("1.safetensors"), files.path("2.safetensors"));
    for version in ["", ".", "..", "a/b", "/a", "a/", "./a"] {
        let options = Options::new().versions(version, "new");
        let error = make_linked(&base, &new, files.path("delta"), &options).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::BadField { .. })), "{version}: {error}");
    }
    assert!(files.make("1.safetensors", "2.safetensors").unwrap());
    let index = files.path("delta").join(INDEX);
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("\"one\"", "\"../1\"")).unwrap();
    let error = open_linked(files.path("delta")).unwrap_err();
    assert_eq!(error.file(), index.to_str());
    assert!(matches!(error.other(), Some(ErrorKind::BadField { .. })), "{error}");
    assert!(Checkpoint::open(files.path("delta")).is_err());
}
