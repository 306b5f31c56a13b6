//! Files of the Hub that are read by range, without a download.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{Kind, Origin, Server};
use crate::support::*;
use safetensors_core::{ReadAt, SafeTensors};
use safetensors_hub::client::{Client, HubFile};
use safetensors_hub::{ErrorKind, Revision};

const LEN: usize = 1_000_000;

fn open(server: &Server, path: &str) -> HubFile {
    let repo = REPO.parse().unwrap();
    Client::new(&client(server)).unwrap().file(&repo, &Revision::default(), path).unwrap()
}

#[test]
fn length_and_version_of_a_file_need_no_byte_of_it() {
    let server = Server::start([(REPO, single(LEN))]);
    let whole = tensor_file("w", LEN);
    let file = open(&server, "model.safetensors");
    assert_eq!(file.byte_len(), whole.len() as u64);
    assert_eq!(file.commit().to_string(), server.commit(REPO, "main"));
    let digest = ring::digest::digest(&ring::digest::SHA256, &whole);
    let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(file.etag(), digest);
    assert_eq!(file.repo().to_string(), REPO);
    assert_eq!(server.log().len(), 1);
    let small = open(&server, "config.json");
    assert_eq!((small.byte_len(), small.etag().len()), (8, 40));
    let listed = Client::new(&client(&server)).unwrap();
    let listed = listed.files(file.repo(), &Revision::default()).unwrap();
    assert_eq!(listed.files.len(), 5);
    assert_eq!(&listed.commit, file.commit());
}

#[test]
fn ranges_are_exact() {
    let server = Server::start([(REPO, single(LEN))]);
    let whole = tensor_file("w", LEN);
    let file = open(&server, "model.safetensors");
    let last = whole.len() - 1;
    for (start, end) in [(0, 8), (5, 6), (last, last + 1), (100, 300_000), (0, last + 1)] {
        let mut bytes = vec![0; end - start];
        file.read_exact_at(&mut bytes, start as u64).unwrap();
        assert_eq!(bytes, whole[start..end]);
    }
    let before = server.bytes(Origin::Cdn);
    file.read_exact_at(&mut [], 7).unwrap();
    assert_eq!(server.bytes(Origin::Cdn), before);
    for (start, len) in [(whole.len() as u64, 1), (0, whole.len() + 1), (u64::MAX, 2)] {
        let error = read_exact(&file, &mut vec![0; len], start).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::WrongSize { .. })), "{error}");
    }
    let mut small = [0; 3];
    open(&server, "config.json").read_exact_at(&mut small, 2).unwrap();
    assert_eq!(&small, b"a\":");
}

#[test]
fn one_of_many_threads_renews_an_expired_address() {
    let server = Server::start([(REPO, single(LEN))]);
    server.expire_after(10);
    let whole = tensor_file("w", LEN);
    let file = open(&server, "model.safetensors");
    thread::scope(|scope| {
        for part in 0..8 {
            let (file, whole) = (&file, &whole);
            scope.spawn(move || {
                for piece in 0..20 {
                    let start = part * 100_000 + piece * 1000;
                    let mut bytes = [0; 1000];
                    file.read_exact_at(&mut bytes, start as u64).unwrap();
                    assert_eq!(bytes, whole[start..start + 1000]);
                }
            });
        }
    });
    let resolved = server.count(Origin::Hub, "HEAD", "model");
    assert!((16..80).contains(&resolved), "{resolved} times");
}

#[test]
fn a_file_that_changes_is_an_error() {
    let server = Server::start([(REPO, single(LEN))]);
    let file = open(&server, "model.safetensors");
    server.fault(Origin::Cdn, "", 1, Kind::Status(403, Vec::new()));
    let changed = vec![
        ("X-Repo-Commit", file.commit().to_string()),
        ("X-Linked-Etag", "\"other\"".into()),
        ("X-Linked-Size", file.byte_len().to_string()),
        ("Location", format!("{}/elsewhere", server.endpoint)),
    ];
    server.fault(Origin::Hub, "model", 1, Kind::Status(302, changed));
    let error = read_exact(&file, &mut [0; 8], 0).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::Changed { what: "ETag", .. })), "{error}");

    let other = vec![("X-Repo-Commit", "0".repeat(40))];
    server.fault(Origin::Cdn, "", 1, Kind::Status(403, Vec::new()));
    server.fault(Origin::Hub, "model", 1, Kind::Status(307, other));
    let error = read_exact(&file, &mut [0; 8], 0).unwrap_err();
    // The server answers for another commit than was asked for.
    assert!(matches!(error.other(), Some(ErrorKind::Changed { what: "commit", .. })), "{error}");
}

