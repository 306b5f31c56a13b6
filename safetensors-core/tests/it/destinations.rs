//! Destinations of checkpoints: the ones that a plan refuses beforehand, and the leftovers of a
//! failed save.

use safetensors_core::save::{AtomicDirectory, AtomicFile};
use safetensors_testing::tensors::{broken, bytes_by};

use crate::support::*;

fn rewrite() -> Rewrite<'static> {
    let view = |values: &'static [u8; 2]| TensorView::from_slice(&[2], values).unwrap();
    Rewrite::new().add("a", view(&[1, 2])).unwrap().add("b", view(&[3, 4])).unwrap()
}

#[test]
fn one_file_of_another_name_has_to_be_alone_in_its_directory() {
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let options = || ShardOptions::new().file_pattern("own{suffix}.safetensors".parse().unwrap());
    let (one, several) = (options(), options().max_shard_size(2.into()));
    let check = |options: &ShardOptions| {
        rewrite().plan_sharded(options).unwrap().check_destination(dir.path())
    };
    let refused = |expected: &[&str]| {
        let error = check(&one).unwrap_err();
        let ErrorKind::NotAlone { file, others } = error.kind() else { unreachable!("{error}") };
        assert_eq!(file, "own.safetensors");
        assert_eq!(others, expected);
        assert_eq!(error.file(), dir.path().to_str());
    };
    check(&one).unwrap();
    // Files of the same pattern are replaced.
    rewrite().save_sharded(dir.path(), &several).unwrap();
    fs::write(at("config.json"), "{}").unwrap();
    check(&one).unwrap();

    save(
        at("weights.safetensors"),
        [("w", TensorView::from_slice(&[1], &[1_u8]).unwrap())],
        &SaveOptions::new(),
    )
    .unwrap();
    refused(&["weights.safetensors"]);
    fs::write(at("other.safetensors.index.json"), "{}").unwrap();
    refused(&["other.safetensors.index.json", "weights.safetensors"]);
    // `model.safetensors` is found next to any other files.
    check(&ShardOptions::new()).unwrap();
    rewrite().save_sharded(dir.path(), &ShardOptions::new()).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().len(), 2);
    // Several files have an index, and opening the directory finds that.
    check(&several).unwrap();
    let several = ShardOptions::new().max_shard_size(2.into());
    rewrite().save_sharded(dir.path(), &several).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!((checkpoint.len(), checkpoint.files().len()), (2, 2));
}

#[test]
fn a_plan_refuses_impossible_destinations() {
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "").unwrap();
    fs::create_dir(at("directory.safetensors")).unwrap();
    fs::create_dir_all(at("taken/model.safetensors")).unwrap();
    let rewrite = rewrite();
    let file = rewrite.plan(&SaveOptions::new()).unwrap();
    let sharded = rewrite.plan_sharded(&ShardOptions::new()).unwrap();
    file.check_destination(at("new.safetensors")).unwrap();
    sharded.check_destination(at("new/and/deep")).unwrap();
    sharded.check_destination("").unwrap();
    for path in [at("none/x.safetensors"), at("file/x.safetensors")] {
        let error = file.check_destination(&path).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Io(_)) && error.file() == path.to_str(),
            "{error}"
        );
    }
    refused!(file.check_destination(at("directory.safetensors")), ErrorKind::NotAFile { .. });
    for path in [at("file"), at("file/x")] {
        let error = sharded.check_destination(&path).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Io(_)) && error.file() == path.to_str(),
            "{error}"
        );
    }
    let error = refused!(sharded.check_destination(at("taken")), ErrorKind::NotAFile { .. });
    assert_eq!(error.file(), at("taken").join("model.safetensors").to_str());
    assert_eq!(names_in(dir.path()), ["directory.safetensors", "file", "taken"]);
}

