//! Checkpoints of open files.

use std::collections::HashMap;
use std::path::Path;

use crate::checkpoint::index::Index;
use crate::checkpoint::pieces::{dcp, divided};
use crate::checkpoint::store::Version;
use crate::checkpoint::{CatalogPlace, Checkpoint, CheckpointFile};
use crate::file::io::ReadAt;
use crate::format::error::{Error, ErrorKind, RankProblem, Result};

impl<S: ReadAt> Checkpoint<S> {
    pub(crate) fn from_single(file: CheckpointFile<S>) -> Result<Self> {
        refuse_parts(&file)?;
        Ok(Self::of_file(file))
    }

    pub(crate) fn of_file(file: CheckpointFile<S>) -> Self {
        let places = (0..file.archive.header().len())
            .map(|position| CatalogPlace { file: 0, position })
            .collect();
        Self::assemble(vec![file], places, None)
    }

    pub(crate) fn from_files(files: Vec<CheckpointFile<S>>) -> Result<Self> {
        let mut places = Vec::new();
        let mut owners = HashMap::new();
        for (number, file) in files.iter().enumerate() {
            refuse_parts(file)?;
            for (position, info) in file.archive.header().iter().enumerate() {
                if let Some(other) = owners.insert(info.name(), number) {
                    let other = files[other].path.display().to_string();
                    let error = Error::from(ErrorKind::InTwoFiles { other });
                    return Err(error.in_tensor(info.name()).in_path(&file.path));
                }
                places.push(CatalogPlace { file: number, position });
            }
        }
        drop(owners);
        Ok(Self::assemble(files, places, None))
    }

    /// If two shards contain a tensor, the index decides.
    pub(crate) fn from_shards(
        shards: Vec<CheckpointFile<S>>,
        index: &Index,
        path: &Path,
        version: Option<Version>,
    ) -> Result<Self> {
        let mut places = Vec::new();
        for (file, (shard, names)) in index.shards().enumerate() {
            let mut positions = shards[file].places(shard, names, path)?;
            positions.sort_unstable();
            places.extend(positions.into_iter().map(|position| CatalogPlace { file, position }));
        }
        let mut checkpoint = Self::assemble(shards, places, Some((index, path.into())));
        checkpoint.about.index_version = version;
        Ok(checkpoint)
    }
}

impl<S> CheckpointFile<S> {
    pub(crate) fn places(&self, shard: &str, names: &[String], path: &Path) -> Result<Vec<usize>> {
        let header = self.archive.header();
        let place = |name: &String| {
            header.position(name).ok_or_else(|| {
                let error = Error::from(ErrorKind::NotInShard { shard: shard.to_owned() });
                error.in_tensor(name).in_path(path)
            })
        };
        names.iter().map(place).collect()
    }
}

fn refuse_parts<S>(file: &CheckpointFile<S>) -> Result<()> {
    if !dcp::has_parts(file) && !divided::has_parts(file) {
        return Ok(());
    }
    Err(Error::from(RankProblem::PartsOfTensors).in_path(&file.path))
}
