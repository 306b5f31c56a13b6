//! `safetensors manifest` of addresses: each reference has the address of the file that a reader
//! asks for, and the bytes of the tensor are there.

use std::collections::BTreeMap;

use serde_json::Value;

use super::reading::of_bucket;
use super::web::Server as Web;
use super::*;

/// Compares the references of a manifest with the tensors. `files` are the files by their
/// addresses.
fn check(manifest: &str, files: &BTreeMap<String, Vec<u8>>) {
    let manifest: Value = serde_json::from_str(manifest).unwrap();
    assert!(manifest.get("templates").is_none());
    for (name, tensor) in tensors() {
        let dims = ".0".repeat(tensor.shape().len() - 1);
        let reference = &manifest["refs"][format!("{name}/0{dims}")];
        let file = reference[0].as_str().unwrap();
        let file = files.get(file).unwrap_or_else(|| panic!("{name}: {file}"));
        let [offset, len] = [1, 2].map(|i| reference[i].as_u64().unwrap() as usize);
        assert!(file[offset..offset + len] == *tensor.bytes(), "{name}");
    }
}

#[test]
fn references_have_the_addresses_of_files() {
    let dir = temp_dir();
    // A web server, also with a name that is like a template, and is not a URL as it is.
    for (name, in_url) in [
        ("a/model.safetensors", "a/model.safetensors"),
        ("a{{b/m n.safetensors", "a%7B%7Bb/m%20n.safetensors"),
    ] {
        let server = Web::new().with(name, file());
        let address = server.address(in_url);
        let shown = output(safetensors(dir.path(), &["manifest", &address]));
        check(&shown, &[(address, file())].into());
    }
    // The shards of a bucket, by their directory.
    let at = |name: &str| format!("bucket/models/{name}");
    let server = shards()
        .into_iter()
        .fold(Web::new(), |server, (name, bytes)| server.with(&at(&name), bytes));
    let index = format!("s3://{}", at("model.safetensors.index.json"));
    let shown = output(of_bucket(safetensors(dir.path(), &["manifest", &index]), &server));
    let files = shards().into_iter().map(|(name, bytes)| (format!("s3://{}", at(&name)), bytes));
    check(&shown, &files.collect());
    // A repository of the Hub.
    let server = hub_server::Server::start([("owner/name", sharded_repo())]);
    let shown = output(with_hub(&server, dir.path(), &["manifest", "hf://owner/name"]));
    let files =
        shards().into_iter().map(|(name, bytes)| (format!("hf://owner/name/{name}"), bytes));
    check(&shown, &files.collect());
}

/// The query may be a signature, and a manifest is given to others.
#[test]
fn a_manifest_has_no_signature_of_an_address() {
    let dir = temp_dir();
    let server = Web::new().with("a.safetensors", file());
    let address = server.address("a.safetensors");
    let signed = format!("{address}?X-Amz-Signature=secret");
    let shown = output(safetensors(dir.path(), &["manifest", &signed]));
    assert!(!shown.contains("secret"), "{shown}");
    check(&shown, &[(address, file())].into());
}
