//! [`Names`]: the tensors and entries of a file, by name.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Bound;

use safetensors_core::{Dtype, Error, Metadata, ReadAt, Result};

use crate::Reader;

/// The most dots of a name.
// Names of millions of dots would nest a struct that has itself as items until the stack is full.
pub(super) const MAX_DEPTH: usize = 128;

/// Returns the name of a field below its struct, which is empty for the outermost one.
#[doc(hidden)]
pub fn join(name: &str, field: &str) -> String {
    if name.is_empty() { field.into() } else { format!("{name}.{field}") }
}

pub(super) fn item(name: &str, index: usize) -> String {
    format!("{name}.{index}")
}

pub(super) fn is_too_deep(name: &str) -> bool {
    name.bytes().filter(|&byte| byte == b'.').count() > MAX_DEPTH
}

/// The names in a file: of its tensors, and the keys of its metadata.
#[doc(hidden)]
pub struct Names<'r> {
    file: &'r dyn Lookup,
    /// Names of tensors and aliases, sorted.
    arrays: Vec<&'r str>,
    metadata: &'r Metadata,
}

/// A reader with any source of bytes.
pub(super) trait Lookup {
    /// Returns the position of the tensor of this name or alias.
    fn position(&self, name: &str) -> Option<usize>;

    fn describe(&self, position: usize) -> Option<(&str, Dtype, &[usize])>;

    /// Fails if a name is a quantised weight that the reader refuses, or its codes.
    fn refuse_codes(&self, fields: &BTreeSet<String>) -> Result<()>;

    fn locate(&self, name: &str, error: Error) -> Error;

    fn locate_file(&self, error: Error) -> Error;
}

impl<S: ReadAt> Lookup for Reader<S> {
    fn position(&self, name: &str) -> Option<usize> {
        self.checkpoint().position(name)
    }

    fn describe(&self, position: usize) -> Option<(&str, Dtype, &[usize])> {
        let tensor = self.checkpoint().tensor_at(position)?;
        Some((tensor.name(), tensor.dtype(), tensor.shape()))
    }

    fn refuse_codes(&self, fields: &BTreeSet<String>) -> Result<()> {
        let weights = self.checkpoint().quantized_weights()?;
        let names = weights.iter().flat_map(|weight| [Some(&weight.name), weight.tensors.first()]);
        for name in names.flatten().filter(|name| fields.contains(*name)) {
            self.readable(name)?;
        }
        Ok(())
    }

    fn locate(&self, name: &str, error: Error) -> Error {
        match self.checkpoint().get(name) {
            Some(tensor) => tensor.locate(error.in_tensor(name)),
            None => self.locate_file(error.in_tensor(name)),
        }
    }

    fn locate_file(&self, error: Error) -> Error {
        self.checkpoint().in_first_path(error)
    }
}

impl<'r> Names<'r> {
    pub(super) fn new<S: ReadAt>(reader: &'r Reader<S>) -> Self {
        let checkpoint = reader.checkpoint();
        let names = checkpoint.tensors().map(|tensor| tensor.name());
        let mut arrays: Vec<_> = names.chain(checkpoint.aliases().map(|(name, _)| name)).collect();
        arrays.sort_unstable();
        Self { file: reader, arrays, metadata: checkpoint.metadata() }
    }

    pub(super) fn file(&self) -> &'r dyn Lookup {
        self.file
    }

    pub(super) fn has_array(&self, name: &str) -> bool {
        self.file.position(name).is_some()
    }

    /// Returns `true` if there is a tensor of this name or below it.
    pub(super) fn has_arrays(&self, name: &str) -> bool {
        self.has_array(name) || self.has_prefix(&format!("{name}."))
    }

    fn has_prefix(&self, prefix: &str) -> bool {
        let first = self.arrays.partition_point(|array| *array < prefix);
        self.arrays.get(first).is_some_and(|array| array.starts_with(prefix))
    }

    pub(super) fn metadata(&self) -> &'r Metadata {
        self.metadata
    }

    pub(super) fn entry(&self, key: &str) -> Option<&'r str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Returns `true` for a tensor or an entry below the name, or the entry of an empty struct.
    #[doc(hidden)]
    pub fn has_struct(&self, name: &str) -> bool {
        if is_too_deep(name) {
            return false;
        }
        let below = format!("{name}.");
        let entries = (Bound::Included(below.as_str()), Bound::Unbounded);
        self.has_prefix(&below)
            || self
                .metadata
                .range::<str, _>(entries)
                .next()
                .is_some_and(|(key, _)| key.starts_with(&below))
            || self.is_marked(name)
    }

    /// Returns `true` for the entry of a value that writes nothing itself.
    pub(super) fn is_marked(&self, name: &str) -> bool {
        self.entry(name) == Some("")
    }

    /// Counts the items of a `Vec` one by one: an index in a name is never trusted as a length.
    pub(super) fn items(&self, name: &str, is_in: impl Fn(&str, &Self) -> bool) -> usize {
        if is_too_deep(name) {
            return 0;
        }
        let names = (0..).map(|index| item(name, index));
        names.take_while(|item| is_in(item, self) || self.is_marked(item)).count()
    }
}

impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("arrays", &self.arrays).finish_non_exhaustive()
    }
}
