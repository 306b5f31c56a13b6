//! Tensors made in memory: the data of every view and buffer has the length that its dtype and
//! shape need.

use crate::support::*;

#[test]
fn data_of_another_length_is_refused() {
    for (dtype, shape, expected, found) in [
        (Dtype::U8, &[2][..], 2, 1),
        (Dtype::U8, &[2], 2, 3),
        (Dtype::F32, &[], 4, 0),
        (Dtype::F32, &[2, 3], 24, 23),
        (Dtype::F32, &[3, 0], 0, 4),
        (Dtype::F4, &[4], 2, 4),
        (Dtype::C64, &[1], 8, 4),
    ] {
        let error = TensorView::new(dtype, shape, &[0; 64][..found]).unwrap_err();
        let kind =
            ErrorKind::DataLength { dtype, shape: shape.into(), expected, found: found as u64 };
        assert_eq!(format!("{:?}", error.kind()), format!("{kind:?}"));
        let message = error.to_string();
        assert!(
            message.contains(&format!("has {expected} bytes"))
                && message.ends_with(&found.to_string()),
            "{message}"
        );
        assert!(
            TensorView::new(dtype, shape, &[0; 64][..expected as usize]).is_ok(),
            "{dtype} {shape:?}"
        );
    }
}

#[test]
fn values_of_another_count_are_refused() {
    for (shape, values) in [(vec![2], 1), (vec![2], 3), (vec![], 0), (vec![3, 0], 1)] {
        let data = vec![0_i16; values];
        for error in [
            TensorView::from_slice(&shape, &data).unwrap_err(),
            TensorBuf::from_vec(shape.clone(), data.clone()).unwrap_err(),
        ] {
            let found = values as u64 * 2;
            assert!(
                matches!(error.kind(), ErrorKind::DataLength { found: f, .. } if *f == found),
                "{error}"
            );
        }
    }
}

#[test]
fn another_type_than_the_dtype_is_refused() {
    let buf = TensorBuf::from_vec(vec![1], vec![1.0_f32]).unwrap();
    let errors = [
        buf.as_slice::<i32>().unwrap_err(),
        TensorView::new(Dtype::F32, &[1], &[0; 4]).unwrap().as_slice::<i32>().unwrap_err(),
        buf.into_vec::<i32>().unwrap_err(),
    ];
    for error in errors {
        assert!(
            matches!(
                error.kind(),
                ErrorKind::WrongDtype { expected: Dtype::I32, found: Dtype::F32 }
            ),
            "{error}"
        );
        assert_eq!(error.to_string(), "expected dtype I32, found F32");
    }
}

/// Memory and file differ there, and nothing is borrowed.
#[cfg(target_endian = "big")]
#[test]
fn views_of_wide_elements_are_refused_on_big_endian_machines() {
    let buf = TensorBuf::from_vec(vec![1], vec![1.0_f32]).unwrap();
    let view = TensorView::new(Dtype::F32, &[1], &[0, 0, 0x80, 0x3f]).unwrap();
    let one = [1.0_f32];
    for error in [
        buf.view().unwrap_err(),
        TensorView::from_slice(&[1], &one).unwrap_err(),
        view.as_slice::<f32>().unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::BigEndian { dtype: Dtype::F32 }), "{error}");
    }
    assert_eq!(TensorBuf::from_view(&view).unwrap().as_slice::<f32>().unwrap(), one);
    let bytes = TensorBuf::from_vec(vec![2], vec![1_u8, 2]).unwrap();
    assert_eq!(bytes.view().unwrap().as_slice::<u8>().unwrap(), [1, 2]);
}
