//! Large files that come by several ranges at once.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use safetensors_core::{ErrorKind, ReadAt};
use safetensors_hub::{DownloadOptions, ErrorKind as HubErrorKind, Snapshot, download};

use crate::server::{Kind, Origin, Server};
use crate::support::*;

const PART: usize = 64 << 10;
/// The file has 16 parts, and the last has a few bytes more than the header.
const LEN: usize = 15 * PART;

fn by_parts(server: &Server, cache: &Path) -> DownloadOptions {
    options(server, cache).part(PART as u64)
}

#[track_caller]
fn assert_complete(snapshot: &Snapshot, cache: &Path) {
    assert!(fs::read(snapshot.dir().join("model.safetensors")).unwrap() == tensor_file("w", LEN));
    assert_eq!(unfinished(cache), [""; 0]);
    assert_blobs_are_right(cache);
}

/// Returns the first bytes of the ranges that the CDN was asked for, sorted.
fn starts(server: &Server) -> Vec<usize> {
    let log = server.log();
    let ranges = log.iter().filter_map(|seen| seen.range.as_deref()?.strip_prefix("bytes="));
    let mut starts: Vec<usize> =
        ranges.map(|range| range.split_once('-').unwrap().0.parse().unwrap()).collect();
    starts.sort_unstable();
    starts
}

#[test]
fn a_large_file_comes_by_requests_at_the_same_time() {
    let (server, cache) = served(single(LEN));
    let whole = tensor_file("w", LEN).len();
    // The first request is for the last byte.
    server.fault(Origin::Cdn, "", 1, Kind::Slow(Duration::ZERO));
    server.fault(Origin::Cdn, "", 4, Kind::Together(4, Arc::default()));
    let snapshot = download(REPO, &by_parts(&server, cache.path()).threads(4)).unwrap();
    assert_complete(&snapshot, cache.path());
    let mut expected: Vec<usize> = (0..16).map(|part| part * PART).collect();
    expected.push(whole - 1);
    assert_eq!(starts(&server), expected);
    assert_eq!(server.bytes(Origin::Cdn), whole + 1, "each byte comes once");
    let log = server.log();
    let of_file = log.iter().filter(|it| it.origin == Origin::Cdn);
    let connections: BTreeSet<u16> = of_file.map(|it| it.port).collect();
    assert!(connections.len() <= 5, "17 requests came by {} connections", connections.len());
}

#[test]
fn a_directory_gets_a_large_file_by_parts_too() {
    let (server, cache) = served(single(LEN));
    server.fault(Origin::Cdn, "", 1, Kind::Slow(Duration::ZERO));
    server.fault(Origin::Cdn, "", 8, Kind::Together(8, Arc::default()));
    let dir = tempfile::tempdir().unwrap();
    let wanted = by_parts(&server, cache.path()).local_dir(dir.path());
    let snapshot = download(REPO, &wanted).unwrap();
    assert_complete(&snapshot, cache.path());
}

#[test]
fn large_files_share_the_connections() {
    let (server, cache) = served(crate::server::repo::Repo::new(shards(LEN)));
    let snapshot = download(REPO, &by_parts(&server, cache.path()).threads(3)).unwrap();
    assert_eq!(tensors(&snapshot).len(), 3);
    // Each of the three files has one.
    assert_eq!(starts(&server), [0; 0]);
}

#[test]
fn a_server_that_refuses_ranges_is_asked_for_one_stream() {
    let (server, cache) = served(single(LEN));
    server.fault(Origin::Cdn, "", usize::MAX, Kind::NoRange);
    let snapshot = download(REPO, &by_parts(&server, cache.path())).unwrap();
    assert_complete(&snapshot, cache.path());
    let whole = tensor_file("w", LEN).len();
    let asked: Vec<_> =
        server.log().iter().filter(|it| it.origin == Origin::Cdn).cloned().collect();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!((asked[0].range.clone(), asked[0].status), (Some(last_byte(whole)), 200));
    assert_eq!((asked[1].range.clone(), asked[1].bytes), (None, whole));
}

fn last_byte(len: usize) -> String {
    format!("bytes={0}-{0}", len - 1)
}

#[test]
fn a_small_file_is_one_request() {
    let (server, cache) = served(single(2 * PART - 1000));
    download(REPO, &by_parts(&server, cache.path())).unwrap();
    assert_eq!(server.count(Origin::Cdn, "GET", ""), 1);
}

#[test]
fn interrupted_ranges_go_on_where_they_ended() {
    let (server, cache) = served(single(LEN));
    server.fault(Origin::Cdn, "", 1, Kind::Slow(Duration::ZERO));
    server.fault(Origin::Cdn, "", 3, Kind::Cut(1000));
    server.fault(Origin::Cdn, "", 2, Kind::Status(503, Vec::new()));
    server.fault(Origin::Cdn, "", 2, Kind::OtherRange);
    server.expire_after(5);
    let snapshot = download(REPO, &by_parts(&server, cache.path())).unwrap();
    assert_complete(&snapshot, cache.path());
}

