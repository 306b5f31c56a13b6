//! Lending every tensor of a mapped file, without a copy.

use std::sync::Arc;

use anyhow::{Result, ensure};
use half::bf16;
use ndarray::IxDyn;
use safetensors::SafeTensors as Reference;
use safetensors_bridge::header::Header;
use safetensors_bridge::{Limits, Widening};
use safetensors_ndarray::ViewArrayExt;

use super::Spec;
use harness::data::Data;
use harness::files::{checksum, matrices};
use harness::sample::{Contender, Goal, Row};
use harness::system::{checkpoint_map, map};

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("zero-copy ndarray views of 2 GiB", |data| {
            row(data, |path| {
                Contender::ours("Checkpoint::mmap, as_array of each", move |watch| {
                    watch.repeat(|| {
                        let checkpoint = checkpoint_map(&path)?;
                        let mut elements = 0;
                        for tensor in checkpoint.tensors() {
                            elements += tensor.as_array::<bf16, IxDyn>()?.len();
                        }
                        Ok((checkpoint, elements))
                    })
                })
            })
        }),
        Spec::new("zero-copy burn tensors of 2 GiB", |data| {
            row(data, |path| {
                Contender::ours("Checkpoint::mmap, share_checkpoint", move |watch| {
                    watch.repeat(|| {
                        let checkpoint = Arc::new(checkpoint_map(&path)?);
                        let tensors =
                            safetensors_burn::share_checkpoint(&checkpoint, Widening::Lossless)?;
                        Ok(std::hint::black_box(tensors).len())
                    })
                })
            })
        }),
    ]
}

const REFERENCE: &str = "safetensors";
const LIMIT: &str = "map the file, parse the header";

fn row(data: &Data, ours: impl Fn(std::path::PathBuf) -> Contender) -> Result<Row> {
    let file = data.file("two-gib.safetensors", &matrices(256))?;
    let checkpoint = Arc::new(checkpoint_map(&file.path)?);
    let shared = checkpoint.tensors().map(|tensor| {
        let data = safetensors_burn::share_tensor(&checkpoint, tensor.name(), Widening::Lossless)?;
        Ok(checksum([(tensor.name(), data.as_bytes())]))
    });
    let sum = shared.collect::<Result<Vec<u64>>>()?.into_iter().fold(0, u64::wrapping_add);
    ensure!(sum == file.sums.plain, "other bytes than were written");

    let (for_peer, for_limit) = (file.path.clone(), file.path.clone());
    let peer = Contender::peer(REFERENCE, move |watch| {
        watch.repeat(|| {
            let mapped = map(&for_peer)?;
            let tensors = Reference::deserialize(&mapped)?.tensors();
            Ok(tensors.len())
        })
    });
    let limit = Contender::limit(LIMIT, move |watch| {
        watch.repeat(|| {
            let mapped = map(&for_limit)?;
            Ok(Header::parse(&mapped, &Limits::default())?)
        })
    });
    let contenders = vec![ours(file.path.clone()), peer, limit];
    let goals = vec![Goal::AtLeast(LIMIT, 0.5)];
    Ok(Row { goals, files: vec![file.path], samples: 15, ..Row::new(contenders) })
}
