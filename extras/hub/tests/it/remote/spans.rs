//! The span `request` of the feature `tracing`: each request has one, with the requested bytes, and
//! none reveals a secret.

use std::time::Duration;

use safetensors_core::LoadOptions;
use safetensors_hub::download;
use safetensors_testing::process::is_alone;
use safetensors_testing::spans::Listener;

use super::server::Server;
use super::{MIB, file, options, tensors};
use crate::server as hub;
use crate::support::{self, REPO};

#[test]
fn each_range_of_a_store_is_told() {
    if !is_alone(each_range_of_a_store_is_told) {
        return;
    }
    let listener = Listener::of_this_process();
    let tensors = tensors(&[("a", 3 * MIB), ("b", 5 * MIB)]);
    let server = Server::new().with("m.safetensors", file(&tensors));
    let address = format!("{}?signature=secret", server.address("m.safetensors"));
    let checkpoint = options().open(&address).unwrap();
    checkpoint.tensor("b").unwrap().read().unwrap();
    checkpoint.read_all(&LoadOptions::new()).unwrap();
    let mut asked: Vec<u64> = (server.take_log().iter())
        .map(|request| request.range().map(|(first, last)| last + 1 - first).unwrap())
        .collect();
    let told = listener.named("request");
    let mut bytes: Vec<u64> = told.iter().map(|told| told.bytes).collect();
    asked.sort();
    bytes.sort();
    assert_eq!(bytes, asked);
    for told in told {
        assert!(told.time.unwrap() > Duration::ZERO);
        assert_eq!(told.address.as_deref(), Some("m.safetensors"));
    }
}

#[test]
fn each_request_of_a_download_is_told() {
    if !is_alone(each_request_of_a_download_is_told) {
        return;
    }
    let listener = Listener::of_this_process();
    let server = hub::Server::start([(REPO, support::single(3_000_000))]);
    let cache = tempfile::tempdir().unwrap();
    download(REPO, &support::options(&server, cache.path())).unwrap();
    let told = listener.named("request");
    assert_eq!(told.len(), server.log().len(), "{told:?}");
    assert!(told.iter().all(|told| told.time.is_some() && told.address.is_some()), "{told:?}");
    assert_eq!(told.last().unwrap().bytes, server.bytes(hub::Origin::Cdn) as u64);
}
