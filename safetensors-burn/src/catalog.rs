//! [`Catalog`]: an open checkpoint, its tensors under the names that the module knows them by.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use safetensors_core::{Checkpoint, Error, ErrorKind, FileSource, LazyTensor, Result, Widening};

use crate::pack::{self, PackTensor};
use crate::rename::Renames;

/// Headers are parsed when it is opened, and never again.
#[derive(Debug)]
pub(crate) struct Catalog {
    checkpoint: Arc<Checkpoint>,
    tensors: BTreeMap<String, PackTensor>,
    /// The names in the file of the tensors that have another here.
    renamed: BTreeMap<String, String>,
}

impl Catalog {
    pub(crate) fn open(path: &Path, renames: &Renames, widening: Widening) -> Result<Self> {
        let checkpoint = Arc::new(Checkpoint::open(path)?);
        let (mut tensors, mut renamed) = (BTreeMap::new(), BTreeMap::new());
        for tensor in checkpoint.tensors() {
            let name = renames.apply(tensor.name());
            let described = pack::of_checkpoint(&checkpoint, &tensor, name.clone(), widening);
            let described = described.map_err(|error| tensor.locate(error))?;
            if name != tensor.name() {
                renamed.insert(name.clone(), tensor.name().to_owned());
            }
            if tensors.insert(name.clone(), described).is_some() {
                // The rules gave one name to two tensors; which of them is meant, nobody knows.
                return Err(tensor.locate(Error::from(ErrorKind::DuplicateTensor).in_tensor(&name)));
            }
        }
        Ok(Self { checkpoint, tensors, renamed })
    }

    /// The tensors by the names that the module knows.
    pub(crate) fn tensors(&self) -> &BTreeMap<String, PackTensor> {
        &self.tensors
    }

    /// The tensor of this name, to be read.
    pub(crate) fn tensor(&self, name: &str) -> Result<LazyTensor<'_, FileSource>> {
        self.checkpoint.tensor(self.renamed.get(name).map_or(name, String::as_str))
    }

    /// Says in an error which file the tensor of this name lies in.
    pub(crate) fn locate(&self, name: &str, error: Error) -> Error {
        match self.tensor(name) {
            Ok(tensor) => tensor.locate(error),
            Err(_) => error,
        }
    }
}
