//! Access to repositories, and the hosts that get the token.

use crate::server::repo::{Access, Repo};
use crate::server::{Kind, Origin, Server, TOKEN};
use crate::support::{self, *};
use safetensors_hub::client::Client;
use safetensors_hub::{DownloadOptions, Error, ErrorKind, Revision, download};

/// A server with a public, a private, a gated and a renamed repository.
fn start() -> Server {
    let renamed = Repo { renamed_to: Some("new/name".into()), ..single(10) };
    Server::start([
        (REPO, single(1000)),
        ("owner/private", single(10).access(Access::Private)),
        ("owner/gated", single(10).access(Access::Gated)),
        ("old/name", renamed),
        ("new/name", single(10)),
    ])
}

fn fails(repo: &str, wanted: &DownloadOptions, parts: &[&str]) -> Error {
    let error = download(repo, wanted).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
    assert!(!shown.contains(TOKEN) && !shown.contains("hf_wrong"), "{shown}");
    error
}

#[test]
fn errors_about_access_suggest_a_remedy() {
    let server = start();
    let cache = tempfile::tempdir().unwrap();
    let open = options(&server, cache.path());
    let with = |token| open.clone().client(client(&server).token(Some(token)));
    let (right, wrong) = (with(TOKEN), with("hf_wrong"));

    let error = fails("owner/absent", &open, &["no such repository", "HF_TOKEN"]);
    assert!(matches!(error.other(), Some(ErrorKind::RepoNotFound { has_token: false })));
    let error = fails("owner/absent", &right, &["no such repository", "the token may read"]);
    assert!(matches!(error.other(), Some(ErrorKind::RepoNotFound { has_token: true })));
    fails("owner/private", &open, &["private", "HF_TOKEN"]);
    let error = fails(REPO, &wrong, &["the token is not valid"]);
    assert!(matches!(error.other(), Some(ErrorKind::Refused { status: 401, .. })));
    let page = format!("{}/owner/gated", server.endpoint);
    let error = fails("owner/gated", &open, &["accept the conditions", &page, "HF_TOKEN"]);
    assert!(matches!(error.other(), Some(ErrorKind::Gated { has_token: false, .. })));
    let gated = vec![("X-Error-Code", "GatedRepo".to_owned())];
    server.fault(Origin::Hub, "resolve", 1, Kind::Status(403, gated));
    fails("owner/gated", &right, &["accept the conditions", "with the account of the token"]);

    fails(REPO, &open.clone().revision("v9"), &["no revision", "v9"]);
    fails(REPO, &open.clone().include("absent.json"), &["absent.json", "config.json"]);
    fails(REPO, &open.clone().checkpoint("absent"), &["absent", "no such file"]);
    let none = Server::start([("o/none", Repo::new([("README.md", b"x".to_vec())]))]);
    fails(
        "o/none",
        &options(&none, cache.path()),
        &["o/none: expected model.safetensors", "found none"],
    );
    for bad in ["", "a/b/c", "../x", "a b"] {
        let error = fails(bad, &open, &["expected owner/name"]);
        assert!(matches!(error.other(), Some(ErrorKind::BadRepoId { .. })));
    }

    for repo in ["owner/private", "owner/gated"] {
        download(repo, &right).unwrap();
    }
}

#[test]
fn a_renamed_repository_is_an_error_or_followed() {
    let server = start();
    let cache = tempfile::tempdir().unwrap();
    let open = options(&server, cache.path());
    let error = fails("old/name", &open, &["renamed to new/name; use that name"]);
    assert!(matches!(error.other(), Some(ErrorKind::Renamed { to }) if to == "new/name"));
    let client = client(&server);
    let repo = "old/name".parse().unwrap();
    let asked =
        Client::new(&client).unwrap().file(&repo, &Revision::default(), "model.safetensors");
    assert!(matches!(asked.unwrap_err().other(), Some(ErrorKind::Renamed { .. })));

    let follow = client.follow_renames(true);
    let asked = Client::new(&follow).unwrap().file(&repo, &Revision::default(), "config.json");
    assert_eq!(asked.unwrap().repo().to_string(), "new/name");
    let snapshot = download("old/name", &open.clone().client(follow)).unwrap();
    // As in Python, the cache has it under the name that was asked for.
    assert!(snapshot.dir().starts_with(cache.path().join("models--old--name")));
    assert!(download("old/name", &open.offline(true)).is_ok());
}

