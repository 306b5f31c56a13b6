//! Downloads into a directory of the user.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;

use crate::server::repo::Repo;
use crate::server::{Origin, Server};
use crate::support::*;
use safetensors_core as core;
use safetensors_hub::{DownloadOptions, ErrorKind, download, preview};

/// Options for a download into `model` in a directory that has the cache, too.
fn into_model(server: &Server, dir: &Path) -> DownloadOptions {
    options(server, &dir.join("cache")).local_dir(dir.join("model"))
}

/// The names of the files below a directory, without records.
fn plain(dir: &Path) -> Vec<String> {
    let mut names = files(dir);
    names.retain(|name| !name.starts_with(".cache/"));
    names
}

fn record(dir: &Path, name: &str) -> Vec<String> {
    let path = dir.join(format!("model/.cache/huggingface/download/{name}.metadata"));
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

/// Writes to a file later than its record was written.
fn edit(path: &Path, text: &str) {
    thread::sleep(std::time::Duration::from_millis(20));
    fs::write(path, text).unwrap();
}

#[test]
fn a_directory_has_the_files_themselves_and_the_cache_stays_empty() {
    let (server, dir) = served(single(1000));
    let wanted = into_model(&server, dir.path()).include("config.json").include("[t]okenizer/");
    let model = dir.path().join("model");
    let before = preview(REPO, &wanted).unwrap();
    assert!(before.iter().all(|file| !file.is_cached) && !model.exists());
    let snapshot = download(REPO, &wanted).unwrap();
    assert_eq!(snapshot.dir(), model);
    assert_eq!(plain(&model), ["config.json", "model.safetensors", "tokenizer/vocab.txt"]);
    for name in files(&model) {
        assert!(!fs::symlink_metadata(model.join(&name)).unwrap().is_symlink(), "{name}");
    }
    assert_eq!(tensors(&snapshot)["w"].len(), 1000);
    assert!(!dir.path().join("cache").exists() && unfinished(&model).is_empty());
    // As Python's library records it.
    let recorded = record(dir.path(), "tokenizer/vocab.txt");
    assert_eq!(recorded[0], server.commit(REPO, "main"));
    assert_eq!(recorded[1].len(), 40);
    assert!(recorded[2].parse::<f64>().unwrap() > 1.7e9 && recorded.len() == 3);
    assert_eq!(fs::read(model.join(".cache/huggingface/.gitignore")).unwrap(), b"*\n");

    // Again: only the listing. Of the commit, and offline: nothing.
    server.clear_log();
    assert_eq!(download(REPO, &wanted).unwrap(), snapshot);
    assert_eq!(server.log().len(), 1);
    let commit = into_model(&server, dir.path()).include("config.json").revision(&recorded[0]);
    for wanted in [commit, wanted.clone().offline(true)] {
        assert_eq!(download(REPO, &wanted).unwrap().commit(), snapshot.commit());
        assert!(preview(REPO, &wanted).unwrap().iter().all(|file| file.is_cached));
    }
    assert_eq!(server.log().len(), 1);
    let error = download(REPO, &wanted.include("*.bin").offline(true)).unwrap_err();
    let Some(ErrorKind::NotInCache { cache, .. }) = error.other() else { panic!("{error}") };
    assert_eq!(*cache, model);
}

#[test]
fn only_files_that_are_missing_or_have_changed_on_the_hub_are_downloaded() {
    let (server, dir) = served(single(1000));
    let wanted = into_model(&server, dir.path()).include("*.json");
    let model = dir.path().join("model");
    download(REPO, &wanted).unwrap();
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    fs::write(model.join("mine.txt"), "mine").unwrap();
    let new = [
        ("config.json", b"{\"a\": 2}".to_vec()),
        ("model.safetensors", tensor_file("w", 1000)),
        ("tokenizer.json", b"{}".to_vec()),
    ];
    server.set(REPO, single(1000).commit("main", new));
    let listed = preview(REPO, &wanted).unwrap();
    let missing: Vec<_> = listed.iter().filter(|it| !it.is_cached).map(|it| &*it.name).collect();
    assert_eq!(missing, ["config.json", "tokenizer.json"]);
    server.clear_log();
    download(REPO, &wanted).unwrap();
    assert_eq!(server.bytes(Origin::Cdn), 0);
    assert_eq!(fs::read(model.join("config.json")).unwrap(), b"{\"a\": 2}");
    assert_eq!(fs::read(model.join("mine.txt")).unwrap(), b"mine");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        assert_eq!(record(dir.path(), name)[0], server.commit(REPO, "main"), "{name}");
    }
}

