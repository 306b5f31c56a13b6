//! Where the data of tensors is, and how long it is where the type does not tell.

use super::header::Listed;
use super::kinds::Type;
use crate::error::{Error, ErrorKind, Result};

/// Sets the lengths of tensors of unknown types: each reaches to the next tensor. The tensors are
/// in the order of their data, which has `data_len` bytes.
///
/// Two kinds of blocks have the number of `Q2_0`. The room of the tensors decides which of them a
/// file has; if both would fit, or neither, they are not known.
pub(super) fn measure(tensors: &mut [Listed], data_len: u64, alignment: u64) {
    let mut end = data_len;
    let mut fits = [true; 2];
    for tensor in tensors.iter_mut().rev().filter(|tensor| !tensor.shape.contains(&0)) {
        tensor.room = end.saturating_sub(tensor.offset);
        if tensor.kind == Some(Type::Q2_0[0]) {
            for (fits, kind) in fits.iter_mut().zip(Type::Q2_0) {
                let len = kind.byte_len(&tensor.shape);
                let padded = len.and_then(|len| len.checked_next_multiple_of(alignment));
                let is_cut = end >= data_len && len > Some(tensor.room);
                *fits &= is_cut || [len, padded].contains(&Some(tensor.room));
            }
        }
        end = tensor.offset;
    }
    let q2_0 = match fits {
        [true, false] => Some(Type::Q2_0[0]),
        [false, true] => Some(Type::Q2_0[1]),
        _ => None,
    };
    for tensor in tensors {
        if tensor.kind == Some(Type::Q2_0[0]) {
            tensor.kind = q2_0;
        }
        let known = tensor.kind.and_then(|kind| kind.byte_len(&tensor.shape));
        // Without room it shares bytes with another tensor, or is past the end.
        tensor.byte_len = match known {
            Some(len) => len,
            None if tensor.shape.contains(&0) => 0,
            None => tensor.room.max(1),
        };
    }
}

/// Fails if a tensor reaches past the end of the file, or into another.
pub(super) fn check(tensors: &[Listed], start: u64, file_len: u64) -> Result<()> {
    let mut places = Vec::new();
    for tensor in tensors.iter().filter(|tensor| tensor.byte_len > 0) {
        let begin = start.checked_add(tensor.offset);
        let end = begin.and_then(|begin| begin.checked_add(tensor.byte_len));
        match (begin, end.filter(|&end| end <= file_len)) {
            (Some(begin), Some(end)) => places.push((begin, end, &tensor.name)),
            _ => {
                let expected = end.unwrap_or(u64::MAX);
                let kind = ErrorKind::PastEnd { expected, found: file_len };
                return Err(Error::from(kind).in_tensor(&tensor.name));
            }
        }
    }
    places.sort_unstable();
    match places.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => {
            let kind = ErrorKind::TensorsOverlap { other: pair[0].2.clone() };
            Err(Error::from(kind).in_tensor(pair[1].2))
        }
        None => Ok(()),
    }
}
