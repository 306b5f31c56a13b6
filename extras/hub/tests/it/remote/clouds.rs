//! The three clouds, each simulated by a server: the requests of their protocols for a range of an
//! object. Tests that need a server of the protocol itself are in `buckets.rs`.

use safetensors_hub::remote::RemoteOptions;

use super::server::Server;
use super::{MIB, file, options, tensors};

/// Returns the options by which the store of an address is reached at this server.
fn at(server: &Server, endpoint: &str) -> RemoteOptions {
    let address = server.address("");
    options()
        .option(endpoint, address.trim_end_matches('/'))
        .option("account_name", "account")
        .option("allow_http", "true")
        .option("skip_signature", "true")
}

#[test]
fn a_header_and_a_tensor_are_two_requests_in_each() {
    let tensors = tensors(&[("a", MIB), ("b", 2 * MIB)]);
    let path = "bucket/gpt/model.safetensors";
    for (scheme, endpoint) in [("s3", "endpoint"), ("gs", "base_url"), ("az", "endpoint")] {
        let address = &*format!("{scheme}://{path}");
        let server = Server::new().with(path, file(&tensors));
        let checkpoint = at(&server, endpoint).open(address).unwrap();
        let read = checkpoint.tensor("b").unwrap().read().unwrap();
        assert_eq!(read.bytes(), tensors[1].1.bytes(), "{address}");
        let log = server.take_log();
        let ranges: Vec<_> = log.iter().map(|request| request.range().unwrap()).collect();
        let end = file(&tensors).len() as u64;
        assert_eq!(ranges, [(0, (512 << 10) - 1), (end - 2 * MIB as u64, end - 1)], "{address}");
        assert!(log[1].headers.contains_key("if-match"), "{address}");

        server.put(path, file(&tensors[..1]));
        let error = checkpoint.tensor("b").unwrap().read().unwrap_err();
        assert!(error.to_string().contains("has changed since it was opened"), "{error}");
        assert_eq!(error.file(), Some(address));
    }
}
