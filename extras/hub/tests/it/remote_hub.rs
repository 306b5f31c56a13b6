//! Checkpoints of the Hub that are read by ranges, `hf://owner/name`.

use std::io;
use std::thread;
use std::time::Duration;

use crate::server::repo::{Access, Repo};
use crate::server::{Kind, Origin, Server, TOKEN};
use crate::support::*;
use safetensors_core::checkpoint::Assembled;
use safetensors_core::{Checkpoint, ErrorKind, LoadOptions, Result};
use safetensors_hub::remote::{RemoteFile, RemoteOptions};

const LEN: usize = 3 << 20;

fn remote(server: &Server) -> RemoteOptions {
    let options = RemoteOptions::new().option("endpoint", &server.endpoint);
    // Without it, a token of the user who runs the tests would be sent.
    options.option("token", TOKEN).retries(3)
}

fn open(server: &Server, path: &str) -> Result<Checkpoint<Assembled<RemoteFile>>> {
    remote(server).open(&format!("hf://{REPO}{path}"))
}

#[test]
fn a_header_is_two_requests_and_a_tensor_is_one() {
    let server = Server::start([(REPO, single(LEN))]);
    for address in ["/model.safetensors", "@main/model.safetensors"] {
        server.clear_log();
        let checkpoint = open(&server, address).unwrap();
        assert_eq!(checkpoint.len(), 1);
        // The Hub says where the file is, and its CDN sends the start.
        let asked: Vec<_> =
            server.log().into_iter().map(|seen| (seen.origin, seen.method)).collect();
        assert_eq!(asked, [(Origin::Hub, "HEAD".to_owned()), (Origin::Cdn, "GET".to_owned())]);
        assert_eq!(server.bytes(Origin::Cdn), 512 << 10);
        let read = checkpoint.tensor("w").unwrap().read().unwrap();
        assert_eq!(read.bytes(), values(LEN));
        assert_eq!(server.log().len(), 3);
    }
}

#[test]
fn a_repository_opens_at_one_commit() {
    let repo = Repo::new(shards(LEN)).commit("other", shards(7));
    let [first, other] = ["main", "other"].map(|name| repo.resolve(name).unwrap().to_owned());
    let server = Server::start([(REPO, repo)]);
    for (revision, len) in
        [("", LEN), (&*format!("@{other}"), 7), ("@main", 7), (&*format!("@{first}"), LEN)]
    {
        server.clear_log();
        // The branch leads to another commit once the files are listed.
        server.change_after_listing(&other);
        let checkpoint = open(&server, revision).unwrap();
        let read = checkpoint.read_all(&LoadOptions::new()).unwrap();
        let lengths: Vec<_> = read.iter().map(|buf| buf.bytes().len()).collect();
        assert_eq!(lengths, [len, len + 1, len + 2], "{revision}");
        assert!(read.iter().all(|buf| buf.bytes() == values(buf.bytes().len())));
        assert_eq!(server.count(Origin::Hub, "GET", "/api/models/"), 1);
        checkpoint.check_unchanged().unwrap();
    }
}

#[test]
fn a_private_repository_needs_a_token_and_the_cdn_never_gets_it() {
    let server = Server::start([(REPO, single(LEN).access(Access::Private))]);
    let options = remote(&server);
    let checkpoint = options.open(&format!("hf://{REPO}")).unwrap();
    assert_eq!(checkpoint.tensor("w").unwrap().read().unwrap().bytes(), values(LEN));
    assert!(server.log().iter().any(|seen| seen.authorization.is_some()));
    assert!(!format!("{checkpoint:?} {options:?}").contains(TOKEN));
}

#[test]
fn signed_addresses_that_expire_and_servers_that_fail_are_overcome() {
    let expected = values(18 << 20);
    let overcome = |kind| {
        let server = Server::start([(REPO, single(18 << 20))]);
        server.expire_after(2);
        server.fault(Origin::Cdn, "", 2, kind);
        let checkpoint = open(&server, "").unwrap();
        let read = checkpoint.read_all(&LoadOptions::new()).unwrap();
        assert!(read[0].bytes() == expected);
    };
    let kinds = [
        Kind::Cut(100_000),
        Kind::Short(10),
        Kind::Status(503, Vec::new()),
        Kind::OtherRange,
        Kind::NoRange,
        Kind::Stall(1000, Duration::from_secs(1)),
    ];
    thread::scope(|scope| {
        kinds.into_iter().for_each(|kind| drop(scope.spawn(move || overcome(kind))));
    });
}

#[test]
fn missing_repositories_revisions_and_files_are_errors() {
    let server = Server::start([(REPO, Repo::new([("config.json", b"{}".to_vec())]))]);
    for (address, words) in [
        (format!("hf://{REPO}/model.safetensors"), "no such file"),
        (format!("hf://{REPO}@other/model.safetensors"), "no revision"),
        (format!("hf://{REPO}@other"), "no revision"),
        (format!("hf://{REPO}"), "config"),
        ("hf://owner/other".to_owned(), "no such repository"),
    ] {
        let error = remote(&server).open(&address).unwrap_err();
        let is_io = matches!(error.kind(), ErrorKind::Io(_));
        let is_none = matches!(error.kind(), ErrorKind::NoCheckpoint { .. });
        assert!(is_none || is_io && error.to_string().contains(words), "{address}: {error}");
        assert!(error.file().unwrap().starts_with("hf://owner/"), "{error}");
    }
    let error = open(&server, "/model.safetensors").unwrap_err();
    let ErrorKind::Io(found) = error.kind() else { panic!("{error}") };
    assert_eq!(found.kind(), io::ErrorKind::NotFound);
}
