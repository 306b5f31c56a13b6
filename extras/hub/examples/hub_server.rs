//! The tests' server of the Hub as a program, for clients in other languages:
//! `dev/scripts/hub_interop.py` starts it.
//!
//! It prints its address. Then it reads commands from standard input, one a line, and answers each
//! with a line. It ends with standard input.
//!
//! - `log` prints the requests since the last `log`, as JSON.
//! - `fault ORIGIN PATH TIMES KIND NUMBER` spoils the next answers. `ORIGIN` is `hub` or `cdn`;
//!   `PATH` is a part of the path, or `-` for all; `KIND` is `status`, `cut`, `stall`, `slow`
//!   (milliseconds) or `wrong`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a program for tests")]

#[path = "../tests/it/server/mod.rs"]
mod server;

use std::io::BufRead;
use std::time::Duration;

use safetensors_core::{SaveOptions, TensorView, serialize};
use server::repo::{Access, Repo};
use server::{Kind, Origin, Server};

fn main() {
    let server = Server::start([
        ("owner/name", sharded(20_000_000)),
        ("owner/other", sharded(3_000_000)),
        ("owner/private", sharded(1000).access(Access::Private)),
        ("owner/alike", sharded(1000).alike("68f0-186a0")),
        ("datasets/owner/name", sharded(2000)),
        ("buckets/owner/name", sharded(3000)),
    ]);
    println!("{}", server.endpoint);
    for line in std::io::stdin().lock().lines() {
        match line.unwrap().split(' ').collect::<Vec<_>>()[..] {
            ["log"] => println!("{}", log(&server)),
            ["fault", origin, path, times, kind, number] => {
                let number = number.parse().unwrap();
                let kind = match kind {
                    "status" => Kind::Status(number as u16, Vec::new()),
                    "cut" => Kind::Cut(number),
                    "slow" => Kind::Slow(Duration::from_millis(number as u64)),
                    "stall" => Kind::Stall(number, Duration::from_secs(60)),
                    "wrong" => Kind::WrongByte,
                    _ => panic!("no such fault"),
                };
                let origin = if origin == "cdn" { Origin::Cdn } else { Origin::Hub };
                let path = if path == "-" { "" } else { path };
                server.fault_of("GET", origin, path, times.parse().unwrap(), kind);
                println!("ok");
            }
            _ => println!("no such command"),
        }
    }
}

/// A model in two shards of about this many bytes each, with some other files.
fn sharded(len: usize) -> Repo {
    let index = r#"{"metadata": {}, "weight_map": {
        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let shard = |tensor: &str, len: usize| {
        let values: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251) as u8).collect();
        let shape = [len];
        let view = TensorView::from_slice(&shape, &values).unwrap();
        serialize([(tensor, view)], &SaveOptions::new()).unwrap()
    };
    Repo::new([
        ("config.json", b"{\"model_type\": \"test\"}".to_vec()),
        ("model.safetensors.index.json", index.into()),
        ("model-00001-of-00002.safetensors", shard("a", len)),
        ("model-00002-of-00002.safetensors", shard("b", len + 1)),
        ("tokenizer/vocab.txt", b"a b c".to_vec()),
    ])
}

/// Returns the requests so far, which are then forgotten.
fn log(server: &Server) -> serde_json::Value {
    let requests = server.log();
    server.clear_log();
    let origin = |origin| if origin == Origin::Cdn { "cdn" } else { "hub" };
    let request = |seen: &server::Seen| {
        serde_json::json!({
            "origin": origin(seen.origin), "method": seen.method, "path": seen.path,
            "range": seen.range, "token": seen.authorization.is_some(), "status": seen.status,
            "bytes": seen.bytes,
        })
    };
    requests.iter().map(request).collect()
}
