//! Every command that reads a checkpoint takes an address instead of a path.

use std::fs;
use std::path::Path;

use super::hub_server::Server as Hub;
use super::web::{Fault, Server as Web};
use super::*;
use crate::other_formats::fixture;

/// Commands that only read, each with their arguments before and after the path.
const READING: [(&[&str], &[&str]); 10] = [
    (&["inspect"], &["--flat"]),
    (&["inspect"], &[]),
    (&["stats"], &["-f", "model.layers.*"]),
    (&["digest"], &[]),
    (&["plan"], &["--world-size", "2"]),
    (&["metadata", "get"], &[]),
    (&["extract"], &["model.norm.weight", "-o", "-"]),
    (&["map"], &["--title", "m", "-o", "-"]),
    (&["verify", "--digests"], &[]),
    (&["diff", "local"], &["--ignore-metadata"]),
];

/// Runs each command on the address and on the local copy, and compares the outputs.
fn compare(dir: &Path, address: &str, command: impl Fn(&[&str]) -> Command) {
    for (before, after) in READING {
        let args = |path| [before, &[path][..], after].concat();
        let there = output(command(&args(address)));
        let here = output(safetensors(dir, &args("local")));
        // Only paths may differ.
        let plain = |text: &str| -> Vec<String> {
            let lines =
                text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            let lines = lines.map(|line| line.replace(address, "local"));
            lines.filter(|line| !line.starts_with('─')).collect()
        };
        // The local checkpoint is found in its directory.
        let here = here.replace("local/model.safetensors", "local");
        let there = there.replace("/model.safetensors", "");
        assert_eq!(plain(&there), plain(&here), "{before:?}");
    }
}

fn local(dir: &Path, files: &[(String, Vec<u8>)]) {
    fs::create_dir(dir.join("local")).unwrap();
    for (name, bytes) in files {
        fs::write(dir.join("local").join(name), bytes).unwrap();
    }
}

#[test]
fn every_command_reads_a_repository_of_the_hub() {
    let dir = temp_dir();
    local(dir.path(), &[("model.safetensors".into(), file())]);
    let server = Hub::start([("owner/name", repo())]);
    compare(dir.path(), "hf://owner/name", |args| with_hub(&server, dir.path(), args));
    let commit = server.commit("owner/name", "main");
    for address in [
        "hf://owner/name/model.safetensors",
        "hf://owner/name/unet",
        "hf://owner/name@main",
        &format!("hf://owner/name@{commit}/unet/model.safetensors"),
    ] {
        let shown = output(with_hub(&server, dir.path(), &["verify", address]));
        assert!(shown.starts_with(&format!("{address}: ok, 4 tensors")), "{shown}");
    }
    // Nothing was downloaded into a cache.
    assert!(!dir.path().join("hf").exists());
}

#[test]
fn shards_of_the_hub_are_read() {
    let dir = temp_dir();
    local(dir.path(), &shards());
    let server = Hub::start([("owner/name", sharded_repo())]);
    let diff = ["diff", "local", "hf://owner/name"];
    assert_eq!(output(with_hub(&server, dir.path(), &diff)), "4 tensors equal\n");
    let shown = output(with_hub(&server, dir.path(), &["verify", "hf://owner/name"]));
    assert!(shown.contains("2 shards, 4 tensors"), "{shown}");
}

#[test]
fn directories_of_trainers_are_read_by_address() {
    let dir = temp_dir();
    let whole = fixture("training/ranks.safetensors");
    let args = ["convert", whole.to_str().unwrap(), "dcp", "--ranks", "3", "--dcp"];
    let rule = ["--rule", "*=replicate"];
    output(safetensors(dir.path(), &[&args[..], &rule].concat()));
    let mut files = Vec::new();
    let mut add = |name: &str, directory: &Path| {
        let below = files_below(directory).into_iter();
        files.extend(below.map(|(path, bytes)| (format!("{name}/{path}"), bytes)));
    };
    add("dcp", &dir.path().join("dcp"));
    let mut layouts = vec![("dcp", whole)];
    for name in ["grid_rows_columns", "per_rank", "ranks", "stage2", "stage3"] {
        add(name, &fixture(&format!("training/{name}")));
        layouts.push((name, fixture(&format!("training/{name}.safetensors"))));
    }
    let files = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone()));
    let server = Hub::start([("owner/name", hub_server::repo::Repo::new(files))]);
    for (name, whole) in layouts {
        let address = format!("hf://owner/name/{name}");
        let diff = ["diff", whole.to_str().unwrap(), &address, "--ignore-metadata"];
        let shown = output(with_hub(&server, dir.path(), &diff));
        assert!(shown.contains(" equal"), "{name}: {shown}");
    }
}

