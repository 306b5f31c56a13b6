//! Links, which are followed, and FIFOs and devices, which are refused without waiting for them.

use std::os::unix::fs::symlink;

use super::{write_index, write_shard};
use crate::support::*;

fn open(path: &Path) -> Result<Vec<u8>, Error> {
    let path = path.to_owned();
    must_not_hang(move || {
        let checkpoint = Checkpoint::open(path)?;
        checkpoint.tensors().map(|tensor| Ok(tensor.read()?.bytes()[0])).collect()
    })
}

#[track_caller]
fn refuses_special_file(path: &Path, named: &Path) {
    let error = refused!(open(path), ErrorKind::NotAFile { found: "a special file" });
    assert_eq!(error.file(), named.to_str());
}

/// Creates special files that a hostile repository could contain: a FIFO, and links to devices and
/// to the FIFO.
fn special_files(directory: &Path) -> Vec<PathBuf> {
    let at = |name: &str| directory.join(name);
    make_fifo(&at("fifo.safetensors"));
    symlink("/dev/zero", at("zero.safetensors")).unwrap();
    symlink("/dev/null", at("null.safetensors")).unwrap();
    symlink("fifo.safetensors", at("link.safetensors")).unwrap();
    ["fifo", "zero", "null", "link"].map(|name| at(&format!("{name}.safetensors"))).into()
}

#[test]
fn a_special_file_as_the_file() {
    let directory = tempdir().unwrap();
    for path in special_files(directory.path()) {
        refuses_special_file(&path, &path);
    }
}

#[test]
fn a_special_file_as_a_shard() {
    let directory = tempdir().unwrap();
    for shard in special_files(directory.path()) {
        let name = shard.file_name().unwrap().to_str().unwrap();
        let index = write_index(directory.path(), "model.safetensors.index.json", &[("a", name)]);
        refuses_special_file(&index, &shard);
        assert_eq!(open(&index).unwrap_err().tensor(), Some("a"));
    }
}

#[test]
fn a_special_file_as_the_index() {
    let directory = tempdir().unwrap();
    for special in special_files(directory.path()) {
        let index = directory.path().join("model.safetensors.index.json");
        fs::rename(&special, &index).unwrap();
        refuses_special_file(&index, &index);
        refuses_special_file(directory.path(), &index);
        // The FIFO gets its name back, because a link leads to it.
        fs::rename(&index, &special).unwrap();
    }
}

/// `snapshots/COMMIT` has links to `../../blobs/HASH`, names without an extension.
#[test]
fn the_hubs_cache() {
    let (directory, snapshot) = place("snapshots/0123abcd");
    fs::create_dir_all(&snapshot).unwrap();
    let link = |blob: &str, name: &str| {
        symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap()
    };

    write_shard(directory.path(), "blobs/abc", &[("a", 1)]);
    link("abc", "model.safetensors");
    assert_eq!(open(&snapshot).unwrap(), [1]);
    assert_eq!(open(&snapshot.join("model.safetensors")).unwrap(), [1]);
    fs::remove_file(snapshot.join("model.safetensors")).unwrap();

    // Shards are opened next to the link to the index, not next to the blob.
    write_shard(directory.path(), "blobs/def", &[("b", 2)]);
    link("abc", "model-00001-of-00002.safetensors");
    link("def", "model-00002-of-00002.safetensors");
    let map =
        [("a", "model-00001-of-00002.safetensors"), ("b", "model-00002-of-00002.safetensors")];
    write_index(directory.path(), "blobs/ghi", &map);
    link("ghi", "model.safetensors.index.json");
    assert_eq!(open(&snapshot).unwrap(), [1, 2]);
    assert_eq!(open(&snapshot.join("model.safetensors.index.json")).unwrap(), [1, 2]);

    // An interrupted download: the blob is missing.
    fs::remove_file(directory.path().join("blobs/def")).unwrap();
    let error = open(&snapshot).unwrap_err();
    let shard = snapshot.join("model-00002-of-00002.safetensors");
    assert_eq!((error.file(), error.tensor()), (shard.to_str(), Some("b")));
}

#[test]
fn dangling_links() {
    let (directory, dangling) = place("dangling.safetensors");
    symlink("nothing", &dangling).unwrap();
    let circle = directory.path().join("circle.safetensors");
    symlink("circle.safetensors", &circle).unwrap();
    for path in [dangling, circle] {
        let error = refused!(open(&path), ErrorKind::Io(_));
        assert_eq!(error.file(), path.to_str());
    }
}
