//! Replicated tensors. Each byte is read by one rank only and sent to the others.

use anyhow::{Context, Result};
use safetensors_core::ranks::RankTensor;
use safetensors_core::slice::{RankPart, TensorPart};
use safetensors_core::{Checkpoint, LoadOptions, ReadAt, TensorBuf, shape};

use crate::group::Group;

// Bytes are sent as in memory, and tensors are made of bytes as in files.
const _: () = assert!(cfg!(target_endian = "little"), "files are little-endian");

/// Reads each tensor on one rank, which sends it to all. The ranks take turns.
pub(crate) fn read_and_broadcast<S: ReadAt>(
    group: &Group,
    checkpoint: &Checkpoint<S>,
    tensors: &[&RankTensor],
) -> Result<Vec<TensorBuf>> {
    let reader = |i: usize| i % group.world_size();
    let mine = tensors.iter().enumerate().filter(|(i, _)| reader(*i) == group.rank());
    let read = checkpoint.read_named(mine.map(|(_, tensor)| tensor.name()), &LoadOptions::new());
    // Sending begins when all ranks have read.
    let mut read = group.agree(read.context("reading what is broadcast"))?.into_iter();
    let receive = |(i, tensor): (usize, &&RankTensor)| {
        let mine = (reader(i) == group.rank()).then(|| read.next()).flatten();
        let buf = TensorBuf::filled_by(tensor.dtype(), tensor.shape().to_vec(), |bytes| {
            if let Some(mine) = mine {
                bytes.copy_from_slice(mine.bytes());
            }
            group.broadcast(reader(i), bytes);
            Ok(())
        });
        buf.with_context(|| format!("receiving {:?}", tensor.name()))
    };
    tensors.iter().enumerate().map(receive).collect()
}

/// Reads a stripe of each tensor on each rank, and sends all stripes to all ranks.
pub(crate) fn read_stripes_and_gather<S: ReadAt>(
    group: &Group,
    checkpoint: &Checkpoint<S>,
    tensors: &[&RankTensor],
) -> Result<Vec<TensorBuf>> {
    let stripes = |tensor: &RankTensor| -> Vec<_> {
        (0..group.world_size())
            .map(|rank| stripe(tensor.shape(), rank, group.world_size()))
            .collect()
    };
    let mine =
        tensors.iter().filter_map(|tensor| Some((tensor.name(), stripes(tensor)[group.rank()]?)));
    let read = checkpoint.read_parts(mine, &LoadOptions::new());
    let mut read = group.agree(read.context("reading stripes"))?.into_iter();
    let receive = |tensor: &&RankTensor| {
        let stripes = stripes(tensor);
        let mine = stripes[group.rank()].and_then(|_| read.next());
        let mine = mine.as_ref().map_or(&[][..], TensorBuf::bytes);
        let len = |stripe: &Option<TensorPart>| Ok(usize::try_from(byte_len(tensor, *stripe)?)?);
        let lens = stripes.iter().map(len).collect::<Result<Vec<_>>>()?;
        let mut gathered = Ok(());
        let buf = TensorBuf::filled_by(tensor.dtype(), tensor.shape().to_vec(), |bytes| {
            gathered = group.gather(mine, &lens, bytes);
            Ok(())
        });
        gathered.and(Ok(buf?)).with_context(|| format!("receiving {:?}", tensor.name()))
    };
    tensors.iter().map(receive).collect()
}

/// Returns the number of bytes of a rank's stripes.
pub(crate) fn stripe_bytes(tensors: &[&RankTensor], rank: usize, world_size: usize) -> Result<u64> {
    let len = |tensor: &&RankTensor| byte_len(tensor, stripe(tensor.shape(), rank, world_size));
    tensors.iter().map(len).sum()
}

fn byte_len(tensor: &RankTensor, stripe: Option<TensorPart>) -> Result<u64> {
    let Some(stripe) = stripe else { return Ok(0) };
    Ok(shape::byte_len(tensor.dtype(), &stripe.shape(tensor.shape())?)?)
}

/// Returns the stripe of a tensor that a rank reads: some positions of the first dimension, so that
/// it is one piece of the file. The stripes of all ranks are the tensor. Of a tensor without
/// dimensions only rank 0 has one.
fn stripe(shape: &[usize], rank: usize, world_size: usize) -> Option<TensorPart> {
    match shape {
        [] => (rank == 0).then_some(TensorPart::Whole),
        _ => Some(RankPart::new(0, rank, world_size).uneven().into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_the_tensor_in_order() {
        for shape in [&[][..], &[0], &[1], &[3, 2], &[10, 0], &[270]] {
            for world_size in [1, 2, 4, 7] {
                let whole = shape.first().copied().unwrap_or(1);
                let rows = (0..world_size).flat_map(|rank| {
                    let ranges = stripe(shape, rank, world_size)?.ranges(shape).unwrap();
                    Some(ranges.first().cloned().unwrap_or(0..1))
                });
                assert!(rows.flatten().eq(0..whole), "{shape:?} of {world_size} ranks");
            }
        }
    }
}
