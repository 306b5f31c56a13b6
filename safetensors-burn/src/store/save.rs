//! Saves a module.

use burn_store::ModuleSnapshot;
use safetensors_core::{
    ErrorKind, Result, SaveOptions, ShardOptions, save, save_sharded, serialize,
};

use super::CheckpointStore;
use super::ids::{self, Ids};
use super::pack::{Collected, PackSource, check_adapter, collect};
use super::place::StorePlace;
use super::ties::ties;
use crate::StoreError;

impl CheckpointStore {
    pub(super) fn save_module(&mut self, module: &impl ModuleSnapshot) -> Result<()> {
        self.check_patterns()?;
        if !matches!(self.place, StorePlace::Open(..)) {
            self.catalog = None;
        }
        if let StorePlace::Path(path) = &self.place
            && path.extension().is_some_and(|extension| extension == "json")
        {
            return Err(self.place.locate(StoreError::IndexDestination.into()));
        }
        let collected = self.collect(module);
        let sources = collected.and_then(|collected| self.sources(collected));
        let (sources, options) = sources.map_err(|error| self.place.locate(error))?;
        self.write(sources, options)
    }

    fn write(&mut self, sources: Vec<(String, PackSource)>, options: SaveOptions) -> Result<()> {
        match (&self.place, self.max_shard_size) {
            (StorePlace::Path(path), None) => save(path, sources, &options),
            (StorePlace::Path(path), Some(size)) => {
                let options = ShardOptions::new().max_shard_size(size).save_options(options);
                save_sharded(path, sources, &options).map(drop)
            }
            (StorePlace::Open(..), _) => Err(self.place.locate(StoreError::OnlyLoads.into())),
            (StorePlace::Memory(_), _) => {
                let bytes =
                    serialize(sources, &options).map_err(|error| self.place.locate(error))?;
                self.place = StorePlace::Memory(Some(bytes.into()));
                Ok(())
            }
        }
    }

    fn collect(&self, module: &impl ModuleSnapshot) -> Result<Collected> {
        let adapter = &*self.to_adapter;
        check_adapter(adapter, self.layout)?;
        collect(module, &self.filter, adapter, self.skip_enum_variants, self.layout)
    }

    fn sources(
        &self,
        Collected { mut tensors, found, joined, parts }: Collected,
    ) -> Result<(Vec<(String, PackSource)>, SaveOptions)> {
        let count = tensors.len();
        tensors.extend(joined);
        if tensors.is_empty() && found > 0 {
            return Err(ErrorKind::NothingSelected { found }.into());
        }
        let ties = ties(&tensors)?;
        let names: Vec<_> =
            tensors.iter().map(|(_, tensor)| self.naming.in_file(&tensor.name)).collect();
        let mut options = self.save_options.clone().overwrite(self.overwrite);
        if self.records_ids && !tensors.is_empty() {
            // A tensor of several parameters has no id. Theirs are recorded by path.
            let of_tensors = tensors[..count].iter().map(|(id, _)| id.val());
            let prefix = &self.naming.prefix;
            let of_parts = parts.iter().map(|(path, id)| (format!("{prefix}{path}"), id.val()));
            let names = names.iter().cloned();
            let ids: Ids = names.zip(of_tensors).chain(of_parts).collect();
            options = options.metadata([(ids::KEY, ids::to_json(&ids)?)]);
        }
        let named = names.into_iter().zip(tensors).enumerate();
        let sources = named.map(|(number, (name, (_, tensor)))| {
            Ok((name, PackSource::new(tensor, ties[number])?))
        });
        Ok((sources.collect::<Result<_>>()?, options))
    }
}
