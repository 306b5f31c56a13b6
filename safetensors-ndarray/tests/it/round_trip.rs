//! Arrays that go into tensors and come out of files: types, dimensions, errors that name the tensor
//! and the file. `tests/it/conformance` of the root package has the rules of all libraries.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ndarray::{Array1, Ix1, Ix2, IxDyn, array};
use num_complex::Complex;
use safetensors_core::element::{F4Packed, F8E4M3Fnuz, F8E5M2Fnuz, F8E8M0};
use safetensors_core::framework::Framework;
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, SafeTensors, SaveOptions, TensorBuf, TensorView, serialize,
};
use safetensors_ndarray::{
    ArrayElement, DynArray, Ndarray, ReadArrayExt, WrongNdim, array_source, load,
};
use safetensors_testing::read_at::NotingSource;

use crate::common::{assert_says, place, said};

#[test]
fn arrays_of_every_element_type_come_in_and_go_out() {
    fn check<T: ArrayElement + PartialEq + std::fmt::Debug>(values: [T; 4]) {
        let array = Array1::from(values.to_vec()).into_shape_with_order((2, 2)).unwrap();
        let tensor = DynArray::from(array.clone());
        assert_eq!((tensor.dtype(), tensor.shape()), (T::DTYPE, &[2, 2][..]));
        assert_eq!(tensor.as_array::<T, Ix2>().unwrap(), array);
        assert_eq!(tensor.as_array::<T, IxDyn>().unwrap(), array.clone().into_dyn());

        let file = serialize([("x", &tensor)], &SaveOptions::new()).unwrap();
        let archive = SafeTensors::parse(file).unwrap();
        let read = archive.tensor("x").unwrap();
        assert_eq!(read.read_array::<T, Ix2>().unwrap(), array);
        assert_eq!(read.read_any().unwrap().into_array::<T, IxDyn>().unwrap(), array.into_dyn());
    }
    check([true, false, false, true]);
    check([0_u8, 1, 2, 255]);
    check([0_i8, 1, -1, -128]);
    check([0_u16, 1, 2, u16::MAX]);
    check([0_i16, 1, -1, i16::MIN]);
    check([0_u32, 1, 2, u32::MAX]);
    check([0_i32, 1, -1, i32::MIN]);
    check([0_u64, 1, 2, u64::MAX]);
    check([0_i64, 1, -1, i64::MIN]);
    check([0.0, 1.5, -2.0, f32::INFINITY]);
    check([0.0, 1.5, -2.0, f64::MIN_POSITIVE]);
    check([0.0, 1.5, -2.0, 65504.0].map(f16::from_f32));
    check([0.0, 1.5, -2.0, 1e30].map(bf16::from_f32));
    check([0.0, 1.5, -2.0, 448.0].map(F8E4M3::from_f32));
    check([0.0, 1.5, -2.0, 57344.0].map(F8E5M2::from_f32));
    check([0, 1, 128, 255].map(F8E8M0));
    check([0, 1, 128, 255].map(F8E4M3Fnuz));
    check([0, 1, 128, 255].map(F8E5M2Fnuz));
    check([(0.0, 1.0), (1.5, -2.0), (-0.5, 0.0), (1e30, 3.0)].map(|(re, im)| Complex::new(re, im)));
}

#[test]
fn loaded_elements_are_moved() {
    let buf = TensorBuf::from_vec(vec![2, 3], vec![1.0_f64; 6]).unwrap();
    let memory = buf.bytes().as_ptr();
    let tensor = Ndarray::from_exact(buf, &()).unwrap();
    assert_eq!(tensor.as_array::<f64, IxDyn>().unwrap().as_ptr().cast(), memory);
    let array = tensor.into_array::<f64, Ix2>().unwrap();
    assert_eq!(array.as_ptr().cast(), memory);
}

