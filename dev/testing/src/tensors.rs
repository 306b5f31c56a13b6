//! Tensors to be saved with bytes that a test gives, or does not give.

use safetensors_core::save::Sink;
use safetensors_core::{Dtype, Error, ErrorKind, Result, TensorSource};

/// A tensor of [`Dtype::U8`] and one dimension, with bytes from a function.
#[derive(Clone, Debug)]
pub struct BytesBy<F> {
    shape: [usize; 1],
    write: F,
}

/// A tensor of `len` bytes, which `write` gives. It may also give more or fewer, fail or panic.
pub fn bytes_by<F: Fn(&mut Sink<'_>) -> Result<()> + Sync>(len: usize, write: F) -> BytesBy<F> {
    BytesBy { shape: [len], write }
}

/// Makes a tensor that must not be asked for its bytes.
pub fn unread(len: usize) -> impl TensorSource + Clone {
    bytes_by(len, |_| panic!("the tensor was asked for its bytes"))
}

/// Returns `len` bytes by position. Only the first `period` are computed, and then repeated: without
/// optimisation, millions take seconds.
pub fn repeated(len: usize, period: usize, byte: impl Fn(usize) -> u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..period.min(len)).map(byte).collect();
    bytes = bytes.repeat(len.div_ceil(period));
    bytes.truncate(len);
    bytes
}

/// Returns the bytes of a tensor as a file has them: little-endian on every machine.
pub fn file_bytes(source: &dyn TensorSource) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut sink = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    };
    source.write_to(&mut sink).expect("a tensor in memory");
    bytes
}

/// Returns the error of a source that breaks.
pub fn broken(message: &str) -> Error {
    ErrorKind::Io(std::io::Error::other(message)).into()
}

impl<F: Fn(&mut Sink<'_>) -> Result<()> + Sync> TensorSource for BytesBy<F> {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        (self.write)(sink)
    }
}
