//! Shared by the tests of downloads: models, options, and the files of a cache.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use safetensors_core::{Checkpoint, ReadAt, SaveOptions, TensorView, serialize};
use safetensors_hub::client::{ClientOptions, HubFile};
use safetensors_hub::{DownloadOptions, Error, Snapshot};
use safetensors_testing::process::command_of;
use safetensors_testing::tensors::repeated;

use crate::server::Server;
use crate::server::repo::Repo;

/// The repository that most tests use.
pub(crate) const REPO: &str = "owner/name";

/// A file with one tensor of this many bytes.
pub(crate) fn tensor_file(tensor: &str, len: usize) -> Vec<u8> {
    let values = values(len);
    let shape = [len];
    let view = TensorView::from_slice(&shape, &values).unwrap();
    serialize([(tensor, view)], &SaveOptions::new()).unwrap()
}

/// The bytes of the tensor in [`tensor_file`].
pub(crate) fn values(len: usize) -> Vec<u8> {
    repeated(len, 251 << 8, |i| (i * 31 + i / 251) as u8)
}

/// A repository with a model in one file of about this many bytes.
pub(crate) fn single(len: usize) -> Repo {
    Repo::new([
        ("config.json", b"{\"a\": 1}".to_vec()),
        ("model.safetensors", tensor_file("w", len)),
        ("pytorch_model.bin", vec![1; 100]),
        ("tokenizer/vocab.txt", b"a b c".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
    ])
}

/// A server with a repository, and an empty cache.
pub(crate) fn served(repo: Repo) -> (Server, tempfile::TempDir) {
    (Server::start([(REPO, repo)]), tempfile::tempdir().unwrap())
}

/// Returns the files of a model in three shards of about this many bytes each.
pub(crate) fn shards(len: usize) -> Vec<(&'static str, Vec<u8>)> {
    let index = r#"{"metadata": {}, "weight_map": {
        "a": "model-00001-of-00003.safetensors",
        "b": "model-00002-of-00003.safetensors",
        "c": "model-00003-of-00003.safetensors"}}"#;
    vec![
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
        ("model-00001-of-00003.safetensors", tensor_file("a", len)),
        ("model-00002-of-00003.safetensors", tensor_file("b", len + 1)),
        ("model-00003-of-00003.safetensors", tensor_file("c", len + 2)),
        ("other.safetensors", tensor_file("other", 10)),
    ]
}

/// How the tests talk to the server: without a token, and impatiently.
pub(crate) fn client(server: &Server) -> ClientOptions {
    ClientOptions::new()
        .token(None)
        .endpoint(&server.endpoint)
        .retries(3)
        .pause(Duration::from_millis(1))
        .timeout(Duration::from_secs(10))
}

/// Options for a download from the server into a cache.
pub(crate) fn options(server: &Server, cache: &Path) -> DownloadOptions {
    DownloadOptions::new().client(client(server)).cache(cache).offline(false)
}

/// Fills `bytes` from a file of the Hub, as core reads it: the error has the Hub's inside.
pub(crate) fn read_exact(file: &HubFile, bytes: &mut [u8], offset: u64) -> Result<(), Error> {
    file.read_exact_at(bytes, offset).map_err(|error| safetensors_core::ErrorKind::Io(error).into())
}

/// Returns the bytes of the tensors of a checkpoint, by name.
pub(crate) fn tensors(snapshot: &Snapshot) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = Checkpoint::open(snapshot).unwrap();
    let read = checkpoint
        .tensors()
        .map(|tensor| (tensor.name().to_owned(), tensor.read().unwrap().into_vec::<u8>().unwrap()));
    read.collect()
}

/// Returns the names of all files and links below a directory, sorted, with `/`.
pub(crate) fn files(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path())
            } else {
                let path = entry.path();
                let inside = path.strip_prefix(dir).unwrap();
                names.push(inside.to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    names.sort();
    names
}

/// Returns the unfinished downloads in a cache.
pub(crate) fn unfinished(cache: &Path) -> Vec<String> {
    let mut names = files(cache);
    names.retain(|name| name.ends_with(".incomplete"));
    names
}

/// Checks that every blob in a cache has the content that its name says, if that is a digest, so
/// that nothing wrong ever got a name.
pub(crate) fn assert_blobs_are_right(cache: &Path) {
    for repo in safetensors_hub::cache::Cache::at(cache).repos().unwrap() {
        let damaged = repo.verify().unwrap().damaged;
        assert!(damaged.is_empty(), "{damaged:?}");
    }
}

/// This test program again, which then runs only the test `child`, with these variables.
pub(crate) fn child_process<T>(child: T, variables: &[(&str, &str)]) -> Command {
    let mut command = command_of(child);
    for name in ["HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    command.envs(variables.iter().copied());
    command
}

/// A port of the loopback with a full queue of connections, so that nothing answers there.
pub(crate) struct FullQueue {
    pub(crate) address: SocketAddr,
    _listener: TcpListener,
    _waiting: Vec<TcpStream>,
}

impl FullQueue {
    /// `None` where a system has no such queue.
    pub(crate) fn new() -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(100));
        let waiting: Vec<_> = (0..5000).map_while(|_| connect().ok()).collect();
        (waiting.len() < 5000).then_some(Self { address, _listener: listener, _waiting: waiting })
    }
}
