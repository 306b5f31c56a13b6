//! [`Loading`]: makes a struct of arrays from a file that matches.

use std::collections::BTreeMap;
use std::fmt;

use ndarray::{Array, ArrayView, Dimension};
use safetensors_core::{Error, ErrorKind, ReadAt, Result, TensorBuf, TensorView};

use super::Names;
use crate::array::array_from_buf;
use crate::{ArrayElement, InMemory, Reader, ViewArrayExt};

/// A file that a struct is loaded from.
#[doc(hidden)]
#[derive(Debug)]
pub struct Loading<'r> {
    names: Names<'r>,
    tensors: Tensors<'r>,
}

enum Tensors<'r> {
    /// Tensors that have been read, in parallel.
    Read(BTreeMap<String, TensorBuf>),
    /// The bytes of a file in memory.
    InMemory(&'r dyn Lending),
}

/// A reader with files in memory.
trait Lending {
    fn view(&self, name: &str) -> Result<TensorView<'_>>;

    fn read(&self, name: &str) -> Result<TensorBuf>;
}

impl<B: InMemory> Lending for Reader<B> {
    fn view(&self, name: &str) -> Result<TensorView<'_>> {
        self.readable(name)?.view()
    }

    fn read(&self, name: &str) -> Result<TensorBuf> {
        self.readable(name)?.read()
    }
}

impl<'r> Loading<'r> {
    pub(super) fn read<S: ReadAt>(
        reader: &Reader<S>,
        names: Names<'r>,
        arrays: Vec<String>,
    ) -> Result<Self> {
        let bufs = reader.checkpoint().read_named(&arrays, reader.options())?;
        Ok(Self { names, tensors: Tensors::Read(arrays.into_iter().zip(bufs).collect()) })
    }

    pub(super) fn in_memory<B: InMemory>(reader: &'r Reader<B>, names: Names<'r>) -> Self {
        Self { names, tensors: Tensors::InMemory(reader) }
    }

    pub(super) fn names(&self) -> &Names<'r> {
        &self.names
    }

    pub(super) fn array<T: ArrayElement, D: Dimension>(
        &mut self,
        name: &str,
    ) -> Result<Array<T, D>> {
        let buf = match &mut self.tensors {
            Tensors::Read(bufs) => bufs.remove(name).ok_or_else(|| not_found(name)),
            Tensors::InMemory(reader) => reader.read(name),
        };
        buf.and_then(array_from_buf).map_err(|error| self.names.file().locate(name, error))
    }

    /// Borrows an array. Only files in memory are loaded into types that borrow.
    pub(super) fn view<T: ArrayElement, D: Dimension>(
        &self,
        name: &str,
    ) -> Result<ArrayView<'r, T, D>> {
        let view = match self.tensors {
            Tensors::InMemory(reader) => reader.view(name),
            Tensors::Read(_) => Err(not_found(name)),
        };
        view.and_then(|view| view.as_array()).map_err(|error| self.names.file().locate(name, error))
    }
}

fn not_found(name: &str) -> Error {
    Error::from(ErrorKind::TensorNotFound).in_tensor(name)
}

impl fmt::Debug for Tensors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(bufs) => f.debug_tuple("Read").field(bufs).finish(),
            Self::InMemory(_) => f.debug_struct("InMemory").finish_non_exhaustive(),
        }
    }
}
