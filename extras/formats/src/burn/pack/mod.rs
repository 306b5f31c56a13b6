//! burnpack: see [`Format::Burnpack`](crate::Format::Burnpack). The rules are those of the crate
//! `burn-pack` 0.22, which are the same in burn-store 0.20 and 0.21.

mod content;
mod entries;
mod read;
mod write;

use std::fmt::Display;

pub(super) use read::read;
pub use write::Writer;

use crate::error::{Error, ErrorKind};

/// What a file begins with: the text, and the version, the only one that there is.
const START: [u8; 6] = *b"NRUB\x01\0";

/// The bytes before the content: the start, and the length of the content as a `u32`.
const HEADER: usize = START.len() + size_of::<u32>();

/// The most tensors that are read of a file, and as many metadata entries and numbers. burn reads
/// half as many tensors.
const MOST_ENTRIES: usize = 200_000;

/// What the data and each tensor begin at a multiple of.
const ALIGNMENT: u64 = 256;

/// Where the data begins, after a content of this length.
fn data_start(content: u64) -> u64 {
    (HEADER as u64 + content).next_multiple_of(ALIGNMENT)
}

/// The error for what the bytes up to this one break.
fn bad(offset: u64, problem: impl Display) -> Error {
    ErrorKind::BadRecord { offset, problem: problem.to_string() }.into()
}
