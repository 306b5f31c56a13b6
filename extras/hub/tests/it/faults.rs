//! Every fault of a server and of a network: the right bytes or a clear error, never a wrong blob,
//! never a token at the wrong host.

use std::fs;
use std::time::{Duration, Instant};

use crate::server::{Kind, Origin, Server, TOKEN};
use crate::support::{self, *};
use safetensors_hub::client::ClientOptions;
use safetensors_hub::{DownloadOptions, Error, ErrorKind, Snapshot, download};

/// The length of the large file in these tests.
const LEN: usize = 600_000;

/// Downloads from a server with faults, and checks the guarantees for all cases.
fn attempt(prepare: impl FnOnce(&Server)) -> (Server, Result<Snapshot, Error>) {
    let server = Server::start([(REPO, single(LEN))]);
    prepare(&server);
    let cache = tempfile::tempdir().unwrap();
    let patient = client(&server).token(Some(TOKEN)).timeout(Duration::from_millis(700));
    let wanted = options(&server, cache.path()).client(patient).include("config.json");
    let result = download(REPO, &wanted);
    assert_blobs_are_right(cache.path());
    match &result {
        Ok(snapshot) => {
            assert_eq!(tensors(snapshot)["w"].len(), LEN);
            assert_eq!(fs::read(snapshot.dir().join("config.json")).unwrap(), b"{\"a\": 1}");
            assert_eq!(unfinished(cache.path()), [""; 0]);
        }
        Err(error) => {
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(TOKEN) && !shown.contains("secret-signature"), "{shown}");
            assert!(error.file().is_some_and(|file| file.starts_with(REPO)), "{shown}");
            // The reference is not moved to a snapshot that is not whole.
            assert!(!files(cache.path()).iter().any(|name| name.contains("refs/")));
            // Once the server is well, the next attempt succeeds, with any leftovers of the first
            // one.
            server.heal();
            server.expire_after(usize::MAX);
            let snapshot = download(REPO, &wanted).unwrap();
            assert_eq!(tensors(&snapshot)["w"].len(), LEN);
            assert_blobs_are_right(cache.path());
        }
    }
    (server, result)
}

/// A fault that passes is overcome; one that stays is an error.
fn passing_and_lasting(origin: Origin, path: &str, kind: Kind) -> Error {
    let (_, result) = attempt(|server| server.fault(origin, path, 1, kind.clone()));
    result.unwrap_or_else(|error| panic!("{kind:?} once: {error}"));
    let (_, result) = attempt(|server| server.fault(origin, path, usize::MAX, kind.clone()));
    result.err().unwrap_or_else(|| panic!("{kind:?} for ever"))
}

#[test]
fn a_body_that_breaks_is_gone_on_with() {
    for kind in [Kind::Cut(0), Kind::Cut(1), Kind::Cut(LEN / 2), Kind::Short(1)] {
        let (server, result) = attempt(|server| server.fault(Origin::Cdn, "", 1, kind));
        result.unwrap();
        let again = server.bytes(Origin::Cdn) as i64 - tensor_file("w", LEN).len() as i64;
        assert!((0..300_000).contains(&again), "{again} bytes were sent twice");
    }
    let error = passing_and_lasting(Origin::Cdn, "", Kind::Cut(100));
    assert!(matches!(error.other(), Some(ErrorKind::Network { .. })), "{error}");
}

#[test]
fn a_connection_that_breaks_again_and_again_still_makes_progress() {
    // More often than there are retries, but each time a mebibyte has come.
    let server = Server::start([(REPO, single(12 << 20))]);
    server.fault(Origin::Cdn, "", 9, Kind::Cut((1 << 20) + (200 << 10)));
    let cache = tempfile::tempdir().unwrap();
    let snapshot = download(REPO, &options(&server, cache.path())).unwrap();
    assert_eq!(tensors(&snapshot)["w"].len(), 12 << 20);
    assert_eq!(server.count(Origin::Cdn, "GET", ""), 10);
}