#[test]
fn a_file_that_no_download_left_is_not_lost() {
    let repo = single(1000).commit("next", [("config.json", b"next".to_vec())]);
    let (server, dir) = served(repo);
    let wanted = into_model(&server, dir.path()).include("config.json");
    let next = wanted.clone().no_checkpoint().revision("next");
    let model = dir.path().join("model");
    let config = model.join("config.json");
    let refused = |wanted: &DownloadOptions| {
        server.clear_log();
        let errors = [download(REPO, wanted).unwrap_err(), preview(REPO, wanted).unwrap_err()];
        for error in errors {
            let Some(ErrorKind::LocalChanges { files }) = error.other() else { panic!("{error}") };
            assert_eq!(files, &["config.json"]);
            assert!(error.to_string().ends_with("would be lost: \"config.json\""));
        }
        assert_eq!(server.bytes(Origin::Cdn), 0);
    };
    // From elsewhere.
    fs::create_dir(&model).unwrap();
    fs::write(&config, "mine").unwrap();
    refused(&wanted);
    assert_eq!(plain(&model), ["config.json"]);
    download(REPO, &wanted.clone().overwrite(true)).unwrap();
    assert_eq!(fs::read(&config).unwrap(), b"{\"a\": 1}");
    // Changed since its download: also if its time says otherwise.
    edit(&config, "edited");
    refused(&wanted);
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    fs::File::options().write(true).open(&config).unwrap().set_modified(long_ago).unwrap();
    refused(&next);
    assert_eq!(fs::read(&config).unwrap(), b"edited");
    // Without a record, a file with the digest is as good as downloaded, and so it is replaced.
    fs::write(&config, "{\"a\": 1}").unwrap();
    fs::remove_dir_all(model.join(".cache")).unwrap();
    server.clear_log();
    download(REPO, &wanted).unwrap();
    assert_eq!(server.bytes(Origin::Cdn), 0);
    download(REPO, &next).unwrap();
    assert_eq!(fs::read(&config).unwrap(), b"next");
}

#[test]
fn a_locally_changed_shard_is_reported_before_the_index_is_replaced() {
    let mut next = shards(2000);
    next[1].1.push(b' ');
    let (server, dir) = served(Repo::new(shards(1000)).commit("next", next));
    let wanted = into_model(&server, dir.path());
    let model = dir.path().join("model");
    download(REPO, &wanted).unwrap();
    let before = fs::read(model.join("model.safetensors.index.json")).unwrap();
    edit(&model.join("model-00002-of-00003.safetensors"), "mine");
    let error = download(REPO, &wanted.clone().revision("next")).unwrap_err();
    let Some(ErrorKind::LocalChanges { files }) = error.other() else { panic!("{error}") };
    assert_eq!(files, &["model-00002-of-00003.safetensors"]);
    assert!(fs::read(model.join("model.safetensors.index.json")).unwrap() == before);
    download(REPO, &wanted.revision("next").overwrite(true)).unwrap();
    assert_eq!(fs::read(model.join("model.safetensors.index.json")).unwrap().last(), Some(&b' '));
}

#[test]
fn a_file_that_is_written_during_the_download_is_not_lost() {
    let (server, dir) = served(single(2_000_000));
    let path = dir.path().join("model/model.safetensors");
    let (mine, written) = (path.clone(), std::sync::Once::new());
    let wanted = into_model(&server, dir.path()).progress(move |progress| {
        if progress.bytes_done > 1_000_000 {
            written.call_once(|| fs::write(&mine, "mine").unwrap());
        }
        ControlFlow::Continue(())
    });
    let error = download(REPO, &wanted).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::LocalChanges { .. })), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[cfg(unix)]
