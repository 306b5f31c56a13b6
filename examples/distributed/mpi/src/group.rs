//! [`Group`]: the ranks of the job, and their messages over MPI.

use std::ops::Range;

use anyhow::{Result, anyhow, ensure};
use candle_core::{D, Tensor};
use mpi::Count;
use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Equivalence, Root};
use safetensors_core::ranks::Rank;

use crate::failure::{self, Agreed};

/// The operations that a model needs from the ranks that it is divided among.
pub(crate) trait Reduce {
    /// Returns the number of this rank.
    fn rank(&self) -> usize;
    /// Returns the sum of the tensors of all ranks, which have one shape.
    fn sum(&self, mine: Tensor) -> Result<Tensor>;
    /// Returns the matrices of all ranks, side by side. They have one shape.
    fn columns(&self, mine: Tensor) -> Result<Tensor>;
}

/// One process, which has the whole model.
pub(crate) struct Alone;

impl Reduce for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn sum(&self, mine: Tensor) -> Result<Tensor> {
        Ok(mine)
    }

    fn columns(&self, mine: Tensor) -> Result<Tensor> {
        Ok(mine)
    }
}

/// All ranks of the job. Every rank calls the same methods in the same order. Each message has at
/// most a given number of bytes; longer content takes several.
pub(crate) struct Group {
    world: SimpleCommunicator,
    message_len: usize,
}

impl Group {
    pub(crate) fn new(world: SimpleCommunicator, message_len: usize) -> Self {
        Self { world, message_len }
    }

    /// Returns the number of this rank, as MPI says it.
    pub(crate) fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    /// Returns the number of ranks, as MPI says it.
    pub(crate) fn world_size(&self) -> usize {
        self.world.size() as usize
    }

    /// Waits for all ranks.
    pub(crate) fn barrier(&self) {
        self.world.barrier();
    }

    /// Ends the processes of all ranks.
    pub(crate) fn abort(&self) -> ! {
        self.world.abort(1)
    }

    /// Returns the rank from the environment of the process, compared with MPI's own.
    pub(crate) fn rank_of_environment(&self) -> Result<Rank> {
        // The ranks that share memory with this one are on its machine.
        let machine = self.world.split_shared(self.world.rank());
        let local = (machine.rank() as usize, machine.size() as usize);
        let rank = Rank::from_env()?.unwrap_or_default();
        let found = (rank.rank(), rank.world_size());
        let expected = (self.rank(), self.world_size());
        ensure!(found == expected, "the environment says rank {found:?}, MPI says {expected:?}");
        let found = (rank.local_rank(), rank.local_world_size());
        let expected = (Some(local.0), Some(local.1));
        ensure!(found == expected, "the environment says local {found:?}, MPI says {expected:?}");
        Ok(rank)
    }

    /// Passes the result of this rank on, if no rank has failed. Otherwise all ranks get the error
    /// of the first failed one, so that none waits for another. Call it after every step that reads
    /// files, and only then a step that needs the other ranks.
    pub(crate) fn agree<T>(&self, result: Result<T>) -> Result<T> {
        let mut message = result.as_ref().err().map(failure::message).unwrap_or_default();
        // 0 if all is well, and else 1 more than the length of the message.
        let state = if result.is_ok() { 0 } else { 1 + message.len() };
        let states = self.of_all(state as u64);
        let Some(rank) = states.iter().position(|&state| state != 0) else { return result };
        message.resize(states[rank] as usize - 1, 0);
        self.broadcast(rank, &mut message);
        let failed = states.iter().filter(|&&state| state != 0).count();
        let message = String::from_utf8_lossy(&message).into_owned();
        Err(Agreed { rank, failed, message }.into())
    }

    /// Fails on all ranks unless each has the same text as rank 0.
    pub(crate) fn agree_on(&self, what: &str, mine: &str) -> Result<()> {
        let mut first = mine.as_bytes().to_vec();
        first.resize(self.of_all(mine.len() as u64)[0] as usize, 0);
        self.broadcast(0, &mut first);
        self.agree(if first == mine.as_bytes() {
            Ok(())
        } else {
            Err(anyhow!("{what} differs from that of rank 0"))
        })
    }

    /// Returns the numbers of all ranks.
    pub(crate) fn of_all(&self, mine: u64) -> Vec<u64> {
        let mut all = vec![0; self.world_size()];
        self.world.all_gather_into(&mine, &mut all[..]);
        all
    }

