//! Saves that must not replace a file.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;

use crate::support::names_in;
use safetensors_core::save::{AtomicFile, Sink};
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, Result, Rewrite, SaveOptions, ShardOptions, TensorSource,
    TensorView, save, save_sharded,
};
use tempfile::tempdir;

fn options() -> SaveOptions {
    SaveOptions::new().durable(false).overwrite(false)
}

fn tensors() -> [(&'static str, TensorView<'static>); 2] {
    ["a", "b"].map(|name| (name, TensorView::new(Dtype::U8, &[4], &[1, 2, 3, 4]).unwrap()))
}

#[track_caller]
fn assert_exists<T>(result: Result<T>, path: &Path) {
    let error = result.err().unwrap();
    assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
    assert_eq!(error.file(), path.to_str());
}

/// A tensor that creates a file while it is written.
struct Planting(PathBuf);

impl TensorSource for Planting {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &[1]
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        fs::write(&self.0, "theirs").unwrap();
        sink(&[1])
    }
}

#[test]
fn a_file_that_exists_stays() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    save(&path, tensors(), &options()).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().len(), 2);
    let old = fs::read(&path).unwrap();

    assert_exists(save(&path, [] as [(&str, TensorView<'_>); 0], &options()), &path);
    assert_exists(AtomicFile::create_with(&path, &options()), &path);
    let rewrite = Rewrite::new().add("a", tensors()[0].1).unwrap();
    assert_exists(rewrite.plan(&options()).unwrap().check_destination(&path), &path);
    assert_exists(rewrite.save(&path, &options()), &path);
    assert_eq!(fs::read(&path).unwrap(), old);
    assert_eq!(names_in(dir.path()), ["model.safetensors"]);

    // The last of the options counts.
    save(&path, tensors(), &options().overwrite(true)).unwrap();
}

#[cfg(unix)]
#[test]
fn a_link_counts_as_the_file_that_it_leads_to() {
    let dir = tempdir().unwrap();
    let (path, link) = (dir.path().join("file"), dir.path().join("link"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    save(&link, tensors(), &options()).unwrap();
    assert!(link.is_symlink() && path.is_file());
    assert_exists(save(&link, tensors(), &options()), &link);
}

#[test]
fn a_file_that_appears_during_the_save_stays() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    assert_exists(save(&path, [("a", Planting(path.clone()))], &options()), &path);
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
    assert_eq!(names_in(dir.path()), ["model.safetensors"]);

    let other = dir.path().join("other");
    let mut file = AtomicFile::create_with(&other, &options()).unwrap();
    file.write_all(b"ours").unwrap();
    fs::write(&other, "theirs").unwrap();
    assert_exists(file.commit(), &other);
    assert_eq!(fs::read(&other).unwrap(), b"theirs");
}

#[test]
fn one_of_several_saves_at_the_same_time_succeeds() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let saved = thread::scope(|scope| {
        let threads: Vec<_> = (0..8_u8)
            .map(|value| {
                let path = &path;
                scope.spawn(move || {
                    let values = [value; 1000];
                    let tensor = TensorView::new(Dtype::U8, &[1000], &values).unwrap();
                    (value, save(path, [("a", tensor)], &options()))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let (winners, losers): (Vec<_>, Vec<_>) =
        saved.into_iter().partition(|(_, result)| result.is_ok());
    assert_eq!(winners.len(), 1);
    losers.into_iter().for_each(|(_, result)| assert_exists(result, &path));
    let found = Checkpoint::open(&path).unwrap().tensor("a").unwrap().read().unwrap();
    assert!(found.bytes().iter().all(|byte| *byte == winners[0].0));
    assert_eq!(names_in(dir.path()), ["model.safetensors"]);
}

#[test]
fn a_checkpoint_of_several_files_stays_whole() {
    let dir = tempdir().unwrap();
    let options =
        |bytes: u64| ShardOptions::new().max_shard_size(bytes.into()).save_options(options());
    save_sharded(dir.path(), tensors(), &options(4)).unwrap();
    let old = names_in(dir.path());
    assert_eq!(old.len(), 3);
    for bytes in [4, 100] {
        let error = save_sharded(dir.path(), tensors(), &options(bytes)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
        assert_eq!(names_in(dir.path()), old);
    }
    // A checkpoint with names of another pattern is not in the way.
    let pattern = "model.fp16{suffix}.safetensors".parse().unwrap();
    save_sharded(dir.path(), tensors(), &options(4).file_pattern(pattern)).unwrap();
    assert_eq!(names_in(dir.path()).len(), 6);
}

#[test]
fn a_checkpoint_that_appears_during_a_sharded_save_stays() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("model.safetensors");
    let options = ShardOptions::new().save_options(options());
    let error = save_sharded(dir.path(), [("a", Planting(file.clone()))], &options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"theirs");
    assert_eq!(names_in(dir.path()), ["model.safetensors"]);
}
