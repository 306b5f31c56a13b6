//! Loading into burn modules.

use anyhow::{Result, ensure};
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};
use burn_store::SafetensorsStore;
use safetensors_burn::{CheckpointStore, ModuleSnapshot};

use super::Spec;
use super::load::reading;
use harness::data::{Data, TestFile};
use harness::files::{self, checksum};
use harness::sample::{Contender, Goal, Row};

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("load 64 × (2048×2048) into burn", |data| {
            row(data, "burn-large.safetensors", 64, 2048, 5.0)
        }),
        Spec::new("load 4,000 × (16×16) into burn", |data| {
            row(data, "burn-small.safetensors", 4_000, 16, 500.0)
        }),
    ]
}

const PEER: &str = "burn-store SafetensorsStore";

#[derive(Module, Debug)]
struct Model {
    weights: Vec<Param<Tensor<2>>>,
}

impl Model {
    fn new(count: usize, size: usize) -> Self {
        let device = Device::default();
        Self {
            weights: (0..count).map(|_| Initializer::Zeros.init([size, size], &device)).collect(),
        }
    }
}

fn row(data: &Data, name: &str, count: usize, size: usize, times: f64) -> Result<Row> {
    let tensors = (0..count).map(|i| files::Tensor::f32(format!("weights.{i}"), &[size, size]));
    let file = data.file(name, &tensors.collect::<Vec<_>>())?;
    let (for_ours, for_peer) = (file.clone(), file.clone());
    let ours = Contender::ours("CheckpointStore", move |watch| {
        let mut model = Model::new(count, size);
        watch.time(|| model.load_from(&mut CheckpointStore::from_file(&for_ours.path)))?;
        verify(&model, &for_ours)
    });
    let peer = Contender::peer(PEER, move |watch| {
        let mut model = Model::new(count, size);
        watch.time(|| model.load_from(&mut SafetensorsStore::from_file(&for_peer.path)))?;
        verify(&model, &for_peer)
    });
    Ok(reading(vec![ours, peer], &file)?.goals([Goal::Faster(PEER, times)]).samples(5))
}

fn verify(model: &Model, file: &TestFile) -> Result<()> {
    let tensors = model.weights.iter().enumerate().map(|(i, weight)| {
        let data = weight.val().into_data();
        (format!("weights.{i}"), data.as_bytes().to_vec())
    });
    ensure!(checksum(tensors) == file.sums.plain, "other bytes than were written");
    Ok(())
}
