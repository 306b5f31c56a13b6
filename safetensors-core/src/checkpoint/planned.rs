//! [`PlannedShards`]: the files of a sharded checkpoint, for places other than a local directory.

use std::io::Write;

use super::save::{ShardPlan, plan};
use super::{FilePattern, ShardOptions};
use crate::error::Result;
use crate::save::write_to;
use crate::tensor::{TensorSource, shape};

/// The files that [`save_sharded`](super::save_sharded) would write, to be written elsewhere: to an
/// object store, an archive, or another machine.
///
/// The bytes are the same as in a directory. The caller decides how the files take their places. A
/// reader finds a whole checkpoint at every moment if the index comes last, and if no file changes
/// that the index in place names.
///
/// ```
/// use safetensors_core::checkpoint::PlannedShards;
/// use safetensors_core::checkpoint::store::MemoryStore;
/// use safetensors_core::{Checkpoint, Limits, ShardOptions, TensorView};
///
/// let values = [1_u8, 2];
/// let tensors = ["a", "b"].map(|name| (name, TensorView::from_slice(&[2], &values).unwrap()));
/// let planned = PlannedShards::new(tensors, &ShardOptions::new().max_shard_size(2.into()))?;
/// let mut store = MemoryStore::new();
/// for (number, name) in planned.files().iter().enumerate() {
///     let mut file = Vec::new();
///     planned.write(number, &mut file)?;
///     store.insert(name, file);
/// }
/// if let Some((name, json)) = planned.index_file()? {
///     store.insert(name, json);
/// }
/// assert_eq!(Checkpoint::open_in(store, "", &Limits::default())?.len(), 2);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PlannedShards<N, S> {
    tensors: Vec<(N, S)>,
    plan: ShardPlan,
    pattern: FilePattern,
}

impl<N: AsRef<str>, S: TensorSource> PlannedShards<N, S> {
    /// Divides tensors into files. No tensor is asked for its bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DuplicateTensor`](crate::ErrorKind::DuplicateTensor);
    /// [`ErrorKind::BadIndex`](crate::ErrorKind::BadIndex) if the index is larger than the default
    /// [`Limits`](crate::Limits) allow; those that [`Tied`](crate::tied::Tied) lists, and the
    /// errors of [`shape::byte_len`](crate::shape::byte_len).
    pub fn new(tensors: impl IntoIterator<Item = (N, S)>, options: &ShardOptions) -> Result<Self> {
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        let plan = plan(&mut tensors, options)?;
        Ok(Self { tensors, plan, pattern: options.pattern().clone() })
    }

    /// The names of the files, in order.
    pub fn files(&self) -> &[String] {
        &self.plan.files
    }

    /// The names of the files, of the index, and of earlier saves' files.
    pub fn pattern(&self) -> &FilePattern {
        &self.pattern
    }

    /// The number of bytes of all tensors.
    pub fn total_size(&self) -> u64 {
        self.plan.split.total_size
    }

    /// The number of bytes of the tensors in a file, without its header; 0 if there is no such
    /// file.
    pub fn data_len(&self, file: usize) -> u64 {
        let sizes = self.shard(file).map(|(_, tensor)| {
            // The plan has computed each of them.
            shape::byte_len(tensor.dtype(), tensor.shape()).unwrap_or(0)
        });
        sizes.sum()
    }

    /// Writes a file front to back. Files can be written in any order, and again.
    ///
    /// # Errors
    ///
    /// The errors of [`write_to`]. The writer has then received a part of the file.
    pub fn write(&self, file: usize, writer: impl Write) -> Result<()> {
        write_to(writer, self.shard(file), &self.plan.each)
    }

    /// The name and the text of the index; `None` if there is only one file.
    ///
    /// # Errors
    ///
    /// None that [`new`](Self::new) does not find.
    pub fn index_file(&self) -> Result<Option<(String, Vec<u8>)>> {
        match self.plan.files.len() {
            0 | 1 => Ok(None),
            _ => Ok(Some((self.pattern.index_name(), self.plan.index.to_json()?))),
        }
    }

    /// The tensors of a file.
    fn shard(&self, file: usize) -> impl Iterator<Item = (&N, &S)> {
        let positions = self.plan.split.shards.get(file).into_iter().flatten();
        positions.map(|&position| (&self.tensors[position].0, &self.tensors[position].1))
    }
}