#[test]
fn a_server_without_ranges_gets_one_request_for_the_entire_file() {
    let server = Server::start([(REPO, single(6 << 20))]);
    let whole = tensor_file("w", 6 << 20);
    server.fault(Origin::Cdn, "", usize::MAX, Kind::NoRange);
    let file = open(&server, "model.safetensors");
    let read = |start: usize, len: usize| {
        let mut bytes = vec![0; len];
        read_exact(&file, &mut bytes, start as u64).map(|()| bytes)
    };
    assert_eq!(read(1000, 1000).unwrap(), whole[1000..2000]);
    let error = read(5 << 20, 1000).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::BadAnswer { .. })), "{error}");
    assert!(error.to_string().contains("ignores ranges"), "{error}");
    let rest = whole.len() - (5 << 20);
    assert_eq!(read(5 << 20, rest).unwrap(), whole[5 << 20..]);
}

#[test]
fn core_opens_a_file_by_ranges() {
    let server = Server::start([(REPO, single(LEN))]);
    let file = SafeTensors::from_source(open(&server, "model.safetensors")).unwrap();
    let rows = file.tensor("w").unwrap().slice((500_000..500_010,)).unwrap().read().unwrap();
    let whole = tensor_file("w", LEN);
    let start = whole.len() - LEN + 500_000;
    assert_eq!(rows.into_vec::<u8>().unwrap(), whole[start..start + 10]);
    assert!(server.bytes(Origin::Cdn) < 10_000);
    let error = ReadAt::read_exact_at(file.source(), &mut [0; 9], u64::MAX - 1).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    assert!(error.to_string().contains(REPO), "{error}");
}

#[test]
fn another_thread_stops_a_read() {
    let server = Server::start([(REPO, single(LEN))]);
    let file = open(&server, "model.safetensors");
    server.fault(Origin::Cdn, "", usize::MAX, Kind::Cut(0));
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(2));
            stop.store(true, Ordering::Relaxed);
        });
        let mut bytes = vec![0; LEN];
        file.read_until(&mut bytes, 0, &stop).unwrap_err()
    });
    let is_expected = matches!(error.kind(), safetensors_core::ErrorKind::Cancelled)
        || matches!(error.other(), Some(ErrorKind::Network { .. }));
    assert!(is_expected && begin.elapsed() < Duration::from_secs(5), "{error}");
    stop.store(true, Ordering::Relaxed);
    let error = file.read_until(&mut [0; 8], 0, &stop).unwrap_err();
    assert!(matches!(error.kind(), safetensors_core::ErrorKind::Cancelled), "{error}");
}

#[test]
fn a_thread_that_waits_for_the_address_of_a_file_can_be_stopped() {
    let server = Server::start([(REPO, single(LEN))]);
    let file = open(&server, "model.safetensors");
    read_exact(&file, &mut [0; 10], 0).unwrap();
    // The address has expired, and the Hub takes its time to name another one.
    let slow = Duration::from_secs(3);
    server.fault(Origin::Cdn, "", 1, Kind::Status(403, Vec::new()));
    server.fault_of("HEAD", Origin::Hub, "", 1, Kind::Slow(slow));
    server.clear_log();
    thread::scope(|scope| {
        let asking = scope.spawn(|| read_exact(&file, &mut [0; 10], 0));
        while server.count(Origin::Hub, "HEAD", "") == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        let (stop, begin) = (AtomicBool::new(false), Instant::now());
        thread::scope(|scope| {
            let stopped = scope.spawn(|| file.read_until(&mut [0; 10], 0, &stop));
            thread::sleep(Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
            let error = stopped.join().unwrap().unwrap_err();
            assert!(matches!(error.kind(), safetensors_core::ErrorKind::Cancelled), "{error}");
        });
        assert!(begin.elapsed() < slow / 2, "it waited for the request of the other thread");
        // One that is not stopped gets the address that the other one asks for.
        read_exact(&file, &mut [0; 10], 0).unwrap();
        asking.join().unwrap().unwrap();
    });
    assert_eq!(server.count(Origin::Hub, "HEAD", ""), 1);
}
