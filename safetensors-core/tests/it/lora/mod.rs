//! LoRA adapters: every kind equal to what PEFT makes of it, by every way to read; and the errors.

mod errors;
#[cfg(target_os = "linux")]
mod memory;
mod references;
mod requests;

use std::path::Path;

use safetensors_core::lora::Adapter;
use safetensors_core::{Checkpoint, Result, SaveOptions, TensorBuf, save};

/// A file of F32 tensors with these names and shapes. Their values count up from 1.
fn write(path: &Path, tensors: &[(&str, &[usize])]) {
    let tensors = tensors.iter().map(|(name, shape)| {
        let values = (1..=shape.iter().product::<usize>()).map(|value| value as f32).collect();
        (*name, TensorBuf::from_vec(shape.to_vec(), values).unwrap())
    });
    save(path, tensors.collect::<Vec<_>>(), &SaveOptions::new().durable(false)).unwrap();
}

/// An adapter of these tensors, with these settings beside it.
fn adapter(settings: Option<&str>, tensors: &[(&str, &[usize])]) -> Result<Adapter> {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("adapter_model.safetensors"), tensors);
    if let Some(settings) = settings {
        let json = format!("{{\"peft_type\": \"LORA\"{settings}}}");
        std::fs::write(directory.path().join("adapter_config.json"), json).unwrap();
    }
    // On this system an open file can be read after its directory is gone.
    Adapter::open(directory.path())
}

/// A checkpoint of these tensors.
fn base(tensors: &[(&str, &[usize])]) -> Checkpoint {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    write(&path, tensors);
    Checkpoint::open(&path).unwrap()
}
