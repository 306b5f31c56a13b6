//! Conversion between dtypes, against an oracle that searches for the nearest value.

mod deciding;
mod floats;
mod integers;
mod oracle;
mod pairs;
mod reading;
mod saving;

use crate::support::*;

const POLICIES: [Overflow; 3] = [Overflow::Ieee, Overflow::Saturate, Overflow::Error];

/// Converts little-endian bytes.
fn convert(from: Dtype, to: Dtype, overflow: Overflow, bytes: &[u8]) -> Result<TensorBuf, Error> {
    let shape = [bytes.len() * 8 / from.bits() as usize];
    TensorView::new(from, &shape, bytes)
        .unwrap()
        .convert(to, &ConvertOptions::new().overflow(overflow))
}

/// Converts values that all fit.
fn converted<T: safetensors_core::element::Element, U: safetensors_core::element::Element>(
    values: Vec<T>,
) -> Vec<U> {
    let buf = TensorBuf::from_vec(vec![values.len()], values).unwrap();
    buf.convert(U::DTYPE, &ConvertOptions::new()).unwrap().into_vec().unwrap()
}

/// The element that an error says does not fit.
fn misfit(error: &Error) -> u64 {
    match error.kind() {
        ErrorKind::DoesNotFit { index, .. } => *index,
        _ => panic!("{error}"),
    }
}
