//! [`RankPlan::read`]: the parts of one rank, in one go.

use std::collections::HashMap;

use super::gather::join_parts;
use super::parts::saved_as;
use super::plan::RankPlan;
use crate::checkpoint::Checkpoint;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, RankProblem, Result};
use crate::io::ReadAt;
use crate::load::LoadOptions;
use crate::slice::TensorPart;
use crate::tensor::TensorBuf;

impl RankPlan {
    /// Reads the parts that a rank holds, in parallel, in the order of the plan's
    /// [`tensors`](RankPlan::tensors). Only the bytes of the parts are read, and gaps of at most
    /// 512 bytes between them.
    ///
    /// Each rank begins with another file, or at another place of a file if there are more ranks
    /// than files. So a thousand ranks that start at once do not all wait for the first file.
    ///
    /// Weights with scales are multiplied by them if the options ask for it, see
    /// [`Checkpoint::read_parts`].
    ///
    /// A checkpoint that ranks have [saved](super::RankSaver::save) by this plan is read as well:
    /// each rank reads back its own parts. To divide it in another way, make whole tensors with
    /// [`join_parts`] first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchRank`]; [`ErrorKind::Mismatches`] if the checkpoint has other tensors
    /// than the plan, or tensors of other dtypes or shapes; [`RankProblem::BadParts`] if its parts
    /// belong to another plan. These are found before data is read. The errors of
    /// [`Checkpoint::read_parts`].
    pub fn read<S: ReadAt>(
        &self,
        checkpoint: &Checkpoint<S>,
        rank: usize,
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        self.check_rank(rank)?;
        let parts = self.parts_in(checkpoint, rank)?;
        let order = self.order(checkpoint, &parts, rank);
        let ordered = order.iter().map(|&i| (parts[i].0.as_str(), parts[i].1));
        let bufs = checkpoint.read_parts(ordered, options)?;
        let mut pairs: Vec<_> = order.into_iter().zip(bufs).collect();
        pairs.sort_unstable_by_key(|(position, _)| *position);
        Ok(pairs.into_iter().map(|(_, buf)| buf).collect())
    }

    /// The rank's parts as tensors of the checkpoint, and parts of these.
    fn parts_in<S>(
        &self,
        checkpoint: &Checkpoint<S>,
        rank: usize,
    ) -> Result<Vec<(String, TensorPart)>> {
        let gathered = join_parts(checkpoint)?;
        let found = gathered.iter().map(|found| (found.name(), found.dtype(), found.shape()));
        self.check_tensors(found)?;
        let gathered: HashMap<_, _> = gathered.iter().map(|found| (found.name(), found)).collect();
        let part = |tensor: &super::RankTensor| {
            let is_divided = gathered.get(tensor.name()).is_some_and(|found| found.dim().is_some());
            if !is_divided {
                return Ok((tensor.name().to_owned(), tensor.part(rank)?));
            }
            let (name, record) = saved_as(tensor, rank, self.world_size)?;
            let expected = tensor.part(rank)?.shape(tensor.shape())?;
            // The same number of parts may have been cut at other positions.
            let saved = gathered[tensor.name()].saved(&name);
            let is_same = |&(offset, shape): &(usize, &[usize])| {
                record.as_ref().is_some_and(|record| record.offset == offset) && shape == expected
            };
            if saved.as_ref().is_some_and(is_same) {
                return Ok((name, TensorPart::Whole));
            }
            let problem =
                "it was saved in other parts than this plan has: gather the whole tensors first";
            Err(Error::from(RankProblem::BadParts { problem: problem.into() })
                .in_tensor(tensor.name()))
        };
        self.tensors().map(part).collect()
    }

    /// The order in which a rank reads: that of the files, beginning at the rank's share of them.
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
        let (file, rest) = (shares / self.world_size as u128, shares % self.world_size as u128);
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
