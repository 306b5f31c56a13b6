//! The owner and the mode of a saved file. The tests compare modes, because these are the same for
//! an administrator, who may read and write everything.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use safetensors_core::save::{AtomicFile, StreamWriter};
use safetensors_testing::tensors::unread;

use crate::support::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The mode of a new file under the present umask.
fn usual_mode() -> u32 {
    let directory = tempdir().unwrap();
    fs::write(directory.path().join("usual"), "").unwrap();
    mode(&directory.path().join("usual"))
}

fn view(values: &[u8; 4]) -> TensorView<'_> {
    TensorView::from_slice(&[4], values).unwrap()
}

/// Each way to write one file.
const WAYS: [fn(&Path, &SaveOptions) -> Result<()>; 4] = [
    |path, options| save(path, [("w", view(&[1; 4]))], options),
    |path, options| {
        let writer = StreamWriter::create(path, [("w", view(&[1; 4]).dtype(), [4])], options)?;
        writer.tensor("w")?.write_from(&view(&[1; 4]))?;
        writer.finish()
    },
    |path, options| {
        let rewrite = Rewrite::new().add("w", view(&[1; 4]))?;
        rewrite.plan(options)?.check_destination(path)?;
        rewrite.save(path, options)
    },
    |path, options| AtomicFile::create(path, options)?.commit(),
];

#[test]
fn a_new_file_has_the_usual_mode() {
    let directory = tempdir().unwrap();
    for (i, way) in WAYS.iter().enumerate() {
        let path = directory.path().join(i.to_string());
        way(&path, &SaveOptions::new()).unwrap();
        assert_eq!(mode(&path), usual_mode(), "{i}");
    }
}

#[test]
fn a_file_that_is_replaced_keeps_its_mode() {
    let (directory, path) = place("model.safetensors");
    for way in WAYS {
        for expected in [0o600, 0o640, 0o664, 0o666, 0o700, 0o200] {
            fs::write(&path, "old").unwrap();
            set_mode(&path, expected);
            way(&path, &SaveOptions::new()).unwrap();
            assert_eq!(mode(&path), expected);
            assert_ne!(fs::read(&path).unwrap(), b"old");
        }
    }
    assert_eq!(names_in(directory.path()), ["model.safetensors"]);
}

/// Through a link, the file that the link leads to is replaced.
#[test]
fn a_file_that_is_replaced_through_a_link_keeps_its_mode() {
    let directory = tempdir().unwrap();
    let (path, link) = (directory.path().join("blob"), directory.path().join("link"));
    fs::write(&path, "old").unwrap();
    set_mode(&path, 0o640);
    symlink("blob", &link).unwrap();
    WAYS[0](&link, &SaveOptions::new()).unwrap();
    assert_eq!(mode(&path), 0o640);
    set_mode(&path, 0o440);
    refused!(WAYS[0](&link, &SaveOptions::new()), ErrorKind::ReadOnlyFile);
}

#[test]
fn a_file_that_is_replaced_keeps_its_owner() {
    let (_directory, path) = place("model.safetensors");
    fs::write(&path, "old").unwrap();
    if chown(&path, Some(12345), Some(54321)).is_err() {
        eprintln!("skipped: only an administrator can give files away");
        return;
    }
    set_mode(&path, 0o660);
    for way in WAYS {
        way(&path, &SaveOptions::new()).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid(), mode(&path)), (12345, 54321, 0o660));
    }
}

