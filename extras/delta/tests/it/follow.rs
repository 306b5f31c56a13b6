//! Followers: the versions that they apply, wait for, and refuse.

use std::fs;
use std::path::Path;

use safetensors_core::Checkpoint;
use safetensors_delta::{Error, ErrorKind, Follower, make};

use crate::followed::{Publisher, numbers, tensors, with_base};
use crate::support::{INDEX, SHARD, Tensors, bytes, files, quick, read, views, write};

fn refused(error: &Error) -> &ErrorKind {
    error.other().unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn a_follower_applies_missing_versions() {
    let publisher = Publisher::new();
    assert_eq!(publisher.poll().unwrap(), None);
    assert_eq!(publisher.follower().version().unwrap(), None);
    // A directory with another name is no version.
    fs::create_dir(publisher.root().join("weight_v1")).unwrap();
    fs::create_dir(publisher.root().join("weight_v000009.tmp")).unwrap();
    publisher.run(1, 2);
    assert_eq!(publisher.poll().unwrap(), Some((None, 2, Some(0), 2)));
    publisher.assert_served(2, &tensors(1, 2));
    assert_eq!(publisher.poll().unwrap(), None);
    for version in 3..=4 {
        let [old, new] = [version - 1, version].map(|value| tensors(1, value));
        publisher.delta(version.into(), u64::from(version) - 1, &old, &new);
    }
    assert_eq!(publisher.poll().unwrap(), Some((Some(2), 4, None, 2)));
    publisher.assert_served(4, &tensors(1, 4));
    // Its base is not published any more.
    publisher.clear();
    publisher.theirs(5, &tensors(1, 4), &tensors(1, 5));
    let update = publisher.follower().poll(publisher.root()).unwrap().unwrap();
    assert_eq!((numbers(&update), update.is_checked), ((Some(4), 5, None, 1), false));
    // A delta that changes nothing is a version, too.
    publisher.delta(6, 5, &tensors(1, 5), &tensors(1, 5));
    assert_eq!(publisher.poll().unwrap(), Some((Some(5), 6, None, 1)));
    // A full version begins a new chain, with other tensors.
    let other = [bytes("other", [1, 2, 3])].into();
    publisher.full(7, &other);
    publisher.delta(8, 7, &other, &[bytes("other", [1, 2, 4])].into());
    assert_eq!(publisher.poll().unwrap(), Some((Some(6), 8, Some(7), 1)));
    publisher.assert_served(8, &[bytes("other", [1, 2, 4])].into());
}

#[test]
fn other_files_stay_unless_a_full_version_brings_new_ones() {
    let publisher = Publisher::new();
    publisher.run(1, 0);
    fs::write(publisher.version(0).join("tokenizer.json"), "t").unwrap();
    fs::write(publisher.version(0).join("model.sig"), "s").unwrap();
    #[cfg(unix)]
    {
        fs::write(publisher.directory.path().join("secret"), "s").unwrap();
        let link = publisher.version(0).join("z.txt");
        std::os::unix::fs::symlink("../../secret", link).unwrap();
    }
    let update = publisher.follower().poll(publisher.root()).unwrap().unwrap();
    let expected = ["model.sig", "z.txt"].map(Path::new);
    assert_eq!(update.left_out, expected[..if cfg!(unix) { 2 } else { 1 }]);
    assert!(!publisher.served().join("z.txt").exists());
    publisher.full(1, &tensors(1, 1));
    assert_eq!(publisher.poll().unwrap(), Some((Some(0), 1, Some(1), 0)));
    let beside = |name: &str| fs::read_to_string(publisher.served().join(name)).ok();
    assert_eq!(beside("config.json").as_deref(), Some("1"));
    assert_eq!(beside("tokenizer.json").as_deref(), Some("t"));
    assert_eq!(beside("model.sig"), None);
}

#[test]
fn incomplete_versions_are_waited_for() {
    let publisher = Publisher::new();
    publisher.run(1, 3);
    let hidden = publisher.directory.path().join("hidden");
    let hide = |number, name: &str| fs::rename(publisher.version(number).join(name), &hidden);
    let show = |number, name: &str| fs::rename(&hidden, publisher.version(number).join(name));
    // The index comes last.
    for name in [INDEX, "model-00001-of-00002.safetensors"] {
        hide(0, name).unwrap();
        assert_eq!(publisher.poll().unwrap(), None, "{name}");
        show(0, name).unwrap();
    }
    for (number, name) in [(3, INDEX), (3, SHARD)] {
        hide(number, name).unwrap();
        let update = publisher.follower().poll(publisher.root()).unwrap();
        assert!(update.is_none_or(|update| update.version == 2), "{name}");
        show(number, name).unwrap();
    }
    publisher.assert_served(2, &tensors(1, 2));
    // The versions after it wait, too.
    publisher.delta(4, 3, &tensors(1, 3), &tensors(1, 4));
    hide(3, INDEX).unwrap();
    assert_eq!(publisher.poll().unwrap(), None);
    show(3, INDEX).unwrap();
    assert_eq!(publisher.poll().unwrap(), Some((Some(2), 4, None, 2)));
    // But a version that does not depend on it does not.
    fs::create_dir(publisher.version(5)).unwrap();
    publisher.delta(6, 4, &tensors(1, 4), &tensors(1, 6));
    assert_eq!(publisher.poll().unwrap(), Some((Some(4), 6, None, 1)));
}

#[test]
fn a_file_of_a_delta_is_no_full_version() {
    let publisher = Publisher::new();
    publisher.run(1, 1);
    assert!(publisher.poll().unwrap().is_some());
    // Its one file has the name of a whole checkpoint, and its index is not there yet.
    publisher.delta(2, 1, &tensors(1, 1), &tensors(1, 2));
    let directory = publisher.version(2);
    fs::rename(directory.join(SHARD), directory.join("model.safetensors")).unwrap();
    let index = fs::read_to_string(directory.join(INDEX)).unwrap();
    fs::remove_file(directory.join(INDEX)).unwrap();
    assert_eq!(publisher.poll().unwrap(), None);
    fs::write(directory.join(INDEX), index.replace(SHARD, "model.safetensors")).unwrap();
    assert_eq!(publisher.poll().unwrap(), Some((Some(1), 2, None, 1)));
    // A whole file counts once nothing is being written next to it.
    fs::create_dir(publisher.version(3)).unwrap();
    let file = publisher.version(3).join("model.safetensors");
    write(&publisher.directory.path().join("one"), &tensors(1, 3), u64::MAX);
    fs::copy(publisher.directory.path().join("one/model.safetensors"), file).unwrap();
    let unfinished = publisher.version(3).join("config.json.tmp");
    fs::write(&unfinished, "").unwrap();
    assert_eq!(publisher.poll().unwrap(), None);
    fs::remove_file(unfinished).unwrap();
    assert_eq!(publisher.poll().unwrap(), Some((Some(2), 3, Some(3), 0)));
}

#[test]
fn versions_that_do_not_lead_to_one_another_are_refused() {
    let publisher = Publisher::new();
    publisher.delta(2, 1, &tensors(1, 1), &tensors(1, 2));
    let error = publisher.poll().unwrap_err();
    let ErrorKind::NoBase { base, version } = refused(&error) else { panic!("{error}") };
    assert_eq!((&**base, &**version), ("000001", "000002"));
    publisher.full(0, &tensors(1, 0));
    let error = publisher.poll().unwrap_err();
    let ErrorKind::Gap { from, base, version } = refused(&error) else { panic!("{error}") };
    assert_eq!((&**from, &**base, &**version), ("000000", "000001", "000002"));
    publisher.delta(1, 0, &tensors(1, 0), &tensors(1, 1));
    assert_eq!(publisher.poll().unwrap(), Some((None, 2, Some(0), 2)));

    publisher.delta(3, 2, &tensors(1, 2), &tensors(1, 3));
    publisher.delta(4, 2, &tensors(1, 2), &tensors(1, 4));
    let before = files(&publisher.served());
    let error = publisher.poll().unwrap_err();
    let ErrorKind::Fork { base, one, other } = refused(&error) else { panic!("{error}") };
    assert_eq!((&**base, &**one, &**other), ("000002", "000003", "000004"));
    // 3 is here, and 4 does not follow it.
    let until_3 = publisher.follower().until(3).poll(publisher.root()).unwrap().unwrap();
    assert_eq!(numbers(&until_3), (Some(2), 3, None, 1));
    let error = publisher.poll().unwrap_err();
    let ErrorKind::Gap { from, base, .. } = refused(&error) else { panic!("{error}") };
    assert_eq!((&**from, &**base), ("000003", "000002"));
    publisher.change_index(4, |metadata| metadata["version"] = "000005".into());
    let error = publisher.poll().unwrap_err();
    let ErrorKind::OtherVersion { expected, found } = refused(&error) else { panic!("{error}") };
    assert_eq!((&**expected, &**found), ("000004", "000005"));
    assert_ne!(files(&publisher.served()), before);
    publisher.assert_served(3, &tensors(1, 3));
}

#[test]
fn a_truncated_frame_changes_nothing() {
    let publisher = Publisher::new();
    publisher.run(1, 1);
    assert!(publisher.poll().unwrap().is_some());
    publisher.theirs(2, &tensors(1, 1), &tensors(1, 2));
    let shard = publisher.version(2).join(SHARD);
    let whole = fs::read(&shard).unwrap();
    let before = files(publisher.directory.path());
    // The header has the size of the cut frame, as its publisher would write it.
    let cut = whole.len() - 1;
    fs::write(&shard, &whole[..cut]).unwrap();
    publisher.poll().unwrap_err();
    let mut zeros = whole.clone();
    zeros[cut - 20..].fill(0);
    fs::write(&shard, zeros).unwrap();
    let error = publisher.poll().unwrap_err();
    assert!(error.tensor() == Some("w"), "{error}");
    fs::write(&shard, whole).unwrap();
    assert_eq!(files(publisher.directory.path()), before);
    assert_eq!(publisher.poll().unwrap(), Some((Some(1), 2, None, 1)));
}

#[test]
fn a_restarted_publisher_is_followed_from_its_full_version() {
    let publisher = Publisher::new();
    publisher.run(1, 2);
    assert!(publisher.poll().unwrap().is_some());
    // As far as before, with other bytes.
    publisher.clear();
    publisher.run(2, 2);
    assert_eq!(publisher.poll().unwrap(), Some((Some(2), 2, Some(0), 2)));
    publisher.assert_served(2, &tensors(2, 2));
    // Not as far.
    publisher.clear();
    publisher.run(3, 1);
    assert_eq!(publisher.poll().unwrap(), Some((Some(2), 1, Some(0), 1)));
    publisher.assert_served(1, &tensors(3, 1));
    // Only to the full version, which looks alike.
    publisher.clear();
    publisher.run(4, 0);
    assert_eq!(publisher.poll().unwrap(), Some((Some(1), 0, Some(0), 0)));
    publisher.clear();
    publisher.run(5, 0);
    assert_eq!(publisher.poll().unwrap(), Some((Some(0), 0, Some(0), 0)));
    // Nothing is there for a while.
    publisher.clear();
    assert_eq!(publisher.poll().unwrap(), None);
    publisher.assert_served(0, &tensors(5, 0));
    // Farther, without the version that is here.
    publisher.run(6, 3);
    assert_eq!(publisher.poll().unwrap(), Some((Some(0), 3, Some(0), 3)));
    publisher.assert_served(3, &tensors(6, 3));
}

#[test]
fn a_delta_with_another_index_is_another_version() {
    let publisher = Publisher::new();
    publisher.run(1, 0);
    let base = Checkpoint::open(publisher.version(0)).unwrap();
    let publish = |value: &str, new: &Tensors| {
        let options = quick().metadata([("k", value)]).overwrite(true);
        make(&base, views(new), publisher.version(1), &options).unwrap();
    };
    let mut new = tensors(1, 1);
    publish("1", &new);
    assert_eq!(publisher.poll().unwrap(), Some((None, 1, Some(0), 1)));
    publish("2", &new);
    assert_eq!(publisher.poll().unwrap(), Some((Some(1), 1, Some(0), 1)));
    let served = Checkpoint::open(publisher.served()).unwrap();
    assert_eq!(served.metadata()["k"], "2");
    drop(served);
    assert_eq!(publisher.poll().unwrap(), None);
    // A tensor is removed, of a publisher without digests.
    let without_digests = |metadata: &mut serde_json::Map<_, _>| {
        metadata.retain(|key: &String, _| !key.ends_with("_blake3"));
    };
    publisher.change_index(1, without_digests);
    assert_eq!(publisher.poll().unwrap(), Some((Some(1), 1, Some(0), 1)));
    new.remove("fixed");
    publish("2", &new);
    publisher.change_index(1, without_digests);
    assert_eq!(publisher.poll().unwrap(), Some((Some(1), 1, Some(0), 1)));
    publisher.assert_served(1, &new);
}

#[test]
fn deltas_of_other_tensors_are_not_applied() {
    let publisher = Publisher::new();
    publisher.run(1, 1);
    assert!(publisher.poll().unwrap().is_some());
    // The version that is here is gone, and the next belongs to another run.
    for is_named in [true, false] {
        publisher.clear();
        match is_named {
            true => publisher.delta(2, 1, &tensors(2, 1), &tensors(2, 2)),
            false => publisher.theirs(2, &tensors(2, 1), &tensors(2, 2)),
        }
        let error = publisher.poll().unwrap_err();
        assert!(
            matches!(refused(&error), ErrorKind::WrongBase { .. } | ErrorKind::WrongTensor { .. }),
            "{error}"
        );
        publisher.assert_served(1, &tensors(1, 1));
    }
    // The checkpoint here was changed.
    publisher.clear();
    publisher.run(1, 2);
    write(&publisher.served(), &tensors(7, 7), 1000);
    assert_eq!(publisher.poll().unwrap(), Some((Some(1), 2, Some(0), 2)));
    publisher.assert_served(2, &tensors(1, 2));
}

#[test]
fn an_unusable_local_version_is_replaced() {
    let publisher = Publisher::new();
    publisher.run(1, 1);
    assert!(publisher.poll().unwrap().is_some());
    // It has the tensor that is added.
    let mut newer = tensors(1, 2);
    newer.insert("added".into(), bytes("", [1]).1);
    publisher.delta(2, 1, &tensors(1, 1), &newer);
    write(&publisher.served(), &newer, u64::MAX);
    assert_eq!(publisher.poll().unwrap(), Some((Some(1), 2, Some(0), 2)));
    publisher.assert_served(2, &newer);

    // A file is half written, or gone.
    type Damage = fn(&Path);
    let torn: Damage = |file| fs::write(file, "x").unwrap();
    let gone: Damage = |file| fs::remove_file(file).unwrap();
    for damage in [torn, gone] {
        let publisher = Publisher::new();
        let tokenizer = publisher.served().join("tokenizer.json");
        let damage = || damage(Checkpoint::open(publisher.served()).unwrap().files()[0].path());
        publisher.run(1, 1);
        assert!(publisher.poll().unwrap().is_some());
        fs::write(&tokenizer, "t").unwrap();
        damage();
        publisher.delta(2, 1, &tensors(1, 1), &tensors(1, 2));
        assert_eq!(publisher.poll().unwrap(), Some((Some(1), 2, Some(0), 2)));
        damage();
        publisher.full(3, &tensors(1, 3));
        assert_eq!(publisher.poll().unwrap(), Some((Some(2), 3, Some(3), 0)));
        publisher.assert_served(3, &tensors(1, 3));
        assert_eq!(fs::read_to_string(tokenizer).unwrap(), "t");
        // Nothing but a delta is published.
        damage();
        let before = files(&publisher.served());
        publisher.clear();
        publisher.delta(4, 3, &tensors(1, 3), &tensors(1, 4));
        publisher.poll().unwrap_err();
        assert_eq!(files(&publisher.served()), before);
    }
}

#[test]
fn a_follower_replaces_only_its_own_files() {
    let publisher = Publisher::new();
    publisher.run(1, 1);
    write(&publisher.served(), &tensors(9, 9), u64::MAX);
    let error = publisher.poll().unwrap_err();
    assert!(matches!(error.kind(), safetensors_core::ErrorKind::FileExists), "{error}");
    assert_eq!(read(&publisher.served()), tensors(9, 9));
    let follower = publisher.follower().options(quick().overwrite(true));
    assert!(follower.poll(publisher.root()).unwrap().is_some());
    publisher.assert_served(1, &tensors(1, 1));
    // A file that is no state does not count.
    fs::write(publisher.served().join(".safetensors-follow.json"), "{").unwrap();
    assert_eq!(publisher.follower().version().unwrap(), None);
    publisher.poll().unwrap_err();
    // Nor is a delta replaced by a checkpoint.
    let before = files(&publisher.root());
    let inside = Follower::new(publisher.version(1)).options(quick().overwrite(true));
    inside.poll(publisher.root()).unwrap_err();
    let around = Follower::new(publisher.directory.path()).options(quick());
    assert!(around.poll(publisher.root()).unwrap().is_some());
    assert_eq!(files(&publisher.root()), before);
}

#[test]
fn a_follower_starts_from_a_given_base() {
    let publisher = Publisher::new();
    let base = publisher.directory.path().join("base");
    write(&base, &tensors(1, 4), u64::MAX);
    fs::write(base.join("config.json"), "mine").unwrap();
    publisher.delta(5, 4, &tensors(1, 4), &tensors(1, 5));
    let update = with_base(&publisher, &base, false).poll(publisher.root()).unwrap().unwrap();
    assert_eq!(numbers(&update), (None, 5, None, 1));
    publisher.assert_served(5, &tensors(1, 5));
    assert!(publisher.served().join("config.json").exists());
    // The base may be the checkpoint that is replaced.
    fs::remove_dir_all(publisher.served()).unwrap();
    write(&publisher.served(), &tensors(1, 4), u64::MAX);
    let follower = |overwrite| with_base(&publisher, &publisher.served(), overwrite);
    follower(false).poll(publisher.root()).unwrap_err();
    assert!(follower(true).poll(publisher.root()).unwrap().is_some());
    publisher.assert_served(5, &tensors(1, 5));
    // Another one is refused.
    fs::remove_dir_all(publisher.served()).unwrap();
    write(&base, &tensors(2, 4), u64::MAX);
    with_base(&publisher, &base, false).poll(publisher.root()).unwrap_err();
    assert!(!publisher.served().exists());
}

#[test]
fn many_versions_are_applied_in_several_calls() {
    let publisher = Publisher::new();
    let small = |value| [bytes("w", [value])].into();
    publisher.full(0, &small(0));
    for number in 1..=70_u8 {
        publisher.delta(number.into(), u64::from(number) - 1, &small(number - 1), &small(number));
    }
    assert_eq!(publisher.poll().unwrap(), Some((None, 63, Some(0), 63)));
    publisher.assert_served(63, &small(63));
    assert_eq!(publisher.poll().unwrap(), Some((Some(63), 70, None, 7)));
    publisher.assert_served(70, &small(70));
}
