//! [`Saving`]: a file that a struct of arrays is written to.

use std::collections::BTreeSet;

use ndarray::{ArrayRef, Dimension};
use safetensors_core::{Error, ErrorKind, Result};

use super::names::{MAX_DEPTH, is_too_deep};
use crate::{ArrayElement, MetadataValue, Ndarray, Writer};

pub(super) const UNITS: &str = "units";

/// A file that a struct is written to.
#[doc(hidden)]
#[derive(Debug)]
pub struct Saving<'w> {
    writer: &'w Writer,
    /// The names of the tensors and entries so far.
    names: BTreeSet<String>,
}

impl<'w> Saving<'w> {
    pub(super) fn new(writer: &'w Writer) -> Self {
        Self { writer, names: BTreeSet::new() }
    }

    pub(super) fn array<T: ArrayElement, D: Dimension>(
        &mut self,
        name: &str,
        array: &ArrayRef<T, D>,
    ) -> Result<()> {
        self.claim(name)?;
        self.writer.add(name, array)
    }

    pub(super) fn entry(&mut self, key: &str, value: impl MetadataValue) -> Result<()> {
        self.claim(key)?;
        self.writer.metadata([(key, value)]);
        Ok(())
    }

    /// Names the axes of an array, if it is there.
    #[doc(hidden)]
    pub fn dimensions(&mut self, name: &str, dimensions: &[&str]) -> Result<()> {
        if self.names.contains(name) { self.writer.dimensions(name, dimensions) } else { Ok(()) }
    }

    /// Gives an array its units, if it is there.
    #[doc(hidden)]
    pub fn units(&mut self, name: &str, units: &str) -> Result<()> {
        if self.names.contains(name) { self.writer.attribute(name, UNITS, units) } else { Ok(()) }
    }

    /// Writes the content of a `Some` or an item, or an empty entry if it writes nothing itself.
    pub(super) fn present(
        &mut self,
        name: &str,
        save: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let before = self.names.len();
        save(self)?;
        if self.names.len() == before { self.entry(name, "") } else { Ok(()) }
    }

    /// Refuses a name that another field has, and one that could not be loaded.
    fn claim(&mut self, name: &str) -> Result<()> {
        if is_too_deep(name) {
            return Err(Error::framework::<Ndarray>(NestedTooDeep).in_tensor(name));
        }
        if !self.names.insert(name.into()) {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(name));
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the name of a field has more than {MAX_DEPTH} dots")]
struct NestedTooDeep;
