//! [`Prefetched`]: parts that were read before the model asks for them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Tensor};

/// Identifies a part: the name in the file, the positions of each dimension, and the dtype.
pub(super) type Key = (String, Vec<Range<usize>>, DType);

/// Parts in memory. Each is handed out once, so that a part is not held twice once the model has
/// it.
#[derive(Debug, Default)]
pub(super) struct Prefetched(Mutex<HashMap<Key, Tensor>>);

impl Prefetched {
    pub(super) fn insert(&self, parts: impl IntoIterator<Item = (Key, Tensor)>) {
        self.lock().extend(parts);
    }

    /// Takes a part out if it lies on this device.
    pub(super) fn take(&self, key: &Key, device: &Device) -> Option<Tensor> {
        let mut parts = self.lock();
        parts.get(key).filter(|part| part.device().same_device(device))?;
        parts.remove(key)
    }

    /// Whether a part is held on this device.
    pub(super) fn contains(&self, key: &Key, device: &Device) -> bool {
        self.lock().get(key).is_some_and(|part| part.device().same_device(device))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Locks the map. It is consistent even if a thread panicked, because each change is one call.
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Tensor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
