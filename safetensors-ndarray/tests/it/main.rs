//! The tests of this package, as one program, because each program takes time to link.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[cfg(feature = "derive")]
mod derive;
mod killed;
mod labels;
mod layouts;
mod migration;
#[cfg(feature = "npz")]
mod npz;
mod python;
mod quantized;
#[cfg(feature = "rayon")]
mod rayon;
mod round_trip;
mod sharing;
mod slices;
mod views;
mod writer;
