//! Saving to a store: whole or not at all, and old and new never mixed.

use std::ops::ControlFlow;
use std::path::PathBuf;

use safetensors_core::checkpoint::Assembled;
use safetensors_core::checkpoint::store::Store;
use safetensors_core::{
    Checkpoint, ErrorKind, Rewrite, SaveOptions, ShardOptions, TensorBuf,
    save_sharded as save_local,
};
use safetensors_hub::remote::{RemoteFile, RemoteOptions, RemoteStore, open};

use super::server::Server;
use super::{MIB, file, named, tensors};

fn names(address: &str) -> Vec<String> {
    let store = RemoteStore::new(address, &RemoteOptions::new()).unwrap();
    let mut names: Vec<_> =
        store.list(&store.path()).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

/// Returns the stores that need no server: memory, and a directory of the disk.
fn stores(name: &str) -> [(String, Option<tempfile::TempDir>); 2] {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("file://{}/{name}", dir.path().display());
    [(format!("memory:///saving/{name}"), None), (address, Some(dir))]
}

/// Returns the same stores, for directories with a subdirectory.
fn directories(name: &str) -> [(String, Option<tempfile::TempDir>); 2] {
    let stores = stores(name);
    for (_, dir) in &stores {
        dir.iter()
            .for_each(|dir| std::fs::create_dir_all(dir.path().join(name).join("below")).unwrap());
    }
    stores
}

#[test]
fn a_file_has_the_bytes_of_serialize() {
    // Several parts of 8 MiB, one part, and no tensor at all.
    for lengths in [&[("a", 20 * MIB), ("b", 3)][..], &[("a", 10)], &[]] {
        let tensors = tensors(lengths);
        for (address, _dir) in stores("file.safetensors") {
            RemoteOptions::new().save(&address, named(&tensors), &SaveOptions::new()).unwrap();
            let checkpoint = open(&address).unwrap();
            assert_eq!(checkpoint.len(), tensors.len());
            for (name, buf) in &tensors {
                let read = checkpoint.tensor(name).unwrap().read().unwrap();
                assert_eq!(read.bytes(), buf.bytes());
            }
            let len = checkpoint.files()[0].safetensors().header().data_start()
                + checkpoint.files()[0].safetensors().header().data_len();
            assert_eq!(len as usize, file(&tensors).len());
        }
    }
}

#[test]
fn a_save_that_fails_or_is_cancelled_shows_nothing() {
    for (address, _dir) in directories("failing") {
        let tensors = tensors(&[("a", 20 * MIB)]);
        let old = crate::remote::tensors(&[("old", 5)]);
        let file = format!("{address}/model.safetensors");
        RemoteOptions::new().save(&file, named(&old), &SaveOptions::new()).unwrap();
        let cancelling = SaveOptions::new().progress(|progress| {
            if progress.bytes_done > 12 << 20 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let error = RemoteOptions::new().save(&file, named(&tensors), &cancelling).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
        let path = file.trim_start_matches("file://");
        assert_eq!(error.file(), Some(path));
        let options = ShardOptions::new().save_options(cancelling).max_shard_size(5.into());
        let error =
            RemoteOptions::new().save_sharded(&address, named(&tensors), &options).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
        let found = names(&address).into_iter().filter(|name| name != "below");
        assert_eq!(found.collect::<Vec<_>>(), ["model.safetensors"]);
        assert!(open(&address).unwrap().get("old").is_some());
        // Tensors that cannot be saved at all.
        let twice = [old[0].clone(), old[0].clone()];
        let error =
            RemoteOptions::new().save(&file, named(&twice), &SaveOptions::new()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    }
}

#[test]
fn shards_equal_a_local_save() {
    let tensors = tensors(&[("a", 600), ("b", 600), ("c", 2 * MIB), ("d", 10)]);
    let options = ShardOptions::new().max_shard_size(1000.into()).metadata([("epoch", "3")]);
    let dir = tempfile::tempdir().unwrap();
    let local = save_local(dir.path(), named(&tensors), &options).unwrap();
    for (address, remote) in stores("sharded") {
        let saved = RemoteOptions::new().save_sharded(&address, named(&tensors), &options).unwrap();
        assert_eq!(saved, local);
        let checkpoint = open(&address).unwrap();
        assert_eq!((checkpoint.len(), checkpoint.metadata()["epoch"].as_str()), (4, "3"));
        let Some(remote) = remote else { continue };
        for name in names(&address) {
            let [a, b] = [dir.path().join(&name), remote.path().join("sharded").join(&name)];
            assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), "{name}");
        }
    }
}

#[test]
fn names_are_saved_as_the_index_has_them() {
    let pattern = "mödel ~#%[1]{x}%20^`|<é>{suffix}.safetensors";
    let index = "mödel ~#%[1]{x}%20^`|<é>.safetensors.index.json".to_owned();
    let tensors = tensors(&[("a", 600), ("b", 600), ("c", 600)]);
    for (address, dir) in stores("named") {
        // The second one replaces files of the same names, the third is one file.
        for size in [700_u64, 700, 5000] {
            let options = ShardOptions::new().max_shard_size(size.into());
            let options = options.file_pattern(pattern.parse().unwrap());
            let mut saved = RemoteOptions::new()
                .save_sharded(&address, named(&tensors), &options)
                .unwrap()
                .files;
            check_values(&open(&address).unwrap(), &tensors);
            if let Some(dir) = &dir {
                let local = Checkpoint::open(dir.path().join("named")).unwrap();
                assert_eq!(local.len(), 3);
            }
            if saved.len() > 1 {
                saved.push(index.clone());
            }
            saved.sort();
            assert_eq!(names(&address), saved);
        }
    }
    let options = ShardOptions::new().file_pattern("a\nb{suffix}.safetensors".parse().unwrap());
    let error = RemoteOptions::new()
        .save_sharded("memory:///saving/lines", named(&tensors), &options)
        .unwrap_err();
    assert!(error.to_string().contains("the names of objects cannot have"), "{error}");
    assert_eq!(names("memory:///saving/lines"), [""; 0]);
}

/// Displays the first file: its version, and its length.
fn shown(checkpoint: &Checkpoint<Assembled<RemoteFile>>) -> String {
    format!("{:?}", checkpoint.files()[0].safetensors().source().sources().next().unwrap())
}

fn check_values(checkpoint: &Checkpoint<Assembled<RemoteFile>>, tensors: &[(String, TensorBuf)]) {
    assert_eq!(checkpoint.len(), tensors.len());
    for (name, buf) in tensors {
        assert_eq!(checkpoint.tensor(name).unwrap().read().unwrap().bytes(), buf.bytes());
    }
}

#[test]
fn where_nothing_can_be_saved() {
    let server = Server::new();
    let tensors = tensors(&[("a", 6)]);
    for (address, words) in [
        (&*server.address("m.safetensors"), "web servers"),
        ("hf://owner/name/m.safetensors", "expected an address"),
        ("memory:///", "the address of a file"),
        ("memory:///directory/", "the address of a file"),
        // Names with parts that an address would cut off.
        ("memory:///run#1/m.safetensors", "write %"),
        ("file:///run?1", "write %"),
        ("s3://b/m?versionId=1", "write %"),
    ] {
        let saved = RemoteOptions::new().save(address, named(&tensors), &SaveOptions::new());
        let error = saved.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(server.take_log().is_empty());
    let address = "memory:///run%231/m.safetensors";
    RemoteOptions::new().save(address, named(&tensors), &SaveOptions::new()).unwrap();
    assert_eq!(names("memory:///run%231"), ["m.safetensors"]);
    assert_eq!(open(address).unwrap().len(), 1);
}

#[test]
fn a_checkpoint_is_replaced_by_one_of_any_other_shape() {
    let sizes = [1000_u64, 300, 600, 1000, 300, 300];
    for (address, _dir) in stores("replaced") {
        for (round, size) in sizes.into_iter().enumerate() {
            let name = format!("round{round}");
            let lengths: Vec<_> = ["x", "y", "z"].map(|x| (x, 300)).into_iter().collect();
            let mut tensors = tensors(&lengths);
            tensors[0].0 = name.clone();
            let options = ShardOptions::new().max_shard_size(size.into());
            let saved =
                RemoteOptions::new().save_sharded(&address, named(&tensors), &options).unwrap();
            let checkpoint = open(&address).unwrap();
            assert_eq!(checkpoint.len(), 3);
            assert!(checkpoint.get(&name).is_some(), "{address} {round}");
            let mut expected = saved.files;
            if expected.len() > 1 {
                expected.push("model.safetensors.index.json".into());
            }
            expected.sort();
            assert_eq!(names(&address), expected, "{address} {round}");
        }
    }
}

#[test]
fn other_files_stay() {
    for (address, _dir) in directories("others") {
        let tensors = tensors(&[("a", 600), ("b", 600)]);
        for name in ["other.safetensors", "model.fp16.safetensors", "below/model.safetensors"] {
            RemoteOptions::new()
                .save(&format!("{address}/{name}"), named(&tensors), &SaveOptions::new())
                .unwrap();
        }
        for size in [700_u64, 5000] {
            let options = ShardOptions::new().max_shard_size(size.into());
            RemoteOptions::new().save_sharded(&address, named(&tensors), &options).unwrap();
        }
        assert_eq!(
            names(&address),
            ["below", "model.fp16.safetensors", "model.safetensors", "other.safetensors"]
        );
    }
}

/// For every name, and every function that saves.
#[test]
fn an_address_of_the_disk_is_the_path() {
    let (dir, remote) = (tempfile::tempdir().unwrap(), RemoteOptions::new());
    let root = format!("file://localhost{}", dir.path().display());
    let (tensors, shards) = (tensors(&[("a", 6), ("b", 6)]), ShardOptions::new());
    let path = dir.path().join("a #%1.safetensors");
    let address = format!("{root}/a%20%23%251.safetensors");
    RemoteOptions::new().save(&address, named(&tensors), &SaveOptions::new()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), file(&tensors));
    let checkpoint = open(&address).unwrap();
    assert_eq!((checkpoint.len(), checkpoint.files()[0].path()), (2, &*path));
    assert!(shown(&checkpoint).contains(&format!("{} bytes", file(&tensors).len())));

    let rewrite = Rewrite::from_checkpoint(&checkpoint).rename(|name| format!("x.{name}"));
    remote.save_rewrite(&format!("{root}/%C3%A4"), &rewrite, &SaveOptions::new()).unwrap();
    assert!(Checkpoint::open(dir.path().join("ä")).unwrap().get("x.a").is_some());
    remote.save_rewrite_sharded(&format!("{root}/s%20s"), &rewrite, &shards).unwrap();
    RemoteOptions::new().save_sharded(&format!("{root}/t/t"), named(&tensors), &shards).unwrap();
    assert_eq!(Checkpoint::open(dir.path().join("s s")).unwrap().len(), 2);
    assert_eq!(Checkpoint::open(dir.path().join("t/t")).unwrap().len(), 2);
    let mut left = names(&root);
    left.retain(|name| name != "a #%1.safetensors");
    assert_eq!(left, ["s s", "t", "ä"]);

    // It is as stale as a path.
    assert!(checkpoint.check_unchanged().is_ok());
    std::fs::write(&path, "something else").unwrap();
    assert!(checkpoint.check_unchanged().is_err());

    for address in ["file://host/model.safetensors", "file:///model.safetensors?x"] {
        let errors = [
            open(address).unwrap_err(),
            RemoteOptions::new().save(address, named(&tensors), &SaveOptions::new()).unwrap_err(),
            remote.save_rewrite(address, &rewrite, &SaveOptions::new()).unwrap_err(),
            RemoteOptions::new().save_sharded(address, named(&tensors), &shards).unwrap_err(),
            remote.save_rewrite_sharded(address, &rewrite, &shards).unwrap_err(),
        ];
        for error in errors {
            let ErrorKind::Io(found) = error.kind() else { panic!("{error}") };
            assert_eq!(found.kind(), std::io::ErrorKind::InvalidInput, "{error}");
        }
    }
}

/// A checkpoint on the disk, and options that replace its file while it is saved elsewhere.
fn changing(dir: &tempfile::TempDir) -> (Checkpoint, SaveOptions) {
    let path: PathBuf = dir.path().join("model.safetensors");
    let tensors = tensors(&[("a", 1000), ("b", 1000)]);
    std::fs::write(&path, file(&tensors)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = SaveOptions::new().progress(move |_| {
        std::fs::write(&path, "something else").unwrap();
        ControlFlow::Continue(())
    });
    (checkpoint, options)
}

#[test]
fn a_rewrite_is_saved_only_if_its_sources_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let remote = RemoteOptions::new();
    let (checkpoint, changing_options) = changing(&dir);
    let rewrite = || Rewrite::from_checkpoint(&checkpoint).rename(|name| format!("x.{name}"));
    let (one, several) = ("memory:///rewritten/one.safetensors", "memory:///rewritten/several");
    let shards = |options| ShardOptions::new().max_shard_size(1000.into()).save_options(options);
    let saved = remote.save_rewrite_sharded(several, &rewrite(), &shards(SaveOptions::new()));
    assert_eq!(saved.unwrap().files.len(), 2);
    assert_eq!(open(several).unwrap().len(), 2);

    let error = remote.save_rewrite(one, &rewrite(), &changing_options).unwrap_err();
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    assert!(open(one).is_err());
    let before = shown(&open(several).unwrap());
    let (checkpoint, changing_options) = changing(&dir);
    let rewrite = Rewrite::from_checkpoint(&checkpoint);
    let error = remote.save_rewrite_sharded(several, &rewrite, &shards(changing_options));
    error.unwrap_err();
    let after = open(several).unwrap();
    assert_eq!(shown(&after), before);
    assert!(after.get("x.a").is_some());
}

/// Files that must not be replaced stay, by every way to save.
#[test]
fn files_that_must_stay() {
    let keep = SaveOptions::new().overwrite(false);
    let tensors = tensors(&[("a", 10), ("b", 10)]);
    let refused = |result: safetensors_core::Result<()>| {
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
    };
    for (address, _dir) in stores("kept.safetensors") {
        let save = || RemoteOptions::new().save(&address, named(&tensors), &keep);
        save().unwrap();
        refused(save());
    }
    for most in [10, 100] {
        let options = ShardOptions::new().max_shard_size(most.into()).save_options(keep.clone());
        for (address, _dir) in directories(&format!("kept-{most}")) {
            let save =
                || RemoteOptions::new().save_sharded(&address, named(&tensors), &options).map(drop);
            save().unwrap();
            refused(save());
        }
    }
}
