//! [`Catalog`]: an open checkpoint with the names that the module uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use burn::module::ParamId;
use safetensors_core::load::read_tensors;
use safetensors_core::{
    Checkpoint, Error, ErrorKind, LazyTensor, LoadOptions, ReadAt, Result, TensorBuf,
};

use super::ids::{self, Ids};
use super::names::Naming;
use super::pack::{self, PackTensor};
use super::place::{StorePlace, StoredTensor};

#[derive(Debug)]
pub(crate) struct Catalog {
    checkpoint: Arc<Checkpoint<Box<dyn ReadAt>>>,
    tensors: BTreeMap<String, PackTensor>,
    /// Names in the file by names in the catalog, where they differ.
    in_file: BTreeMap<String, String>,
    /// Names under which tied tensors are not saved.
    aliases: BTreeSet<String>,
    /// The saved ids by the names in the file.
    ids: Ids,
    naming: Naming,
    options: LoadOptions,
}

impl Catalog {
    pub(crate) fn open(
        place: &StorePlace,
        naming: Naming,
        options: LoadOptions,
        with_ids: bool,
    ) -> Result<Self> {
        let checkpoint = Arc::new(place.open(&options)?);
        let ids = if with_ids { ids::read(checkpoint.metadata()) } else { Ok(Ids::default()) };
        let ids = ids.map_err(|error| place.locate(error))?;
        let mut catalog = Self {
            checkpoint: Arc::clone(&checkpoint),
            tensors: BTreeMap::new(),
            in_file: BTreeMap::new(),
            aliases: BTreeSet::new(),
            ids: Ids::default(),
            naming: naming.clone(),
            options,
        };
        let own: Vec<_> = checkpoint.tensors().filter(|it| naming.has(it.name())).collect();
        let others = checkpoint.aliases().filter(|(name, _)| naming.has(name));
        let (others, tied): (Vec<&str>, Vec<_>) = others.unzip();
        let mut names = naming.of_module(own.iter().map(LazyTensor::name).chain(others));
        let aliases = names.split_off(own.len());
        for (tensor, name) in own.iter().zip(names) {
            catalog.add(tensor, name, ids.get(tensor.name()).copied())?;
        }
        for (tensor, alias) in tied.iter().zip(aliases) {
            // The rules may turn several names of a tensor into one name. That is no duplicate.
            if !catalog.tensors.contains_key(&alias)
                || catalog.name_in_file(&alias) != tensor.name()
            {
                // The tensor may be listed under this name alone.
                if naming.has(tensor.name()) {
                    catalog.aliases.insert(alias.clone());
                }
                catalog.add(tensor, alias, ids.get(tensor.name()).copied())?;
            }
        }
        catalog.ids = ids;
        Ok(catalog)
    }

    pub(crate) fn id_of_part(&self, path: &str) -> Option<ParamId> {
        self.ids.get(&format!("{}{path}", self.naming.prefix)).copied().map(ParamId::from)
    }

    fn add(&mut self, tensor: &StoredTensor<'_>, name: String, id: Option<u64>) -> Result<()> {
        let described =
            pack::of_checkpoint(&self.checkpoint, tensor, name.clone(), id, &self.options);
        let described = described.map_err(|error| tensor.locate(error))?;
        if name != tensor.name() {
            self.in_file.insert(name.clone(), tensor.name().to_owned());
        }
        if self.tensors.contains_key(&name) {
            // The rules gave one name to two tensors, so the name is ambiguous.
            return Err(tensor.locate(Error::from(ErrorKind::DuplicateTensor).in_tensor(&name)));
        }
        self.tensors.insert(name, described);
        Ok(())
    }

    /// Counts all tensors, with or without the prefix.
    pub(crate) fn len(&self) -> usize {
        self.checkpoint.len()
    }

    pub(crate) fn tensors(&self) -> &BTreeMap<String, PackTensor> {
        &self.tensors
    }

    pub(crate) fn unused(&self, used: &BTreeSet<&str>) -> Vec<String> {
        let used: BTreeSet<_> = used.iter().map(|name| self.name_in_file(name)).collect();
        let own = self.tensors.keys().filter(|name| !self.aliases.contains(*name));
        own.filter(|name| !used.contains(self.name_in_file(name))).cloned().collect()
    }

    pub(crate) fn refused(&self, name: &str) -> Option<Error> {
        let error = self.tensor(name).ok()?.dtype_plan(&self.options).err()?;
        matches!(error.kind(), ErrorKind::Quantization { .. }).then_some(error)
    }

    /// Returns the error for the first of these names that is a quantised weight, stored as tensors
    /// of other names.
    pub(crate) fn stored_otherwise(
        &self,
        missing: &BTreeSet<String>,
        only_refused: bool,
    ) -> Result<Option<Error>> {
        let mut weights = self.checkpoint.quantized_weights()?;
        weights.retain(|weight| self.naming.has(&weight.name));
        // All names together, so that the entries of lists get the numbers that they have here.
        let own = self.checkpoint.tensors().map(|tensor| tensor.name());
        let own: Vec<_> = own.filter(|name| self.naming.has(name)).collect();
        let all = own.iter().copied().chain(weights.iter().map(|weight| &*weight.name));
        let names = self.naming.of_module(all).split_off(own.len());
        for (weight, _) in weights.iter().zip(names).filter(|(_, name)| missing.contains(name)) {
            let codes = weight.tensors.first().and_then(|name| self.checkpoint.get(name));
            let is_refused = codes.is_some_and(|codes| codes.dtype_plan(&self.options).is_err());
            if is_refused || !only_refused {
                return Ok(Some(self.checkpoint.missing(&weight.name)));
            }
        }
        Ok(None)
    }

    fn name_in_file<'a>(&'a self, name: &'a str) -> &'a str {
        self.in_file.get(name).map_or(name, String::as_str)
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<StoredTensor<'_>> {
        self.checkpoint.tensor(self.name_in_file(name))
    }

    pub(crate) fn read(&self, tensors: &[StoredTensor<'_>]) -> Result<Vec<TensorBuf>> {
        read_tensors(tensors, &self.options)
    }

    pub(crate) fn locate(&self, name: &str, error: Error) -> Error {
        match self.tensor(name) {
            Ok(tensor) => tensor.locate(error),
            Err(_) => error,
        }
    }
}
