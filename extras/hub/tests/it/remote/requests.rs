//! How many requests are made, and for which bytes.

use std::time::Duration;

use safetensors_core::checkpoint::Assembled;
use safetensors_core::load::read_slices;
use safetensors_core::slice::RankPart;
use safetensors_core::{Checkpoint, LoadOptions, TensorBuf};
use safetensors_hub::remote::RemoteFile;

use super::server::{Request, Server};
use super::{MIB, file, options, pattern, tensors};

/// Returns the ranges of requests: first byte, and number of bytes.
pub(super) fn ranges(log: &[Request]) -> Vec<(u64, u64)> {
    log.iter()
        .map(|request| {
            assert_eq!(request.method, "GET");
            let (first, last) = request.range().unwrap();
            (first, last + 1 - first)
        })
        .collect()
}

#[test]
fn a_header_and_a_tensor_are_two_requests() {
    let tensors = tensors(&[("a", 3 * MIB), ("b", 5 * MIB), ("c", 2 * MIB)]);
    let server = Server::new().with("model.safetensors", file(&tensors));
    let checkpoint = options().open(&server.address("model.safetensors")).unwrap();
    assert_eq!(checkpoint.len(), 3);
    assert_eq!(ranges(&server.take_log()), [(0, 512 << 10)]);

    let tensor = checkpoint.tensor("b").unwrap();
    assert_eq!(tensor.read().unwrap().bytes(), tensors[1].1.bytes());
    let log = server.take_log();
    assert_eq!(ranges(&log), [(tensor.file_offset(), 5 << 20)]);
    assert!(log[0].headers.contains_key("if-match"));
    assert_eq!(log[0].headers["accept-encoding"], "identity");
    assert_eq!(server.take_sent(), (512 << 10) + 5 * MIB);
    // By the loader as well.
    let read = checkpoint.read_named(["b"], &LoadOptions::new()).unwrap();
    assert_eq!(read[0].bytes(), tensors[1].1.bytes());
    assert_eq!(ranges(&server.take_log()), [(tensor.file_offset(), 5 << 20)]);
}

#[test]
fn bytes_of_the_first_request_are_not_fetched_again() {
    let tensors = tensors(&[("a", 1000), ("b", 700 << 10)]);
    let server = Server::new().with("m.safetensors", file(&tensors));
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    server.take_log();
    assert_eq!(checkpoint.tensor("a").unwrap().read().unwrap().bytes(), tensors[0].1.bytes());
    assert!(server.take_log().is_empty());
    assert_eq!(checkpoint.tensor("b").unwrap().read().unwrap().bytes(), tensors[1].1.bytes());
    let [(offset, len)] = ranges(&server.take_log())[..] else { panic!("one request") };
    assert_eq!((offset, offset + len), (512 << 10, file(&tensors).len() as u64));
}

#[test]
fn a_long_header_takes_one_more_request() {
    let names: Vec<_> = (0..20_000).map(|number| format!("layers.{number:06}.weight")).collect();
    let all: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let bytes = file(&tensors(&all));
    let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap());
    assert!(header > 1 << 20);
    let server = Server::new().with("m.safetensors", bytes);
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    assert_eq!(checkpoint.len(), 20_000);
    let rest = header - (512 << 10);
    assert_eq!(ranges(&server.take_log()), [(0, 512 << 10), (512 << 10, rest)]);
}

#[test]
fn many_small_tensors_come_together_and_large_ones_in_parts() {
    let mut lengths: Vec<_> = (0..200).map(|number| (format!("s{number:03}"), 9000)).collect();
    lengths.insert(0, ("large".into(), 40 * MIB));
    let lengths: Vec<_> = lengths.iter().map(|(name, len)| (name.as_str(), *len)).collect();
    let tensors = tensors(&lengths);
    let server = Server::new().with("m.safetensors", file(&tensors));
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    server.take_log();
    let read = checkpoint.read_all(&LoadOptions::new()).unwrap();
    for (buf, tensor) in read.iter().zip(checkpoint.tensors()) {
        let (_, expected) = tensors.iter().find(|(name, _)| name == tensor.name()).unwrap();
        assert_eq!(buf.bytes(), expected.bytes());
    }
    // Five calls of 8 MiB (the first has 512 KiB already), and the small tensors.
    let asked = ranges(&server.take_log());
    assert_eq!(asked.len(), 6, "{asked:?}");
    assert!(asked.iter().all(|(_, len)| *len <= 16 << 20));

    // A single read is divided, too.
    let large = checkpoint.tensor("large").unwrap().read().unwrap();
    assert_eq!(large.bytes(), tensors[0].1.bytes());
    assert_eq!(server.take_log().len(), 3);
}

/// A server of a table of this many rows of 64 KiB, behind another tensor.
fn table(rows: usize) -> (Server, Checkpoint<Assembled<RemoteFile>>) {
    let table = TensorBuf::from_vec(vec![rows, 64 << 10], pattern(rows << 16, 1)).unwrap();
    let before = TensorBuf::from_vec(vec![MIB], pattern(MIB, 2)).unwrap();
    let all = [("a".to_owned(), before), ("table".to_owned(), table)];
    let server = Server::new().with("m.safetensors", file(&all));
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    server.take_log();
    server.take_sent();
    (server, checkpoint)
}

#[test]
fn parts_of_ranks_fetch_their_bytes_only() {
    // Of each row four ranks have 16 KiB each, or each has six of 24 rows.
    let (server, checkpoint) = table(24);
    let table = checkpoint.tensor("table").unwrap();
    for (dim, requests) in [(0, 1), (1, 24)] {
        let part = table.slice(RankPart::new(dim, 1, 4)).unwrap();
        let expected = part.byte_len() as usize;
        let read = read_slices(&[part], &LoadOptions::new()).unwrap();
        assert_eq!(read[0].bytes().len(), expected);
        assert_eq!((server.take_log().len(), server.take_sent()), (requests, expected));
    }
    // Half of each row: the other half is as long, and one request fetches both.
    let half = table.slice(RankPart::new(1, 1, 2)).unwrap();
    half.read().unwrap();
    assert_eq!(server.take_log().len(), 1);
    assert!(server.take_sent() < 2 * half.byte_len() as usize);
}

#[test]
fn rows_fetch_their_bytes_only_and_each_row_once() {
    let (server, checkpoint) = table(64);
    let bytes = pattern(64 << 16, 1);
    // Rows 20 to 22 come with one request.
    let numbers = [50, 21, 3, 22, 50, 20, 3];
    let expected: Vec<_> =
        numbers.iter().flat_map(|row| &bytes[row << 16..][..1 << 16]).copied().collect();
    let rows = checkpoint.tensor("table").unwrap().rows(&numbers).unwrap();
    for read in [rows.read(), rows.read_with(&LoadOptions::new())] {
        assert!(read.unwrap().bytes() == expected);
    }
    assert_eq!((server.take_log().len(), server.take_sent()), (6, 10 << 16));
}

#[test]
fn requests_under_way_are_bounded() {
    let tensors = tensors(&[("a", 2 * MIB), ("b", MIB / 16)]);
    let server = Server::new().with("m.safetensors", file(&tensors));
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    server.take_log();
    server.slow_down(Duration::from_millis(100), 0);
    let tensor = checkpoint.tensor("b").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| tensor.read().unwrap());
        }
    });
    assert_eq!(server.take_log().len(), 100);
    let most = server.most_under_way();
    assert!((20..=32).contains(&most), "{most}");
}
