//! Saves that must not replace a file.

use std::io::Write;
use std::thread;

use safetensors_core::checkpoint::save_sharded_to;
use safetensors_core::checkpoint::store::Store;
use safetensors_core::save::{AtomicDirectory, AtomicFile};
use safetensors_testing::tensors::bytes_by;

use crate::support::*;

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
fn planting(path: &Path) -> impl TensorSource {
    bytes_by(1, move |sink| {
        fs::write(path, "theirs").unwrap();
        sink(&[1])
    })
}

#[test]
fn a_file_that_exists_stays() {
    let (dir, path) = place("model.safetensors");
    save(&path, tensors(), &options()).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().len(), 2);
    let old = fs::read(&path).unwrap();

    assert_exists(save(&path, [] as [(&str, TensorView<'_>); 0], &options()), &path);
    assert_exists(AtomicFile::create(&path, &options()), &path);
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
    let (dir, path) = place("model.safetensors");
    assert_exists(save(&path, [("a", planting(&path))], &options()), &path);
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
    assert_eq!(names_in(dir.path()), ["model.safetensors"]);

    let other = dir.path().join("other");
    let mut file = AtomicFile::create(&other, &options()).unwrap();
    file.write_all(b"ours").unwrap();
    fs::write(&other, "theirs").unwrap();
    assert_exists(file.commit(), &other);
    assert_eq!(fs::read(&other).unwrap(), b"theirs");
}

#[test]
fn one_of_several_saves_at_the_same_time_succeeds() {
    let (dir, path) = place("model.safetensors");
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
fn a_checkpoint_of_several_files_is_not_overwritten() {
    let dir = tempdir().unwrap();
    let options =
        |bytes: u64| ShardOptions::new().max_shard_size(bytes.into()).save_options(options());
    save_sharded(dir.path(), tensors(), &options(4)).unwrap();
    let old = names_in(dir.path());
    assert_eq!(old.len(), 3);
    for bytes in [4, 100] {
        refused!(save_sharded(dir.path(), tensors(), &options(bytes)), ErrorKind::FileExists);
        assert_eq!(names_in(dir.path()), old);
    }
    // A checkpoint with names of another pattern is not in the way.
    let pattern = "model.fp16{suffix}.safetensors".parse().unwrap();
    save_sharded(dir.path(), tensors(), &options(4).file_pattern(pattern)).unwrap();
    assert_eq!(names_in(dir.path()).len(), 6);
}

#[test]
fn a_checkpoint_that_appears_during_a_sharded_save_stays() {
    let (dir, file) = place("model.safetensors");
    let options = ShardOptions::new().save_options(options());
    refused!(save_sharded(dir.path(), [("a", planting(&file))], &options), ErrorKind::FileExists);
    assert_eq!(fs::read(&file).unwrap(), b"theirs");
    assert_eq!(names_in(dir.path()), ["model.safetensors"]);
}

/// A file next to the tensors stays, too, in every store.
#[test]
fn an_existing_file_next_to_the_tensors_stays() {
    let options = ShardOptions::new().save_options(options()).beside("config.json", "new");
    let (dir, path) = place("config.json");
    fs::write(&path, "old").unwrap();
    assert_exists(save_sharded(dir.path(), tensors(), &options), &path);
    assert_eq!(names_in(dir.path()), ["config.json"]);

    let mut store: MemoryStore = [("config.json", b"old".to_vec())].into_iter().collect();
    let saved = save_sharded_to(&mut store, tensors(), &options);
    assert_exists(saved, Path::new("config.json"));
    let old = store.open(Path::new("config.json")).unwrap();
    assert_eq!(old.as_ref(), b"old");
    assert_eq!(store.list(Path::new("")).unwrap().len(), 1);
}

#[test]
fn a_file_next_to_the_tensors_needs_a_plain_unused_name() {
    for name in [
        "",
        ".",
        "..",
        "../config.json",
        "a/config.json",
        "a\\b",
        "c:b",
        "/config.json",
        "model.safetensors",
        "Model.SafeTensors",
        "other.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
    ] {
        let options = ShardOptions::new().beside(name, "x");
        let (dir, directory) = place("out");
        let mut store = MemoryStore::default();
        for error in [
            save_sharded(&directory, tensors(), &options).unwrap_err(),
            save_sharded_to(&mut store, tensors(), &options).unwrap_err(),
        ] {
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
        assert!(names_in(dir.path()).is_empty() && store.list(Path::new("")).unwrap().is_empty());
    }
}

/// On every system: the attribute that forbids it is not one of Unix alone.
#[test]
fn a_read_only_file_is_replaced_on_request_on_every_system() {
    let (dir, one) = place("model.safetensors");
    let shards = dir.path().join("shards");
    let force = SaveOptions::new().durable(false).replace_read_only(true);
    let sharded = ShardOptions::new().save_options(force.clone());
    let save_both = || {
        save(&one, tensors(), &force)?;
        save_sharded(&shards, tensors(), &sharded).map(drop)
    };
    save_both().unwrap();
    for path in [&one, &shards.join("model.safetensors")] {
        let mut permissions = fs::metadata(path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(path, permissions).unwrap();
        refused!(save(path, tensors(), &SaveOptions::new()), ErrorKind::ReadOnlyFile);
    }
    save_both().unwrap();
    assert_eq!(names_in(&shards), ["model.safetensors"]);
}

/// Where the system has no such file, it is an error, and nothing is written.
#[test]
fn a_name_that_windows_cannot_have_is_refused_there() {
    for name in ["con.safetensors", "model.safetensors:hidden", "model.safetensors."] {
        let (dir, path) = place(name);
        let saved = save(&path, tensors(), &options());
        let sharded = save_sharded(path.join("shards"), tensors(), &ShardOptions::new());
        if cfg!(windows) {
            let opened = Checkpoint::open(&path).map(drop);
            let directory = AtomicDirectory::create(&path).map(drop);
            for refused in [saved, sharded.map(drop), opened, directory] {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains(&format!("the name {name:?}")), "{refused}");
            }
            assert!(names_in(dir.path()).is_empty());
        } else {
            saved.unwrap();
            assert_eq!(names_in(dir.path()), [name]);
        }
    }
}
