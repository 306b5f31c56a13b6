//! Small files of GGUF, made by hand.

use safetensors_core::Checkpoint;
use safetensors_formats::{Options, TensorFile};

pub(super) const F32: u32 = 0;
pub(super) const F16: u32 = 1;
pub(super) const Q8_0: u32 = 8;
pub(super) const NVFP4: u32 = 40;
pub(super) const Q1_0: u32 = 41;
pub(super) const Q2_0: u32 = 42;
const ALIGNMENT: usize = 32;

/// A file of keys and tensors.
#[derive(Clone, Default)]
pub(super) struct Gguf {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) tensors: Vec<Tensor>,
}

#[derive(Clone)]
pub(super) struct Tensor {
    name: String,
    /// Outermost first.
    shape: Vec<u64>,
    kind: u32,
    data: Vec<u8>,
}

pub(super) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Gguf {
    pub(super) fn with(mut self, name: &str, shape: &[u64], kind: u32, data: &[u8]) -> Self {
        let (name, shape, data) = (name.into(), shape.to_vec(), data.to_vec());
        self.tensors.push(Tensor { name, shape, kind, data });
        self
    }

    pub(super) fn floats(self, name: &str, shape: &[u64], values: &[f32]) -> Self {
        self.with(
            name,
            shape,
            F32,
            &values.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>(),
        )
    }

    /// A key with an array of values of a type.
    pub(super) fn array(mut self, key: &str, kind: u32, values: &[Vec<u8>]) -> Self {
        let head = [9_u32.to_le_bytes(), kind.to_le_bytes()].concat();
        let count = (values.len() as u64).to_le_bytes().to_vec();
        self.keys.push([text(key), head, count, values.concat()].concat());
        self
    }

    /// ComfyUI's key for the shape of a tensor.
    pub(super) fn shaped(self, name: &str, dims: &[i32]) -> Self {
        let dims: Vec<_> = dims.iter().map(|dim| dim.to_le_bytes().to_vec()).collect();
        self.array(&format!("comfy.gguf.orig_shape.{name}"), 5, &dims)
    }

    pub(super) fn number(mut self, key: &str, value: u16) -> Self {
        self.keys
            .push([text(key), 2_u32.to_le_bytes().to_vec(), value.to_le_bytes().into()].concat());
        self
    }

    /// Returns the bytes, with each tensor where `place` puts it: its position and where it would
    /// be.
    pub(super) fn placed(&self, place: impl Fn(usize, u64) -> u64) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        self.keys.iter().for_each(|key| bytes.extend(key));
        let mut at = 0;
        for (i, Tensor { name, shape, kind, data }) in self.tensors.iter().enumerate() {
            bytes.extend(text(name));
            bytes.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|dim| bytes.extend(dim.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(place(i, at).to_le_bytes());
            at += data.len().next_multiple_of(ALIGNMENT) as u64;
        }
        for Tensor { data, .. } in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            bytes.extend(data);
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.placed(|_, at| at)
    }

    pub(super) fn open(&self, options: &Options) -> Checkpoint<TensorFile> {
        let file = TensorFile::from_source(self.bytes(), "a file", options).unwrap();
        Checkpoint::from_source(file, "a file").unwrap()
    }

    pub(super) fn numbers(&self) -> Checkpoint<TensorFile> {
        self.open(&Options::new().dequantize(true))
    }

    /// Why the numbers of a tensor cannot be read, which are not promised either.
    pub(super) fn problem(&self, name: &str) -> String {
        let checkpoint = self.numbers();
        let stored = checkpoint.files()[0].safetensors().source().stored(name).unwrap();
        assert!(!stored.is_readable && !stored.is_quantised, "{name}");
        checkpoint.tensor(name).unwrap().read().unwrap_err().to_string()
    }
}

pub(super) fn names(checkpoint: &Checkpoint<TensorFile>) -> Vec<&str> {
    let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
    names.sort_unstable();
    names
}

pub(super) fn values(checkpoint: &Checkpoint<TensorFile>, name: &str) -> Vec<f32> {
    checkpoint.tensor(name).unwrap().read().unwrap().into_vec().unwrap()
}

/// A block of NVFP4: 64 times 1, or another number.
pub(super) fn nvfp4(code: u8) -> Vec<u8> {
    [&[0x38; 4][..], &[code << 4 | code; 32]].concat()
}

/// A block of Q8_0: 32 numbers from `first` on.
pub(super) fn q8_0(first: u8) -> Vec<u8> {
    [&half::f16::ONE.to_le_bytes()[..], &(first..first + 32).collect::<Vec<_>>()].concat()
}

/// Returns blocks of Q2_0 for `len` numbers: -2, 0, 2 and 4, and so on.
pub(super) fn q2_0(len: usize) -> Vec<u8> {
    [&half::f16::from_f32(2.0).to_le_bytes()[..], &vec![0b1110_0100; len / 4]].concat()
}
