//! The places of tensors' data, and lengths that the type does not give.

use super::kinds::Type;
use super::listed::Listed;
use crate::error::{Error, ErrorKind, Result};

/// Sorts tensors by their data, from `start` on, and sets places. Fails for a tensor past the end,
/// or overlapping another.
///
/// An unknown type reaches to the next tensor. `Q2_0` has two forms: the room of all tensors
/// decides, or it is unknown.
pub(super) fn locate(
    tensors: &mut [Listed],
    start: u64,
    file_len: u64,
    alignment: u64,
) -> Result<()> {
    tensors.sort_by_key(|tensor| tensor.at);
    let mut end = file_len;
    let mut kinds = Type::Q2_0.to_vec();
    for tensor in tensors.iter_mut().rev() {
        tensor.at = start.saturating_add(tensor.at);
        if tensor.shape.contains(&0) {
            continue;
        }
        let room = end.saturating_sub(tensor.at);
        // Without room it shares bytes with another tensor, or is past the end.
        tensor.byte_len = room.max(1);
        if tensor.kind == Some(Type::Q2_0[0]) {
            kinds.retain(|kind| {
                let len = kind.byte_len(&tensor.shape);
                let padded = len.and_then(|len| len.checked_next_multiple_of(alignment));
                let is_cut = end >= file_len && len > Some(room);
                is_cut || [len, padded].contains(&Some(room))
            });
        }
        end = tensor.at;
    }
    let q2_0 = kinds.pop().filter(|_| kinds.is_empty());
    for tensor in &mut *tensors {
        if tensor.kind == Some(Type::Q2_0[0]) {
            tensor.kind = q2_0;
        }
        let known = tensor.kind.and_then(|kind| kind.byte_len(&tensor.shape));
        tensor.byte_len = known.unwrap_or(tensor.byte_len);
    }
    check(tensors, file_len)
}

fn check(tensors: &[Listed], file_len: u64) -> Result<()> {
    let mut before = (0, "");
    for tensor in tensors.iter().filter(|tensor| tensor.byte_len > 0) {
        let end = tensor.at.saturating_add(tensor.byte_len);
        let kind = if end > file_len {
            ErrorKind::PastEnd { expected: end, found: file_len }
        } else if before.0 > tensor.at {
            ErrorKind::TensorsOverlap { other: before.1.into() }
        } else {
            before = (end, &tensor.name);
            continue;
        };
        return Err(Error::from(kind).in_tensor(&tensor.name));
    }
    Ok(())
}