#[test]
fn every_command_reads_from_a_web_server() {
    let dir = temp_dir();
    local(dir.path(), &[("model.safetensors".into(), file())]);
    let server = Web::new().with("a/model.safetensors", file());
    let address = server.address("a/model.safetensors");
    compare(dir.path(), &address.replace("/model.safetensors", ""), |args| {
        // By the directory, which this server cannot list.
        safetensors(dir.path(), args)
    });
    // The query may be a signature, and is shown nowhere.
    let signed = format!("{address}?X-Amz-Signature=secret");
    let shown = output(safetensors(dir.path(), &["verify", "--json", &signed]));
    assert!(shown.contains(&address) && !shown.contains("secret"), "{shown}");
    let signed = format!("{}?X-Amz-Signature=secret", server.address("b.safetensors"));
    let error = error(safetensors(dir.path(), &["stats", &signed]), 1);
    assert!(error.contains("b.safetensors") && !error.contains("secret"), "{error}");
}

#[test]
fn headers_of_an_address_are_compared_without_its_data() {
    let dir = temp_dir();
    local(dir.path(), &[("model.safetensors".into(), file())]);
    let server = Web::new().with("a/model.safetensors", file());
    let address = server.address("a/model.safetensors");
    let diff = |options: &[&str]| {
        output(safetensors(dir.path(), &[&["diff", "local", &address], options].concat()))
    };
    let all = file().len();
    assert_eq!(diff(&[]), "4 tensors equal\n");
    let sent = server.take_sent();
    assert!(sent >= all, "{sent} of {all}");
    assert_eq!(diff(&["--headers"]), "4 tensors equal in dtype and shape\n");
    let sent = server.take_sent();
    assert!(sent < all / 2, "{sent} of {all}");
}

/// Makes a command with the bucket of a server in its environment.
pub(super) fn of_bucket(mut command: Command, server: &Web) -> Command {
    command
        .env("AWS_ENDPOINT_URL", server.address("").trim_end_matches('/'))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "AKIATESTING")
        .env("AWS_SECRET_ACCESS_KEY", "very-secret-key");
    command
}

#[test]
fn a_bucket_that_the_environment_describes() {
    let dir = temp_dir();
    let server = Web::new().with("bucket/models/a.safetensors", file());
    let args = ["inspect", "s3://bucket/models/a.safetensors", "--flat"];
    let shown = output(of_bucket(safetensors(dir.path(), &args), &server));
    assert!(shown.contains("s3://bucket/models/a.safetensors"), "{shown}");
    let log = server.take_log();
    assert!(log.iter().all(|request| request.headers["authorization"].contains("AKIATESTING")));
}

/// The list of a directory of a bucket in which nothing is.
const NOTHING: &str = "<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>\
                       </ListBucketResult>";

#[test]
fn files_of_other_formats_are_read_by_address() {
    let dir = temp_dir();
    let server = Web::new();
    for name in [
        "stored.npz",
        "gguf/split-00001-of-00003.gguf",
        "gguf/split-00002-of-00003.gguf",
        "gguf/split-00003-of-00003.gguf",
        "pytorch/script.pt",
        "pytorch/sharded/pytorch_model.bin.index.json",
        "pytorch/sharded/pytorch_model-00001-of-00002.bin",
        "pytorch/sharded/pytorch_model-00002-of-00002.bin",
    ] {
        server.put(&format!("bucket/{name}"), fs::read(fixture(name)).unwrap());
    }
    // None of these is a directory of the bucket.
    server.misbehave(|_, request| {
        let is_list = request.path.trim_end_matches('/').split('?').next() == Some("/bucket");
        is_list.then_some(Fault::Status(200, NOTHING))
    });
    for name in [
        "stored.npz",
        "gguf/split-00002-of-00003.gguf",
        "pytorch/script.pt",
        "pytorch/sharded/pytorch_model.bin.index.json",
    ] {
        let here = fixture(name);
        let here = here.to_str().unwrap();
        let s3 = format!("s3://bucket/{name}");
        let web = server.address(&format!("bucket/{name}"));
        for there in [&s3, &web] {
            let shown = output(of_bucket(safetensors(dir.path(), &["diff", here, there]), &server));
            assert!(shown.contains("equal"), "{there}: {shown}");
        }
    }
    for (name, expected) in
        [("gguf/split-00001-of-00003.gguf", "gguf/split.safetensors"), ("stored.npz", "stored.npz")]
    {
        let args = ["convert", &format!("s3://bucket/{name}"), "out.safetensors", "--force"];
        output(of_bucket(safetensors(dir.path(), &args), &server));
        let expected = fixture(expected);
        let diff = ["diff", "out.safetensors", expected.to_str().unwrap(), "--ignore-metadata"];
        output(safetensors(dir.path(), &diff));
    }
    // Its problem is reported for the address.
    let server = Web::new().with("model.safetensors", b"no header of anything".to_vec());
    let address = server.address("model.safetensors");
    let said = error(safetensors(dir.path(), &["inspect", &address]), 1);
    assert!(said.starts_with(&format!("error: {address}: ")), "{said}");
}

