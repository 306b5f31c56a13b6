//! Tests of addresses, downloads and the cache, as a user runs the command: against the servers
//! that the tests of `safetensors-hub` use, on the loopback. The package in the registry does not
//! have these tests, because it does not have the servers.

#[path = "../../../../extras/hub/tests/it/remote/bucket.rs"]
#[allow(dead_code, reason = "the tests of that package use the rest")]
mod bucket;
mod cache;
mod deltas;
mod download;
#[path = "../../../../extras/hub/tests/it/server/mod.rs"]
pub(crate) mod hub_server;
#[cfg(unix)]
mod interrupted;
mod manifest;
mod reading;
mod saving;
#[path = "../../../../extras/hub/tests/it/remote/server.rs"]
#[allow(dead_code, reason = "the tests of that package use the rest")]
mod web;

use std::path::Path;
use std::sync::LazyLock;

use assert_cmd::Command;
use safetensors_core::{SaveOptions, ShardOptions, TensorBuf, save_sharded, serialize};
use safetensors_testing::files::files_below;

use crate::fixtures::temp_dir;

/// The variables that would change how the command treats an address, or its colours.
const VARIABLES: &str = "HF_TOKEN HF_TOKEN_PATH HF_HOME HF_HUB_CACHE HF_ENDPOINT HF_HUB_OFFLINE \
     TRANSFORMERS_OFFLINE HTTP_PROXY http_proxy ALL_PROXY all_proxy AWS_PROFILE NO_COLOR \
     CLICOLOR_FORCE CLICOLOR";

/// The command under test, in a directory that it may write to.
pub(crate) fn safetensors(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
    for variable in VARIABLES.split(' ') {
        command.env_remove(variable);
    }
    command.current_dir(dir).env("HF_HOME", dir.join("hf")).args(args);
    // Tables for people, at any width.
    command.env("COLUMNS", "100000");
    command
}

/// Makes a command that uses the Hub's server.
pub(crate) fn with_hub(server: &hub_server::Server, dir: &Path, args: &[&str]) -> Command {
    let mut command = safetensors(dir, args);
    command.env("HF_ENDPOINT", &server.endpoint);
    command
}

/// Returns the output of a command that succeeds.
pub(crate) fn output(mut command: Command) -> String {
    let assert = command.assert().success();
    // `extract` and `map` print no text.
    String::from_utf8_lossy(&assert.get_output().stdout).into_owned()
}

/// Returns the error of a command that fails.
pub(crate) fn error(mut command: Command, code: i32) -> String {
    let assert = command.assert().code(code);
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

/// The tensors of a model with names like Llama's: small ones, and one of 2 MiB.
pub(crate) fn tensors() -> Vec<(String, TensorBuf)> {
    let values = |len: usize, seed: usize| -> Vec<f32> {
        (0..len).map(|i| ((i * 31 + seed) % 997) as f32 / 997.0).collect()
    };
    let tensor = |name: &str, shape: &[usize], seed| {
        let buf = TensorBuf::from_vec(shape.to_vec(), values(shape.iter().product(), seed));
        (name.to_owned(), buf.unwrap())
    };
    vec![
        tensor("model.embed_tokens.weight", &[8192, 64], 1),
        tensor("model.layers.0.mlp.gate_proj.weight", &[4, 8], 2),
        tensor("model.layers.0.mlp.down_proj.weight", &[8, 4], 3),
        tensor("model.norm.weight", &[8], 4),
    ]
}

/// The bytes of that model as one file.
pub(crate) fn file() -> Vec<u8> {
    static FILE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let options = SaveOptions::new().metadata([("format", "pt"), ("license", "mit")]);
        serialize(tensors(), &options).unwrap()
    });
    FILE.clone()
}

/// The files of that model in shards, by their names.
pub(crate) fn shards() -> Vec<(String, Vec<u8>)> {
    static SHARDS: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(make_shards);
    SHARDS.clone()
}

fn make_shards() -> Vec<(String, Vec<u8>)> {
    let dir = temp_dir();
    let options = ShardOptions::new().max_shard_size(1_000_000.into());
    save_sharded(dir.path(), tensors(), &options).unwrap();
    let files = files_below(dir.path());
    assert!(files.len() > 2);
    files
}

/// A repository with that model in one file, and other files.
pub(crate) fn repo() -> hub_server::repo::Repo {
    hub_server::repo::Repo::new([
        ("README.md", b"# A model".to_vec()),
        ("config.json", b"{\"a\": 1}".to_vec()),
        ("model.safetensors", file()),
        ("tokenizer.json", b"{}".to_vec()),
        ("unet/model.safetensors", file()),
    ])
}

/// A repository with that model in shards.
pub(crate) fn sharded_repo() -> hub_server::repo::Repo {
    let shards = shards();
    hub_server::repo::Repo::new(shards.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())))
}