#[test]
fn a_failed_save_removes_the_directories_that_it_created() {
    let dir = tempdir().unwrap();
    fs::create_dir(dir.path().join("here")).unwrap();
    let fails = |to: &str| {
        let rewrite = rewrite().add("c", bytes_by(2, |_| Err(broken("the end")))).unwrap();
        rewrite
            .save_sharded(dir.path().join(to), &ShardOptions::new().max_shard_size(2.into()))
            .unwrap_err()
    };
    for to in ["new", "new/and/deep", "here/new", "here"] {
        assert!(matches!(fails(to).kind(), ErrorKind::Io(_)));
        assert_eq!(names_in(dir.path()), ["here"], "{to}");
        assert!(names_in(&dir.path().join("here")).is_empty(), "{to}");
    }
    rewrite().save_sharded(dir.path().join("new/and/deep"), &ShardOptions::new()).unwrap();
    assert_eq!(names_in(&dir.path().join("new/and/deep")), ["model.safetensors"]);
}

#[test]
fn errors_do_not_show_temporary_names() {
    let (dir, path) = place("none/x.safetensors");
    let error = AtomicFile::create(&path, &SaveOptions::new()).unwrap_err();
    let system = fs::File::create(&path).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: {system}", path.display()));
    fs::write(dir.path().join("file"), "").unwrap();
    let error = rewrite().save_sharded(dir.path().join("file"), &ShardOptions::new()).unwrap_err();
    assert!(!error.to_string().contains(".safetensors.tmp"), "{error}");
}

#[test]
fn a_path_that_ends_in_a_separator_is_refused() {
    let dir = tempdir().unwrap();
    for name in ["new.safetensors/", "a/"] {
        fs::write(dir.path().join("a"), "old").unwrap();
        let path = dir.path().join(name);
        let errors = [
            rewrite().plan(&SaveOptions::new()).unwrap().check_destination(&path).unwrap_err(),
            rewrite().save(&path, &SaveOptions::new()).unwrap_err(),
            AtomicFile::create(&path, &SaveOptions::new()).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
            assert_eq!(error.file(), path.to_str());
        }
        assert_eq!(names_in(dir.path()), ["a"]);
    }
}

/// Programs on Windows have to ask for paths of more than 260 characters.
#[test]
fn paths_may_be_long() {
    let dir = tempdir().unwrap();
    let deep: PathBuf = dir.path().join(["d"; 3].map(|name| name.repeat(120)).join("/"));
    rewrite().save_sharded(&deep, &ShardOptions::new()).unwrap();
    let edit = Edit::open(deep.join("model.safetensors")).unwrap();
    edit.set_metadata([("long", "yes")]).apply().unwrap();
    let new = AtomicDirectory::create(deep.join("epoch")).unwrap();
    rewrite().save(new.path().join("model.safetensors"), &SaveOptions::new()).unwrap();
    new.commit().unwrap();
    assert_eq!(names_in(&deep), ["epoch", "model.safetensors"]);
    assert_eq!(Checkpoint::open(&deep).unwrap().metadata()["long"], "yes");
    assert_eq!(Checkpoint::open(deep.join("epoch")).unwrap().len(), 2);
}

/// The target of such a link has no path. `/dev/stdout` leads to one if it is a pipe.
#[cfg(target_os = "linux")]
#[test]
fn a_link_to_a_pipe_is_a_special_file() {
    use std::os::fd::AsRawFd;

    let (reader, _writer) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    refused!(AtomicFile::create(&path, &SaveOptions::new()), ErrorKind::NotAFile { .. });
    let error = refused!(Edit::open(&path), ErrorKind::NotAFile { .. });
    assert_eq!(error.file(), Some(path.as_str()));
}

