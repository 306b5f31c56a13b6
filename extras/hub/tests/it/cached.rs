//! Addresses of the Hub, with and without a cache and a network.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;

use crate::server::repo::Repo;
use crate::server::{Origin, Server};
use crate::support::*;
use safetensors_core::LoadOptions;
use safetensors_hub::download;
use safetensors_hub::remote::RemoteOptions;

/// Run by the tests in a separate process: prints the size of the tensors at an address.
#[test]
fn child() {
    let Ok(address) = env::var("HUB_TEST_ADDRESS") else { return };
    let opened = RemoteOptions::new().retries(1).open(&address);
    let read = opened.and_then(|checkpoint| checkpoint.read_all(&LoadOptions::new()));
    match read {
        Ok(read) => {
            println!("\n<{}>", read.iter().map(|tensor| tensor.bytes().len()).sum::<usize>());
        }
        Err(error) => println!("\n<{error}>"),
    }
}

/// Returns the bytes of the tensors at an address, or the error.
fn read(server: &Server, cache: &Path, is_offline: bool, address: &str) -> Result<usize, String> {
    server.clear_log();
    let variables = [
        ("HF_ENDPOINT", &*server.endpoint),
        ("HF_HUB_CACHE", cache.to_str().unwrap()),
        ("HF_HUB_OFFLINE", if is_offline { "1" } else { "0" }),
        ("HUB_TEST_ADDRESS", address),
    ];
    let output = child_process(child, &variables).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text.split_once("\n<").and_then(|(_, rest)| rest.split_once(">\n")).expect(&text).0;
    said.parse().map_err(|_| said.to_owned())
}

/// Returns the large files that the CDN has sent any bytes of.
fn sent(server: &Server) -> BTreeSet<String> {
    let log = server.log().into_iter().filter(|seen| seen.origin == Origin::Cdn);
    log.map(|seen| seen.path).collect()
}

/// A file at a path. Each has another length.
fn one(path: &str, len: usize) -> Repo {
    Repo::new([(path, tensor_file("w", len))])
}

#[test]
fn every_address_is_read_from_the_cache_or_from_the_hub() {
    let model = || [("model.safetensors", tensor_file("w", 1_001))];
    let unet = [("unet/model.safetensors", tensor_file("w", 1_002))];
    let repo = Repo::new(model().into_iter().chain(unet))
        .commit("refs/pr/1", [("model.safetensors", tensor_file("w", 1_003))])
        .commit("a/b", [("model.safetensors", tensor_file("w", 1_004))]);
    let commit = repo.refs["main"].clone();
    let server = Server::start([
        (REPO, repo),
        ("owner/shards", Repo::new(shards(1_000))),
        ("datasets/owner/name", one("model.safetensors", 1_005)),
        ("spaces/owner/name", one("d/model.safetensors", 1_006)),
        ("kernels/owner/name", one("model.safetensors", 1_007)),
        ("buckets/owner/name", one("d/run/model.safetensors", 1_008)),
    ]);
    let home = tempfile::tempdir().unwrap();
    let (empty, full) = (home.path().join("empty"), home.path().join("full"));
    for (repo, revision, checkpoint) in [
        (REPO, "main", ""),
        (REPO, "main", "unet"),
        (REPO, "refs/pr/1", ""),
        (REPO, "a/b", ""),
        ("models/owner/shards", "main", ""),
        ("datasets/owner/name", "main", ""),
        ("spaces/owner/name", "main", "d"),
        ("kernels/owner/name", "main", ""),
    ] {
        let wanted = options(&server, &full).revision(revision).checkpoint(checkpoint);
        download(repo, &wanted).unwrap();
    }
    for (address, len) in [
        ("hf://owner/name", 1_001),
        ("hf://models/owner/name", 1_001),
        ("hf://owner/name@main/", 1_001),
        ("hf://owner/name/model.safetensors", 1_001),
        (&*format!("hf://owner/name@{commit}/model.safetensors"), 1_001),
        ("hf://owner/name/unet", 1_002),
        ("hf://owner/name@refs/pr/1", 1_003),
        ("hf://models/owner/name@refs%2Fpr%2F1", 1_003),
        ("hf://owner/name@a%2Fb/model.safetensors", 1_004),
        ("hf://owner/shards", 3_003),
        ("hf://owner/shards/model.safetensors.index.json", 3_003),
        ("hf://datasets/owner/name", 1_005),
        ("hf://spaces/owner/name@main/d", 1_006),
        ("hf://kernels/owner/name", 1_007),
        ("hf://buckets/owner/name/d/run", 1_008),
        ("hf://buckets/owner/name/d/run/model.safetensors", 1_008),
    ] {
        let is_bucket = address.contains("buckets");
        assert_eq!(read(&server, &empty, false, address), Ok(len), "{address}");
        assert_eq!(sent(&server).len(), if len == 3_003 { 3 } else { 1 }, "{address}");
        assert!(!empty.exists(), "{address}: reading by ranges writes nothing");

        assert_eq!(read(&server, &full, false, address), Ok(len), "{address}");
        assert_eq!(sent(&server).len(), usize::from(is_bucket), "{address}: {:?}", server.log());
        if address.contains(&commit) {
            assert_eq!(server.log().len(), 0, "{address}: a commit needs no request");
        }

        let error = read(&server, &empty, true, address).unwrap_err();
        assert!(error.contains("is not in ") && error.contains("HF_HUB_OFFLINE"), "{error}");
        assert!(error.starts_with("hf://"), "{error}");
        match read(&server, &full, true, address) {
            Ok(found) => assert_eq!((found, is_bucket), (len, false), "{address}"),
            Err(error) => assert!(is_bucket && error.contains("buckets/owner/name"), "{error}"),
        }
        assert_eq!(server.log().len(), 0, "{address}: {:?}", server.log());
    }
}

