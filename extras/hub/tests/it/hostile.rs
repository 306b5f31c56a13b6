//! A Hub that means harm: names that lead out of the cache, and answers that no Hub gives.

use std::fs;

use crate::server::repo::Repo;
use crate::server::{Kind, Origin, Server};
use crate::support::*;
use safetensors_hub::{Error, ErrorKind, download, preview};

/// Downloads into a cache inside another directory, and checks that nothing is written outside it.
fn attempt(server: &Server) -> Result<(), Error> {
    let outside = tempfile::tempdir().unwrap();
    let cache = outside.path().join("a/b/cache");
    let result = download(REPO, &options(server, &cache).include("*"));
    for name in files(outside.path()) {
        assert!(name.starts_with("a/b/cache/"), "{name}");
    }
    if cache.exists() {
        assert_blobs_are_right(&cache);
    }
    if let Err(error) = &result {
        let shown = error.to_string();
        assert!(shown.len() < 2000 && !shown.contains(['\n', '\0', '\u{202e}']), "{shown:?}");
    }
    result.map(drop)
}

#[test]
fn names_in_the_listing_do_not_lead_out() {
    let long = "x".repeat(300);
    for name in [
        "../evil.safetensors",
        "/etc/evil.safetensors",
        "a/../../evil.safetensors",
        "..\\evil.safetensors",
        "C:\\evil.safetensors",
        "a//evil.safetensors",
        "evil\n.safetensors",
        "./evil.safetensors",
        &long,
    ] {
        let good = tensor_file("w", 10);
        let repo = Repo::new([("model.safetensors", good.clone()), (name, good)]);
        let server = Server::start([(REPO, repo)]);
        let error = attempt(&server).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::UnsafeName { .. })), "{name}: {error}");
        assert_eq!(server.count(Origin::Cdn, "GET", ""), 0);
        // The requested file has a plain name, so the other one does no harm.
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(download(REPO, &options(&server, cache.path())).unwrap().files().len(), 1);
    }
}

#[test]
fn an_index_is_hostile() {
    let map = |value: &str| format!(r#"{{"weight_map": {{"a": {value}}}}}"#);
    for (index, part) in [
        (map(r#""../evil.safetensors""#), "evil"),
        (map(r#""/etc/passwd.safetensors""#), "passwd"),
        (map(r#""a\\..\\b.safetensors""#), "index"),
        (map(r#""config.json""#), "config.json"),
        (map(r#""absent.safetensors""#), "absent.safetensors"),
        (map("5"), "index"),
        (r#"{"weight_map": {}}"#.into(), "index"),
        (r#"{"weight_map": {"a": "x.safetensors"}, "weight_map": {}}"#.into(), "index"),
        ("no json".into(), "index"),
        (String::new(), "index"),
        (format!("{}{}", "[".repeat(100_000), "]"), "index"),
    ] {
        let server = Server::start([(
            REPO,
            Repo::new([
                ("model.safetensors.index.json", index.clone().into_bytes()),
                ("config.json", b"{}".to_vec()),
                ("x.safetensors", tensor_file("a", 1)),
            ]),
        )]);
        let error = attempt(&server).unwrap_err();
        assert!(error.to_string().contains(part), "{index}: {error}");
        assert_eq!(server.count(Origin::Cdn, "GET", ""), 0, "{index}");
        // A preview reads the index in memory.
        let cache = tempfile::tempdir().unwrap();
        let error = preview(REPO, &options(&server, cache.path())).unwrap_err();
        assert!(error.to_string().contains(part), "{index}: {error}");
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "{index}");
    }
}

#[test]
fn answers_that_no_hub_gives_are_errors() {
    let commit = "0123456789012345678901234567890123456789".to_owned();
    let head = |changes: &[(&'static str, &str)]| {
        let mut headers = vec![
            ("X-Repo-Commit", commit.clone()),
            ("X-Linked-Etag", "\"etag\"".to_owned()),
            ("X-Linked-Size", "10".to_owned()),
            ("Location", "/elsewhere".to_owned()),
        ];
        for (name, value) in changes {
            headers.retain(|(header, _)| header != name);
            if !value.is_empty() {
                headers.push((name, (*value).to_owned()));
            }
        }
        Kind::Status(302, headers)
    };
    for changes in [
        &[("X-Linked-Etag", "\"../../evil\"")][..],
        &[("X-Linked-Etag", "\"a/b\"")],
        &[("X-Linked-Etag", "\"..\"")],
        &[("X-Repo-Commit", "../../evil")],
        &[("X-Repo-Commit", "main")],
        &[("X-Linked-Size", "-1")],
        &[("X-Linked-Size", "99999999999999999999999")],
        &[("X-Linked-Etag", ""), ("Location", "http://127.0.0.1:9/x")],
        &[("Location", "")],
        &[("Location", "file:///etc/passwd")],
        &[],
    ] {
        let server = Server::start([(REPO, single(10))]);
        server.fault_of("HEAD", Origin::Hub, "model", usize::MAX, head(changes));
        attempt(&server).expect_err(&format!("{changes:?}"));
    }
    for listing in ["", "null", "[]", "{}", r#"{"sha": "../x"}"#, r#"{"sha": "main"}"#, "{"] {
        let server = Server::start([(REPO, single(10))]);
        server.fault(Origin::Hub, "/api/", usize::MAX, Kind::Body(listing.into()));
        let error = attempt(&server).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::BadAnswer { .. })), "{listing}: {error}");
    }
    // A size that no disk has is found before anything is downloaded.
    let server = Server::start([(REPO, single(10))]);
    let main = server.commit(REPO, "main");
    let huge = head(&[("X-Linked-Size", &(u64::MAX - 5).to_string()), ("X-Repo-Commit", &main)]);
    server.fault_of("HEAD", Origin::Hub, "model", usize::MAX, huge);
    let error = attempt(&server).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::NoSpace { .. })) || !cfg!(unix), "{error}");
}

#[test]
fn messages_of_the_server_are_shown_short_and_escaped() {
    let server = Server::start([(REPO, single(10))]);
    let message = format!("evil \"'\t{}", "x".repeat(5000));
    let headers = vec![("X-Error-Message", message)];
    server.fault(Origin::Hub, "/api/", 1, Kind::Status(418, headers));
    let error = attempt(&server).unwrap_err();
    assert!(error.to_string().contains("evil"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_in_the_cache_are_not_written_through() {
    let server = Server::start([(REPO, single(1000))]);
    let outside = tempfile::tempdir().unwrap();
    let cache = outside.path().join("cache");
    let blobs = cache.join("models--owner--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, "keep").unwrap();
    let repo = single(1000);
    let etag = &repo.commits[&repo.refs["main"]]["model.safetensors"].etag;
    // A link instead of an unfinished download, and a blob that links to something else.
    std::os::unix::fs::symlink(&victim, blobs.join(format!("{etag}.00000000.incomplete"))).unwrap();
    std::os::unix::fs::symlink(&victim, blobs.join(etag)).unwrap();
    let snapshot = download(REPO, &options(&server, &cache)).unwrap();
    assert_eq!(tensors(&snapshot).len(), 1);
    assert_eq!(fs::read(&victim).unwrap(), b"keep");
}
