//! [`SharedTensors`]: tensors that are handed out more than once share their memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, DeviceLocation, Result, Tensor};
use safetensors_core::lock;

/// Tensors that may be asked for again.
// candle has no weak references, so they keep their memory even if the model has dropped them.
#[derive(Debug, Default)]
pub(super) struct SharedTensors {
    entries: Mutex<HashMap<Key, Arc<Mutex<SharedTensor>>>>,
}

type Key = (usize, DType, DeviceLocation);

/// A tensor, locked while a thread reads it, so that others wait for it and share it.
#[derive(Debug, Default)]
struct SharedTensor {
    tensor: Option<Tensor>,
    asked: Vec<String>,
}

impl SharedTensors {
    /// Returns the tensor that was handed out before, otherwise the one that `read` returns.
    ///
    /// `tied` has the name that is asked for, and the number of names of the tensor, which is kept
    /// until all were asked for. `None` keeps it for good.
    pub(super) fn get(
        &self,
        position: usize,
        tied: Option<(&str, usize)>,
        dtype: DType,
        device: &Device,
        read: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let key = (position, dtype, device.location());
        let cell = lock(&self.entries).entry(key).or_default().clone();
        let mut entry = lock(&cell);
        if tied.is_some_and(|(name, _)| entry.asked.iter().any(|asked| asked == name)) {
            drop(entry);
            return read();
        }
        // Two devices can have one location without being able to share tensors.
        let kept = entry.tensor.as_ref().filter(|tensor| tensor.device().same_device(device));
        let tensor = match kept {
            Some(tensor) => tensor.clone(),
            None => entry.tensor.insert(read()?).clone(),
        };
        if let Some((name, names)) = tied {
            entry.asked.push(name.into());
            if entry.asked.len() >= names {
                lock(&self.entries).remove(&key);
            }
        }
        Ok(tensor)
    }
}
