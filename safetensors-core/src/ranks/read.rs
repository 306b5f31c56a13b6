//! [`RankPlan::read`]: reads all parts of a rank.

use super::plan::RankPlan;
use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::file::load::LoadOptions;
#[cfg(doc)]
use crate::format::error::ErrorKind;
use crate::format::error::Result;
use crate::format::slice::TensorPart;
use crate::format::tensor::TensorBuf;

impl RankPlan {
    /// Reads the parts that a rank holds, in parallel, in the order of the plan's
    /// [`tensors`](RankPlan::tensors), with gaps of at most 512 bytes between them. Each rank
    /// begins at another place.
    ///
    /// ```
    /// use safetensors_core::ranks::{Rank, RankRules, RankSaver};
    /// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, ShardOptions, TensorView, save};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model");
    /// # std::fs::create_dir(&path)?;
    /// # let weight = TensorView::from_slice(&[4, 2], &[0.5_f32; 8])?;
    /// # let file = path.join("model.safetensors");
    /// # save(file, [("layers.0.mlp.up_proj.weight", weight)], &SaveOptions::new())?;
    /// # let trained = dir.path().join("trained");
    /// let rank = Rank::from_env()?.unwrap_or_default();
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let plan = RankRules::llama().plan(&checkpoint, rank.world_size())?;
    /// let parts = plan.read(&checkpoint, rank.rank(), &LoadOptions::new())?;
    ///
    /// // … training …
    /// let named = plan.tensors().zip(&parts).map(|(tensor, part)| (tensor.name(), part));
    /// let saver = RankSaver::new(&plan, rank.rank(), "step-1000");
    /// saver.save(&trained, named, &ShardOptions::new())?;
    /// // As whole tensors, for any number of ranks.
    /// let trained = Checkpoint::open(&trained)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Before data is read, [`ErrorKind::NoSuchRank`], and [`ErrorKind::Mismatches`] if the
    /// checkpoint's tensors differ from the plan's. Otherwise as for [`Checkpoint::read_parts`].
    pub fn read<S: ReadAt>(
        &self,
        checkpoint: &Checkpoint<S>,
        rank: usize,
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        self.check_rank(rank)?;
        let found = checkpoint.tensors();
        self.check_tensors(found.map(|found| (found.name(), found.dtype(), found.shape())))?;
        let part = |tensor: &super::RankTensor| Ok((tensor.name().to_owned(), tensor.part(rank)?));
        let parts = self.tensors().map(part).collect::<Result<Vec<_>>>()?;
        let order = self.order(checkpoint, &parts, rank);
        let ordered = order.iter().map(|&i| (parts[i].0.as_str(), parts[i].1));
        let bufs = checkpoint.read_parts(ordered, options)?;
        let mut pairs: Vec<_> = order.into_iter().zip(bufs).collect();
        pairs.sort_unstable_by_key(|(position, _)| *position);
        Ok(pairs.into_iter().map(|(_, buf)| buf).collect())
    }

    // Each rank begins at its share of the files.
    fn order<S>(
        &self,
        checkpoint: &Checkpoint<S>,
        parts: &[(String, TensorPart)],
        rank: usize,
    ) -> Vec<usize> {
        let position = |i: usize| checkpoint.position(&parts[i].0).unwrap_or(0);
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|&i| position(i));
        let file_of =
            |i: usize| checkpoint.tensor_at(position(i)).map_or(0, |tensor| tensor.file_index());
        // Whole files come first. The rest is a fraction of the tensors of the file to begin with.
        let shares = rank as u128 * checkpoint.files().len() as u128;
        let file = shares / self.world_size as u128;
        let rest = shares % self.world_size as u128;
        let begin = order.partition_point(|&i| (file_of(i) as u128) < file);
        let end = order.partition_point(|&i| file_of(i) as u128 <= file);
        let inside = (end - begin) as u128 * rest / self.world_size as u128;
        if !order.is_empty() {
            let first = (begin + inside as usize) % order.len();
            order.rotate_left(first);
        }
        order
    }
}
