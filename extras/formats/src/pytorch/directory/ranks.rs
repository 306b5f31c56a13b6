//! The file `.metadata` of all ranks, or the files `__RANK.metadata` of each.

use std::collections::{HashMap, HashSet};

use super::metadata::{self, Metadata};
use super::{File, Folder, bad, number};
use crate::error::{Error, Result};

pub(super) const METADATA: &str = ".metadata";

pub(super) fn of_metadata(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("__")?.strip_suffix(METADATA)?;
    number(digits)
}

pub(super) fn read(folder: &Folder<'_>) -> Result<(Metadata, Vec<File>)> {
    let read = |name: &str| -> Result<_> {
        let (path, input) = folder.open(name)?;
        let metadata = folder.read(&input, |bytes| metadata::read(bytes, &folder.budget))?;
        Ok((metadata, (path, input)))
    };
    if folder.has(METADATA) {
        let (metadata, file) = read(METADATA)?;
        return Ok((metadata, vec![file]));
    }
    let mut ranks: Vec<_> =
        folder.files.iter().filter_map(|name| of_metadata(name).map(|rank| (rank, name))).collect();
    ranks.sort_unstable();
    if ranks.is_empty() {
        // It is written last.
        return Err(folder.missing(METADATA));
    }
    if let Some(missing) = (0..ranks.len()).find(|&rank| ranks[rank].0 != rank) {
        return Err(folder.missing(format!("__{missing}{METADATA}")));
    }
    let mut all = Metadata::default();
    let mut files = Vec::new();
    // Nothing here shows the step of a file. Other shapes are found, other numbers are not. Of a
    // tensor that several ranks saved whole, the copy of the first rank counts, as for PyTorch.
    let mut merge = Merge::default();
    for (_, name) in ranks {
        let (metadata, file) = read(name)?;
        merge.add(&mut all, metadata).map_err(|error: Error| error.in_file(&file.1.file))?;
        files.push(file);
    }
    Ok((all, files))
}

#[derive(Default)]
struct Merge {
    tensors: HashMap<String, usize>,
    values: HashSet<String>,
    chunks: HashSet<(usize, Vec<usize>, Vec<usize>)>,
}

impl Merge {
    /// A chunk of an earlier rank is a copy of an undivided tensor.
    fn add(&mut self, all: &mut Metadata, more: Metadata) -> Result<()> {
        for mut entry in more.tensors {
            let position = match self.tensors.get(&entry.name) {
                Some(&position) => position,
                None => {
                    self.tensors.insert(entry.name.clone(), all.tensors.len());
                    let chunks = std::mem::take(&mut entry.chunks);
                    all.tensors.push(metadata::TensorEntry { chunks: Vec::new(), ..entry.clone() });
                    entry.chunks = chunks;
                    all.tensors.len() - 1
                }
            };
            let known = &mut all.tensors[position];
            if (known.kind, &known.shape) != (entry.kind, &entry.shape) {
                let problem = format!(
                    "an earlier rank has it as torch.{} of shape {:?}, this one as torch.{} of \
                     shape {:?}; the ranks have not saved the same model",
                    known.kind.name, known.shape, entry.kind.name, entry.shape
                );
                return Err(bad(problem).in_tensor(&entry.name));
            }
            for chunk in entry.chunks {
                if self.chunks.insert((position, chunk.offsets.clone(), chunk.sizes.clone())) {
                    known.chunks.push(chunk);
                }
            }
        }
        let values = more.values.into_iter();
        all.values.extend(values.filter(|value| self.values.insert(value.name.clone())));
        Ok(())
    }
}
