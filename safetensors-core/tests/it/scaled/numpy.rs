//! The same values as those that NumPy computes, bit for bit.

use half::{bf16, f16};
use safetensors_core::element::Element;
use safetensors_core::{Checkpoint, Dtype, TensorBuf};

use super::{dequantize_blocks, fixture};

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
        let bits = |value: &T| bytes_of(value);
        assert!(both_nan || bits(&found) == bits(&expected), "{what}, element {i}");
    }
}

/// The bytes of one element, by way of a tensor.
fn bytes_of<T: Element + Copy>(value: &T) -> Vec<u8> {
    TensorBuf::from_vec(vec![1], vec![*value]).unwrap().bytes().to_vec()
}

fn compare(name: &str, block: [usize; 2]) -> usize {
    let weights = Checkpoint::open(fixture(&format!("{name}.safetensors"))).unwrap();
    let expected = Checkpoint::open(fixture(&format!("{name}-expected.safetensors"))).unwrap();
    let options = dequantize_blocks(block[0], block[1]);
    for expected in expected.tensors() {
        let (weight, dtype) = expected.name().rsplit_once('.').unwrap();
        let (found, expected) = match dtype {
            // F32 is what comes without a request, too.
            "f32" => (weights.read_named([weight], &options).unwrap(), expected.read().unwrap()),
            _ => {
                let options = options.clone().floats_as(expected.dtype());
                (weights.read_named([weight], &options).unwrap(), expected.read().unwrap())
            }
        };
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

#[test]
fn an_f64_is_the_f32_product() {
    let weights = Checkpoint::open(fixture("small.safetensors")).unwrap();
    let read = |dtype| {
        let options = dequantize_blocks(4, 8).floats_as(dtype);
        weights.read_named(["experts"], &options).unwrap().remove(0)
    };
    let (wide, narrow) = (read(Dtype::F64), read(Dtype::F32));
    let wide = wide.as_slice::<f64>().unwrap().iter().map(|&value| value as f32);
    assert!(
        wide.zip(narrow.as_slice::<f32>().unwrap())
            .all(|(wide, narrow)| wide.to_bits() == narrow.to_bits() || narrow.is_nan())
    );
}
