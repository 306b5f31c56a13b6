//! LoRA adapters: every kind equals PEFT's result, by every way to read; and the errors.

mod converted;
mod errors;
mod experts;
#[cfg(target_os = "linux")]
mod memory;
mod names;
mod references;
mod requests;
mod transposed;

use safetensors_core::lora::Adapter;

use crate::support::*;

/// A file of F32 tensors with these names and shapes. Their values count up from 1.
fn write(path: &Path, tensors: &[(&str, &[usize])]) {
    let tensors = tensors.iter().map(|(name, shape)| {
        let values = (1..=shape.iter().product::<usize>()).map(|value| value as f32).collect();
        (*name, TensorBuf::from_vec(shape.to_vec(), values).unwrap())
    });
    save(path, tensors.collect::<Vec<_>>(), &SaveOptions::new().durable(false)).unwrap();
}

/// Makes an adapter of these tensors, with these settings next to it.
fn adapter(settings: Option<&str>, tensors: &[(&str, &[usize])]) -> Result<Adapter> {
    let directory = tempdir().unwrap();
    write(&directory.path().join("adapter_model.safetensors"), tensors);
    if let Some(settings) = settings {
        let json = format!("{{\"peft_type\": \"LORA\"{settings}}}");
        fs::write(directory.path().join("adapter_config.json"), json).unwrap();
    }
    // On this system an open file can be read after its directory is gone.
    Adapter::open(directory.path())
}

/// A checkpoint of these tensors.
fn base(tensors: &[(&str, &[usize])]) -> Checkpoint {
    let (_directory, path) = place("model.safetensors");
    write(&path, tensors);
    Checkpoint::open(&path).unwrap()
}
