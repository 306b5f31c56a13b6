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
fn each_range_of_a_store_has_a_span() {
    if !is_alone(each_range_of_a_store_has_a_span) {
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
    let recorded = listener.named("request");
    let mut bytes: Vec<u64> = recorded.iter().map(|recorded| recorded.bytes).collect();
    asked.sort();
    bytes.sort();
    assert_eq!(bytes, asked);
    for recorded in recorded {
        assert!(recorded.time.unwrap() > Duration::ZERO);
        assert_eq!(recorded.address.as_deref(), Some("m.safetensors"));
    }
}

#[test]
fn each_request_of_a_download_has_a_span() {
    if !is_alone(each_request_of_a_download_has_a_span) {
        return;
    }
    let listener = Listener::of_this_process();
    let server = hub::Server::start([(REPO, support::single(3_000_000))]);
    let cache = tempfile::tempdir().unwrap();
    download(REPO, &support::options(&server, cache.path())).unwrap();
    let recorded = listener.named("request");
    assert_eq!(recorded.len(), server.log().len(), "{recorded:?}");
    assert!(
        recorded.iter().all(|recorded| recorded.time.is_some() && recorded.address.is_some()),
        "{recorded:?}"
    );
    assert_eq!(recorded.last().unwrap().bytes, server.bytes(hub::Origin::Cdn) as u64);
}
