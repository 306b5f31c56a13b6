//! [`Catalog`]: an open checkpoint whose tensors have the names that the module uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use burn::module::ParamId;
use safetensors_core::{
    Checkpoint, Error, ErrorKind, LazyTensor, LoadOptions, ReadAt, Result, TensorBuf,
};

use super::ids::Ids;
use super::names::Naming;
use super::pack::{self, PackTensor};
use super::place::{StorePlace, StoredTensor};

/// An open checkpoint, with its tensors by their renamed names. Headers are parsed only when the
/// catalog is opened.
#[derive(Debug)]
pub(crate) struct Catalog {
    checkpoint: Arc<Checkpoint<Box<dyn ReadAt>>>,
    tensors: BTreeMap<String, PackTensor>,
    /// From the name in the catalog to the name in the file, where the two differ.
    in_file: BTreeMap<String, String>,
    /// The names in the catalog that are aliases: the tensor was saved under another name.
    aliases: BTreeSet<String>,
    /// The ids that were saved, by the names in the file.
    ids: Ids,
    /// What these names begin with.
    prefix: String,
    /// The names in the files of the scales that the options apply to weights.
    applied_scales: BTreeSet<String>,
}

impl Catalog {
    /// Opens the checkpoint. With `with_ids`, tensors have the ids that were saved for them.
    pub(crate) fn open(
        place: &StorePlace,
        naming: &Naming,
        options: &LoadOptions,
        with_ids: bool,
    ) -> Result<Self> {
        let checkpoint = Arc::new(place.open(options)?);
        let ids = if with_ids { Ids::of(checkpoint.metadata()) } else { Ok(Ids::default()) };
        let ids = ids.map_err(|error| place.locate(error))?;
        let mut catalog = Self {
            checkpoint: Arc::clone(&checkpoint),
            tensors: BTreeMap::new(),
            in_file: BTreeMap::new(),
            aliases: BTreeSet::new(),
            ids: Ids::default(),
            prefix: naming.prefix.clone(),
            applied_scales: checkpoint
                .applied_scales(options)
                .into_iter()
                .map(Into::into)
                .collect(),
        };
        let own: Vec<_> = checkpoint.tensors().filter(|it| naming.has(it.name())).collect();
        let others = checkpoint.aliases().filter(|(name, _)| naming.has(name));
        let (others, tied): (Vec<&str>, Vec<_>) = others.unzip();
        let mut names = naming.of_module(own.iter().map(LazyTensor::name).chain(others));
        let aliases = names.split_off(own.len());
        for (tensor, name) in own.iter().zip(names) {
            catalog.add(tensor, name, ids.get(tensor.name()), options)?;
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
                catalog.add(tensor, alias, ids.get(tensor.name()), options)?;
            }
        }
        catalog.ids = ids;
        Ok(catalog)
    }

    /// The id that was saved for a parameter that is a part of a tensor, by its path in the module.
    pub(crate) fn id_of_part(&self, path: &str) -> Option<ParamId> {
        self.ids.get(&format!("{}{path}", self.prefix)).map(ParamId::from)
    }

    /// Adds a tensor under a name.
    fn add(
        &mut self,
        tensor: &StoredTensor<'_>,
        name: String,
        id: Option<u64>,
        options: &LoadOptions,
    ) -> Result<()> {
        let described = pack::of_checkpoint(&self.checkpoint, tensor, name.clone(), id, options);
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

    /// The tensors by the names that the module uses. A tensor that was saved once under several
    /// names is listed under each of them.
    pub(crate) fn tensors(&self) -> &BTreeMap<String, PackTensor> {
        &self.tensors
    }

    /// The names of the tensors that `used` does not mention under any of their names, without the
    /// scales that are applied to weights.
    pub(crate) fn unused(&self, used: &BTreeSet<&str>) -> Vec<String> {
        let used: BTreeSet<_> = used.iter().map(|name| self.name_in_file(name)).collect();
        let own = self.tensors.keys().filter(|name| !self.aliases.contains(*name));
        let is_unused = |name: &&String| {
            let in_file = self.name_in_file(name);
            !used.contains(in_file) && !self.applied_scales.contains(in_file)
        };
        own.filter(is_unused).cloned().collect()
    }

    /// The name that a tensor has in its file.
    fn name_in_file<'a>(&'a self, name: &'a str) -> &'a str {
        self.in_file.get(name).map_or(name, String::as_str)
    }

    /// The tensor of this name in the catalog. Nothing is read yet.
    pub(crate) fn tensor(&self, name: &str) -> Result<StoredTensor<'_>> {
        self.checkpoint.tensor(self.name_in_file(name))
    }

    /// Reads tensors of the checkpoint in parallel, quantised weights with their scales.
    pub(crate) fn read(
        &self,
        tensors: &[StoredTensor<'_>],
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        self.checkpoint.read_named(tensors.iter().map(|tensor| tensor.name()), options)
    }

    /// Adds to an error the file of the tensor of this name.
    pub(crate) fn locate(&self, name: &str, error: Error) -> Error {
        match self.tensor(name) {
            Ok(tensor) => tensor.locate(error),
            Err(_) => error,
        }
    }
}