#[test]
fn a_cancelled_download_goes_on_from_its_first_gap() {
    const PART: u64 = 256 << 10;
    let (server, cache) = served(single(4_000_000));
    let wanted = options(&server, cache.path()).part(PART);
    let cancelled = wanted.clone().progress(|progress| match progress.bytes_done > 2_000_000 {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    let error = download(REPO, &cancelled).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    let kept = kept(cache.path());
    assert!(kept.is_multiple_of(PART) && kept < 4_000_000, "{kept}");
    server.clear_log();
    assert_eq!(tensors(&download(REPO, &wanted).unwrap())["w"].len(), 4_000_000);
    let rest = tensor_file("w", 4_000_000).len() - kept as usize;
    assert_eq!(server.bytes(Origin::Cdn), rest + 1);
    assert_blobs_are_right(cache.path());
}

/// Returns the length of the unfinished file.
fn kept(cache: &Path) -> u64 {
    fs::metadata(cache.join(&unfinished(cache)[0])).unwrap().len()
}

#[test]
fn the_others_run_only_so_far_ahead_of_a_slow_range() {
    let (server, cache) = served(single(LEN));
    server.fault(Origin::Cdn, "", 1, Kind::Slow(Duration::ZERO));
    server.fault(Origin::Cdn, "", 1, Kind::Slow(Duration::from_secs(1)));
    let wanted = by_parts(&server, cache.path()).threads(4);
    std::thread::scope(|scope| {
        let downloaded = scope.spawn(|| download(REPO, &wanted).unwrap());
        std::thread::sleep(Duration::from_millis(500));
        // The slow one is among the first four, and six are begun and not written.
        let begun = server.count(Origin::Cdn, "GET", "");
        assert!(begun <= 1 + 3 + 6, "{begun}");
        assert_complete(&downloaded.join().unwrap(), cache.path());
    });
}

#[test]
fn the_rest_of_an_earlier_attempt_is_kept_and_checked() {
    let whole = tensor_file("w", LEN);
    let server = Server::start([(REPO, single(LEN))]);
    let etag = {
        let repo = single(LEN);
        repo.commits[&repo.refs["main"]]["model.safetensors"].etag.clone()
    };
    let mut bad = whole[..5 * PART + 7].to_vec();
    bad[PART] ^= 1;
    // The rest on the disk, and how often the whole file is asked for.
    for (left, bytes) in [
        (&whole[..5 * PART + 7], whole.len() - (5 * PART + 7) + 1),
        (&whole[..whole.len() - 10], 10),
        (&bad, 2 * whole.len() - (5 * PART + 7) + 2),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let blobs = cache.path().join("models--owner--name/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{etag}.0123abcd.incomplete")), left).unwrap();
        server.clear_log();
        let snapshot = download(REPO, &by_parts(&server, cache.path())).unwrap();
        assert_complete(&snapshot, cache.path());
        assert_eq!(server.bytes(Origin::Cdn), bytes, "{} bytes were there", left.len());
    }
}

#[test]
fn wrong_bytes_never_get_the_name_of_the_file() {
    let (server, cache) = served(single(LEN));
    server.fault(Origin::Cdn, "", 1, Kind::Slow(Duration::ZERO));
    server.fault(Origin::Cdn, "", 1, Kind::WrongByte);
    let error = download(REPO, &by_parts(&server, cache.path())).unwrap_err();
    assert!(matches!(error.other(), Some(HubErrorKind::WrongDigest { .. })), "{error}");
    assert_eq!(unfinished(cache.path()), [""; 0]);
    let snapshot = download(REPO, &by_parts(&server, cache.path())).unwrap();
    assert_complete(&snapshot, cache.path());
}

#[test]
fn a_range_that_always_fails_is_an_error_and_earlier_bytes_are_kept() {
    let (server, cache) = served(single(LEN));
    server.fault(Origin::Cdn, "", 7, Kind::Slow(Duration::ZERO));
    server.fault(Origin::Cdn, "", usize::MAX, Kind::Status(500, Vec::new()));
    let error = download(REPO, &by_parts(&server, cache.path()).threads(2)).unwrap_err();
    assert!(matches!(error.other(), Some(HubErrorKind::Status { status: 500, .. })), "{error}");
    let kept = kept(cache.path());
    assert!(kept >= 4 * PART as u64 && kept.is_multiple_of(PART as u64), "{kept}");
    server.heal();
    server.clear_log();
    let snapshot = download(REPO, &by_parts(&server, cache.path())).unwrap();
    assert_complete(&snapshot, cache.path());
    let whole = tensor_file("w", LEN).len();
    assert_eq!(server.bytes(Origin::Cdn), whole - kept as usize + 1);
}

/// Prints how much of four connections with 20 MB/s each a download uses.
#[test]
#[ignore = "measures for a minute"]
fn a_limit_for_each_connection() {
    const LEN: usize = 1 << 30;
    let (server, cache) = served(single(LEN));
    server.limit_connections(20_000_000);
    for threads in [1, 4, 8] {
        let cache = cache.path().join(threads.to_string());
        let begun = Instant::now();
        let snapshot = download(REPO, &options(&server, &cache).threads(threads)).unwrap();
        let rate = LEN as f64 / begun.elapsed().as_secs_f64() / 1e6;
        println!(
            "{threads} connections: {rate:.1} MB/s, {:.2} of the limit",
            rate / (20.0 * threads as f64)
        );
        let file = safetensors_core::io::FileSource::open(snapshot.dir().join("model.safetensors"));
        assert_eq!(file.unwrap().byte_len(), tensor_file("w", LEN).len() as u64);
    }
}
