//! Downloads that succeed: their requests, and the cache afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use crate::server::repo::Repo;
use crate::server::{Origin, Server};
use crate::support::*;
use safetensors_core::Checkpoint;
use safetensors_hub::{DownloadOptions, ErrorKind, download};

#[test]
fn a_model_in_one_file_comes_with_three_requests() {
    let (server, cache) = served(single(3_000_000));
    let snapshot = download(REPO, &options(&server, cache.path())).unwrap();

    assert_eq!(tensors(&snapshot)["w"].len(), 3_000_000);
    assert_eq!(snapshot.files(), ["model.safetensors"]);
    let path: &Path = snapshot.as_ref();
    assert_eq!((path, &*PathBuf::from(&snapshot)), (snapshot.dir(), path));
    assert_eq!(snapshot.commit().to_string(), server.commit(REPO, "main"));
    // The listing, the question for the file, and the file.
    assert_eq!(server.log().len(), 3, "{:?}", server.log());
    assert_eq!(server.bytes(Origin::Cdn), tensor_file("w", 3_000_000).len());
    assert_blobs_are_right(cache.path());
}

#[test]
fn the_cache_has_pythons_layout() {
    let (server, cache) = served(single(100));
    let wanted = options(&server, cache.path()).include("tokenizer/*").include("config.json");
    let snapshot = download(REPO, &wanted).unwrap();
    let commit = server.commit(REPO, "main");
    let repo = cache.path().join("models--owner--name");

    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), commit);
    assert_eq!(snapshot.dir(), repo.join("snapshots").join(&commit));
    let mut found = files(&repo);
    found.retain(|name| !name.starts_with("blobs/"));
    let expected = ["config.json", "model.safetensors", "tokenizer/vocab.txt"]
        .map(|name| format!("snapshots/{commit}/{name}"));
    assert_eq!(found[1..], expected);
    let etags: Vec<_> = files(&repo.join("blobs"));
    assert_eq!(etags.len(), 3);
    assert_eq!(etags.iter().filter(|name| name.len() == 40).count(), 2);
    #[cfg(unix)]
    {
        let link = |name: &str| fs::read_link(snapshot.dir().join(name)).unwrap();
        assert!(link("config.json").starts_with("../../blobs"));
        assert!(link("tokenizer/vocab.txt").starts_with("../../../blobs"));
    }
    assert_eq!(fs::read(snapshot.dir().join("tokenizer/vocab.txt")).unwrap(), b"a b c");
}

#[test]
fn of_a_sharded_model_only_its_files_come() {
    let (server, cache) = served(Repo::new(shards(200_000)));
    let snapshot = download(REPO, &options(&server, cache.path())).unwrap();
    assert_eq!(tensors(&snapshot).keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(snapshot.files().len(), 4);
    assert_eq!(snapshot.files()[0], "model.safetensors.index.json");
    assert_eq!(server.count(Origin::Cdn, "GET", ""), 3);
    assert_eq!(server.count(Origin::Hub, "GET", "other.safetensors"), 0);
    assert_eq!(server.count(Origin::Hub, "GET", "config.json"), 0);
}

/// A copy is no load, which would refuse it.
#[test]
fn a_delta_is_downloaded_without_being_applied() {
    let index = r#"{"metadata": {"delta_encoding": "xor"}, "weight_map": {
        "w": "model-00000-of-00001.safetensors"}}"#;
    let file = ("model-00000-of-00001.safetensors", tensor_file("w", 30));
    let repo = Repo::new([("model.safetensors.index.json", index.into()), file]);
    let (server, cache) = served(repo);
    let wanted = options(&server, cache.path());
    let first = download(REPO, &wanted).unwrap();
    assert_eq!(first.files().len(), 2);
    assert!(Checkpoint::open(first.dir()).unwrap_err().to_string().contains("this is a delta of"));
    for again in [wanted.clone(), wanted.offline(true)] {
        assert_eq!(download(REPO, &again).unwrap(), first);
    }
}

#[test]
fn cached_files_are_not_downloaded_again() {
    let (server, cache) = served(single(1000));
    let wanted = options(&server, cache.path());
    let first = download(REPO, &wanted).unwrap();

    server.clear_log();
    assert_eq!(download(REPO, &wanted).unwrap(), first);
    assert_eq!(server.log().len(), 1, "only the listing");

    // An equal file in another commit: only the question for the file.
    let repo = single(1000).commit(
        "main",
        [("README.md", b"new".to_vec()), ("model.safetensors", tensor_file("w", 1000))],
    );
    server.set(REPO, repo);
    server.clear_log();
    let second = download(REPO, &wanted).unwrap();
    assert_ne!(second.commit(), first.commit());
    assert_eq!(server.bytes(Origin::Cdn), 0);
    assert_eq!(tensors(&second), tensors(&first));
}

