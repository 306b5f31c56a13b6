//! Deltas applied in place. What an interruption leaves is tested beside the code, and each system
//! call is by the tests of the command.

use std::fs;
use std::path::Path;

#[cfg(unix)]
use safetensors_core::ErrorKind;
use safetensors_core::edit::Edit;
use safetensors_core::{Dtype, Error};
use safetensors_delta::{Chain, Delta, Encoding, make};

use crate::support::{Scratch, Tensors, bytes, files, quick, read, views, write};

fn old() -> Tensors {
    let noise: Vec<u8> = (0..700_u32).map(|i| (i * i % 251) as u8).collect();
    let mut tensors = Tensors::from([bytes("long", vec![7; 600_000]), bytes("noise", noise)]);
    tensors.insert("f".into(), (Dtype::F32, vec![2], vec![0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]));
    tensors.extend([bytes("same", [1, 2, 3]), bytes("empty", [])]);
    tensors
}

fn new() -> Tensors {
    let mut new = old();
    new.get_mut("f").unwrap().2[7] = 0xc0;
    new.get_mut("noise").unwrap().2.fill(0);
    let long = &mut new.get_mut("long").unwrap().2;
    (long[0], long[300_000], long[599_999]) = (1, 2, 3);
    new
}

fn apply(scratch: &Scratch, base: &Path, deltas: &[&str]) -> Result<(), Error> {
    let deltas = deltas.iter().map(|name| Delta::open(scratch.path(name)).unwrap());
    Chain::new(deltas)?.apply_in_place(base, &quick())
}

/// A base of one file and one of several, a delta to [`new`] and one back.
fn scratch() -> Scratch {
    let scratch = Scratch::new(&old());
    write(&scratch.path("sharded"), &old(), 500);
    scratch.make("1", &new(), &quick()).unwrap();
    let newer = write(&scratch.path("new"), &new(), u64::MAX);
    let back = quick().versions("000001", "000002").encoding(Encoding::Overwrite);
    make(&newer, views(&old()), scratch.path("2"), &back).unwrap();
    scratch
}

#[test]
fn a_base_becomes_the_result_and_keeps_its_files() {
    let scratch = scratch();
    for (base, is_directory) in
        [("base", true), ("sharded", true), ("base/model.safetensors", false)]
    {
        let path = scratch.path(base);
        let before = files(scratch.directory.path());
        apply(&scratch, &path, &["1"]).unwrap();
        let directory = if is_directory { path.clone() } else { scratch.path("base") };
        assert_eq!(read(&directory), new());
        // Once more, it is as it should be.
        apply(&scratch, &path, &["1"]).unwrap();
        assert_eq!(read(&directory), new());
        apply(&scratch, &path, &["2"]).unwrap();
        assert_eq!(files(scratch.directory.path()), before);
        apply(&scratch, &path, &["1", "2"]).unwrap();
        assert_eq!(files(scratch.directory.path()), before);
    }
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let scratch = scratch();
    let mut other = old();
    other.insert("f".into(), (Dtype::F32, vec![1, 2], old()["f"].2.clone()));
    scratch.make("reshaped", &other, &quick()).unwrap();
    scratch.make("metadata", &old(), &quick().metadata([("a", "b")])).unwrap();
    let mut other = old();
    other.get_mut("same").unwrap().2[0] = 9;
    write(&scratch.path("other"), &other, u64::MAX);
    let recorded = write(&scratch.path("recorded"), &old(), u64::MAX);
    let recorded = Edit::open(recorded.files()[0].path()).unwrap();
    recorded.record_digests(&Default::default()).unwrap().apply().unwrap();
    let before = files(scratch.directory.path());
    let nowhere = fs::metadata(scratch.path("nowhere")).unwrap_err().to_string();
    for (base, delta, message) in [
        (
            "base",
            "reshaped",
            "other tensors or other metadata; apply the deltas to a new directory",
        ),
        ("base", "metadata", "other tensors or other metadata"),
        ("recorded", "1", "recorded digests in it would become wrong"),
        ("other", "1", "was made of another base"),
        ("other", "2", "was made of another base"),
        ("nowhere", "1", &*nowhere),
    ] {
        let error = apply(&scratch, &scratch.path(base), &[delta]).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(files(scratch.directory.path()), before, "{base} {delta}");
    }
    #[cfg(unix)]
    {
        let edited = Edit::open(scratch.path("base/model.safetensors")).unwrap();
        let error = apply(&scratch, &scratch.path("base"), &["1"]).unwrap_err();
        assert!(error.to_string().contains("another edit of the file is under way"), "{error}");
        drop(edited);
    }
}

#[cfg(unix)]
#[test]
fn links_lead_to_the_files_that_readers_open() {
    use std::os::unix::fs::symlink;

    let scratch = scratch();
    let index = "model.safetensors.index.json";
    write(&scratch.path("linked"), &old(), 500);
    fs::remove_file(scratch.path("linked").join(index)).unwrap();
    symlink(format!("../sharded/{index}"), scratch.path("linked").join(index)).unwrap();
    let before = files(&scratch.path("sharded"));
    apply(&scratch, &scratch.path("linked"), &["1"]).unwrap();
    assert_eq!(files(&scratch.path("sharded")), before);
    assert_eq!(read(&scratch.path("linked")), new());

    // So must the files of tensors.
    let shard = scratch.base.files()[0].path();
    fs::create_dir(scratch.path("links")).unwrap();
    symlink(shard, scratch.path("links/model-00001-of-00001.safetensors")).unwrap();
    let names = old().into_keys().map(|name| (name, "model-00001-of-00001.safetensors".into()));
    let map: serde_json::Map<_, serde_json::Value> = names.collect();
    let text = serde_json::json!({ "weight_map": map }).to_string();
    fs::write(scratch.path("links").join(index), text).unwrap();
    let error = apply(&scratch, &scratch.path("links"), &["1"]).unwrap_err();
    let is_elsewhere = matches!(error.other(), Some(safetensors_delta::ErrorKind::FileElsewhere));
    assert!(is_elsewhere, "{error}");
    assert_eq!(read(&scratch.path("base")), old());

    // A snapshot of the Hub's cache, whose blobs lead to a store.
    let snapshot = scratch.path(&format!("models--a--b/snapshots/{}", "0".repeat(40)));
    let blobs = scratch.path("models--a--b/blobs");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(&blobs).unwrap();
    symlink(scratch.path("base/model.safetensors"), blobs.join("1")).unwrap();
    symlink("../../blobs/1", snapshot.join("model.safetensors")).unwrap();
    let error = apply(&scratch, &snapshot, &["1"]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InHubCache), "{error}");
    assert_eq!(read(&scratch.path("base")), old());
}
