//! Files in a cache of the Hub are changed and replaced only where that is asked for.

use std::os::unix::fs::symlink;

use safetensors_core::checkpoint::{ShardOptions, save_sharded};
use safetensors_core::digest::DigestOptions;
use safetensors_core::edit::Edited;

use crate::support::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A cache with a repository that has the same file in two revisions.
struct Cache {
    directory: TempDir,
}

impl Cache {
    fn new() -> Self {
        let cache = Self { directory: tempdir().unwrap() };
        for directory in ["blobs", "refs"] {
            fs::create_dir_all(cache.repo().join(directory)).unwrap();
        }
        write(&cache.blob(), &SaveOptions::new()).unwrap();
        for commit in [COMMIT.to_owned(), COMMIT.replace('0', "f")] {
            let snapshot = cache.repo().join("snapshots").join(commit);
            fs::create_dir_all(&snapshot).unwrap();
            symlink("../../blobs/etag", snapshot.join("model.safetensors")).unwrap();
        }
        cache
    }

    fn repo(&self) -> PathBuf {
        self.directory.path().join("models--owner--name")
    }

    fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT)
    }

    fn blob(&self) -> PathBuf {
        self.repo().join("blobs/etag")
    }
}

fn write(path: &Path, options: &SaveOptions) -> Result<(), Error> {
    save(path, [("w", TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0])?)], options)
}

fn set(path: &Path) -> Result<Edited, Error> {
    Edit::open(path)?.set_metadata([("a", "b")]).apply()
}

/// Records digests in a file, also in one of a cache if that is asked for.
fn record(path: &Path, change_cached: bool) -> Result<Edited> {
    let edit = Edit::open(path)?.change_cached(change_cached);
    edit.record_digests(&DigestOptions::new())?.apply()
}

#[track_caller]
fn assert_refused<T>(result: Result<T, Error>, path: &Path) {
    let error = result.err().expect("it was not refused");
    assert!(matches!(error.kind(), ErrorKind::InHubCache), "{error}");
    assert_eq!(error.file(), path.to_str(), "{error}");
}

#[test]
fn each_way_to_a_file_of_the_cache_is_refused() {
    let cache = Cache::new();
    let elsewhere = cache.directory.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(cache.snapshot(), elsewhere.join("model")).unwrap();
    symlink(cache.snapshot().join("model.safetensors"), elsewhere.join("link")).unwrap();
    let before = fs::read(cache.blob()).unwrap();
    for path in [
        cache.snapshot().join("model.safetensors"),
        cache.blob(),
        elsewhere.join("model/model.safetensors"),
        elsewhere.join("link"),
    ] {
        assert_refused(set(&path), &path);
        let edit = Edit::open(&path).unwrap();
        assert_eq!(edit.dry_run().unwrap(), Edited::Unchanged);
        assert_refused(edit.set_metadata([("k", "new")]).dry_run(), &path);
        assert_eq!(Edit::open(&path).unwrap().apply().unwrap(), Edited::Unchanged);
        assert_refused(record(&path, false), &path);
        assert_refused(write(&path, &SaveOptions::new()), &path);
        assert_eq!(fs::read(cache.blob()).unwrap(), before);
    }
    // A copy, and a new file, are not shared.
    let copy = elsewhere.join("copy.safetensors");
    fs::copy(cache.snapshot().join("model.safetensors"), &copy).unwrap();
    set(&copy).unwrap();
    write(&copy, &SaveOptions::new()).unwrap();
    write(&cache.snapshot().join("new.safetensors"), &SaveOptions::new()).unwrap();
}

#[test]
fn a_sharded_save_replaces_no_link_of_a_snapshot() {
    let cache = Cache::new();
    let view = TensorView::from_slice(&[1], &[7_u8]).unwrap();
    let shards = |options: SaveOptions| {
        let options = ShardOptions::new().save_options(options);
        save_sharded(cache.snapshot(), [("w", view)], &options)
    };
    let path = cache.snapshot().join("model.safetensors");
    assert_refused(shards(SaveOptions::new()), &path);
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    shards(SaveOptions::new().replace_cached(true)).unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
}

#[test]
fn a_snapshot_without_links_and_a_store_for_all_repositories() {
    let cache = Cache::new();
    let path = cache.snapshot().join("model.safetensors");
    // A blob that is a link to somewhere else.
    let store = cache.directory.path().join("store");
    fs::rename(cache.blob(), &store).unwrap();
    symlink(&store, cache.blob()).unwrap();
    assert_refused(set(&path), &path);
    // The file itself, in a folder of the snapshot.
    let folder = cache.snapshot().join("unet");
    fs::create_dir(&folder).unwrap();
    fs::copy(&store, folder.join("model.safetensors")).unwrap();
    assert_refused(set(&folder.join("model.safetensors")), &folder.join("model.safetensors"));
    // A name alone makes no cache.
    fs::create_dir_all(cache.directory.path().join("b/refs")).unwrap();
    for directory in ["a/blobs", "b/snapshots/step-1", &format!("c/snapshots/{COMMIT}")] {
        let directory = cache.directory.path().join(directory);
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("model.safetensors");
        write(&path, &SaveOptions::new()).unwrap();
        set(&path).unwrap();
    }
}

#[test]
fn requested_changes_are_made_to_the_blob() {
    let cache = Cache::new();
    let path = cache.snapshot().join("model.safetensors");
    let edit = Edit::open(&path).unwrap().set_metadata([("a", "b")]).change_cached(true);
    edit.apply().unwrap();
    record(&path, true).unwrap();
    let edited = Edit::open_read_only(cache.blob()).unwrap();
    assert_eq!(edited.header().metadata().len(), 2);
    write(&path, &SaveOptions::new().replace_cached(true)).unwrap();
    assert!(Edit::open_read_only(cache.blob()).unwrap().header().metadata().is_empty());
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
}