#[test]
fn folders_without_records_are_not_looked_into() {
    let (server, dir) = served(single(1000));
    let wanted = into_model(&server, dir.path());
    let model = dir.path().join("model");
    let commit = download(REPO, &wanted).unwrap().commit().to_string();
    // Its path is too long to list it.
    let half = ["d"; 12].map(|name| name.repeat(200)).join("/");
    for place in ["model/mine", "rest"] {
        fs::create_dir_all(dir.path().join(place).join(&half)).unwrap();
    }
    fs::rename(dir.path().join("rest"), model.join("mine").join(&half).join("rest")).unwrap();
    for wanted in [wanted.clone().offline(true), wanted.revision(commit)] {
        assert_eq!(download(REPO, &wanted).unwrap().files(), ["model.safetensors"]);
    }
}

#[test]
fn an_interrupted_download_continues_in_the_directory() {
    let (server, dir) = served(single(4_000_000));
    let wanted = into_model(&server, dir.path());
    let stopped = wanted.clone().progress(|progress| {
        if progress.bytes_done > 2_000_000 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let error = download(REPO, &stopped).unwrap_err();
    assert!(matches!(error.kind(), core::ErrorKind::Cancelled), "{error}");
    let model = dir.path().join("model");
    assert_eq!((plain(&model).len(), unfinished(&model).len()), (0, 1));
    assert!(!dir.path().join("cache").exists());
    server.clear_log();
    let snapshot = download(REPO, &wanted).unwrap();
    assert_eq!(tensors(&snapshot)["w"].len(), 4_000_000);
    assert!(server.bytes(Origin::Cdn) < 2_100_000 && unfinished(&model).is_empty());
}

#[test]
fn downloads_at_once_leave_one_of_them_and_its_record() {
    let other = [("a.json", b"other".to_vec()), ("model.safetensors", tensor_file("w", 90_001))];
    let repo = Repo::new([
        ("a.json", b"main".to_vec()),
        ("b.safetensors", tensor_file("w", 90_000)),
        ("model.safetensors", tensor_file("w", 90_000)),
    ]);
    let (server, dir) = served(repo.commit("other", other));
    let wanted = into_model(&server, dir.path()).no_checkpoint().include("*").overwrite(true);
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    for name in ["b.safetensors", "model.safetensors"] {
        // Its length says nothing.
        fs::write(model.join(name), vec![0; tensor_file("w", 90_000).len()]).unwrap();
    }
    thread::scope(|scope| {
        for i in 0..6 {
            let wanted = wanted.clone().revision(["main", "other"][i % 2]);
            scope.spawn(move || download(REPO, &wanted).unwrap());
        }
    });
    assert_eq!(plain(&model), ["a.json", "b.safetensors", "model.safetensors"]);
    assert_eq!(unfinished(&model), [""; 0]);
    let main = server.commit(REPO, "main");
    let expected = if record(dir.path(), "a.json")[0] == main { "main" } else { "other" };
    assert_eq!(fs::read_to_string(model.join("a.json")).unwrap(), expected);
    let len = if record(dir.path(), "model.safetensors")[0] == main { 90_000 } else { 90_001 };
    assert_eq!(fs::read(model.join("model.safetensors")).unwrap(), tensor_file("w", len));
    assert_eq!(fs::read(model.join("b.safetensors")).unwrap(), tensor_file("w", 90_000));
}

#[test]
fn names_of_files_do_not_lead_to_records_or_to_git() {
    for name in [
        "../x",
        "/x",
        "a/../../x",
        ".git/config",
        "sub/.GIT/hooks/x",
        ".cache/huggingface/download/config.json.metadata",
        ".Cache/HuggingFace/x",
    ] {
        let repo = Repo::new([("config.json", b"{}".to_vec()), (name, b"evil".to_vec())]);
        let (server, dir) = served(repo);
        let wanted = into_model(&server, dir.path()).no_checkpoint().include("*").overwrite(true);
        let error = download(REPO, &wanted).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::UnsafeName { .. })), "{name}: {error}");
        assert_eq!(files(dir.path()), [""; 0], "{name}");
    }
}