#[test]
fn a_cached_commit_needs_no_request() {
    let (server, cache) = served(Repo::new(shards(1000)));
    let wanted = options(&server, cache.path()).include("config.json");
    let offline = |options: &DownloadOptions| download(REPO, &options.clone().offline(true));

    let error = offline(&wanted).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::NotInCache { .. })), "{error}");
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");

    let first = download(REPO, &wanted).unwrap();
    server.clear_log();
    assert_eq!(offline(&wanted).unwrap().dir(), first.dir());
    let commit = wanted.clone().revision(first.commit().to_string());
    for found in [download(REPO, &commit), offline(&commit)] {
        let found = found.unwrap();
        assert_eq!((found.dir(), tensors(&found)), (first.dir(), tensors(&first)));
        assert_eq!(found.files().len(), 5);
    }
    assert_eq!(server.log().len(), 0);

    // A pattern can only be matched offline against present files.
    let pattern = wanted.clone().include("*.json");
    assert!(offline(&pattern).unwrap().files().contains(&"config.json".into()));
    let error = offline(&wanted.clone().include("absent*")).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::NotInCache { .. })), "{error}");
    let error = offline(&wanted.clone().revision("v2")).unwrap_err();
    assert!(error.to_string().contains("v2"), "{error}");

    // A shard is lost: offline that is an error that names it, else it is downloaded again.
    let lost = "model-00002-of-00003.safetensors";
    let path = first.dir().join(lost);
    fs::remove_file(fs::canonicalize(&path).unwrap()).unwrap();
    let error = offline(&wanted).unwrap_err();
    assert!(error.to_string().contains(lost), "{error}");
    assert_eq!(server.log().len(), 0);
    assert_eq!(tensors(&download(REPO, &commit).unwrap()).len(), 3);
    assert_eq!(server.count(Origin::Cdn, "GET", ""), 1);
}

#[test]
fn a_selection_that_leaves_all_files_out_is_an_error_with_and_without_a_request() {
    let (server, cache) = served(single(10));
    let files = options(&server, cache.path()).no_checkpoint().include("config.json");
    let nothing = files.clone().exclude("*.json");
    let fails = |options: &DownloadOptions| {
        let error = download(REPO, options).unwrap_err();
        let Some(ErrorKind::NoMatch { pattern, found }) = error.other() else { panic!("{error}") };
        assert_eq!(pattern, "config.json without *.json");
        assert!(found.contains(&"config.json".to_owned()), "{error}");
    };
    fails(&nothing);

    let commit = download(REPO, &files).unwrap().commit().to_string();
    server.clear_log();
    fails(&nothing.clone().offline(true));
    fails(&nothing.revision(commit));
    assert_eq!(server.log().len(), 0);
}

#[test]
fn a_checkpoint_in_a_folder_or_a_variant_comes_alone() {
    let repo = Repo::new([
        ("unet/model.fp16.safetensors", tensor_file("half", 20)),
        ("unet/diffusion.safetensors", tensor_file("whole", 20)),
        ("vae/model.safetensors", tensor_file("vae", 20)),
        ("a b#?%.safetensors", tensor_file("odd", 20)),
    ]);
    let (server, cache) = served(repo);
    let wanted = options(&server, cache.path());
    for (path, tensor) in
        [("unet/model.fp16.safetensors", "half"), ("vae", "vae"), ("a b#?%.safetensors", "odd")]
    {
        let snapshot = download(REPO, &wanted.clone().checkpoint(path)).unwrap();
        assert_eq!(tensors(&snapshot).keys().collect::<Vec<_>>(), [tensor]);
        let offline = wanted.clone().checkpoint(path).offline(true);
        assert_eq!(download(REPO, &offline).unwrap(), snapshot);
    }
    // Which of two is meant is not guessed.
    let error = download(REPO, &wanted.clone().checkpoint("unet")).unwrap_err();
    assert!(error.to_string().contains("model.fp16.safetensors"), "{error}");
    // The root has one file only, but the directory of the cache has more below it.
    let root = download(REPO, &wanted).unwrap();
    assert_eq!(tensors(&root).keys().collect::<Vec<_>>(), ["odd"]);
    let config = download(REPO, &wanted.no_checkpoint().include("vae/*")).unwrap();
    assert_eq!(config.files(), ["vae/model.safetensors"]);
}

