//! Checkpoints and deltas for tests, of whole numbers and written byte by byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors_core::{
    Checkpoint, Dtype, LoadOptions, Result, SaveOptions, ShardOptions, TensorView, save,
};
use safetensors_delta::{Chain, Delta, Options, make};
use safetensors_testing::files::files_below;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Tensors by name: dtype, shape, bytes.
pub(crate) type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The name of an index.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The name of the one file of most deltas.
pub(crate) const SHARD: &str = "model-00000-of-00001.safetensors";

/// Returns the default options, without the wait for the disk.
pub(crate) fn quick() -> Options {
    Options::new().durable(false)
}

/// A tensor of bytes.
pub(crate) fn bytes(
    name: &str,
    bytes: impl Into<Vec<u8>>,
) -> (String, (Dtype, Vec<usize>, Vec<u8>)) {
    let bytes = bytes.into();
    (name.into(), (Dtype::U8, vec![bytes.len()], bytes))
}

pub(crate) fn views(tensors: &Tensors) -> impl Iterator<Item = (&str, TensorView<'_>)> {
    tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.as_str(), TensorView::new(*dtype, shape, bytes).unwrap())
    })
}

/// Saves a checkpoint in files of at most `most` bytes.
pub(crate) fn write(directory: &Path, tensors: &Tensors, most: u64) -> Checkpoint {
    let each = SaveOptions::new().durable(false);
    let options = ShardOptions::new().max_shard_size(most.into()).save_options(each);
    safetensors_core::save_sharded(directory, views(tensors), &options).unwrap();
    Checkpoint::open(directory).unwrap()
}

/// Reads all tensors of a checkpoint.
pub(crate) fn read(directory: &Path) -> Tensors {
    let checkpoint = Checkpoint::open(directory).unwrap();
    let read = checkpoint.read_all(&LoadOptions::new()).unwrap();
    let tensors = checkpoint.tensors().zip(read);
    let tensor = tensors.map(|(tensor, buf)| {
        (tensor.name().into(), (tensor.dtype(), tensor.shape().to_vec(), buf.bytes().to_vec()))
    });
    tensor.collect()
}

/// Returns the names and the bytes of all files below a directory, also hidden ones.
pub(crate) fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let below = files_below(directory).into_iter();
    below.map(|(path, bytes)| (directory.join(path), bytes)).collect()
}

/// A directory with a checkpoint `base`, and room for others.
pub(crate) struct Scratch {
    pub(crate) directory: TempDir,
    pub(crate) base: Checkpoint,
}

impl Scratch {
    pub(crate) fn new(tensors: &Tensors) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let base = write(&directory.path().join("base"), tensors, u64::MAX);
        Self { directory, base }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the delta from the base to these tensors.
    pub(crate) fn make(&self, name: &str, new: &Tensors, options: &Options) -> Result<Delta> {
        make(&self.base, views(new), self.path(name), options)
    }

    /// Applies deltas to the base, as `applied`.
    pub(crate) fn apply(&self, deltas: &[&str]) -> Result<Tensors> {
        let deltas: Result<Vec<_>> =
            deltas.iter().map(|name| Delta::open(self.path(name))).collect();
        let applied = self.path("applied");
        Chain::new(deltas?)?.apply(&self.base, &applied, &quick().overwrite(true))?;
        Ok(read(&applied))
    }

    /// Writes a delta of the `base` with these compressed differences, by the specification of the
    /// format alone, without our code. The result's checksums cover `new`.
    pub(crate) fn write_delta(&self, name: &str, parts: &Parts) {
        let directory = self.path(name);
        fs::create_dir_all(&directory).unwrap();
        let tensors: Tensors =
            parts.frames.iter().map(|(name, frame)| bytes(name, frame.clone())).collect();
        let views: Vec<_> = views(&tensors).collect();
        let options = SaveOptions::new().durable(false).metadata(parts.checksums.clone());
        save(directory.join(SHARD), views, &options).unwrap();
        let map: BTreeMap<_, _> = parts.frames.iter().map(|(name, _)| (*name, SHARD)).collect();
        let index = json!({"metadata": parts.metadata, "weight_map": map});
        fs::write(directory.join(INDEX), index.to_string()).unwrap();
    }
}

/// A delta to be written byte by byte.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) metadata: Value,
    pub(crate) frames: Vec<(&'static str, Vec<u8>)>,
    pub(crate) checksums: BTreeMap<String, String>,
}

impl Parts {
    /// A delta with XXH3-128 checksums of the new bytes.
    pub(crate) fn new(encoding: &str, frames: &[(&'static str, &[u8], &[u8])]) -> Self {
        let metadata = json!({
            "version": "000001", "base_version": "000000", "delta_encoding": encoding,
            "compression_format": "zstd", "checksum_format": "xxh3-128"
        });
        let checksum = |new: &[u8]| safetensors_core::digest::Digest::compute(new).to_string();
        Self {
            metadata,
            frames: frames.iter().map(|(name, frame, _)| (*name, frame.to_vec())).collect(),
            checksums: frames
                .iter()
                .map(|(name, _, new)| ((*name).into(), checksum(new)))
                .collect(),
        }
    }
}

/// One frame of zstd.
pub(crate) fn frame(content: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(content, 1).unwrap()
}

/// Returns the content of a frame of a delta.
pub(crate) fn content(delta: &Delta, name: &str) -> Vec<u8> {
    let compressed = delta.tensors().find(|tensor| tensor.name() == name).unwrap().read().unwrap();
    zstd::stream::decode_all(compressed.bytes()).unwrap()
}