#[test]
fn cached_files_are_read_one_by_one_at_the_current_commit() {
    let repo = Repo::new(shards(600_000));
    let server = Server::start([(REPO, repo.clone())]);
    let home = tempfile::tempdir().unwrap();
    let cache = home.path().join("hub");
    let part = options(&server, &cache).no_checkpoint().include("*-00002-*");
    download(REPO, &part.include("*.index.json")).unwrap();
    let whole = 3 * 600_000 + 3;
    assert_eq!(read(&server, &cache, false, "hf://owner/name"), Ok(whole));
    assert_eq!(sent(&server).len(), 2, "{:?}", server.log());

    // Offline, an error names the missing file.
    let error = read(&server, &cache, true, "hf://owner/name").unwrap_err();
    assert!(error.contains("model-00001-of-00003.safetensors"), "{error}");
    let file = "hf://owner/name/model-00001-of-00003.safetensors";
    let error = read(&server, &cache, true, file).unwrap_err();
    assert!(error.contains("is not in "), "{error}");

    // The branch has another commit now, with nothing in the cache.
    download(REPO, &options(&server, &cache)).unwrap();
    server.set(REPO, repo.commit("main", shards(700_000)));
    assert_eq!(read(&server, &cache, false, "hf://owner/name"), Ok(3 * 700_000 + 3));
    assert_eq!(read(&server, &cache, true, "hf://owner/name"), Ok(whole));

    // A link that leads nowhere is no file of the cache.
    #[cfg(unix)]
    {
        let blobs = cache.join("models--owner--name/blobs");
        std::fs::remove_dir_all(blobs).unwrap();
        server.set(REPO, Repo::new(shards(600_000)));
        assert_eq!(read(&server, &cache, false, "hf://owner/name"), Ok(whole));
    }
}

#[test]
fn a_bucket_is_listed_page_by_page_and_is_not_downloaded() {
    let names = ["a/one.safetensors", "ab/x", "b.txt", "c/d/e", "model.safetensors", "z"];
    let files = names.map(|name| (name, tensor_file("w", 600_000 + name.len())));
    let server = Server::start([("buckets/owner/name", Repo::new(files))]);
    let remote = RemoteOptions::new().option("endpoint", &server.endpoint);
    for (address, len) in [
        ("hf://buckets/owner/name", 600_017),
        // `ab` begins with the same letter.
        ("hf://buckets/owner/name/a", 600_017),
        ("hf://buckets/owner/name/z", 600_001),
    ] {
        let opened = remote.open(address).unwrap();
        let read = opened.read_all(&LoadOptions::new()).unwrap();
        assert_eq!(read[0].bytes().len(), len, "{address}");
        opened.check_unchanged().unwrap();
    }
    for address in ["hf://buckets/owner/name/absent", "hf://buckets/owner/other"] {
        remote.open(address).unwrap_err();
    }

    // The file that was opened stays the one that is read.
    let opened = remote.open("hf://buckets/owner/name/b.txt").unwrap();
    server.set("buckets/owner/name", one("b.txt", 700_000));
    let error = opened.read_all(&LoadOptions::new()).unwrap_err();
    assert!(error.to_string().contains("it changed on the Hub"), "{error}");

    let cache = tempfile::tempdir().unwrap();
    let error = download("buckets/owner/name", &options(&server, cache.path())).unwrap_err();
    assert!(error.to_string().contains("a bucket has no commits"), "{error}");
}
