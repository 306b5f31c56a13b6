//! Keeps codes of quantised weights from being taken for numbers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::catalog::{Catalog, alias_of};
use super::{DtypePlan, LazyTensor, LoadOptions, read_tensors};
use crate::file::io::ReadAt;
use crate::file::io::hidden::shard_numbers;
use crate::format::error::Result;
use crate::format::header::Metadata;
use crate::format::tensor::TensorBuf;
use crate::weights::{Stored, TensorFacts, Tensors, Weight, may_be_codes};

impl<'a, S: ReadAt> LazyTensor<'a, S> {
    /// Decides the dtype of the tensor in a load.
    ///
    /// # Errors
    ///
    /// As for [`LoadOptions::dtype_plan`]; `ErrorKind::Quantization` for codes that would become
    /// numbers, unless [allowed](LoadOptions::quantized).
    #[doc(hidden)]
    pub fn dtype_plan(&self, options: &LoadOptions) -> Result<DtypePlan> {
        let plan = options.dtype_plan(self.dtype()).map_err(|error| self.locate(error))?;
        let makes_numbers = options.table.is_some() || plan.dtype() != self.dtype();
        if makes_numbers && !options.reads_codes() {
            self.refuse_codes()?;
        }
        Ok(plan)
    }

    /// Fails with `ErrorKind::Quantization` if the elements are codes of a quantised weight, or if
    /// settings next to the checkpoint cannot be read.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView, serialize};
    ///
    /// let codes = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40])?;
    /// let scales = TensorView::from_slice(&[1], &[0.5_f32])?;
    /// let norm = TensorView::from_slice(&[1], &[1.0_f32])?;
    /// let tensors = [("up.weight", codes), ("up.weight_scale", scales), ("norm.weight", norm)];
    /// let bytes = serialize(tensors, &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?;
    /// assert!(checkpoint.tensor("up.weight")?.refuse_codes().is_err());
    /// assert!(checkpoint.tensor("norm.weight")?.refuse_codes().is_ok());
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    #[doc(hidden)]
    pub fn refuse_codes(&self) -> Result<()> {
        match self.weight() {
            Ok(None) => Ok(()),
            Ok(Some(weight)) => Err(self.locate(weight.codes())),
            Err(error) => Err(self.locate(error)),
        }
    }

    /// Returns the weight with its codes in this tensor.
    pub(crate) fn weight(&self) -> Result<Option<Weight>> {
        let Some(catalog) = self.catalog else { return OneFile(*self).weight() };
        if !catalog.may_have_codes() {
            return Ok(None);
        }
        match catalog.position(self.name()) {
            Some(position) => catalog.facts()?.of_tensor(catalog, position),
            None => Ok(None),
        }
    }
}

impl<S: ReadAt> Catalog<S> {
    /// Returns the weights in the order of their codes.
    pub(crate) fn weights(&self) -> Result<Vec<Weight>> {
        if self.may_have_codes() { self.facts()?.weights(self) } else { Ok(Vec::new()) }
    }

    fn facts(&self) -> Result<&TensorFacts> {
        match self.table.facts.get() {
            Some(facts) => Ok(facts),
            None => {
                let facts = TensorFacts::new(self)?;
                Ok(self.table.facts.get_or_init(|| Arc::new(facts)))
            }
        }
    }
}

impl<S> Catalog<S> {
    fn may_have_codes(&self) -> bool {
        let any = || self.tensors().any(|tensor| may_be_codes(tensor.dtype()));
        !self.table.is_plain && *self.table.has_codes.get_or_init(any)
    }
}

fn shard_count(path: &Path) -> Option<usize> {
    let name = path.file_stem()?.to_str()?;
    let numbers = name.match_indices('-').find_map(|(at, _)| shard_numbers(&name[at..]));
    numbers?.1.parse().ok()
}

impl<S: ReadAt> Tensors for Catalog<S> {
    fn count(&self) -> usize {
        self.places().len()
    }

    fn is_part(&self) -> bool {
        let files = self.files();
        files.iter().any(|file| shard_count(file.path()).is_some_and(|count| count > files.len()))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.position(name)
    }

    fn at(&self, position: usize) -> Option<Stored> {
        stored(&self.tensor_at(position)?)
    }

    fn aliases(&self, name: &str) -> Vec<String> {
        self.aliases_of(name).map(str::to_owned).collect()
    }

    fn metadata(&self) -> &Metadata {
        self.metadata()
    }

    fn read(&self, positions: &[usize]) -> Result<Vec<TensorBuf>> {
        let tensors = positions.iter().filter_map(|&position| self.tensor_at(position));
        read_tensors(&tensors.collect::<Vec<_>>(), &LoadOptions::new())
    }

    fn read_beside(&self, name: &str, most: u64) -> Result<Option<(PathBuf, Vec<u8>)>> {
        self.read_beside(name, most)
    }
}

/// A tensor that was opened without a checkpoint, and so without settings.
struct OneFile<'a, S>(LazyTensor<'a, S>);

impl<S: ReadAt> OneFile<'_, S> {
    fn weight(&self) -> Result<Option<Weight>> {
        let archive = self.0.archive;
        // Empty if no tensor may be codes.
        let facts = archive.found(|| {
            let may_be = archive.header().iter().any(|info| may_be_codes(info.dtype()));
            may_be.then(|| TensorFacts::new(self).ok()).flatten()
        });
        match (facts.and_then(Option::as_ref), archive.header().position(self.0.name())) {
            (Some(facts), Some(position)) => facts.of_tensor(self, position),
            _ => Ok(None),
        }
    }
}

impl<S: ReadAt> Tensors for OneFile<'_, S> {
    fn count(&self) -> usize {
        self.0.archive.header().len()
    }

    fn position(&self, name: &str) -> Option<usize> {
        let header = self.0.archive.header();
        let metadata = self.0.archive.metadata();
        let named = |name: &str| header.position(name);
        named(name).or_else(|| alias_of(name, metadata.get(name)?, named))
    }

    fn at(&self, position: usize) -> Option<Stored> {
        let info = self.0.archive.header().tensor_at(position)?;
        stored(&LazyTensor::new(info, self.0.archive, None))
    }

    fn aliases(&self, name: &str) -> Vec<String> {
        let header = self.0.archive.header();
        let aliases = self.0.archive.metadata().iter().filter(|(key, value)| {
            *value == name && alias_of(key, value, |name| header.position(name)).is_some()
        });
        aliases.map(|(key, _)| key.clone()).collect()
    }

    fn metadata(&self) -> &Metadata {
        self.0.archive.metadata()
    }

    fn read(&self, positions: &[usize]) -> Result<Vec<TensorBuf>> {
        let infos = positions.iter().filter_map(|&at| self.0.archive.header().tensor_at(at));
        infos.map(|info| LazyTensor::new(info, self.0.archive, None).read()).collect()
    }
}

fn stored<S>(tensor: &LazyTensor<'_, S>) -> Option<Stored> {
    Stored::new(&tensor.info(), tensor.file_index(), tensor.archive.header().data_start())
}
