//! A server that fails, stalls, lies or changes: the right bytes, or an error that describes it.
//! Never wrong bytes, and never credentials at another host.

use std::thread;
use std::time::{Duration, Instant};

use safetensors_core::checkpoint::Assembled;
use safetensors_core::{Checkpoint, Error, ErrorKind, LoadOptions, ReadAt, TensorBuf};
use safetensors_hub::remote::{RemoteFile, RemoteOptions};

use super::server::{Fault, Request, Server};
use super::{MIB, file, options, tensors};

const NAME: &str = "m.safetensors";

fn served() -> (Server, Vec<(String, TensorBuf)>) {
    let tensors = tensors(&[("a", MIB), ("b", 2 * MIB)]);
    (Server::new().with(NAME, file(&tensors)), tensors)
}

fn open(server: &Server) -> safetensors_core::Result<Checkpoint<Assembled<RemoteFile>>> {
    impatient().open(&server.address(NAME))
}

/// Options that give a stalled request up soon.
fn impatient() -> RemoteOptions {
    options().option("read_timeout", "500ms")
}

fn read_b(checkpoint: &Checkpoint<Assembled<RemoteFile>>) -> safetensors_core::Result<TensorBuf> {
    checkpoint.tensor("b")?.read()
}

/// Returns the first requests of a kind fail so.
fn first(count: usize, fault: Fault) -> impl Fn(usize, &Request) -> Option<Fault> + Send + Sync {
    move |number, _| (number < count).then(|| fault.clone())
}

#[test]
fn temporary_faults_are_overcome() {
    let faults = [
        Fault::Status(503, "busy"),
        Fault::Status(429, "slower"),
        Fault::Cut(0),
        Fault::Cut(100_000),
        Fault::Stall(0),
        Fault::Stall(300_000),
    ];
    let overcome = &|fault: &Fault, has_etags: bool| {
        let (server, tensors) = served();
        if !has_etags {
            server.without_etags();
        }
        // At opening, and when a tensor is read.
        server.misbehave(first(2, fault.clone()));
        let checkpoint = open(&server).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        server.take_log();
        let read = read_b(&checkpoint).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(read.bytes(), tensors[1].1.bytes(), "{fault:?}");
    };
    // They mostly wait.
    thread::scope(|scope| {
        for fault in &faults {
            scope.spawn(move || overcome(fault, true));
            scope.spawn(move || overcome(fault, false));
        }
    });
}

#[test]
fn a_body_that_breaks_goes_on_where_it_broke() {
    let (server, tensors) = served();
    let checkpoint = open(&server).unwrap();
    server.take_log();
    server.take_sent();
    server.misbehave(first(3, Fault::Cut(500_000)));
    assert_eq!(read_b(&checkpoint).unwrap().bytes(), tensors[1].1.bytes());
    let log = server.take_log();
    assert_eq!(log.len(), 4);
    let (begin, end) = log[0].range().unwrap();
    assert!(log.iter().all(|request| request.range().unwrap().1 == end));
    assert!(log[1].range().unwrap().0 > begin);
    // Bytes that were under way when the connection broke may come twice, and no others.
    assert!(server.take_sent() < 2 * MIB + 3 * 500_000);
}

#[test]
fn permanent_faults_are_described_in_the_error() {
    let check = |(status, kind, words)| {
        let (server, _) = served();
        server.misbehave(move |_, _| Some(Fault::Status(status, "<Code>Busy</Code>")));
        let error = open(&server).unwrap_err();
        let ErrorKind::Io(found) = error.kind() else { panic!("{error}") };
        assert_eq!(found.kind(), kind, "{error}");
        let message = error.to_string();
        assert!(message.contains(words), "{message}");
        assert_eq!(error.file(), Some(&*server.address(NAME)), "{message}");
        assert!(message.len() < 700, "{message}");
    };
    let statuses = [
        (404, std::io::ErrorKind::NotFound, "no such"),
        (403, std::io::ErrorKind::PermissionDenied, "refuses access"),
        (401, std::io::ErrorKind::PermissionDenied, "credentials"),
        (500, std::io::ErrorKind::Other, "500"),
        (503, std::io::ErrorKind::Other, "<Code>Busy</Code>"),
    ];
    // At once, because each mostly waits.
    thread::scope(|scope| {
        for status in statuses {
            scope.spawn(move || check(status));
        }
    });
}

/// At opening, and later, when a tensor is read.
#[test]
fn a_server_that_sends_no_such_range_is_an_error() {
    let is_an_error = |(fault, words): (Fault, &str)| {
        let (server, _) = served();
        // One retry is as good as three, which wait for seconds.
        let open = || impatient().retries(1).open(&server.address(NAME));
        let checkpoint = open().unwrap();
        server.misbehave(first(usize::MAX, fault));
        let check = |call: &dyn Fn() -> Error| {
            let begin = Instant::now();
            let error = call();
            assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.file(), Some(&*server.address(NAME)), "{error}");
        };
        // They mostly wait.
        thread::scope(|scope| {
            scope.spawn(|| check(&|| open().unwrap_err()));
            scope.spawn(|| check(&|| read_b(&checkpoint).unwrap_err()));
        });
    };
    let faults = [
        (Fault::Whole, "cannot send a part of a file"),
        (Fault::OtherRange, "Requested"),
        (Fault::Stall(0), ""),
    ];
    thread::scope(|scope| {
        faults.into_iter().for_each(|fault| drop(scope.spawn(move || is_an_error(fault))));
    });
}

