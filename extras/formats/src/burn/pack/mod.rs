//! burnpack: see [`Format::Burnpack`](crate::Format::Burnpack). The rules come from the crate
//! `burn-pack` 0.22, and are the same in burn-store 0.20 and 0.21.

mod content;
mod entries;
mod read;
mod write;

use std::fmt::Display;

pub(super) use read::read;
pub use write::Writer;

use crate::error::{Error, ErrorKind};

/// The start of a file: the text, and the only version.
const START: [u8; 6] = *b"NRUB\x01\0";

/// The bytes before the content: the start, and the length of the content as a `u32`.
const HEADER: usize = START.len() + size_of::<u32>();

/// The most tensors that are read from a file, and the most metadata entries and numbers. burn
/// reads half this number of tensors.
const MOST_ENTRIES: usize = 200_000;

/// The alignment of the data and of each tensor.
const ALIGNMENT: u64 = 256;

/// Returns where the data begins, after a content of this length.
fn data_start(content: u64) -> u64 {
    (HEADER as u64 + content).next_multiple_of(ALIGNMENT)
}

/// Returns the error for a broken rule in the bytes up to this one.
fn bad(offset: u64, problem: impl Display) -> Error {
    ErrorKind::BadRecord { offset, problem: problem.to_string() }.into()
}
