//! [`Prefetched`]: parts that were read before the model asks for them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use candle_core::{DType, Device, Tensor};
use safetensors_core::lock;

/// The name in the file, the positions, and the dtype of a part.
pub(super) type Key = (String, Vec<Range<usize>>, DType);

/// Parts that are handed out once, so that only the model holds them then.
#[derive(Debug, Default)]
pub(super) struct Prefetched(Mutex<HashMap<Key, Tensor>>);

impl Prefetched {
    pub(super) fn insert(&self, parts: impl IntoIterator<Item = (Key, Tensor)>) {
        lock(&self.0).extend(parts);
    }

    pub(super) fn take(&self, key: &Key, device: &Device) -> Option<Tensor> {
        let mut parts = lock(&self.0);
        parts.get(key).filter(|part| part.device().same_device(device))?;
        parts.remove(key)
    }

    pub(super) fn contains(&self, key: &Key, device: &Device) -> bool {
        lock(&self.0).get(key).is_some_and(|part| part.device().same_device(device))
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}