#[test]
fn a_read_only_file_is_replaced_only_on_request() {
    let (directory, path) = place("model.safetensors");
    for way in WAYS {
        for read_only in [0o444, 0o400, 0o555] {
            fs::write(&path, "old").unwrap();
            set_mode(&path, read_only);
            let error = refused!(way(&path, &SaveOptions::new()), ErrorKind::ReadOnlyFile);
            assert_eq!(error.file(), path.to_str());
            assert_eq!(fs::read(&path).unwrap(), b"old");
            assert_eq!(names_in(directory.path()), ["model.safetensors"]);
            way(&path, &SaveOptions::new().replace_read_only(true)).unwrap();
            assert_eq!(mode(&path), read_only);
            assert_ne!(fs::read(&path).unwrap(), b"old");
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn the_files_of_a_sharded_save_keep_modes_like_single_files() {
    let directory = tempdir().unwrap();
    let save_shards = |options: SaveOptions| {
        let shards = ShardOptions::new().max_shard_size(4.into()).save_options(options);
        save_sharded(directory.path(), [("a", view(&[1; 4])), ("b", view(&[2; 4]))], &shards)
    };
    save_shards(SaveOptions::new()).unwrap();
    let names = names_in(directory.path());
    assert_eq!(names.len(), 3);
    for name in &names {
        assert_eq!(mode(&directory.path().join(name)), usual_mode(), "{name}");
        set_mode(&directory.path().join(name), 0o600);
    }
    save_shards(SaveOptions::new()).unwrap();
    for name in &names {
        let path = directory.path().join(name);
        assert_eq!(mode(&path), 0o600, "{name}");
        set_mode(&path, 0o400);
        let before = fs::read(&path).unwrap();
        let error = refused!(save_shards(SaveOptions::new()), ErrorKind::ReadOnlyFile);
        assert_eq!(error.file(), path.to_str());
        assert_eq!(fs::read(&path).unwrap(), before);
        assert_eq!(names_in(directory.path()), names);
        set_mode(&path, 0o600);
    }
    set_mode(&directory.path().join(&names[0]), 0o400);
    save_shards(SaveOptions::new().replace_read_only(true)).unwrap();
    assert_eq!(mode(&directory.path().join(&names[0])), 0o400);
    assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 2);
}

/// Saves 12 bytes in shards of a size.
fn save_in_shards(directory: &Path, size: u64, options: SaveOptions) -> Result<()> {
    let shards = ShardOptions::new().max_shard_size(size.into()).save_options(options);
    let tensors = [("a", view(&[1; 4])), ("b", view(&[2; 4])), ("c", view(&[3; 4]))];
    save_sharded(directory, tensors, &shards).map(drop)
}

/// The shards of another number of files have other names, and the old ones are removed.
#[test]
fn a_read_only_shard_is_not_removed_either() {
    for (before, after) in [(4, 8), (4, 12), (12, 4), (8, 12)] {
        let directory = tempdir().unwrap();
        save_in_shards(directory.path(), before, SaveOptions::new()).unwrap();
        let names = names_in(directory.path());
        for name in &names {
            let path = directory.path().join(name);
            set_mode(&path, 0o444);
            let error = refused!(
                save_in_shards(directory.path(), after, SaveOptions::new()),
                ErrorKind::ReadOnlyFile
            );
            assert_eq!(error.file(), path.to_str());
            assert_eq!(names_in(directory.path()), names);

            let weights = Rewrite::new().add("w", view(&[1; 4])).unwrap();
            let options = ShardOptions::new().max_shard_size(after.into());
            let plan = weights.plan_sharded(&options).unwrap();
            let planned = plan.check_destination(directory.path()).unwrap_err();
            assert_eq!(planned.to_string(), error.to_string());
            set_mode(&path, 0o644);
        }
        set_mode(&directory.path().join(&names[0]), 0o444);
        let force = SaveOptions::new().replace_read_only(true);
        save_in_shards(directory.path(), after, force).unwrap();
        assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 3);
    }
}

#[test]
fn a_read_only_shard_is_refused_before_data_is_written() {
    let directory = tempdir().unwrap();
    save_in_shards(directory.path(), 4, SaveOptions::new()).unwrap();
    set_mode(&directory.path().join("model-00002-of-00003.safetensors"), 0o444);
    refused!(
        save_sharded(directory.path(), [("w", unread(1))], &ShardOptions::new()),
        ErrorKind::ReadOnlyFile
    );
    let names = names_in(directory.path());
    let directory_in_the_way = directory.path().join("model.safetensors");
    fs::create_dir(&directory_in_the_way).unwrap();
    let force = ShardOptions::new().save_options(SaveOptions::new().replace_read_only(true));
    refused!(
        save_sharded(directory.path(), [("w", unread(1))], &force),
        ErrorKind::NotAFile { .. }
    );
    assert_eq!(names_in(directory.path()).len(), names.len() + 1);
}

#[test]
fn a_private_checkpoint_stays_private_under_other_names() {
    for (before, after) in [(4, 8), (4, 12), (12, 4), (8, 4)] {
        let directory = tempdir().unwrap();
        save_in_shards(directory.path(), before, SaveOptions::new()).unwrap();
        for name in names_in(directory.path()) {
            set_mode(&directory.path().join(name), 0o600);
        }
        save_in_shards(directory.path(), after, SaveOptions::new()).unwrap();
        for name in names_in(directory.path()) {
            assert_eq!(mode(&directory.path().join(&name)), 0o600, "{before} {after}: {name}");
        }
        // One private file is enough.
        let one = &names_in(directory.path())[0];
        for name in names_in(directory.path()) {
            set_mode(&directory.path().join(&name), if name == *one { 0o600 } else { 0o644 });
        }
        let old = names_in(directory.path());
        save_in_shards(directory.path(), before, SaveOptions::new()).unwrap();
        for name in names_in(directory.path()).iter().filter(|name| !old.contains(name)) {
            assert_eq!(mode(&directory.path().join(name)), 0o600, "{before} {after}: {name}");
        }
    }
}