/// Only the error "not found" means that there is no old checkpoint. After any other error one may
/// exist, and must stay loadable.
#[cfg(unix)]
#[test]
fn an_old_checkpoint_that_cannot_be_read_stops_a_save() {
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let several = ShardOptions::new().max_shard_size(2.into());
    rewrite().save_sharded(dir.path(), &several).unwrap();
    let (index, moved) = (at("model.safetensors.index.json"), at("index"));
    fs::rename(&index, &moved).unwrap();
    // A link to itself: following it fails, with another error than for a missing file.
    std::os::unix::fs::symlink(&index, &index).unwrap();
    let before: Vec<_> = names_in(dir.path()).iter().map(|name| fs::read(at(name)).ok()).collect();
    for options in [&several, &ShardOptions::new()] {
        let error = refused!(rewrite().save_sharded(dir.path(), options), ErrorKind::Io(_));
        assert_eq!(error.file(), index.to_str());
        let after: Vec<_> =
            names_in(dir.path()).iter().map(|name| fs::read(at(name)).ok()).collect();
        assert_eq!(after, before);
    }
    // A dangling link is a missing file.
    fs::remove_file(&index).unwrap();
    std::os::unix::fs::symlink("none", &index).unwrap();
    rewrite().save_sharded(dir.path(), &several).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().len(), 2);
}

#[test]
fn a_selection_that_leaves_nothing_replaces_nothing() {
    let dir = tempdir().unwrap();
    let (file, sharded) = (dir.path().join("one.safetensors"), dir.path().join("sharded"));
    let nothing = |rewrite: Rewrite<'static>| rewrite.select(|name, _| name == "none");
    let (one, several) = (SaveOptions::new(), ShardOptions::new().max_shard_size(2.into()));
    rewrite().save(&file, &one).unwrap();
    rewrite().save_sharded(&sharded, &several).unwrap();
    let errors = [
        nothing(rewrite()).save(&file, &one).unwrap_err(),
        nothing(rewrite()).save_sharded(&sharded, &several).unwrap_err(),
        nothing(rewrite()).plan(&one).map(drop).unwrap_err(),
        nothing(rewrite()).plan_sharded(&several).map(drop).unwrap_err(),
        rewrite().exclude(|_, _| true).save(&file, &one).unwrap_err(),
        // In two steps.
        nothing(rewrite().select(|name, _| name == "a")).save(&file, &one).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error.kind(), ErrorKind::NothingSelected { found: 1 | 2 }), "{error}");
    }
    for path in [&file, &sharded] {
        assert_eq!(Checkpoint::open(path).unwrap().len(), 2);
    }
    // A tensor that is added later may be saved. So may a rewrite that never had any tensors.
    let view = TensorView::from_slice(&[1], &[1_u8]).unwrap();
    nothing(rewrite()).add("c", view).unwrap().save(&file, &one).unwrap();
    assert_eq!(Checkpoint::open(&file).unwrap().len(), 1);
    Rewrite::new().select(|_, _| false).save_sharded(&sharded, &several).unwrap();
    assert!(Checkpoint::open(&sharded).unwrap().is_empty());
}

#[test]
fn a_source_that_is_replaced_during_a_rewrite_stops_it() {
    let dir = tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let several = ShardOptions::new().max_shard_size(2.into());
    rewrite().save_sharded(&from, &several).unwrap();
    let replace = || drop(rewrite().save_sharded(&from, &several).unwrap());
    fs::create_dir(&to).unwrap();
    let save_to = |to: &Path| {
        let checkpoint = Checkpoint::open(&from).unwrap();
        let meanwhile = bytes_by(1, |sink| {
            replace();
            sink(&[0])
        });
        let rewrite = Rewrite::from_checkpoint(&checkpoint).add("c", meanwhile).unwrap();
        match to.extension() {
            Some(_) => rewrite.save(to, &SaveOptions::new()),
            None => rewrite.save_sharded(to, &several).map(drop),
        }
    };
    for to in [&to.join("one.safetensors"), &to.join("sharded"), &from] {
        let error = refused!(save_to(to), ErrorKind::Io(_));
        assert_eq!(error.file(), from.join("model.safetensors.index.json").to_str());
        assert!(error.to_string().contains("the index has changed"), "{error}");
    }
    assert!(names_in(&to).is_empty());
    assert_eq!(Checkpoint::open(&from).unwrap().len(), 2);
    // Replacing the source by the rewrite itself is no error.
    Rewrite::from_checkpoint(&Checkpoint::open(&from).unwrap())
        .save_sharded(&from, &several)
        .unwrap();
}
