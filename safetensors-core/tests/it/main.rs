//! The tests of this package, as one program, because each program takes time to link.
#![cfg(feature = "std")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

/// Returns the error of a result, which must be of this kind.
macro_rules! refused {
    ($result:expr, $kind:pat $(if $condition:expr)?) => {{
        let error = $result.unwrap_err();
        assert!(matches!(error.kind(), $kind $(if $condition)?), "{error}");
        error
    }};
}

mod accepted;
mod aliases;
mod arranged;
mod assembled;
mod asynchronous;
mod asynchronous_requests;
mod audit;
mod batches;
#[cfg(unix)]
mod cached;
mod commits;
mod convert;
mod dcp;
mod dcp_saves;
mod destinations;
mod digests;
mod editing;
mod experts;
mod files;
mod gathering;
mod hostile;
mod index;
mod layers;
mod loader;
mod long_names;
mod lora;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(unix)]
mod modes;
mod optimizer;
mod overwriting;
mod pieces;
mod progress;
mod properties;
mod quantized;
mod races;
mod ranks;
mod records;
mod rejections;
mod replacing;
mod rewrite;
mod rows;
mod saving;
mod scaled;
mod sharding;
mod slices;
#[cfg(feature = "tracing")]
mod spans;
mod staged;
#[cfg(target_os = "linux")]
mod staged_memory;
mod stores;
mod streaming;
mod support;
mod tied;
mod views;
