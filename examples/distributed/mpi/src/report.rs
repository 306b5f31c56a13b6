//! [`Report`]: the output of rank 0, and the comparison of bytes that were read.

use std::fmt::Display;

use anyhow::{Result, ensure};
use candle_core::Tensor;
use safetensors_core::Checkpoint;
use safetensors_core::ranks::{Rank, RankTensor};

use crate::counting::Counter;
use crate::group::Group;

/// The findings of the ranks. Rank 0 prints them.
pub(crate) struct Report<'g>(pub(crate) &'g Group);

impl Report<'_> {
    /// Prints a line, on rank 0.
    pub(crate) fn line(&self, line: impl Display) {
        if self.0.rank() == 0 {
            println!("{line}");
        }
    }

    /// Prints the ranks from the environment, which MPI has confirmed. Every rank calls it.
    pub(crate) fn ranks(&self, rank: &Rank) {
        let list = |number: Option<usize>| {
            let numbers = self.0.of_all(number.unwrap_or_default() as u64);
            numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
        };
        let (ranks, local) = (list(Some(rank.rank())), list(rank.local_rank()));
        let size = rank.world_size();
        self.line(format_args!(
            "Rank::from_env and MPI agree: ranks {ranks} of {size}, local ranks {local}"
        ));
    }

    /// Prints how much there is to read, and the head of the table of bytes.
    pub(crate) fn checkpoint<S>(&self, checkpoint: &Checkpoint<S>, replicated: &[&RankTensor]) {
        let bytes: u64 = checkpoint.tensors().map(|tensor| tensor.byte_len()).sum();
        let (tensors, files) = (checkpoint.len(), checkpoint.files().len());
        let replicated = replicated.len();
        self.line(format_args!(
            "{tensors} tensors of {bytes} bytes in {files} files; {replicated} are replicated"
        ));
        let ranks: String = (0..self.0.world_size()).map(|rank| format!("{rank:>10}")).collect();
        self.line(format_args!("{:<32}{ranks}{:>12}", "bytes read by rank", "all"));
    }

    /// Compares the bytes that this rank has read since the last time with `mine`, and the sum over
    /// all ranks with `all`. Every rank calls it, and all fail if one does.
    pub(crate) fn bytes(&self, what: &str, counter: &Counter, mine: u64, all: u64) -> Result<()> {
        let of_ranks = self.0.of_all(counter.take());
        let (found, sum) = (of_ranks[self.0.rank()], of_ranks.iter().sum::<u64>());
        let check = || {
            ensure!(found == mine, "{what}: expected to read {mine} bytes, read {found}");
            ensure!(sum == all, "{what}: expected {all} bytes of all ranks, found {sum}");
            Ok(())
        };
        self.0.agree(check())?;
        let ranks: String = of_ranks.iter().map(|bytes| format!("{bytes:>10}")).collect();
        self.line(format_args!("{what:<32}{ranks}{sum:>12}"));
        Ok(())
    }

    /// Prints how far the logits are from a single process. Every rank calls it.
    pub(crate) fn logits(&self, logits: &Tensor, expected: &[f32], difference: f32, most: f32) {
        // The bits of positive floats have the order of the floats.
        let differences = self.0.of_all(difference.to_bits().into());
        let largest = differences.into_iter().max().unwrap_or_default();
        let difference = f32::from_bits(largest as u32);
        let expected = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        self.line(format_args!(
            "logits {:?}, up to {expected:.3}, differ by at most {difference:.1e} from those of \
             one process (allowed: {most:e})",
            logits.dims()
        ));
    }
}
