//! The fast path of the parser, for entries as the reference implementation writes them.
//!
//! These are `"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`, with the fields in this
//! order, no white space, no escapes, and numbers of at most 15 digits. `parse.rs` reads any other
//! text by the grammar, with the same result, as `differential.rs` checks.

use alloc::vec::Vec;
use core::ops::Range;

use super::METADATA_KEY;
use super::model::ParsedEntry;
use super::scan::{number, plain_len};
use crate::format::dtype::Dtype;

// Enough for nearly all tensors, and below any sensible limit.
pub(super) const MAX_NDIM: usize = 8;

pub(super) struct CanonicalEntry {
    pub(super) name: Range<usize>,
    pub(super) entry: ParsedEntry,
    pub(super) next: usize,
}

/// Texts and values of the previous entry, which the next one mostly repeats: comparing is faster
/// than parsing.
pub(super) struct Before<'a> {
    /// From the end of the name to the first dimension.
    head: (&'a [u8], Dtype),
    end: (&'a [u8], u64),
}

impl Default for Before<'_> {
    fn default() -> Self {
        Self { head: (br#"":{"dtype":"F32","shape":["#, Dtype::F32), end: (b"0", 0) }
    }
}

/// Appends dimensions to `dims`, from which the caller removes them after `None`.
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

/// Reads up to the first dimension.
fn head(text: &[u8]) -> Option<(Dtype, &[u8])> {
    let rest = text.strip_prefix(br#"":{"dtype":""#)?;
    let (dtype, rest) = rest.split_at(plain_len(rest));
    Some((Dtype::from_name(dtype)?, rest.strip_prefix(br#"","shape":["#)?))
}
