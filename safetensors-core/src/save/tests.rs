//! Saves that are interrupted at every step.

use std::fs;
use std::io::Write;
use std::path::Path;

use tempfile::tempdir;

use super::AtomicFile;
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{ErrorKind, Result};
use crate::io::failpoint::fail_at;
use crate::save;
use crate::save::{SaveOptions, StreamWriter, serialize};
use crate::tensor::TensorView;

const DATA: [u8; 64] = [7; 64];

fn tensors() -> [(&'static str, TensorView<'static>); 2] {
    let view = |len: &'static [usize; 1]| TensorView::new(Dtype::U8, len, &DATA[..len[0]]).unwrap();
    [("a", view(&[64])), ("b", view(&[3]))]
}

fn streamed(path: &Path) -> Result<()> {
    let specs = tensors().map(|(name, view)| (name, view.dtype(), view.shape()));
    let writer = StreamWriter::create(path, specs, &SaveOptions::new())?;
    writer.tensor("b")?.write_from(&tensors()[1].1)?;
    writer.tensor("a")?.write_bytes_at(32, &DATA[32..])?;
    writer.tensor("a")?.write_bytes_at(0, &DATA[..32])?;
    writer.finish()
}

#[test]
fn the_old_file_or_the_new_one_wherever_a_save_is_interrupted() {
    let saved = |path: &Path| save(path, tensors(), &SaveOptions::new());
    let new = serialize(tensors(), &SaveOptions::new()).unwrap();
    for run in [&saved as &dyn Fn(&Path) -> Result<()>, &streamed] {
        for old in [None, Some(b"the old file")] {
            let mut steps = Vec::new();
            loop {
                let directory = tempdir().unwrap();
                let path = directory.path().join("model.safetensors");
                if let Some(old) = old {
                    fs::write(&path, old).unwrap();
                }
                let (result, failed) = fail_at(steps.len(), || run(&path));
                let found = fs::read(&path).ok();
                let Some(step) = failed else {
                    result.unwrap();
                    assert_eq!(found, Some(new.clone()));
                    Checkpoint::open(&path).unwrap().tensor("a").unwrap().read().unwrap();
                    break;
                };
                let error = result.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
                assert_eq!(error.file(), path.to_str());
                // After the rename the new file is in its place, and only its durability is in
                // doubt.
                let expected = if step == "sync the directory" {
                    Some(&*new)
                } else {
                    old.map(|old| &old[..])
                };
                assert_eq!(found.as_deref(), expected, "{step}");
                let names = fs::read_dir(directory.path()).unwrap().count();
                assert_eq!(names, usize::from(found.is_some()), "litter at {step}");
                steps.push(step);
            }
            assert_eq!(steps[..2], ["create", "reserve"]);
            assert_eq!(steps[steps.len() - 3..], ["sync the file", "rename", "sync the directory"]);
            assert!(
                steps[2..steps.len() - 3].iter().all(|step| *step == "write") && steps.len() >= 8,
                "{steps:?}"
            );
        }
    }
}

/// Any other file, as [`AtomicFile`] writes it.
#[test]
fn a_file_of_another_kind_is_as_safe() {
    let replaced = |path: &Path| {
        let mut file = AtomicFile::create(path)?;
        file.write_all(b"new").and_then(|()| file.flush()).map_err(ErrorKind::Io)?;
        file.commit()
    };
    let steps = ["create", "sync the file", "rename", "sync the directory"];
    for (n, step) in steps.into_iter().enumerate() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("notes.txt");
        fs::write(&path, b"old").unwrap();
        let (result, failed) = fail_at(n, || replaced(&path));
        assert_eq!((failed, result.unwrap_err().file()), (Some(step), path.to_str()));
        assert_eq!(
            fs::read(&path).unwrap(),
            if step == "sync the directory" { b"new" } else { b"old" }
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "litter at {step}");
        assert_eq!(fail_at(steps.len(), || replaced(&path).unwrap()).1, None);
    }
}

/// Some file systems refuse it for any directory. By then the file has its name, so that must not
/// look like a failed save.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_synchronised() {
    use super::atomic::sync_directory;

    sync_directory(Path::new("/proc")).unwrap();
    assert_eq!(
        sync_directory(Path::new("/nowhere at all")).unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
}

#[test]
fn a_write_that_failed_can_be_repeated() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let writer =
        StreamWriter::create(&path, [("a", Dtype::U8, [64])], &SaveOptions::new()).unwrap();
    let a = writer.tensor("a").unwrap();
    a.append(&DATA[..10]).unwrap();
    let (result, failed) = fail_at(0, || a.append(&DATA[10..20]));
    assert_eq!(failed, Some("write"));
    assert_eq!(result.unwrap_err().tensor(), Some("a"));
    assert_eq!(a.written(), 10);
    a.append(&DATA[10..]).unwrap();
    writer.finish().unwrap();
    let read = Checkpoint::open(&path).unwrap().tensor("a").unwrap().read().unwrap();
    assert_eq!(read.bytes(), DATA);
}