#[test]
fn revisions_are_branches_tags_and_pull_requests() {
    let repo = single(10)
        .commit("v1.0", [("model.safetensors", tensor_file("tag", 1))])
        .commit("refs/pr/1", [("model.safetensors", tensor_file("pr", 1))])
        .commit("feature/é", [("model.safetensors", tensor_file("branch", 1))]);
    let (server, cache) = served(repo);
    let wanted = options(&server, cache.path());
    for (revision, tensor) in [("v1.0", "tag"), ("refs/pr/1", "pr"), ("feature/é", "branch")] {
        let wanted = wanted.clone().revision(revision);
        for offline in [false, true] {
            let snapshot = download(REPO, &wanted.clone().offline(offline)).unwrap();
            assert_eq!(tensors(&snapshot).keys().collect::<Vec<_>>(), [tensor]);
        }
    }
    for bad in ["../x", "a b", "", "x/../../y"] {
        let error = download(REPO, &wanted.clone().revision(bad)).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::BadRevision { .. })), "{error}");
    }
}

#[test]
fn files_of_all_sizes_are_complete() {
    let sizes = [0, 1, 2, (128 << 10) - 1, 128 << 10, (1 << 20) + 1];
    let names: Vec<String> = sizes.iter().map(|size| format!("dir/{size}.safetensors")).collect();
    let files = names.iter().zip(sizes).map(|(name, size)| (name.as_str(), vec![7; size]));
    let (server, cache) = served(Repo::new(files.chain([("empty.txt", Vec::new())])));
    let wanted = options(&server, cache.path()).no_checkpoint().include("*");
    let snapshot = download(REPO, &wanted).unwrap();
    for (name, size) in names.iter().zip(sizes) {
        assert_eq!(fs::read(snapshot.dir().join(name)).unwrap(), vec![7; size]);
    }
    assert_eq!(snapshot.files().len(), 7);
    assert_blobs_are_right(cache.path());
}

#[test]
fn a_commit_that_changes_between_two_requests_is_not_mixed() {
    let old = Repo::new(shards(1000));
    let new = old.clone().commit("next", [("model.safetensors", tensor_file("new", 10))]);
    let next = new.refs["next"].clone();
    let server = Server::start([(REPO, new)]);
    server.change_after_listing(&next);
    let cache = tempfile::tempdir().unwrap();
    let snapshot = download(REPO, &options(&server, cache.path())).unwrap();
    assert_eq!(snapshot.commit().to_string(), old.refs["main"]);
    assert_eq!(tensors(&snapshot).len(), 3);
    let snapshot = download(REPO, &options(&server, cache.path())).unwrap();
    assert_eq!(snapshot.commit().to_string(), next);
    assert_eq!(tensors(&snapshot).keys().collect::<Vec<_>>(), ["new"]);
}

#[test]
fn blobs_that_python_keeps_elsewhere_are_used() {
    let (server, cache) = served(single(1000));
    let wanted = options(&server, cache.path());
    let snapshot = download(REPO, &wanted).unwrap();
    // As newer versions of Python's library do it: the blob is a link into a shared store.
    let blob = fs::canonicalize(snapshot.dir().join("model.safetensors")).unwrap();
    let shared = cache.path().join("blobs/ab");
    fs::create_dir_all(&shared).unwrap();
    fs::rename(&blob, shared.join("hash")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("../../blobs/ab/hash", &blob).unwrap();
    fs::remove_dir_all(snapshot.dir()).unwrap();
    server.clear_log();
    if cfg!(unix) {
        assert_eq!(tensors(&download(REPO, &wanted).unwrap()).len(), 1);
        assert_eq!(server.bytes(Origin::Cdn), 0);
    }
}

#[test]
fn progress_counts_to_the_end() {
    let (server, cache) = served(Repo::new(shards(3_000_000)));
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen_by = seen.clone();
    let wanted = options(&server, cache.path()).progress(move |progress| {
        let file = progress.file.to_owned();
        seen_by.lock().unwrap().push((progress.bytes_done, progress.bytes_total, file));
        std::ops::ControlFlow::Continue(())
    });
    let snapshot = download(REPO, &wanted).unwrap();
    let seen = seen.lock().unwrap();
    let bytes = |name: &String| fs::metadata(snapshot.dir().join(name)).unwrap().len();
    let total: u64 = snapshot.files().iter().map(bytes).sum();
    assert_eq!(seen.iter().map(|(done, ..)| *done).max(), Some(total));
    assert_eq!(seen.last().map(|(_, all, _)| *all), Some(total));
    assert!(seen.iter().all(|(done, all, _)| done <= all));
    assert!(seen.len() >= 9 && seen.iter().any(|(.., file)| file.contains("00002")));
}
