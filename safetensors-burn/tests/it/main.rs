//! The tests of this package, as one program, because each program takes time to link.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod lent;
#[cfg(target_os = "linux")]
mod memory;
mod moving;
mod pytorch;
mod quantized;
mod store;
mod tensors;
mod tied;
#[cfg(feature = "train")]
mod train;
#[cfg(all(target_os = "linux", feature = "train"))]
mod train_memory;

use burn::module::Module;
use burn::tensor::TensorData;
use safetensors_burn::{ModuleSnapshot, bridge, burn_pack};
use safetensors_core::{Error, ErrorKind};
use safetensors_testing::files::place;
use tempfile::TempDir;

/// Returns all parameters of a module, by path.
fn state(module: &impl Module) -> Vec<(String, TensorData)> {
    let tensors = module.collect(None, None, false);
    tensors.into_iter().map(|tensor| (tensor.name.clone(), data_of(&tensor))).collect()
}

fn data_of(tensor: &burn_pack::Tensor) -> TensorData {
    bridge::to_data(tensor).unwrap()
}

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Returns the typed error inside an [`ErrorKind::Framework`].
fn source<T: std::error::Error + 'static>(error: &Error) -> &T {
    assert!(matches!(error.kind(), ErrorKind::Framework { framework: "burn", .. }), "{error:#?}");
    std::error::Error::source(error).unwrap().downcast_ref().unwrap()
}
