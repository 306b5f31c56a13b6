//! Files of two commits never mix, also on a Hub that sends the bytes itself.

use crate::server::repo::Repo;
use crate::server::{Origin, Server};
use crate::support::*;
use safetensors_hub::client::{Client, HubFile};
use safetensors_hub::{Error, ErrorKind, Revision, download};

const LEN: usize = 100_000;

fn file(server: &Server) -> HubFile {
    let repo = REPO.parse().unwrap();
    let client = Client::new(&client(server)).unwrap();
    client.file(&repo, &Revision::default(), "model.safetensors").unwrap()
}

/// A server of two commits with files of the same length. `main` leads to the first.
fn server() -> (Server, Repo, [String; 2]) {
    let repo = single(LEN);
    let first = repo.refs["main"].clone();
    let repo = repo.commit("next", [("model.safetensors", tensor_file("x", LEN))]);
    let next = repo.refs["next"].clone();
    (Server::start([(REPO, repo.clone())]), repo, [first, next])
}

fn read(file: &HubFile, start: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; 1000];
    read_exact(file, &mut bytes, start).map(|()| bytes)
}

#[test]
fn a_branch_that_moves_does_not_change_an_open_file() {
    let (server, mut repo, [first, next]) = server();
    server.answer_directly();
    let file = file(&server);
    let whole = tensor_file("w", LEN);
    assert_eq!(read(&file, 0).unwrap(), whole[..1000]);
    repo.refs.insert("main".into(), next);
    server.set(REPO, repo);
    assert_eq!(read(&file, 0).unwrap(), whole[..1000]);
    assert_eq!(read(&file, 50_000).unwrap(), whole[50_000..51_000]);
    assert_eq!(server.count(Origin::Hub, "GET", "/resolve/main/"), 0);
    assert_eq!(server.count(Origin::Hub, "GET", &format!("/resolve/{first}/")), 3);
}

#[test]
fn an_answer_about_another_commit_or_etag_is_an_error() {
    for what_changes in ["commit", "ETag"] {
        let (server, mut repo, [first, next]) = server();
        server.answer_directly();
        let file = file(&server);
        if what_changes == "commit" {
            repo.refs.insert(first.clone(), next.clone());
        } else {
            repo.commits.insert(first.clone(), repo.commits[&next].clone());
        }
        server.set(REPO, repo);
        let error = read(&file, 0).unwrap_err();
        let Some(ErrorKind::Changed { what, before, now }) = error.other() else {
            panic!("{error}")
        };
        assert_eq!(*what, what_changes);
        assert!(what_changes == "ETag" || (before, now) == (&first, &next), "{error}");
    }
}

#[test]
fn an_etag_that_is_no_digest_never_makes_one_file_the_blob_of_another() {
    let [first, second] = [1, 7].map(|factor| {
        let named = ["a", "b", "c"].map(|name| {
            let values: Vec<u8> =
                (0..LEN).map(|i| (i * factor) as u8 ^ name.as_bytes()[0]).collect();
            (name, values)
        });
        let mut files = shards(LEN);
        for ((_, content), (name, values)) in files[2..5].iter_mut().zip(&named) {
            let shape = [LEN];
            let view = safetensors_core::TensorView::from_slice(&shape, values).unwrap();
            *content = safetensors_core::serialize([(name, view)], &Default::default()).unwrap();
        }
        (files, named)
    });
    // As nginx makes them: of the time in seconds and of the length, and all within a second.
    let repo = Repo::new(first.0).commit("next", second.0).alike("68f0-186a0");
    let (server, cache) = served(repo);
    for (revision, named) in [("main", &first.1), ("next", &second.1), ("main", &first.1)] {
        let wanted = options(&server, cache.path()).revision(revision);
        let found = tensors(&download(REPO, &wanted).unwrap());
        for (name, values) in named {
            assert!(found[*name] == *values, "{name} of {revision}");
        }
    }
    // Nothing comes twice, and the cache says that nothing of it was checked.
    server.clear_log();
    download(REPO, &options(&server, cache.path())).unwrap();
    assert_eq!(server.log().len(), 1, "{:?}", server.log());
    let repos = safetensors_hub::cache::Cache::at(cache.path()).repos().unwrap();
    let verified = repos[0].verify().unwrap();
    assert_eq!((verified.intact, verified.damaged.len(), verified.unverified.len()), (0, 0, 8));
}

#[test]
fn a_list_of_another_commit_is_an_error() {
    let (server, mut repo, [first, next]) = server();
    repo.refs.insert(first.clone(), next);
    server.set(REPO, repo);
    let cache = tempfile::tempdir().unwrap();
    let wanted = options(&server, cache.path()).revision(&first);
    let error = download(REPO, &wanted).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::Changed { what: "commit", .. })), "{error}");
    assert_eq!(files(cache.path()), [""; 0]);
}
