//! The fast path of the parser: reads one header entry in the form that the format's reference
//! implementation writes.
//!
//! That form is `"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`: these fields in this
//! order, no white space, no escapes, and numbers of at most 15 digits.
//!
//! The fast path returns `None` for any other text, valid or not. The general path in `parse.rs`
//! then reads the entry again from its start. So the fast path never refuses an entry and never
//! makes an error. For every entry that it does read, the general path would give the same result;
//! the tests in `differential.rs` compare the two. Whether the fields agree with each other is
//! checked later, the same way for both paths.

use alloc::vec::Vec;
use core::ops::Range;

use super::METADATA_KEY;
use super::model::ParsedEntry;
use super::scan::{number, plain_len};
use crate::format::dtype::Dtype;

/// The most dimensions that are read here: more than nearly all tensors have, and fewer than any
/// sensible limit allows.
pub(super) const MAX_NDIM: usize = 8;

/// An entry that was read.
pub(super) struct CanonicalEntry {
    /// The byte range of the name in the text, without its quotes.
    pub(super) name: Range<usize>,
    pub(super) entry: ParsedEntry,
    /// The offset of the first byte after the entry.
    pub(super) next: usize,
}

/// Parts of the previous entry: their text, and the values that were read from it.
///
/// Most entries repeat them: they have the same dtype, and they begin where the previous entry
/// ends. Comparing the text with a known one is faster than parsing it again.
pub(super) struct Before<'a> {
    /// The text from the end of the name to the first dimension, and its dtype.
    head: (&'a [u8], Dtype),
    /// The digits of the end offset, and its value.
    end: (&'a [u8], u64),
}

impl Default for Before<'_> {
    fn default() -> Self {
        Self { head: (br#"":{"dtype":"F32","shape":["#, Dtype::F32), end: (b"0", 0) }
    }
}

/// Reads the entry at `start` of `text` and appends its dimensions to `dims`. When it returns
/// `None`, `dims` may hold some dimensions of the entry; the caller removes them.
pub(super) fn entry<'a>(
    text: &'a [u8],
    start: usize,
    dims: &mut Vec<usize>,
    before: &mut Before<'a>,
) -> Option<CanonicalEntry> {
    let rest = text.get(start..)?.strip_prefix(b"\"")?;
    // A name with an escape ends at its backslash here, so that `head` below does not match.
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
                b',' if dims.len() - first_dim < MAX_NDIM => {}
                b']' => break,
                _ => return None,
            }
        }
    }
    let rest = rest.strip_prefix(br#","data_offsets":["#)?;
    let (begin, rest) = match rest.strip_prefix(before.end.0) {
        // The known digits may be only the start of a longer number. Then no comma follows, and the
        // next line returns `None`.
        Some(rest) => (before.end.1, rest),
        None => number(rest)?,
    };
    let digits = rest.strip_prefix(b",")?;
    let (end, rest) = number(digits)?;
    before.end = (&digits[..digits.len() - rest.len()], end);
    let rest = rest.strip_prefix(b"]}")?;
    let name = start + 1..start + 1 + name.len();
    let entry = ParsedEntry { dtype, shape: first_dim..dims.len(), begin, end };
    Some(CanonicalEntry { name, entry, next: text.len() - rest.len() })
}

/// Reads from the end of a name to the first dimension.
fn head(text: &[u8]) -> Option<(Dtype, &[u8])> {
    let rest = text.strip_prefix(br#"":{"dtype":""#)?;
    let (dtype, rest) = rest.split_at(plain_len(rest));
    Some((Dtype::from_name(dtype)?, rest.strip_prefix(br#"","shape":["#)?))
}
