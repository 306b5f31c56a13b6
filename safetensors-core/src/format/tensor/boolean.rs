//! The one check of BOOL elements.

use crate::format::error::ErrorKind;

/// Checks that the bytes of BOOL elements are 0 or 1.
///
/// ```
/// use safetensors_core::ErrorKind;
/// use safetensors_core::framework::check_bools;
///
/// assert!(check_bools(&[0, 1, 1], 0).is_ok());
/// let error = check_bools(&[1, 7], 100).unwrap_err();
/// assert!(matches!(error, ErrorKind::InvalidBool { index: 101, found: 7 }));
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidBool`]; its index counts from `first`.
#[doc(hidden)]
pub fn check_bools(bytes: &[u8], first: u64) -> Result<(), ErrorKind> {
    // Checked without a branch, by vector instructions.
    const AT_ONCE: usize = 4096;

    for (number, bytes) in bytes.chunks(AT_ONCE).enumerate() {
        if bytes.iter().fold(0, |all, &byte| all | byte) > 1
            && let Some((index, found)) = non_bools(bytes).next()
        {
            let index = first + (number * AT_ONCE + index) as u64;
            return Err(ErrorKind::InvalidBool { index, found });
        }
    }
    Ok(())
}

/// Returns bytes with their positions.
pub(crate) fn non_bools(bytes: &[u8]) -> impl Iterator<Item = (usize, u8)> {
    bytes.iter().copied().enumerate().filter(|&(_, byte)| byte > 1)
}

pub(super) fn invalid_bool(bytes: &[u8]) -> ErrorKind {
    check_bools(bytes, 0).err().unwrap_or(ErrorKind::InvalidBool { index: 0, found: 0 })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn the_first_byte_that_is_not_a_boolean_is_reported() {
        for len in [0, 1, 4095, 4096, 4097, 10_000] {
            assert!(check_bools(&vec![1; len], 5).is_ok());
            for at in [0, 1, 4095, 4096, len.saturating_sub(1)].into_iter().filter(|&at| at < len) {
                let mut bytes = vec![0; len];
                bytes[at..].fill(255);
                bytes[at] = 2;
                let error = check_bools(&bytes, 5).unwrap_err();
                let first = at as u64 + 5;
                assert!(
                    matches!(error, ErrorKind::InvalidBool { index, found: 2 } if index == first),
                    "{error}"
                );
                assert_eq!(non_bools(&bytes).count(), len - at);
            }
        }
    }
}