/// However many retries there are, a server that cannot be reached is given up soon.
#[test]
fn an_unreachable_hub_is_soon_abandoned() {
    let patience = Duration::from_millis(600);
    let full = support::FullQueue::new();
    let nothing_listens = "http://127.0.0.1:9".to_owned();
    // The name is too long for a question to a server of names.
    let no_such_host = format!("http://{}.invalid", "x".repeat(64));
    let nothing_answers = full.as_ref().map(|full| format!("http://{}", full.address));
    let check = |endpoint: String| {
        let cache = tempfile::tempdir().unwrap();
        let client = ClientOptions::new().token(None).endpoint(&endpoint).retries(1000);
        let client = client.pause(patience / 20).connect_timeout(patience);
        let wanted = DownloadOptions::new().client(client).cache(cache.path()).offline(false);
        let begin = Instant::now();
        let error = download(REPO, &wanted).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::Network { .. })), "{error}");
        let host = endpoint.trim_start_matches("http://");
        assert!(error.to_string().contains(host), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{endpoint}: {:?}", begin.elapsed());
    };
    // At once, because each mostly waits.
    std::thread::scope(|scope| {
        for endpoint in [nothing_listens, no_such_host].into_iter().chain(nothing_answers) {
            scope.spawn(|| check(endpoint));
        }
    });
}

#[test]
fn a_server_that_was_reached_is_waited_for() {
    // The patience for a server that is not reached is over long before the last retry.
    let server = Server::start([(REPO, single(LEN))]);
    server.fault(Origin::Hub, "/api/", 3, Kind::Status(503, Vec::new()));
    server.fault(Origin::Cdn, "", 3, Kind::Cut(LEN / 8));
    let cache = tempfile::tempdir().unwrap();
    let hasty = client(&server).pause(Duration::from_millis(120));
    let hasty = hasty.connect_timeout(Duration::from_millis(200));
    download(REPO, &options(&server, cache.path()).client(hasty)).unwrap();
}

#[test]
fn a_silent_server_is_abandoned() {
    let silence = Duration::from_secs(5);
    let begin = Instant::now();
    let (_, result) = attempt(|server| {
        server.fault(Origin::Cdn, "", 1, Kind::Stall(LEN / 2, silence));
        server.fault(Origin::Hub, "config.json", 1, Kind::Slow(silence));
    });
    result.unwrap();
    assert!(begin.elapsed() < silence);
}

#[test]
fn wrong_answers_to_a_range_request_are_detected() {
    // The range is asked for after the first body breaks.
    let broken = |kind: Kind, times: usize| {
        attempt(|server| {
            server.fault(Origin::Cdn, "", 1, Kind::Cut(LEN / 2));
            server.fault(Origin::Cdn, "", times, kind);
        })
    };
    // The whole file from 0.
    let (server, result) = broken(Kind::NoRange, usize::MAX);
    result.unwrap();
    assert_eq!(server.count(Origin::Cdn, "GET", ""), 2);
    // Another range.
    broken(Kind::OtherRange, 1).1.unwrap();
    let error = broken(Kind::OtherRange, usize::MAX).1.unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::BadAnswer { .. })), "{error}");
    assert!(error.to_string().contains("asked for bytes"), "{error}");
    // Another range that claims to be the right one: the digest finds it.
    let (_, result) = broken(Kind::LyingRange, usize::MAX);
    let error = result.unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::WrongDigest { .. })), "{error}");
    // Refused.
    let kind = Kind::Status(416, vec![("Content-Range", "bytes */5".into())]);
    broken(kind.clone(), 1).1.unwrap();
    let error = broken(kind, usize::MAX).1.unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::Status { status: 416, .. })), "{error}");
}

#[test]
fn wrong_bytes_never_get_a_name() {
    for (origin, file, expected) in
        [(Origin::Cdn, "model.safetensors", "SHA-256"), (Origin::Hub, "config.json", "SHA-1")]
    {
        let path = if origin == Origin::Cdn { "" } else { file };
        let wrong = |server: &Server| server.fault_of("GET", origin, path, 1, Kind::WrongByte);
        let error = attempt(wrong).1.unwrap_err();
        let Some(ErrorKind::WrongDigest { algorithm, .. }) = error.other() else {
            panic!("{error}")
        };
        assert_eq!((*algorithm, error.file()), (expected, Some(&*format!("{REPO}: {file}"))));
    }
}

#[test]
fn a_wrong_length_is_an_error() {
    let error = passing_and_lasting(Origin::Cdn, "", Kind::Length(5));
    assert!(matches!(error.other(), Some(ErrorKind::BadAnswer { .. })), "{error}");
    assert!(error.to_string().contains("it sends 5 bytes"), "{error}");
    // A body of unknown length must end with the file.
    let send = |more| attempt(|server| server.fault(Origin::Cdn, "", 1, Kind::Long(more))).1;
    send(0).unwrap();
    let error = send(1).unwrap_err();
    assert!(error.to_string().contains("more bytes than the file has"), "{error}");
}