#[test]
fn a_file_that_changed_is_an_error() {
    for (has_etags, heeds_conditions) in [(true, true), (true, false), (false, false)] {
        let (server, tensors) = served();
        if !has_etags {
            server.without_etags();
        }
        if !heeds_conditions {
            server.ignore_conditions();
        }
        let checkpoint = open(&server).unwrap();
        assert!(read_b(&checkpoint).is_ok());
        let source = checkpoint.files()[0].safetensors().source();
        assert_eq!(source.may_change_unseen(), !has_etags);
        // Without an ETag only another length shows it.
        let mut other = file(&tensors);
        let last = other.len() - 1;
        other[last] ^= 1;
        if !has_etags {
            other.push(0);
        }
        server.put(NAME, other);
        for error in [
            read_b(&checkpoint).unwrap_err(),
            checkpoint.read_named(["b"], &LoadOptions::new()).unwrap_err(),
        ] {
            assert!(error.to_string().contains("has changed since it was opened"), "{error}");
            assert_eq!(error.file(), Some(&*server.address(NAME)));
        }
    }
}

#[test]
fn a_file_that_changes_while_a_body_is_continued_is_an_error() {
    let (server, tensors) = served();
    let checkpoint = open(&server).unwrap();
    server.take_log();
    let mut other = file(&tensors);
    other.iter_mut().for_each(|byte| *byte ^= 0x55);
    server.ignore_conditions();
    server.misbehave(first(1, Fault::Cut(700_000)));
    thread::scope(|scope| {
        let read = scope.spawn(|| read_b(&checkpoint));
        while server.take_sent() == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        server.put(NAME, other);
        assert!(read.join().unwrap().is_err());
    });
}

#[test]
fn a_redirect_to_another_host_gets_no_credentials() {
    let (server, tensors) = served();
    let hub = Server::new();
    let to = server.address(NAME) + "?signature=0123";
    hub.misbehave(move |_, _| Some(Fault::Redirect(to.clone())));
    let options = options().option("authorization", "Bearer very-secret");
    let checkpoint = options.open(&hub.address(NAME)).unwrap();
    assert_eq!(read_b(&checkpoint).unwrap().bytes(), tensors[1].1.bytes());
    let (asked, fetched) = (hub.take_log(), server.take_log());
    assert_eq!((asked.len(), fetched.len()), (2, 2));
    assert!(asked.iter().all(|request| request.headers["authorization"] == "Bearer very-secret"));
    for request in fetched {
        assert!(!request.headers.contains_key("authorization"), "{request:?}");
        assert!(!request.headers.contains_key("referer"), "{request:?}");
        assert!(request.headers.contains_key("range"), "{request:?}");
    }

    // No message has the credentials, nor the signature.
    server.misbehave(|_, _| Some(Fault::Status(403, "the token very-secret is bad")));
    let error = read_b(&checkpoint).unwrap_err();
    let shown = format!("{error} {error:?} {options:?}");
    assert!(!shown.contains("very-secret") && !shown.contains("0123"), "{shown}");
}

#[test]
fn redirects_end() {
    let server = Server::new();
    let to = server.address("again");
    server.misbehave(move |_, _| Some(Fault::Redirect(to.clone())));
    let error = open(&server).unwrap_err();
    assert!(error.to_string().contains("redirect"), "{error}");
    assert!(server.take_log().len() < 60);
}

/// However many retries there are, a server that was never reached is given up soon.
#[test]
fn an_absent_server_is_soon_abandoned() {
    // Nothing listens there.
    let nowhere = "http://127.0.0.1:9";
    let options = options().retries(1000).option("connect_timeout", "300ms");
    let in_bucket = options.clone().option("endpoint", nowhere).option("allow_http", "true");
    let in_bucket = in_bucket.option("skip_signature", "true");
    let address = format!("{nowhere}/{NAME}");
    let is_abandoned = |address: &str, options: RemoteOptions| {
        let begin = Instant::now();
        let error = options.open(address).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
        assert!(error.to_string().contains("the store failed"), "{error}");
        assert_eq!(error.file(), Some(address));
    };
    thread::scope(|scope| {
        scope.spawn(|| is_abandoned(&address, options));
        scope.spawn(|| is_abandoned("s3://bucket/m.safetensors", in_bucket));
    });
}

#[test]
fn bad_addresses_and_options_are_errors() {
    for address in [
        "",
        "model.safetensors",
        "ftp://host/m.safetensors",
        "s3://",
        "http://",
        "http://user:very-secret@127.0.0.1:1/m.safetensors",
        "hf://",
    ] {
        let error = options().open(address).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("very-secret"), "{error}");
    }
    for (name, value) in
        [("connect_timeout", "soon"), ("allow_http", "perhaps"), ("authorization", "a\nb")]
    {
        let options = options().option(name, value);
        assert!(options.open("http://127.0.0.1:1/m.safetensors").is_err(), "{name}");
    }
}