#[test]
fn the_token_goes_to_the_hub_only() {
    let server = start();
    let cache = tempfile::tempdir().unwrap();
    let client = client(&server).token(Some(TOKEN));
    let wanted = options(&server, cache.path()).client(client).include("config.json");
    download(REPO, &wanted).unwrap();
    let log = server.log();
    let bearer = format!("Bearer {TOKEN}");
    for seen in &log {
        let expected = (seen.origin == Origin::Hub).then_some(&bearer);
        assert_eq!(seen.authorization.as_ref(), expected, "{seen:?}");
    }
    assert!(log.iter().any(|seen| seen.origin == Origin::Cdn));
    // Nor is it sent where the Hub itself sends a request that has no redirect of a file.
    let other = Server::start([(REPO, single(10))]);
    let location = format!("{}/api/models/{REPO}/revision/main", other.endpoint);
    server.fault(Origin::Hub, "/api/", 1, Kind::Status(307, vec![("Location", location)]));
    download(REPO, &wanted.clone().include("tokenizer.json")).unwrap_err();
    let location = format!("{}/{REPO}/resolve/main/tokenizer.json", other.endpoint);
    server.fault_of(
        "HEAD",
        Origin::Hub,
        "tokenizer",
        1,
        Kind::Status(307, vec![("Location", location)]),
    );
    download(REPO, &wanted.include("tokenizer.json")).unwrap_err();
    assert!(other.log().iter().all(|seen| seen.authorization.is_none()));
}

/// Run by [`the_environment_is_pythons`] in a separate process.
#[test]
fn child() {
    let Ok(expected) = std::env::var("HUB_TEST_EXPECT") else { return };
    let options = DownloadOptions::new().include("config.json");
    let shown = match download("owner/private", &options) {
        Ok(snapshot) => snapshot.dir().display().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(shown.contains(&expected), "expected {expected}, found {shown}");
}

#[test]
fn the_environment_is_pythons() {
    let server = start();
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("my-token"), format!("{TOKEN}\n")).unwrap();
    let (hf_home, cache, token_file) = (path("hf"), path("cache"), path("my-token"));
    let endpoint = ("HF_ENDPOINT", &*format!("{}/", server.endpoint));
    let at_home = ("HF_HOME", &*hf_home);
    let run = |expected: &str, variables: &[(&str, &str)]| {
        let all = [variables, &[("HUB_TEST_EXPECT", expected)]].concat();
        let output = support::child_process(child, &all).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{variables:?}: {text}");
    };
    run("set HF_TOKEN", &[endpoint, at_home]);
    run(
        "set HF_TOKEN",
        &[endpoint, at_home, ("HF_TOKEN", TOKEN), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")],
    );
    run("HF_HUB_OFFLINE", &[endpoint, at_home, ("HF_TOKEN", TOKEN), ("HF_HUB_OFFLINE", "ON")]);
    run("HF_HUB_OFFLINE", &[endpoint, at_home, ("TRANSFORMERS_OFFLINE", "yes")]);
    let hub = path("hf/hub/models--owner--private/snapshots");
    run(&hub, &[endpoint, at_home, ("HF_TOKEN", TOKEN)]);
    run(&hub, &[("HF_ENDPOINT", "http://127.0.0.1:9"), at_home, ("HF_HUB_OFFLINE", "1")]);
    let own = path("cache/models--owner--private/snapshots");
    run(&own, &[endpoint, at_home, ("HF_TOKEN_PATH", &token_file), ("HF_HUB_CACHE", &cache)]);
}
