//! burnpack, with the rules of the crate `burn-pack` 0.22, equal in burn-store 0.20 and 0.21.
//! See [`Format::Burnpack`](crate::Format::Burnpack).

mod content;
mod entries;
mod read;
mod write;

use std::fmt::Display;

pub(super) use read::read;
pub use write::Writer;

use crate::error::{Error, ErrorKind};

/// The text, and the only version.
const START: [u8; 6] = *b"NRUB\x01\0";

const HEADER: usize = START.len() + size_of::<u32>();

/// For tensors, metadata and numbers each. burn reads half this number of tensors.
const MOST_ENTRIES: usize = 200_000;

const ALIGNMENT: u64 = 256;

fn data_start(content: u64) -> u64 {
    (HEADER as u64 + content).next_multiple_of(ALIGNMENT)
}

/// `offset`: the end of the bytes that break the rule.
fn bad(offset: u64, problem: impl Display) -> Error {
    ErrorKind::BadRecord { offset, problem: problem.to_string() }.into()
}
