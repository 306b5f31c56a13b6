//! [`SaveOptions`]: metadata, order, alignment, durability.

use alloc::string::String;

use crate::Metadata;

/// The order in which tensors lie in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By descending alignment of the dtype, then by name: each tensor is naturally aligned, whatever the input's order.
    #[default]
    Alignment,
    /// As given.
    Given,
}

/// How tensors are saved.
///
/// ```
/// use safetensors_core::{Order, SaveOptions};
///
/// let options = SaveOptions::new()
///     .metadata([("format", "pt")])
///     .order(Order::Given)
///     .align(4096);
/// ```
#[derive(Clone, Debug)]
pub struct SaveOptions {
    pub(crate) metadata: Metadata,
    pub(crate) order: Order,
    pub(crate) align: usize,
    pub(crate) durable: bool,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self { metadata: Metadata::new(), order: Order::default(), align: 8, durable: true }
    }
}

impl SaveOptions {
    /// No metadata, order by alignment, data at a multiple of 8, durable.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds entries to the `__metadata__`. Libraries for PyTorch models ask for `format` = `pt`.
    #[must_use]
    pub fn metadata<K: Into<String>, V: Into<String>>(mut self, entries: impl IntoIterator<Item = (K, V)>) -> Self {
        self.metadata.extend(entries.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Sets the order of the tensors in the file.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Starts the data at a multiple of this many bytes: a power of two from 8 to 4096. A page (4096) suits mapping, direct
    /// I/O and reflinks.
    #[must_use]
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// Whether to wait until the file and its name have reached the disk, so that a power cut loses nothing. On by default.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }
}
