//! The one place that computes the elements and bytes of a shape.

use crate::format::dtype::Dtype;
use crate::format::error::ErrorKind;

/// Returns the product of the dimensions, 1 for a scalar.
///
/// # Errors
///
/// [`ErrorKind::ShapeOverflow`] if the product of the *non-zero* dimensions does not fit 64 bits,
/// even if another dimension is zero.
pub fn element_count(shape: &[usize]) -> Result<u64, ErrorKind> {
    let (full, is_empty) = non_zero_product(shape)?;
    Ok(if is_empty { 0 } else { full })
}

/// Returns the number of bytes of a tensor in a file.
///
/// # Errors
///
/// [`ErrorKind::ShapeOverflow`]; [`ErrorKind::PartialByte`] if the elements do not fill whole
/// bytes.
#[inline(always)]
pub fn byte_len(dtype: Dtype, shape: &[usize]) -> Result<u64, ErrorKind> {
    let (count, is_empty) = non_zero_product(shape)?;
    let full_bits = u128::from(count) * u128::from(dtype.bits());
    let full = u64::try_from(full_bits / 8).map_err(|_| overflow(shape))?;
    if is_empty {
        return Ok(0);
    }
    if full_bits % 8 != 0 {
        return Err(ErrorKind::PartialByte { dtype, shape: shape.into() });
    }
    Ok(full)
}

/// Returns [`byte_len`] for an allocation, or [`ErrorKind::TooLargeForMemory`].
pub(crate) fn memory_len(dtype: Dtype, shape: &[usize]) -> Result<usize, ErrorKind> {
    let bytes = byte_len(dtype, shape)?;
    usize::try_from(bytes)
        .ok()
        .filter(|&len| isize::try_from(len).is_ok())
        .ok_or_else(|| ErrorKind::TooLargeForMemory { bytes })
}

pub(crate) fn memory_count(shape: &[usize]) -> Result<usize, ErrorKind> {
    memory_len(Dtype::U8, shape)
}

/// Returns the product of the non-zero dimensions, and whether there is a zero.
#[inline]
fn non_zero_product(shape: &[usize]) -> Result<(u64, bool), ErrorKind> {
    let mut product = 1_u64;
    let mut is_empty = false;
    for &dim in shape {
        if dim == 0 {
            is_empty = true;
        } else {
            product = product.checked_mul(dim as u64).ok_or_else(|| overflow(shape))?;
        }
    }
    Ok((product, is_empty))
}

#[cold]
fn overflow(shape: &[usize]) -> ErrorKind {
    ErrorKind::ShapeOverflow { shape: shape.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scalar_has_one_element_and_a_zero_dimension_has_no_bytes() {
        assert_eq!(byte_len(Dtype::F32, &[]).unwrap(), 4);
        assert_eq!(byte_len(Dtype::F32, &[3, 0, 5]).unwrap(), 0);
        assert_eq!(element_count(&[]).unwrap(), 1);
        assert_eq!(element_count(&[0]).unwrap(), 0);
    }

    #[test]
    fn sub_byte_elements_must_fill_whole_bytes() {
        assert_eq!(byte_len(Dtype::F4, &[3, 2]).unwrap(), 3);
        assert_eq!(byte_len(Dtype::F6_E2M3, &[4]).unwrap(), 3);
        assert_eq!(byte_len(Dtype::F4, &[3, 0]).unwrap(), 0);
        for (dtype, shape) in [(Dtype::F4, [3]), (Dtype::F6_E2M3, [2]), (Dtype::F6_E3M2, [1])] {
            assert!(
                matches!(byte_len(dtype, &shape), Err(ErrorKind::PartialByte { .. })),
                "{dtype} {shape:?}"
            );
        }
    }

    #[cfg(all(feature = "std", target_pointer_width = "32"))]
    #[test]
    fn more_elements_than_addresses_are_refused() {
        let error = memory_count(&[1 << 16, 1 << 16]).unwrap_err();
        assert!(matches!(error, ErrorKind::TooLargeForMemory { bytes: 0x1_0000_0000 }), "{error}");
    }

    #[cfg(target_pointer_width = "64")]
    #[test]
    fn overflow_is_reported_despite_a_zero_dimension() {
        let half = 1_usize << 32;
        for shape in [[half, half, 1], [half, half, 0], [0, half, half]] {
            assert!(
                matches!(element_count(&shape), Err(ErrorKind::ShapeOverflow { .. })),
                "{shape:?}"
            );
        }
        assert!(matches!(byte_len(Dtype::F64, &[1 << 61]), Err(ErrorKind::ShapeOverflow { .. })));
        assert!(matches!(
            byte_len(Dtype::F64, &[1 << 61, 0]),
            Err(ErrorKind::ShapeOverflow { .. })
        ));
        assert_eq!(byte_len(Dtype::F4, &[1 << 62]).unwrap(), 1 << 61);
    }
}
