//! Rewriting checkpoints: merging, selecting, renaming, casting and sharding again, in bounded
//! memory.

mod added;
mod contents;
#[cfg(target_os = "linux")]
mod memory;
mod planning;
mod tied;

use crate::support::*;

pub(crate) fn floats(values: impl IntoIterator<Item = f32>) -> TensorBuf {
    let values: Vec<f32> = values.into_iter().collect();
    TensorBuf::from_vec(vec![values.len()], values).unwrap()
}

pub(crate) fn saved(
    dir: &TempDir,
    name: &str,
    tensors: &[(&str, TensorBuf)],
    metadata: &[(&str, &str)],
) -> PathBuf {
    let path = dir.path().join(name);
    let options = SaveOptions::new().metadata(metadata.iter().copied());
    save(&path, tensors.iter().map(|(name, buf)| (name, buf)), &options).unwrap();
    path
}

pub(crate) type Tensors = Vec<(String, Dtype, Vec<u8>)>;
pub(crate) type Aliases = Vec<(String, String)>;

/// The name, dtype and bytes of every tensor, and each alias with the name of its tensor.
pub(crate) fn content(path: &Path) -> (Tensors, Aliases) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let mut tensors: Vec<_> = checkpoint
        .tensors()
        .map(|tensor| {
            (tensor.name().to_owned(), tensor.dtype(), file_bytes(&tensor.read().unwrap()))
        })
        .collect();
    tensors.sort();
    let aliases = checkpoint
        .aliases()
        .map(|(alias, tensor)| (alias.to_owned(), tensor.name().to_owned()))
        .collect();
    (tensors, aliases)
}