#[test]
fn an_expired_address_is_renewed() {
    // Good for no request at all: every answer of the CDN is 403.
    let (_, result) = attempt(|server| server.expire_after(0));
    let error = result.unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::Status { status: 403, .. })), "{error}");
    // Good for one request: the body breaks, and the rest needs another address.
    let (server, result) = attempt(|server| {
        server.expire_after(1);
        server.fault(Origin::Cdn, "", 1, Kind::Cut(LEN / 2));
    });
    result.unwrap();
    assert_eq!(server.count(Origin::Hub, "HEAD", "model.safetensors"), 2);
    let statuses: Vec<u16> =
        server.log().iter().filter(|seen| seen.origin == Origin::Cdn).map(|it| it.status).collect();
    assert_eq!(statuses, [200, 403, 206]);
}

#[test]
fn an_overloaded_server_is_waited_for() {
    for status in [500, 502, 503, 504, 408, 429] {
        for origin in [Origin::Hub, Origin::Cdn] {
            let (_, result) =
                attempt(|server| server.fault(origin, "", 2, Kind::Status(status, Vec::new())));
            result.unwrap_or_else(|error| panic!("{status}: {error}"));
        }
    }
    let lasting = Kind::Status(503, Vec::new());
    let error = passing_and_lasting(Origin::Hub, "/api/", lasting.clone());
    assert!(matches!(error.other(), Some(ErrorKind::Status { status: 503, .. })), "{error}");
    let error = passing_and_lasting(Origin::Cdn, "", lasting);
    assert!(error.to_string().contains("503"), "{error}");
    // Any other status is final at once.
    let teapot = Kind::Status(418, Vec::new());
    let (server, result) = attempt(|server| server.fault(Origin::Hub, "/api/", 1, teapot));
    result.unwrap_err();
    let listings = server.log().iter().filter(|seen| seen.status == 418).count();
    assert_eq!(listings, 1);
}

#[test]
fn retry_after_is_obeyed_or_an_error() {
    let begin = Instant::now();
    let one = Kind::Status(429, vec![("Retry-After", "1".into())]);
    let (_, result) = attempt(|server| server.fault(Origin::Hub, "/api/", 1, one));
    result.unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(1));

    let long = Kind::Status(429, vec![("Retry-After", "3600".into())]);
    let begin = Instant::now();
    let (_, result) = attempt(|server| server.fault(Origin::Hub, "/api/", 1, long));
    let error = result.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(60));
    let wait = Some(Duration::from_secs(3600));
    assert!(
        matches!(error.other(), Some(ErrorKind::RateLimited { wait: found, .. }) if *found == wait),
        "{error}"
    );
    assert!(error.to_string().contains("3600 s"), "{error}");
}

#[test]
fn a_redirect_that_leads_nowhere_ends() {
    let to = |location: &str| Kind::Status(302, vec![("Location", location.to_owned())]);
    for location in ["/owner/name/resolve/main/model.safetensors", "ftp://x/y", "http://u:p@x/"] {
        let (_, result) =
            attempt(|server| server.fault(Origin::Hub, "model", usize::MAX, to(location)));
        let error = result.unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::BadAnswer { .. })), "{location}: {error}");
    }
    let (_, result) = attempt(|server| {
        server.fault(Origin::Cdn, "", usize::MAX, Kind::Status(302, Vec::new()));
    });
    result.unwrap_err();
}

#[test]
fn an_answer_without_etag_or_commit_is_refused() {
    let answers = [
        (200, vec![], "ETag"),
        (302, vec![("Location", "http://elsewhere.invalid/x".to_owned())], "ETag"),
        (200, vec![("ETag", "\"a\"".to_owned())], "commit"),
    ];
    for (status, headers, lacks) in answers {
        let answer = Kind::Status(status, headers);
        let (_, result) = attempt(|server| {
            server.fault_of("HEAD", Origin::Hub, "/resolve/", usize::MAX, answer);
        });
        let error = result.unwrap_err().to_string();
        let expected = format!("it does not say the {lacks} of the file; is it a Hub?");
        assert!(error.contains(&expected), "{status}: {error}");
    }
}

#[test]
fn an_unreachable_server_error_suggests_offline_mode_if_cached() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start([(REPO, single(10))]);
    let closed = client(&server).endpoint("http://127.0.0.1:9").retries(1);
    let wanted = DownloadOptions::new().client(closed).cache(cache.path()).offline(false);
    for is_cached in [false, true] {
        let error = download(REPO, &wanted).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::Network { .. })), "{error}");
        assert_eq!(error.to_string().contains("HF_HUB_OFFLINE=1"), is_cached, "{error}");
        download(REPO, &options(&server, cache.path())).unwrap();
    }
}
