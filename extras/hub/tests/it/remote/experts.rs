//! Slices of a remote file that are kept within a budget.

use std::time::{Duration, Instant};

use safetensors_core::framework::TensorCache;
use safetensors_core::{LoadOptions, TensorBuf};
use safetensors_testing::framework::Bufs;

use super::requests::ranges;
use super::server::{Fault, Server};
use super::{MIB, file, options, pattern};

const EXPERTS: usize = 16;

/// A cache with room for eight of sixteen experts of 1 MiB each, and the offset of the first.
fn cache() -> (Server, TensorCache<Bufs>, u64) {
    let experts = TensorBuf::from_vec(vec![EXPERTS, MIB], pattern(EXPERTS * MIB, 3)).unwrap();
    let server = Server::new().with("m.safetensors", file(&[("experts".into(), experts)]));
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    let start = checkpoint.tensor("experts").unwrap().file_offset();
    server.take_log();
    let cache = TensorCache::new(checkpoint, (), 8 << 20, &LoadOptions::new()).unwrap();
    (server, cache, start)
}

/// Returns the ranges of the file since the last call, and none of its model's config files.
fn asked(server: &Server) -> Vec<(u64, u64)> {
    let mut log = server.take_log();
    log.retain(|request| request.path == "/m.safetensors");
    ranges(&log)
}

#[track_caller]
fn get(cache: &TensorCache<Bufs>, expert: usize) {
    let found = cache.get("experts", (expert,)).unwrap();
    assert!(found.bytes() == &pattern(EXPERTS * MIB, 3)[expert * MIB..][..MIB]);
}

#[test]
fn an_expert_is_one_request_until_it_is_dropped() {
    let (server, cache, start) = cache();
    let one = |expert: usize| (start + (expert * MIB) as u64, MIB as u64);
    for (expert, requested) in [(5, true), (5, false), (2, true), (5, false), (2, false)] {
        get(&cache, expert);
        assert_eq!(asked(&server), Vec::from_iter(requested.then(|| one(expert))));
    }
    (6..14).for_each(|expert| get(&cache, expert));
    assert_eq!(asked(&server), Vec::from_iter((6..14).map(one)));
    get(&cache, 2);
    assert_eq!(asked(&server), [one(2)]);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (3, 11));
    assert_eq!((stats.bytes_read, stats.bytes_kept), (11 << 20, 8 << 20));
}

#[test]
fn experts_are_read_ahead_by_requests_at_the_same_time() {
    let (server, cache, start) = cache();
    server.slow_down(Duration::from_millis(100), 0);
    cache.read_ahead((1..15).map(|expert| ("experts", (expert,)))).unwrap();
    let begun = Instant::now();
    while cache.stats().bytes_read < 8 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut found = asked(&server);
    found.sort_unstable();
    let one = |expert: usize| (start + (expert * MIB) as u64, MIB as u64);
    assert_eq!(found, Vec::from_iter((1..9).map(one)));
    assert!(server.most_under_way() >= 6, "{}", server.most_under_way());
    (1..9).for_each(|expert| get(&cache, expert));
    assert_eq!(cache.stats().hits, 8);
    (9..15).for_each(|expert| get(&cache, expert));
    assert_eq!(server.take_log().len(), 6);
}

#[test]
fn a_request_that_fails_is_an_error_and_the_next_call_asks_again() {
    let (server, cache, _) = cache();
    server.misbehave(|_, _| Some(Fault::Status(403, "no")));
    let error = cache.get("experts", (1,)).unwrap_err();
    assert_eq!(error.tensor(), Some("experts"));
    assert_eq!(error.file(), Some(server.address("m.safetensors").as_str()));
    server.misbehave(|_, _| None);
    get(&cache, 1);
    assert_eq!(cache.stats().bytes_kept, 1 << 20);
}
