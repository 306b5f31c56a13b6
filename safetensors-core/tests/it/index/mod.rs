//! Opening a checkpoint by path: files, directories, and index files, which may be hostile.

mod delta;
mod hostile;
mod locate;
mod shards;
#[cfg(unix)]
mod special_files;

use crate::support::*;

/// Writes a file of U8 tensors with one element each.
pub(crate) fn write_shard(directory: &Path, name: &str, tensors: &[(&str, u8)]) -> PathBuf {
    let views = tensors.iter().map(|(name, value)| {
        (name, TensorView::from_slice(&[1], std::slice::from_ref(value)).unwrap())
    });
    write(directory, name, serialize(views, &SaveOptions::new()).unwrap())
}

/// Writes an index that maps each tensor to a file.
pub(crate) fn write_index(directory: &Path, name: &str, weight_map: &[(&str, &str)]) -> PathBuf {
    let weight_map: std::collections::BTreeMap<_, _> = weight_map.iter().copied().collect();
    let index = serde_json::json!({"metadata": {"total_size": 2}, "weight_map": weight_map});
    write(directory, name, index.to_string())
}
