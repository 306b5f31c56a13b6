//! Views borrow the file's bytes. If that is impossible, the error says why.

use ndarray::{Ix0, Ix1, Ix2, Ix3, IxDyn, ShapeError, array};
use safetensors_core::{Dtype, ErrorKind, SafeTensors, SaveOptions, TensorView, serialize};
use safetensors_ndarray::{ViewArrayExt, WrongNdim};

use crate::common::{said, shifted};

/// The numbers from 1 to 6 in F32.
const FLOATS: &[u8] = &[
    0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x40, 0x40, 0, 0, 0x80, 0x40, 0, 0, 0xa0, 0x40, 0, 0,
    0xc0, 0x40,
];

fn file() -> Vec<u8> {
    let view = |dtype, shape: &'static [usize], data: &'static [u8]| {
        TensorView::new(dtype, shape, data).unwrap()
    };
    let tensors = [
        ("floats", view(Dtype::F32, &[2, 3], FLOATS)),
        ("codes", view(Dtype::U8, &[2, 3], &[1, 2, 3, 4, 5, 6])),
        ("scalar", view(Dtype::I8, &[], &[0xfe])),
        ("empty", view(Dtype::U64, &[3, 0, 2], &[])),
        ("mask", view(Dtype::BOOL, &[3], &[1, 0, 1])),
        ("bad mask", view(Dtype::BOOL, &[3], &[1, 0, 2])),
        ("vast and empty", view(Dtype::U8, &[1 << (usize::BITS - 24), 1 << 23, 0], &[])),
    ];
    serialize(tensors, &SaveOptions::new()).unwrap()
}

#[test]
fn views_borrow_the_bytes_of_the_file() {
    let archive = SafeTensors::parse(file()).unwrap();
    let view = archive.view("floats").unwrap();
    if cfg!(target_endian = "big") {
        // The bytes are not floats in memory.
        let error = view.as_array::<f32, Ix2>().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BigEndian { dtype: Dtype::F32 }), "{error}");
    } else {
        let array = view.as_array::<f32, Ix2>().unwrap();
        assert_eq!(array, array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
        assert_eq!(array.as_ptr().cast(), view.data().as_ptr());
    }
    let view = archive.view("codes").unwrap();
    let array = view.as_array::<u8, Ix2>().unwrap();
    assert_eq!(array, array![[1, 2, 3], [4, 5, 6]]);
    let lazy = archive.tensor("codes").unwrap().as_array::<u8, IxDyn>().unwrap();
    assert_eq!((lazy.as_ptr(), array.as_ptr()), (array.as_ptr(), view.data().as_ptr()));
    // The view outlives the tensor that lent it.
    let mask = { archive.view("mask").unwrap().as_array::<bool, Ix1>().unwrap() };
    assert_eq!(mask, array![true, false, true]);
    assert_eq!(archive.view("scalar").unwrap().as_array::<i8, Ix0>().unwrap().into_scalar(), &-2);
    let empty = archive.view("empty").unwrap().as_array::<u64, Ix3>().unwrap();
    assert_eq!(empty.shape(), [3, 0, 2]);
}

#[test]
fn an_unsuitable_view_is_an_error_with_the_reason() {
    let archive = SafeTensors::parse(file()).unwrap();
    let error = archive.tensor("floats").unwrap().as_array::<f64, Ix2>().unwrap_err();
    assert_eq!(error.to_string(), r#"tensor "floats": expected dtype F64, found F32"#);
    let error = archive.tensor("codes").unwrap().as_array::<u8, Ix3>().unwrap_err();
    let message = r#"tensor "codes": ndarray: expected 3 dimensions, found 2: shape [2, 3]"#;
    assert_eq!(error.to_string(), message);
    let error = archive.view("scalar").unwrap().as_array::<i8, Ix1>().unwrap_err();
    assert_eq!(said::<WrongNdim>(&error).expected, 1);
    let error = archive.tensor("bad mask").unwrap().as_array::<bool, IxDyn>().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidBool { index: 2, found: 2 }), "{error}");
    assert!(error.to_string().contains("bad mask"), "{error}");
    let error = archive.tensor("vast and empty").unwrap().as_array::<u8, IxDyn>().unwrap_err();
    assert_eq!(said::<ShapeError>(&error).kind(), ndarray::ErrorKind::Overflow);
    assert_eq!(error.tensor(), Some("vast and empty"));
}

#[cfg(target_endian = "little")]
#[test]
fn misaligned_bytes_are_refused() {
    // The data starts at a multiple of 8 in the file, so here it is at an odd address.
    let (words, len) = shifted(&file());
    let archive = SafeTensors::parse(&bytemuck::cast_slice(&words)[1..1 + len]).unwrap();

    let error = archive.tensor("floats").unwrap().as_array::<f32, Ix2>().unwrap_err();
    let ErrorKind::Misaligned { address, .. } = error.kind() else { panic!("{error}") };
    let message = format!(
        "tensor \"floats\": the data is at address {address:#x}, but F32 elements need a \
         multiple of 4: copy it instead"
    );
    assert_eq!(error.to_string(), message);
    // One-byte elements and empty tensors need no alignment.
    assert!(archive.view("mask").unwrap().as_array::<bool, Ix1>().is_ok());
    assert!(archive.view("empty").unwrap().as_array::<u64, Ix3>().is_ok());
}
