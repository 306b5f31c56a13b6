//! Opens files as users do, lists their tensors, and reads small ones.

use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::lora::Adapter;
use safetensors_core::optimizer::PyTorchTraining;
use safetensors_core::{Checkpoint, Limits, ReadAt, Result};
use safetensors_formats::{Options, join, kerchunk, open_files};

/// A tensor of more bytes is not read, and so are all after this many.
const MOST_BYTES: u64 = 4096;
const MOST_TENSORS: usize = 32;

type Opened = std::result::Result<(), String>;

fn shown(result: Result<()>) -> Opened {
    result.map_err(|error| error.to_string())
}

/// Lists the tensors, their other names and the metadata, and reads some.
fn look<S: ReadAt>(checkpoint: &Checkpoint<S>) -> Result<()> {
    let mut listed = 0;
    for tensor in checkpoint.tensors() {
        listed += tensor.name().len() + tensor.shape().len();
    }
    listed +=
        checkpoint.aliases().map(|(alias, kept)| alias.len() + kept.name().len()).sum::<usize>();
    listed += checkpoint.metadata().iter().map(|(key, text)| key.len() + text.len()).sum::<usize>();
    std::hint::black_box(listed);
    let small = checkpoint.tensors().filter(|tensor| tensor.byte_len() <= MOST_BYTES);
    for tensor in small.take(MOST_TENSORS) {
        // Of some types no value is read.
        let _ = tensor.read();
    }
    Ok(())
}

/// A file, an index or a directory of another format.
pub(super) fn foreign(store: MemoryStore, path: &str) -> Opened {
    let open = || -> safetensors_formats::Result<()> {
        let options = Options::new().dequantize(true).optimizer_state(true);
        let files = open_files(store.clone(), path, &options)?;
        let format = files.first().map(|(_, file)| file.format());
        let checkpoint = join(store, format, files)?;
        for file in checkpoint.files() {
            let file = file.safetensors().source();
            std::hint::black_box((file.notes().len(), file.all_stored().len()));
        }
        look(&checkpoint)?;
        let _ = PyTorchTraining::new().parameters(["a", "b"]).state(&checkpoint);
        Ok(())
    };
    open().map_err(|error| error.to_string())
}

/// A safetensors file, or a directory or index of such.
pub(super) fn safetensors(store: MemoryStore, path: &str) -> Opened {
    let checkpoint = Checkpoint::open_in(store, path, &Limits::default());
    shown(checkpoint.and_then(|checkpoint| {
        look(&checkpoint)?;
        checkpoint.audit()?;
        Ok(())
    }))
}

/// A checkpoint with settings of quantised weights.
pub(super) fn quantised(store: MemoryStore, path: &str) -> Opened {
    let checkpoint = Checkpoint::open_in(store, path, &Limits::default());
    shown(checkpoint.and_then(|checkpoint| {
        checkpoint.quantized_weights()?;
        look(&checkpoint.dequantized()?)
    }))
}

/// An adapter, and the checkpoint that it changes.
pub(super) fn adapter(store: MemoryStore, _: &str) -> Opened {
    let merge = || {
        let limits = Limits::default();
        let adapter = Adapter::new(Checkpoint::open_in(store.clone(), "adapter", &limits)?)?;
        std::hint::black_box(adapter.modules().count());
        look(&Checkpoint::open_in(store, "base.safetensors", &limits)?.merged([adapter])?)
    };
    shown(merge())
}

/// A manifest of a safetensors file.
pub(super) fn manifest(store: MemoryStore, path: &str) -> Opened {
    let write = || -> safetensors_formats::Result<()> {
        let checkpoint = Checkpoint::open_in(store, path, &Limits::default())?;
        let text = kerchunk::manifest(&checkpoint, 1 << 20, |_| Ok("s3://bucket/file".into()))?;
        std::hint::black_box(text);
        Ok(())
    };
    write().map_err(|error| error.to_string())
}