    /// Sends values from one rank to all.
    pub(crate) fn broadcast<T: Equivalence>(&self, from: usize, values: &mut [T]) {
        let most = self.most::<T>();
        for piece in values.chunks_mut(most) {
            self.world.process_at_rank(from as mpi::Rank).broadcast_into(piece);
        }
    }

    /// Sends the values of each rank to all, where they follow each other in `all`. `lens` has the
    /// number of values of each rank.
    pub(crate) fn gather<T: Equivalence + Copy + Default>(
        &self,
        mine: &[T],
        lens: &[usize],
        all: &mut [T],
    ) -> Result<()> {
        let found = (lens.len(), lens[self.rank()], lens.iter().sum::<usize>());
        let expected = (self.world_size(), mine.len(), all.len());
        ensure!(found == expected, "expected lengths {expected:?}, found {found:?}");
        // A rank receives pieces of all ranks at once.
        let most = (self.most::<T>() / lens.len()).max(1);
        let rounds = lens.iter().max().map_or(0, |len| len.div_ceil(most));
        let mut received = Vec::new();
        for round in 0..rounds {
            let ranges: Vec<_> = lens.iter().map(|&len| piece(len, most, round)).collect();
            let counts: Vec<_> = ranges.iter().map(|range| range.len() as Count).collect();
            received.resize(ranges.iter().map(Range::len).sum(), T::default());
            let mut partition = PartitionMut::new(&mut received[..], &counts[..], starts(&counts));
            let sent = &mine[ranges[self.rank()].clone()];
            self.world.all_gather_varcount_into(sent, &mut partition);
            let (mut rest, mut start) = (&received[..], 0);
            for (range, len) in ranges.into_iter().zip(lens) {
                let (values, others) = rest.split_at(range.len());
                all[start + range.start..start + range.end].copy_from_slice(values);
                rest = others;
                start += len;
            }
        }
        Ok(())
    }

    /// Returns how many values a message has at most.
    fn most<T>(&self) -> usize {
        (self.message_len / size_of::<T>()).max(1)
    }
}

impl Reduce for Group {
    fn rank(&self) -> usize {
        self.rank()
    }

    fn sum(&self, mine: Tensor) -> Result<Tensor> {
        let values = mine.flatten_all()?.to_vec1::<f32>()?;
        let mut sums = vec![0_f32; values.len()];
        let most = self.most::<f32>();
        for (values, sums) in values.chunks(most).zip(sums.chunks_mut(most)) {
            self.world.all_reduce_into(values, sums, SystemOperation::sum());
        }
        Ok(Tensor::from_vec(sums, mine.shape(), mine.device())?)
    }

    fn columns(&self, mine: Tensor) -> Result<Tensor> {
        let values = mine.flatten_all()?.to_vec1::<f32>()?;
        let mut all = vec![0_f32; values.len() * self.world_size()];
        self.gather(&values, &vec![values.len(); self.world_size()], &mut all)?;
        let parts = all.chunks(values.len().max(1));
        let parts = parts.map(|part| Tensor::from_slice(part, mine.shape(), mine.device()));
        Ok(Tensor::cat(&parts.collect::<Result<Vec<_>, _>>()?, D::Minus1)?)
    }
}

/// Returns the values of a message, if `len` values are sent in messages of at most `most`.
fn piece(len: usize, most: usize, round: usize) -> Range<usize> {
    (round * most).min(len)..((round + 1) * most).min(len)
}

/// Where each rank's values begin, if they follow each other.
fn starts(counts: &[Count]) -> Vec<Count> {
    let before = |sum: &mut Count, &count: &Count| Some(std::mem::replace(sum, *sum + count));
    counts.iter().scan(0, before).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_values_once() {
        for (len, most) in [(0_usize, 3), (1, 3), (3, 3), (7, 3), (9, 3), (5, 100)] {
            let rounds = len.div_ceil(most) + 1;
            let covered: Vec<_> = (0..rounds).flat_map(|round| piece(len, most, round)).collect();
            assert!(covered.into_iter().eq(0..len), "{len} in pieces of {most}");
            assert!((0..rounds).all(|round| piece(len, most, round).len() <= most));
        }
        assert_eq!(starts(&[3, 0, 2]), [0, 3, 3]);
    }
}
