//! The tests of this package, as one program, because each program takes time to link.
#![cfg(feature = "download")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
#[cfg(feature = "remote")]
mod cached;
mod client;
mod commits;
mod download;
mod faults;
mod hostile;
mod local_dir;
mod parts;
mod proxies;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "remote")]
mod remote_hub;
mod resume;
mod server;
mod support;
mod tls;
