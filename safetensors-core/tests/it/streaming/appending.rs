//! Appending values, which must have the tensor's dtype, and bytes.

use std::io::Write;

use half::{bf16, f16};
use safetensors_core::element::{Element, F8E8M0};
use safetensors_core::save::{StreamWriter, TensorWriter};

use crate::support::*;

#[test]
fn values_of_another_dtype_are_refused_and_nothing_is_written() {
    let (_directory, path) = place("model.safetensors");
    let tensors = [("a", Dtype::F32, &[4][..]), ("mask", Dtype::BOOL, &[2])];
    let writer = StreamWriter::create(&path, tensors, &SaveOptions::new()).unwrap();
    let (a, mask) = (writer.tensor("a").unwrap(), writer.tensor("mask").unwrap());
    #[track_caller]
    fn refused<T: Element>(tensor: TensorWriter<'_>, of: (&str, Dtype), values: &[T]) {
        let error = tensor.append(values).unwrap_err();
        let ErrorKind::WrongDtype { expected, found } = error.kind() else {
            unreachable!("{error}")
        };
        assert_eq!((*expected, *found), (of.1, T::DTYPE));
        assert_eq!(error.tensor(), Some(of.0));
        assert!(error.file().is_some());
        assert_eq!(tensor.written(), 0);
    }
    // As many bytes as the tensor has, but of another dtype than F32.
    refused(a, ("a", Dtype::F32), &[1.0_f64, 2.0]);
    refused(a, ("a", Dtype::F32), &[1_i32; 4]);
    refused(a, ("a", Dtype::F32), &[1_u32; 4]);
    refused(a, ("a", Dtype::F32), &[0_u8; 16]);
    refused(a, ("a", Dtype::F32), &[f16::ONE; 8]);
    refused(mask, ("mask", Dtype::BOOL), &[1_u8, 0]);
    refused::<f64>(a, ("a", Dtype::F32), &[]);
    a.append(&[1.0_f32, -2.5]).unwrap();
    a.append::<f32>(&[]).unwrap();
    let error = a.append(&[0.0_f32; 3]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::WrittenPastEnd { expected: 16, found: 20 }),
        "{error}"
    );
    a.append(&[3.0_f32]).unwrap();
    writer.tensor("a").unwrap().write_all(&4.0_f32.to_le_bytes()).unwrap();
    mask.append(&[true, false]).unwrap();
    writer.finish().unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let read = checkpoint.tensor("a").unwrap().read().unwrap();
    assert_eq!(read.into_vec::<f32>().unwrap(), [1.0, -2.5, 3.0, 4.0]);
    let read = checkpoint.tensor("mask").unwrap().read().unwrap();
    assert_eq!(read.into_vec::<bool>().unwrap(), [true, false]);
}

#[test]
fn values_of_every_width_become_little_endian_bytes() {
    let (_directory, path) = place("model.safetensors");
    let tensors = [
        ("u8", Dtype::U8, 3),
        ("e8", Dtype::F8_E8M0, 3),
        ("bf16", Dtype::BF16, 3),
        ("i32", Dtype::I32, 3),
        ("f64", Dtype::F64, 3),
    ]
    .map(|(name, dtype, len)| (name, dtype, [len]));
    let writer = StreamWriter::create(&path, tensors, &SaveOptions::new()).unwrap();
    let tensor = |name| writer.tensor(name).unwrap();
    tensor("u8").append(&[1_u8, 2, 3]).unwrap();
    tensor("e8").append(&[F8E8M0(1), F8E8M0(2), F8E8M0(3)]).unwrap();
    tensor("bf16").append(&[bf16::from_bits(0x0102); 3]).unwrap();
    tensor("i32").append(&[0x0102_0304_i32, -1]).unwrap();
    tensor("i32").append(&[7_i32]).unwrap();
    tensor("f64").append(&[1.5_f64, f64::NAN, -0.0]).unwrap();
    writer.finish().unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let bytes = |name| file_bytes(&checkpoint.tensor(name).unwrap());
    assert_eq!(bytes("u8"), [1, 2, 3]);
    assert_eq!(bytes("e8"), [1, 2, 3]);
    let floats = [1.5_f64, f64::NAN, -0.0].map(f64::to_le_bytes).concat();
    assert_eq!(bytes("bf16"), [2, 1, 2, 1, 2, 1]);
    assert_eq!(bytes("i32"), [4, 3, 2, 1, 255, 255, 255, 255, 7, 0, 0, 0]);
    assert_eq!(bytes("f64"), floats);
}
