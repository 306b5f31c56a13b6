//! Quantised weights as numbers: every scheme equal to its reference implementation, by every way
//! to read; and the errors.

mod arranged;
mod chosen;
mod errors;
mod making;
#[cfg(target_os = "linux")]
mod memory;
mod mutations;
mod reads;
mod references;
mod refusals;
mod rows;

use crate::support::*;

/// Makes a checkpoint with these tensors, and perhaps a `config.json` next to it.
fn checkpoint(config: Option<&str>, tensors: &[(&str, TensorBuf)]) -> (TempDir, Checkpoint) {
    with_metadata(config, tensors, &[])
}

/// Makes a checkpoint with entries in the file's metadata.
fn with_metadata(
    config: Option<&str>,
    tensors: &[(&str, TensorBuf)],
    metadata: &[(&str, &str)],
) -> (TempDir, Checkpoint) {
    let directory = tempdir().unwrap();
    write_config(directory.path(), config);
    let path = directory.path().join("model.safetensors");
    let tensors = tensors.iter().map(|(name, buf)| (*name, buf));
    let options = SaveOptions::new().durable(false).metadata(metadata.iter().copied());
    save(&path, tensors, &options).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    (directory, checkpoint)
}

fn write_config(directory: &Path, config: Option<&str>) {
    if let Some(config) = config {
        let text = format!("{{\"quantization_config\": {config}}}");
        fs::write(directory.join("config.json"), text).unwrap();
    }
}