#[test]
fn the_wrong_type_or_ndim_is_an_error() {
    let tensor = DynArray::from(array![[1_i32, 2], [3, 4]]);
    let ndim = "ndarray: expected 1 dimension, found 2: shape [2, 2]";
    for (error, says) in [
        (tensor.as_array::<u32, Ix2>().unwrap_err(), "expected dtype U32, found I32"),
        (tensor.as_array::<i32, Ix1>().unwrap_err(), ndim),
        (tensor.clone().into_array::<i32, Ix1>().unwrap_err(), ndim),
        (tensor.into_array::<f32, IxDyn>().unwrap_err(), "expected dtype F32, found I32"),
        // A packed tensor cannot be borrowed as an array of any type.
        (packed(&[2], 1).as_array::<u8, IxDyn>().unwrap_err(), "expected dtype U8, found F4"),
    ] {
        assert_says(&error, says);
    }
}

fn packed(shape: &[usize], byte: u8) -> DynArray {
    DynArray::from_buf(TensorBuf::from_vec(shape.to_vec(), vec![F4Packed(byte)]).unwrap()).unwrap()
}

#[test]
fn arrays_with_equal_dtype_shape_and_elements_are_equal() {
    let tensor = DynArray::from(array![[1.0_f32, 2.0], [3.0, 4.0]]);
    let fortran = array![[1.0_f32, 3.0], [2.0, 4.0]].reversed_axes();
    assert_eq!(tensor, DynArray::from(fortran));
    assert_ne!(tensor, DynArray::from(array![[1.0_f64, 2.0], [3.0, 4.0]]));
    assert_ne!(tensor, DynArray::from(array![1.0_f32, 2.0, 3.0, 4.0]));
    assert_ne!(DynArray::from(array![f32::NAN]), DynArray::from(array![f32::NAN]));
    assert_eq!(packed(&[2], 1), packed(&[2], 1));
    assert_ne!(packed(&[2], 1), packed(&[2], 2));
    assert_ne!(packed(&[2], 1), packed(&[1, 2], 1));
}

#[test]
fn reading_one_tensor_names_it_and_its_file_in_errors() {
    let (_dir, path) = place("model.safetensors");
    let vast: &[usize] = &[1 << (usize::BITS - 24), 1 << 23, 0];
    let tensors = [
        ("w", TensorView::new(Dtype::U8, &[2, 2], &[1, 2, 3, 4]).unwrap()),
        ("mask", TensorView::new(Dtype::BOOL, &[2], &[1, 7]).unwrap()),
        ("vast", TensorView::new(Dtype::U8, vast, &[]).unwrap()),
    ];
    safetensors_core::save(&path, tensors, &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let named = |error: &Error, name: &str| {
        assert_eq!((error.tensor(), error.file()), (Some(name), path.to_str()), "{error}");
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
    };

    let weight = checkpoint.tensor("w").unwrap();
    assert_eq!(weight.read_array::<u8, Ix2>().unwrap(), array![[1, 2], [3, 4]]);
    let error = weight.read_array::<i8, Ix2>().unwrap_err();
    assert_says(&error, "expected dtype I8, found U8");
    named(&error, "w");
    let error = weight.read_array::<u8, Ix1>().unwrap_err();
    assert_eq!(said::<WrongNdim>(&error), &WrongNdim { expected: 1, found: vec![2, 2] });
    named(&error, "w");

    let error = checkpoint.tensor("mask").unwrap().read_array::<bool, IxDyn>().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidBool { index: 1, found: 7 }), "{error}");
    named(&error, "mask");

    let vast = checkpoint.tensor("vast").unwrap();
    for error in [vast.read_any().unwrap_err(), vast.read_array::<u8, IxDyn>().unwrap_err()] {
        assert_eq!(said::<ndarray::ShapeError>(&error).kind(), ndarray::ErrorKind::Overflow);
        named(&error, "vast");
    }
    assert!(load(&path).unwrap_err().tensor().is_some());
}

#[test]
fn a_wrong_type_or_ndim_is_reported_before_reading() {
    let file = serialize([("w", array_source(&array![1_u8]))], &SaveOptions::new()).unwrap();
    let archive = SafeTensors::from_source(NotingSource::new(file)).unwrap();
    let reads = || archive.source().take_reads().len();
    reads();
    archive.tensor("w").unwrap().read_array::<f64, Ix1>().unwrap_err();
    archive.tensor("w").unwrap().read_array::<u8, Ix2>().unwrap_err();
    assert_eq!(reads(), 0);
    archive.tensor("w").unwrap().read_array::<u8, Ix1>().unwrap();
    assert!(reads() > 0);
}
