//! GGUF files as candle's quantised tensors, compared with candle's own reader.

mod hostile;
mod reader;
mod tensors;

use std::borrow::Cow;
use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Tensor};
use safetensors_candle::gguf::GgufFile;
use safetensors_core::io::Requests;
use safetensors_testing::read_at::NotingSource;

/// A file as candle writes it.
fn written(metadata: &[(&str, &Value)], tensors: &[(&str, &QTensor)]) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    gguf_file::write(&mut bytes, metadata, tensors).unwrap();
    bytes.into_inner()
}

fn open(bytes: &[u8]) -> GgufFile {
    GgufFile::from_source(NotingSource::new(bytes.to_vec()), "model.gguf").unwrap()
}

/// A tensor of numbers, quantised.
fn quantised(dtype: GgmlDType, shape: &[usize]) -> QTensor {
    let values = (0..shape.iter().product::<usize>()).map(|i| (i as f32 * 0.37).sin());
    let tensor = Tensor::from_vec(values.collect(), shape, &Device::Cpu).unwrap();
    QTensor::quantize(&tensor, dtype).unwrap()
}

/// Returns a tensor with blocks of any bytes.
fn of_bytes(dtype: GgmlDType, shape: &[usize]) -> QTensor {
    let len = shape.iter().product::<usize>() / dtype.block_size() * dtype.type_size();
    // An allocation of words, because candle wants its blocks aligned.
    let words: Vec<u32> =
        (0..len.div_ceil(4) as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let bytes = &bytemuck::cast_slice::<u32, u8>(&words)[..len];
    let storage = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, dtype).unwrap();
    QTensor::new(storage, shape).unwrap()
}

/// A tensor as candle's own reader reads it.
fn by_candle(bytes: &[u8], name: &str) -> QTensor {
    let mut reader = Cursor::new(bytes);
    let content = Content::read(&mut reader).unwrap();
    content.tensor(&mut reader, name, &Device::Cpu).unwrap()
}

#[track_caller]
fn assert_same(found: &QTensor, expected: &QTensor) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()));
    assert!(found.data().unwrap() == expected.data().unwrap(), "other blocks: {found:?}");
}

/// A file with calls that wait.
fn far(bytes: Vec<u8>) -> NotingSource {
    NotingSource::far(bytes, Requests::new(128 << 10, 4))
}
