//! Loading and saving whole files: every dtype bit for bit, shards, errors that name the tensor and
//! the file.

use std::collections::BTreeMap;
use std::fs;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ndarray::{Array0, Array1, ArrayD, Axis, Ix1, Ix2, IxDyn, array};
use num_complex::Complex;
use safetensors_core::element::{F4Packed, F8E4M3Fnuz, F8E5M2Fnuz, F8E8M0};
use safetensors_core::framework::{Framework, Support};
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, LoadOptions, SafeTensors, SaveOptions, TensorBuf,
    TensorView, Widening, serialize,
};
use safetensors_ndarray::{
    ArrayElement, DynArray, Ndarray, Packed, ReadArrayExt, WrongNdim, array_source, load,
    load_with, save,
};
use safetensors_testing::read_at::NotingSource;

/// The error of ndarray, or of this adapter, inside an [`ErrorKind::Framework`].
fn said<T: std::error::Error + 'static>(error: &Error) -> &T {
    match error.kind() {
        ErrorKind::Framework { framework: "ndarray", source } => source.downcast_ref().unwrap(),
        kind => panic!("{kind:?}"),
    }
}

/// A file with tensors of every dtype, of several shapes, filled with all kinds of bits.
fn every_dtype() -> Vec<u8> {
    let mut tensors = Vec::new();
    for &dtype in Dtype::ALL {
        for shape in [&[2, 3, 4][..], &[4], &[0], &[2, 0, 3], &[]] {
            if dtype.is_sub_byte() && shape.is_empty() {
                continue;
            }
            let bytes: usize = shape.iter().product::<usize>() * dtype.bits() as usize / 8;
            let bits = (0..bytes)
                .map(|i| if dtype == Dtype::BOOL { (i % 2) as u8 } else { (i * 89 + 127) as u8 });
            let name = format!("{dtype} {shape:?}");
            tensors.push((
                name,
                TensorBuf::filled_by(dtype, shape.to_vec(), |data| {
                    data.iter_mut().zip(bits).for_each(|(byte, bits)| *byte = bits);
                    Ok(())
                })
                .unwrap(),
            ));
        }
    }
    serialize(tensors, &SaveOptions::new()).unwrap()
}

#[test]
fn every_dtype_loads_and_saves_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) =
        (dir.path().join("first.safetensors"), dir.path().join("second.safetensors"));
    fs::write(&first, every_dtype()).unwrap();

    let tensors = load_with(&first, &LoadOptions::new().widening(Widening::Refuse)).unwrap();
    assert_eq!(tensors.len(), 22 * 5 - 3);
    for (name, tensor) in &tensors {
        assert_eq!(name, &format!("{} {:?}", tensor.dtype(), tensor.shape()));
        assert_eq!(matches!(tensor, DynArray::Packed(_)), tensor.dtype().is_sub_byte(), "{name}");
        assert_eq!(Ndarray::support(tensor.dtype()), Support::Exact);
    }
    save(&second, &tensors, &SaveOptions::new()).unwrap();
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap());
}

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
    let error = tensor.as_array::<u32, Ix2>().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::WrongDtype { expected: Dtype::U32, found: Dtype::I32 }),
        "{error}"
    );
    let error = tensor.clone().into_array::<i32, Ix1>().unwrap_err();
    assert_eq!(said::<WrongNdim>(&error), &WrongNdim { expected: 1, found: vec![2, 2] });
    let error = tensor.into_array::<f32, IxDyn>().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::WrongDtype { expected: Dtype::F32, found: Dtype::I32 }),
        "{error}"
    );
    // A packed tensor cannot be borrowed as an array of any type.
    let packed = DynArray::from(
        Packed::new(TensorBuf::from_vec(vec![2], vec![F4Packed(0x21)]).unwrap()).unwrap(),
    );
    let error = packed.as_array::<u8, IxDyn>().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::WrongDtype { expected: Dtype::U8, found: Dtype::F4 }),
        "{error}"
    );
}

#[test]
fn only_sub_byte_dtypes_are_packed() {
    let bytes = TensorBuf::from_vec(vec![2], vec![1_u8, 2]).unwrap();
    let error = Packed::new(bytes).unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::UnsupportedDtype { framework: "ndarray", dtype: Dtype::U8 }
        ),
        "{error}"
    );
    let packed = |shape: &[usize], byte| {
        Packed::new(TensorBuf::from_vec(shape.to_vec(), vec![F4Packed(byte)]).unwrap()).unwrap()
    };
    assert_eq!(packed(&[2], 1), packed(&[2], 1));
    assert_ne!(packed(&[2], 1), packed(&[2], 2));
    assert_ne!(packed(&[2], 1), packed(&[1, 2], 1));
}

#[test]
fn equality_is_that_of_dtype_shape_and_elements() {
    let tensor = DynArray::from(array![[1.0_f32, 2.0], [3.0, 4.0]]);
    let fortran = array![[1.0_f32, 3.0], [2.0, 4.0]].reversed_axes();
    assert_eq!(tensor, DynArray::from(fortran));
    assert_ne!(tensor, DynArray::from(array![[1.0_f64, 2.0], [3.0, 4.0]]));
    assert_ne!(tensor, DynArray::from(array![1.0_f32, 2.0, 3.0, 4.0]));
    assert_ne!(DynArray::from(array![f32::NAN]), DynArray::from(array![f32::NAN]));
}

#[test]
fn shards_load_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let (left, right) = (array![1_u8, 2], array![[3.0_f32]]);
    let options = SaveOptions::new();
    save(dir.path().join("a.safetensors"), [("left", &DynArray::from(left.clone()))], &options)
        .unwrap();
    save(dir.path().join("b.safetensors"), [("right", &DynArray::from(right.clone()))], &options)
        .unwrap();
    let index =
        r#"{"metadata": {}, "weight_map": {"left": "a.safetensors", "right": "b.safetensors"}}"#;
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();

    let expected =
        BTreeMap::from([("left".into(), left.into()), ("right".into(), DynArray::from(right))]);
    assert_eq!(load(dir.path()).unwrap(), expected);
}

#[test]
fn reading_one_tensor_names_it_and_its_file_in_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
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
    assert!(
        matches!(error.kind(), ErrorKind::WrongDtype { expected: Dtype::I8, found: Dtype::U8 }),
        "{error}"
    );
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
fn a_type_or_ndim_that_does_not_fit_is_found_before_reading() {
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

#[test]
fn loading_fails_with_the_files_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("absent.safetensors");
    let error = load(&path).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    assert_eq!(error.file(), path.to_str());
}

#[test]
fn a_failed_save_names_the_tensor_and_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::write(&path, "old").unwrap();
    let tensor = DynArray::from(array![1_u8]);
    let error = save(&path, [("w", &tensor), ("w", &tensor)], &SaveOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("w"), path.to_str()));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn strided_owned_arrays_save_as_they_look() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut array = ArrayD::from_shape_vec(IxDyn(&[2, 3]), vec![1_i64, 2, 3, 4, 5, 6]).unwrap();
    array.invert_axis(Axis(1));
    array.swap_axes(0, 1);
    let scalar = DynArray::from(Array0::from_elem((), Complex::new(1.0_f32, -1.0)));
    let tensors = BTreeMap::from([
        ("array".to_string(), DynArray::from(array)),
        ("scalar".to_string(), scalar),
    ]);
    save(&path, &tensors, &SaveOptions::new()).unwrap();
    let loaded = load(&path).unwrap();
    assert_eq!(loaded, tensors);
    assert_eq!(loaded["array"].as_array::<i64, Ix2>().unwrap(), array![[3, 6], [2, 5], [1, 4]]);
}
