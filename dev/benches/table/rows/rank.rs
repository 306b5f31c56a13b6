//! The part of one rank through candle's tensor-parallel builder.

use std::fs::File;
use std::path::Path;

use anyhow::{Result, ensure};
use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use candle_nn::var_builder::{Backend, Shard, VarBuilderArgs};
use safetensors_candle::tensor_parallel_var_builder;

use super::Spec;
use super::slice::{COLUMNS, NAME, ROWS, read_runs, runs};
use harness::data::Data;
use harness::files::Tensor as FileTensor;
use harness::sample::{Contender, Goal, Row};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    [0, 1]
        .map(|dim| {
            Spec::new(format!("tensor-parallel part of dim {dim} by a builder"), move |data| {
                row(data, dim)
            })
        })
        .into()
}

const PEER: &str = "candle ShardedSafeTensors";
const LIMIT: &str = "pread of exactly those bytes";

/// Rank 1 of 4 asks for 64 MiB of a tensor of 256 MiB.
fn row(data: &Data, dim: usize) -> Result<Row> {
    let tensors = [FileTensor::bf16(NAME.into(), &[ROWS, COLUMNS])];
    let path = data.file("slice.safetensors", &tensors)?.path;
    let runs = runs(&path, dim)?;
    let expected = read_runs(&File::open(&path)?, &runs)?.to_vec();
    let ours = tensor_parallel_var_builder(&path, DType::BF16, &Device::Cpu)?;
    let theirs = system::candle_sharded(&path, DType::BF16)?;
    ensure!(bytes(&part(&ours, dim)?)? == expected, "our part differs");
    ensure!(bytes(&part(&theirs, dim)?)? == expected, "the peer's part differs");

    let limit_path = path.clone();
    let contenders = vec![
        Contender::ours("safetensors_candle::tensor_parallel_var_builder", move |watch| {
            watch.repeat(|| part(&ours, dim))
        }),
        Contender::peer(PEER, move |watch| watch.repeat(|| part(&theirs, dim))),
        Contender::limit(LIMIT, move |watch| {
            let file = File::open(Path::new(&limit_path))?;
            watch.repeat(|| read_runs(&file, &runs))
        }),
    ];
    let goals = [Goal::Faster(PEER, 4.0), Goal::OfLimit(LIMIT, 0.8)];
    Ok(Row::new(contenders).goals(goals).bytes(expected.len() as u64).reads(path))
}

fn part<B: Backend<Hints = Shard>>(builder: &VarBuilderArgs<'_, B>, dim: usize) -> Result<Tensor> {
    let hint = Shard { dim, rank: 1, world_size: 4 };
    Ok(builder.get_with_hints((ROWS, COLUMNS), NAME, hint)?)
}

/// The elements of a BF16 tensor, as bytes.
fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(CpuStorage::BF16(values)) => Ok(bytemuck::cast_slice(values).to_vec()),
        _ => anyhow::bail!("expected BF16 in main memory"),
    }
}
