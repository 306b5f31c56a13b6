//! The fast path: one entry of a header, in the form in which the format's reference implementation
//! writes it.
//!
//! That form is `"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`: these fields in this
//! order, no white space, no escapes, and numbers of at most 15 digits. What is read here, the
//! general path in `parse.rs` reads to the same result. Whatever is different, right or wrong, is
//! `None`: the general path then reads the entry again from its start. So nothing is refused here,
//! and no error is made here; whether the fields agree with each other is checked after either
//! path.

use alloc::vec::Vec;
use core::ops::Range;

use super::METADATA_KEY;
use super::model::Entry;
use super::scan::{number, plain_len};
use crate::dtype::Dtype;

/// The most dimensions that are read here: more than nearly all tensors have, and fewer than any
/// sensible limit allows.
pub(super) const MAX_RANK: usize = 8;

/// An entry that was read.
pub(super) struct Found {
    /// Where the characters of the name are in the text.
    pub(super) name: Range<usize>,
    pub(super) entry: Entry,
    /// Where the text goes on after the entry.
    pub(super) next: usize,
}

/// Parts of the entry before, as they were written and what they mean. Most entries have the same:
/// their dtype, and their begin is the end of the one before. Comparing is quicker than reading
/// again.
pub(super) struct Before<'a> {
    /// From the end of the name to the first dimension.
    head: (&'a [u8], Dtype),
    /// The digits of the end.
    end: (&'a [u8], u64),
}

impl Default for Before<'_> {
    fn default() -> Self {
        Self { head: (br#"":{"dtype":"F32","shape":["#, Dtype::F32), end: (b"0", 0) }
    }
}

/// Reads the entry at `start` of `text` and adds its dimensions to `dims`; they are there, in part,
/// also for a `None`.
pub(super) fn entry<'a>(
    text: &'a [u8],
    start: usize,
    dims: &mut Vec<usize>,
    before: &mut Before<'a>,
) -> Option<Found> {
    let rest = text.get(start..)?.strip_prefix(b"\"")?;
    let (name, rest) = rest.split_at(plain_len(rest));
    if name == METADATA_KEY.as_bytes() {
        return None;
    }
    let (dtype, mut rest) = match rest.strip_prefix(before.head.0) {
        Some(after) => (before.head.1, after),
        None => {
            let (dtype, after) = head(rest)?;
            before.head = (&rest[..rest.len() - after.len()], dtype);
            (dtype, after)
        }
    };
    let first_dim = dims.len();
    if let Some(after) = rest.strip_prefix(b"]") {
        rest = after;
    } else {
        loop {
            let (dim, after) = number(rest)?;
            dims.push(usize::try_from(dim).ok()?);
            let (&separator, after) = after.split_first()?;
            rest = after;
            match separator {
                b',' if dims.len() - first_dim < MAX_RANK => {}
                b']' => break,
                _ => return None,
            }
        }
    }
    let rest = rest.strip_prefix(br#","data_offsets":["#)?;
    let (begin, rest) = match rest.strip_prefix(before.end.0) {
        // Another digit may follow; then this is None, as for everything but a comma.
        Some(rest) => (before.end.1, rest),
        None => number(rest)?,
    };
    let digits = rest.strip_prefix(b",")?;
    let (end, rest) = number(digits)?;
    before.end = (&digits[..digits.len() - rest.len()], end);
    let rest = rest.strip_prefix(b"]}")?;
    let name = start + 1..start + 1 + name.len();
    let entry = Entry { dtype, shape: first_dim..dims.len(), begin, end };
    Some(Found { name, entry, next: text.len() - rest.len() })
}

/// Reads from the end of a name to the first dimension.
fn head(text: &[u8]) -> Option<(Dtype, &[u8])> {
    let rest = text.strip_prefix(br#"":{"dtype":""#)?;
    let (dtype, rest) = rest.split_at(plain_len(rest));
    Some((Dtype::from_name(dtype)?, rest.strip_prefix(br#"","shape":["#)?))
}
