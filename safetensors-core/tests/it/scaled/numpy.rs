//! Equal values to NumPy's, bit for bit.

use half::{bf16, f16};
use safetensors_core::element::Element;

use super::{fixture, numbers};
use crate::support::*;

/// Compares bits, unless both values are NaN.
fn assert_same<T: Element + Copy + PartialEq>(
    found: &TensorBuf,
    expected: &TensorBuf,
    what: &str,
    is_nan: impl Fn(T) -> bool,
) {
    assert_eq!((found.dtype(), found.shape()), (T::DTYPE, expected.shape()), "{what}");
    let (found, expected) = (found.as_slice::<T>().unwrap(), expected.as_slice::<T>().unwrap());
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let both_nan = is_nan(found) && is_nan(expected);
        let bits = |value: T| TensorBuf::from_vec(vec![1], vec![value]).unwrap().bytes().to_vec();
        assert!(both_nan || bits(found) == bits(expected), "{what}, element {i}");
    }
}

fn compare(name: &str, block: [usize; 2]) -> usize {
    let numbers = numbers(name, block);
    let expected = Checkpoint::open(fixture(&format!("{name}-expected.safetensors"))).unwrap();
    for expected in expected.tensors() {
        let (weight, _) = expected.name().rsplit_once('.').unwrap();
        let options = LoadOptions::new().floats_as(expected.dtype());
        let found = numbers.read_named([weight], &options).unwrap();
        let expected = expected.read().unwrap();
        match expected.dtype() {
            Dtype::F32 => assert_same(&found[0], &expected, weight, f32::is_nan),
            Dtype::BF16 => assert_same(&found[0], &expected, weight, bf16::is_nan),
            _ => assert_same(&found[0], &expected, weight, f16::is_nan),
        }
    }
    expected.len()
}

#[test]
fn blocks_of_128_with_neither_dimension_a_multiple() {
    assert_eq!(compare("large", [128, 128]), 1);
}

#[test]
fn every_kind_of_scales_in_every_dtype() {
    assert_eq!(compare("small", [4, 8]), 3 * 12);
}
