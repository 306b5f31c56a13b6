//! A file in memory that counts its reads, and a model's tensors in it.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use half::bf16;
use safetensors_candle::CheckpointBackend;
use safetensors_core::{Checkpoint, LoadOptions, ReadAt, SaveOptions, TensorBuf, serialize};

/// The state that the test and the source share.
#[derive(Default)]
pub(crate) struct Shared {
    read: AtomicU64,
    calls: AtomicU64,
    /// Where each tensor is stored.
    places: HashMap<String, Range<u64>>,
    /// Reads that touch these bytes of the file fail.
    broken: Mutex<Vec<Range<u64>>>,
    /// Reads wait while this is true.
    closed: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicU64,
}

/// The source.
pub(crate) struct Spy {
    bytes: Vec<u8>,
    shared: Arc<Shared>,
}

impl ReadAt for Spy {
    fn byte_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let shared = &self.shared;
        shared.calls.fetch_add(1, Ordering::SeqCst);
        let mut closed = shared.closed.lock().unwrap();
        shared.waiting.fetch_add(1, Ordering::SeqCst);
        while *closed {
            closed = shared.opened.wait(closed).unwrap();
        }
        shared.waiting.fetch_sub(1, Ordering::SeqCst);
        drop(closed);
        let end = offset + buf.len() as u64;
        let touched = |broken: &Range<u64>| offset < broken.end && broken.start < end;
        if shared.broken.lock().unwrap().iter().any(touched) {
            return Err(io::Error::other("a bad sector"));
        }
        shared.read.fetch_add(buf.len() as u64, Ordering::SeqCst);
        self.bytes.read_exact_at(buf, offset)
    }
}

impl Shared {
    /// Returns the bytes that were read since the last call.
    pub(crate) fn take_read(&self) -> u64 {
        self.read.swap(0, Ordering::SeqCst)
    }

    /// Returns how many reads there were since the last call.
    pub(crate) fn take_calls(&self) -> u64 {
        self.calls.swap(0, Ordering::SeqCst)
    }

    /// Makes reads of these bytes fail, and no others.
    pub(crate) fn break_bytes(&self, bytes: impl IntoIterator<Item = Range<u64>>) {
        *self.broken.lock().unwrap() = bytes.into_iter().collect();
    }

    /// Makes reads of these tensors fail, and no others.
    pub(crate) fn break_tensors<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        self.break_bytes(names.into_iter().map(|name| self.places[name].clone()));
    }

    /// Makes reads wait from now on.
    pub(crate) fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    /// Lets all reads go on.
    pub(crate) fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    /// Waits until a read waits.
    pub(crate) fn wait_for_a_read(&self) {
        while self.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

/// A backend over these tensors, in this order in the file.
pub(crate) fn backend(
    tensors: &[(String, TensorBuf)],
) -> (CheckpointBackend<'static>, Arc<Shared>) {
    backend_with(tensors, &LoadOptions::new())
}

pub(crate) fn backend_with(
    tensors: &[(String, TensorBuf)],
    options: &LoadOptions,
) -> (CheckpointBackend<'static>, Arc<Shared>) {
    let saved = serialize(tensors.iter().map(|(name, buf)| (name, buf)), &SaveOptions::new());
    let bytes = saved.unwrap();
    let stored = Checkpoint::from_source(&bytes[..], "spied").unwrap();
    let places = stored.tensors().map(|tensor| {
        let start = tensor.file_offset();
        (tensor.name().to_owned(), start..start + tensor.byte_len())
    });
    let shared = Arc::new(Shared { places: places.collect(), ..Shared::default() });
    let source = Spy { bytes, shared: shared.clone() };
    let checkpoint = Checkpoint::from_source(source, "spied").unwrap();
    let backend = CheckpointBackend::new_with(checkpoint, options).unwrap();
    shared.take_read();
    shared.take_calls();
    (backend, shared)
}

/// Returns the values of a tensor: all are exact in BF16, and differ between tensors.
pub(crate) fn values(name: &str, len: usize) -> Vec<f32> {
    let start = name.bytes().fold(0_u32, |sum, byte| sum * 31 % 127 + u32::from(byte) % 127);
    (0..len).map(|i| ((start as usize + i) % 251) as f32).collect()
}

/// A BF16 tensor with [`values`].
pub(crate) fn weight(name: &str, len: usize) -> (String, TensorBuf) {
    let values = values(name, len).into_iter().map(bf16::from_f32).collect();
    (name.to_string(), TensorBuf::from_vec(vec![len], values).unwrap())
}

/// The tensors of a layer in the order in which a model asks for them, with their elements.
pub(crate) const PARTS: [(&str, usize); 6] = [
    ("self_attn.q.weight", 512),
    ("self_attn.k.weight", 256),
    ("self_attn.o.weight", 512),
    ("mlp.up.weight", 1024),
    ("mlp.down.weight", 1024),
    ("norm.weight", 16),
];

/// Returns the names and elements of all tensors of a model, in the order in which it asks for
/// them.
pub(crate) fn model(layers: usize) -> Vec<(String, usize)> {
    let mut names = vec![("model.embed.weight".to_string(), 4096), ("lm_head.weight".into(), 4096)];
    for layer in 0..layers {
        let part = |(part, len): (&str, usize)| (format!("model.layers.{layer}.{part}"), len);
        names.extend(PARTS.map(part));
    }
    names.push(("model.norm.weight".into(), 16));
    names
}

/// Returns the tensors of a model in the order of most files: by name.
pub(crate) fn sorted(model: &[(String, usize)]) -> Vec<(String, TensorBuf)> {
    let mut tensors: Vec<_> = model.iter().map(|(name, len)| weight(name, *len)).collect();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    tensors
}

/// A builder of F32 tensors on the CPU.
pub(crate) fn builder<'a>(backend: &CheckpointBackend<'a>) -> VarBuilder<'a> {
    backend.var_builder(DType::F32, &Device::Cpu)
}

/// Asserts that a tensor has the values of its name.
#[track_caller]
pub(crate) fn assert_values(name: &str, tensor: &Tensor) {
    let found = tensor.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
    assert!(found == values(name, found.len()), "{name} has other values");
}