#[cfg(unix)]
#[test]
fn links_in_the_directory_do_not_lead_out_of_it() {
    use std::os::unix::fs::symlink;
    let repo = Repo::new([("a/b/x.json", b"new".to_vec()), ("y.json", b"new".to_vec())]);
    let (server, dir) = served(repo);
    let model = dir.path().join("model");
    let outside = dir.path().join("outside");
    let wanted = into_model(&server, dir.path()).no_checkpoint().include("*").overwrite(true);
    let own = ".cache/huggingface";
    let repo = "/models--owner--name";
    let of_repo = ["", "/blobs", "/refs"].map(|place| format!("{repo}{place}"));
    let places = ["", "/download", "/download/a", "/.locks", "/.locks/models--owner--name"];
    let places = places.map(str::to_owned).into_iter().chain(of_repo);
    let of_own = places.map(|place| format!("{own}{place}"));
    for link in ["a", "a/b", ".cache"].map(str::to_owned).into_iter().chain(of_own) {
        fs::create_dir_all(model.join(&link).parent().unwrap()).unwrap();
        fs::create_dir_all(&outside).unwrap();
        symlink(&outside, model.join(&link)).unwrap();
        let error = download(REPO, &wanted).unwrap_err();
        assert!(error.to_string().contains("a link that leads out"), "{link}: {error}");
        assert_eq!(files(&outside), [""; 0], "{link}");
        fs::remove_dir_all(&model).unwrap();
    }
    // A link that stays inside is followed, a link in place of a file is not.
    fs::create_dir_all(model.join("real")).unwrap();
    symlink("real", model.join("a")).unwrap();
    fs::write(outside.join("y.json"), "new").unwrap();
    symlink(outside.join("y.json"), model.join("y.json")).unwrap();
    let error = download(REPO, &wanted.clone().overwrite(false)).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::LocalChanges { .. })), "{error}");
    fs::write(outside.join("y.json"), "old").unwrap();
    download(REPO, &wanted).unwrap();
    assert_eq!(fs::read(model.join("real/b/x.json")).unwrap(), b"new");
    assert_eq!(fs::read(outside.join("y.json")).unwrap(), b"old");
    assert!(!fs::symlink_metadata(model.join("y.json")).unwrap().is_symlink());
}

#[test]
fn files_of_the_cache_are_copied_after_a_look_at_their_digest() {
    let (server, dir) = served(single(50_000));
    let cache = options(&server, &dir.path().join("cache"));
    let cached = download(REPO, &cache).unwrap();
    let wanted = into_model(&server, dir.path());
    server.clear_log();
    assert!(preview(REPO, &wanted).unwrap().iter().all(|file| file.is_cached));
    download(REPO, &wanted).unwrap();
    assert_eq!(server.bytes(Origin::Cdn), 0);
    let copy = dir.path().join("model/model.safetensors");
    edit(&copy, "edited");
    assert_eq!(tensors(&cached)["w"].len(), 50_000, "the cache does not change with it");
    // A blob that is damaged.
    let blob = fs::canonicalize(cached.dir().join("model.safetensors")).unwrap();
    let mut bytes = fs::read(&blob).unwrap();
    bytes[40_000] ^= 1;
    fs::write(&blob, bytes).unwrap();
    download(REPO, &wanted.overwrite(true)).unwrap();
    assert_eq!(fs::read(copy).unwrap(), tensor_file("w", 50_000));
}

#[test]
fn a_file_with_an_etag_that_is_no_digest_is_replaced_on_request_only() {
    let (server, dir) = served(single(1000).alike("0-1234"));
    let wanted = into_model(&server, dir.path());
    let path = dir.path().join("model/model.safetensors");
    for _ in 0..2 {
        download(REPO, &wanted).unwrap();
        assert_eq!(fs::read(&path).unwrap(), tensor_file("w", 1000));
    }
    let other = [("model.safetensors", tensor_file("v", 1000))];
    server.set(REPO, Repo::new(other).alike("0-1234"));
    // Nothing shows that it is not a file that was moved there.
    let error = download(REPO, &wanted).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::LocalChanges { .. })), "{error}");
    assert_eq!(fs::read(&path).unwrap(), tensor_file("w", 1000));
    download(REPO, &wanted.overwrite(true)).unwrap();
    assert_eq!(fs::read(&path).unwrap(), tensor_file("v", 1000));
}
