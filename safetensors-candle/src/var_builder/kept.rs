//! [`Kept`]: tensors that are handed out more than once share their memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, DeviceLocation, Result, Tensor};

/// Tensors that have been handed out and may be asked for again.
///
/// candle has no weak reference to a tensor. So a tensor that is kept here keeps its memory, also
/// if the model has dropped it. A tied tensor is kept until it has been asked for under all of its
/// names.
#[derive(Debug, Default)]
pub(super) struct Kept {
    entries: Mutex<HashMap<Key, Entry>>,
}

/// The position of a tensor in the checkpoint, and how it was asked for.
type Key = (usize, DType, DeviceLocation);

#[derive(Debug, Default)]
struct Entry {
    /// Locked while a thread reads the tensor, so that others wait for it and share it.
    tensor: Arc<Mutex<Option<Tensor>>>,
    /// The names under which it was asked for.
    asked: Vec<String>,
}

impl Kept {
    /// The tensor that was handed out before for the same position, dtype and device, or else the
    /// one that `read` returns. `names` is how many names the tensor has: it is kept until it was
    /// asked for under all of them, and for good if this is `None`.
    pub(super) fn get(
        &self,
        position: usize,
        name: &str,
        names: Option<usize>,
        (dtype, device): (DType, &Device),
        read: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let cell = self.cell((position, dtype, device.location()), name, names);
        let mut tensor = lock(&cell);
        // Two devices can have one location without being able to share tensors.
        if let Some(tensor) = tensor.as_ref().filter(|tensor| tensor.device().same_device(device)) {
            return Ok(tensor.clone());
        }
        let read = read()?;
        *tensor = Some(read.clone());
        Ok(read)
    }

    /// Forgets all tensors.
    pub(super) fn release(&self) {
        lock(&self.entries).clear();
    }

    fn cell(&self, key: Key, name: &str, names: Option<usize>) -> Arc<Mutex<Option<Tensor>>> {
        let mut entries = lock(&self.entries);
        let entry = entries.entry(key).or_default();
        let cell = entry.tensor.clone();
        if let Some(names) = names {
            if !entry.asked.iter().any(|asked| asked == name) {
                entry.asked.push(name.into());
            }
            if entry.asked.len() >= names {
                entries.remove(&key);
            }
        }
        cell
    }
}

/// Locks, also after a panic in a progress callback: the value is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
