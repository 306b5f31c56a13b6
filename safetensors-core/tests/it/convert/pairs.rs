//! Which pairs of dtypes can be converted, and that the bytes may be misaligned.

use safetensors_core::convert::can_convert;

use super::{POLICIES, convert};
use crate::support::*;

/// Four elements that every dtype can hold: zeros, or 1.0 for the dtype that has no zero.
fn four(dtype: Dtype) -> Vec<u8> {
    vec![if dtype == Dtype::F8_E8M0 { 127 } else { 0 }; dtype.bits() as usize / 2]
}

#[test]
fn all_pairs_are_converted_or_refused() {
    let mut pairs = 0;
    for &from in Dtype::ALL {
        for &to in Dtype::ALL {
            let bytes = four(from);
            match convert(from, to, Overflow::Ieee, &bytes) {
                Ok(buf) => {
                    assert!(can_convert(from, to), "{from} {to}");
                    assert_eq!((buf.dtype(), buf.shape()), (to, &[4][..]));
                    pairs += 1;
                }
                Err(error) => {
                    assert!(!can_convert(from, to), "{from} {to}: {error}");
                    assert_eq!(
                        error.to_string(),
                        format!("there is no conversion from {from} to {to}")
                    );
                    assert!(matches!(error.kind(), ErrorKind::NoConversion { .. }));
                }
            }
        }
    }
    // Twelve floats and nine integers, BOOL included, are converted to eight floats and nine
    // integers. Five dtypes are converted only to themselves.
    assert_eq!(pairs, 21 * 17 + 5);
}

#[test]
fn the_same_dtype_keeps_every_bit() {
    let signalling_nan = 0x7f80_0001_u32.to_le_bytes();
    for overflow in POLICIES {
        let same = convert(Dtype::F32, Dtype::F32, overflow, &signalling_nan).unwrap();
        assert_eq!(file_bytes(&same), signalling_nan);
        let infinity = f32::INFINITY.to_le_bytes();
        let same = convert(Dtype::F32, Dtype::F32, overflow, &infinity).unwrap();
        assert_eq!(file_bytes(&same), infinity);
    }
    let buf = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    let address = buf.bytes().as_ptr();
    assert_eq!(buf.convert(Dtype::F32, &ConvertOptions::new()).unwrap().bytes().as_ptr(), address);
}

#[test]
fn empty_tensors_and_scalars() {
    for &from in Dtype::ALL {
        for &to in Dtype::ALL.iter().filter(|&&to| can_convert(from, to)) {
            let empty = TensorView::new(from, &[3, 0, 2], &[]).unwrap();
            let empty = empty.convert(to, &ConvertOptions::new()).unwrap();
            assert_eq!(
                (empty.dtype(), empty.shape(), empty.bytes()),
                (to, &[3, 0, 2][..], &[][..])
            );
            if from.is_sub_byte() {
                continue;
            }
            let bytes = four(from);
            let scalar = TensorView::new(from, &[], &bytes[..bytes.len() / 4])
                .unwrap()
                .convert(to, &ConvertOptions::new())
                .unwrap();
            assert_eq!((scalar.shape(), scalar.bytes().len()), (&[][..], to.bits() as usize / 8));
        }
    }
}

#[test]
fn bytes_may_be_misaligned() {
    // 4,100 elements, so that whole blocks and a rest are copied to be aligned. Small integers are
    // numbers of every dtype.
    let numbers: Vec<u8> = (0..4_100).map(|i| (i % 2) as u8).collect();
    for &from in Dtype::ALL.iter().filter(|&&from| can_convert(Dtype::U8, from)) {
        let values = file_bytes(&convert(Dtype::U8, from, Overflow::Error, &numbers).unwrap());
        for &to in Dtype::ALL.iter().filter(|&&to| can_convert(from, to)) {
            let expected = convert(from, to, Overflow::Error, &values).unwrap();
            for offset in 1..8 {
                let shifted = [&vec![0; offset], &values[..]].concat();
                for overflow in POLICIES {
                    let found = convert(from, to, overflow, &shifted[offset..]).unwrap();
                    assert_eq!(found.bytes(), expected.bytes(), "{from} {to} {offset}");
                }
            }
        }
    }
}
