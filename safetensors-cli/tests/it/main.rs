//! Tests of the command as a user runs it: arguments, files, both streams, exit codes.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "remote")]
mod addresses;
#[cfg(unix)]
mod browse;
mod completions;
mod convert;
mod convert_gguf;
mod convert_names;
mod convert_npz;
mod convert_others;
mod convert_places;
mod convert_ranks;
mod convert_settings;
mod convert_tied;
mod dcp;
mod delta;
mod delta_follow;
mod delta_outputs;
mod diff;
mod digest;
mod existing;
mod experts;
mod extract;
#[cfg(target_os = "linux")]
mod faults;
mod fits;
mod fixtures;
mod gguf;
#[cfg(target_os = "linux")]
mod guide;
mod hub_cache;
mod inspect;
mod interrupted;
mod lora;
mod manifest;
mod manual;
mod map;
#[cfg(target_os = "linux")]
mod memory;
mod metadata;
mod modelspec;
mod other_formats;
mod page;
#[cfg(unix)]
mod pager;
mod plan;
#[cfg(unix)]
mod pty;
mod quantize;
mod races;
mod scaled;
#[cfg(target_os = "linux")]
mod schemas;
#[cfg(unix)]
mod screens;
mod several;
mod show;
#[cfg(feature = "sign")]
mod sign;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(unix)]
mod small_files;
mod stats;
mod stdin;
mod stored;
mod streams;
#[cfg(unix)]
mod terminal;
mod torn;
mod training;
mod training_epochs;
mod usage;
mod verify;
mod verify_formats;
mod verify_paths;

// The servers of safetensors-hub name their module so.
#[cfg(feature = "remote")]
use addresses::hub_server as server;
