//! Reading one tensor of a large file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use safetensors::SafeTensors as Reference;
use safetensors_bridge::Checkpoint;

use super::Spec;
use super::header::REFERENCE;
use harness::data::Data;
use harness::files::two_gib;
use harness::sample::{Contender, Goal, Row};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    vec![Spec::new("open + one tensor of 2 GiB", row)]
}

const LIMIT: &str = "pread of header and tensor";

fn row(data: &Data) -> Result<Row> {
    let path = data.file("two-gib.safetensors", &two_gib())?.path;
    let name = "model.layers.200.mlp.weight";
    let (offset, bytes) = {
        let checkpoint = Checkpoint::open(&path)?;
        let tensor = checkpoint.tensor(name)?;
        let mapped = system::map(&path)?;
        ensure!(
            tensor.read()?.bytes() == Reference::deserialize(&mapped)?.tensor(name)?.data(),
            "{name} differs"
        );
        (tensor.file_offset(), tensor.byte_len())
    };
    let (a, b, c) = (path.clone(), path.clone(), path.clone());
    let ours = Contender::ours("Checkpoint::open, LazyTensor::read", move |watch| {
        watch.repeat(|| Ok(Checkpoint::open(&a)?.tensor(name)?.read()?.bytes().len()))
    });
    let peer = Contender::peer(REFERENCE, move |watch| {
        watch
            .repeat(|| Ok(Reference::deserialize(&system::map(&b)?)?.tensor(name)?.data().to_vec()))
    });
    let limit = Contender::limit(LIMIT, move |watch| {
        watch.repeat(|| {
            let file = File::open(&c)?;
            let mut length = [0; 8];
            file.read_exact_at(&mut length, 0)?;
            let mut header = vec![0; u64::from_le_bytes(length) as usize];
            file.read_exact_at(&mut header, 8)?;
            let mut tensor = vec![0; bytes as usize];
            file.read_exact_at(&mut tensor, offset)?;
            Ok((header, tensor))
        })
    });
    Ok(Row::new(vec![ours, peer, limit])
        .goals([Goal::OfLimit(LIMIT, 0.8)])
        .bytes(bytes)
        .reads(path)
        .samples(15))
}