#[test]
fn errors_have_the_address_and_a_remedy() {
    let dir = temp_dir();
    let server = Web::new().with("bucket/models/a.safetensors", file());
    let absent = server.address("b.safetensors");
    let said = error(safetensors(dir.path(), &["inspect", &absent]), 1);
    assert!(said.starts_with(&format!("error: {absent}: there is no such file")), "{said}");
    assert!(
        said.ends_with("; check the address: expected a file, an index or a directory\n"),
        "{said}"
    );
    server.misbehave(|_, _| Some(Fault::Status(403, "no")));
    let refused = server.address("bucket/models/a.safetensors");
    let said = error(safetensors(dir.path(), &["inspect", &refused]), 1);
    assert!(said.starts_with(&format!("error: {refused}: the store refuses access")), "{said}");
    assert!(said.ends_with("; check the address and the network\n"), "{said}");
    let command = safetensors(dir.path(), &["verify", "s3://bucket/models/a.safetensors"]);
    let said = error(of_bucket(command, &server), 1);
    assert!(said.starts_with("error: s3://bucket/models/a.safetensors: "), "{said}");
    assert!(said.contains("AWS_SKIP_SIGNATURE=true") && !said.contains("very-secret"), "{said}");
}

#[test]
fn several_addresses_and_paths_are_verified_at_once() {
    let dir = temp_dir();
    local(dir.path(), &shards());
    let server = Hub::start([("owner/name", sharded_repo()), ("owner/other", repo())]);
    let index = "hf://owner/name/model.safetensors.index.json";
    let args = ["verify", index, "hf://owner/other", "local", "hf://owner/absent"];
    let assert = with_hub(&server, dir.path(), &args).assert().code(1);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&assert.get_output().stdout), text(&assert.get_output().stderr));
    assert!(out.contains("4 checked: 3 ok, 1 failed"), "{out}\n{err}");
    assert!(err.contains("owner/absent: there is no such repository") && err.contains("HF_TOKEN"));
    let args = ["inspect", "hf://owner/other", "--json"];
    let json: serde_json::Value =
        serde_json::from_str(&output(with_hub(&server, dir.path(), &args))).unwrap();
    assert_eq!(json["files"][0]["path"], "hf://owner/other/model.safetensors");
    assert_eq!(json["tensors"].as_array().unwrap().len(), 4);
}

#[test]
fn nothing_is_changed_in_place() {
    let dir = temp_dir();
    let server = Web::new().with("model.safetensors", file());
    let address = server.address("model.safetensors");
    let init = ["--architecture", "a", "--implementation", "i", "--title", "t"];
    for args in [
        &["metadata", "set", &address, "a=b"][..],
        &["metadata", "remove", &address, "format"],
        &["metadata", "clear", &address],
        &[&["metadata", "modelspec", "init", &address], &init[..]].concat(),
        &["digest", "--record", &address],
    ] {
        let refused = error(safetensors(dir.path(), args), 2);
        assert!(refused.contains("only files on the disk can be changed"), "{refused}");
        assert!(refused.contains("safetensors convert"), "{refused}");
    }
    assert!(server.take_log().is_empty());
}

#[test]
fn invalid_addresses_are_refused_with_the_reason() {
    let dir = temp_dir();
    for (address, expected) in [
        ("ftp://host/model.safetensors", "expected an address that begins with one of s3, s3a, gs"),
        ("hf://owner", "expected hf://owner/name"),
        ("hf://dataset/owner/name", "datasets/, spaces/, kernels/ or buckets/ before the owner"),
        ("hf://owner/name@../x", "is no revision"),
        ("https://user:secret@host/a.safetensors", "credentials do not belong in an address"),
    ] {
        let error = error(safetensors(dir.path(), &["inspect", address]), 1);
        assert!(error.contains(expected) && !error.contains("secret"), "{error}");
    }
    let mut offline = safetensors(dir.path(), &["inspect", "hf://owner/name"]);
    offline.env("HF_HUB_OFFLINE", "1");
    let error = error(offline, 1);
    assert!(error.starts_with("error: hf://owner/name: \"revision main\" is not in "), "{error}");
    assert!(error.contains("unset HF_HUB_OFFLINE"), "{error}");
    // A directory of that name is on the disk.
    fs::create_dir_all(dir.path().join("ftp:/host")).unwrap();
    fs::write(dir.path().join("ftp:/host/model.safetensors"), file()).unwrap();
    output(safetensors(dir.path(), &["inspect", "ftp://host/model.safetensors"]));
}
