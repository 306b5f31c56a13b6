//! Loading into burn modules, and saving them.

use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, ensure};
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};
use burn_store::SafetensorsStore;
use safetensors_burn::{CheckpointStore, ModuleSnapshot};
use tempfile::TempDir;

use super::Spec;
use super::load::reading;
use harness::data::{Data, TestFile};
use harness::files::{self, checksum};
use harness::sample::{Contender, Goal, Role, Row, Watch};

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("load 64 × (2048×2048) into burn", |data| {
            row(data, "burn-large.safetensors", 64, 2048)
        }),
        Spec::new("load 4,000 × (16×16) into burn", |data| {
            row(data, "burn-small.safetensors", 4_000, 16)
        }),
        Spec::new("save 4,000 × (16×16) from burn", |data| saving(data, 4_000, 16)),
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

fn row(data: &Data, name: &str, count: usize, size: usize) -> Result<Row> {
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
    reading(vec![ours, peer], &file)
}

/// Both wait until the file is on the disk, as burn-store always does.
fn saving(data: &Data, count: usize, size: usize) -> Result<Row> {
    let folder = Rc::new(tempfile::tempdir_in(data.path())?);
    let device = Device::default();
    let weight = |i: usize| Param::from_tensor(Tensor::full([size, size], i as f32, &device));
    let model = Rc::new(Model { weights: (0..count).map(weight).collect() });
    let (for_ours, for_peer) = (model.clone(), model.clone());
    let ours = saver(Role::Ours, "CheckpointStore", &folder, &model, move |path| {
        Ok(for_ours.save_into(&mut CheckpointStore::from_file(path))?)
    });
    let peer = saver(Role::Peer, PEER, &folder, &model, move |path| {
        for_peer.save_into(&mut SafetensorsStore::from_file(path)).map_err(Into::into)
    });
    let bytes = count * size * size * size_of::<f32>();
    let goals = vec![Goal::AtLeast(PEER, 1.0)];
    Ok(Row { bytes: Some(bytes as u64), samples: 15, goals, ..Row::new(vec![ours, peer]) })
}

/// A contender that saves a new file. The file is loaded afterwards, and removed.
fn saver(
    role: Role,
    name: &'static str,
    folder: &Rc<TempDir>,
    model: &Rc<Model>,
    save: impl Fn(&Path) -> Result<()> + 'static,
) -> Contender {
    let (folder, model) = (folder.clone(), model.clone());
    let (count, size) = (model.weights.len(), model.weights.first().map_or(0, |w| w.dims()[0]));
    let run = move |watch: &mut Watch| {
        let path = folder.path().join("saved.safetensors");
        watch.time(|| save(&path))?;
        let mut loaded = Model::new(count, size);
        loaded.load_from(&mut CheckpointStore::from_file(&path))?;
        let same = model.weights.iter().zip(&loaded.weights);
        ensure!(same.into_iter().all(|(a, b)| a.to_data() == b.to_data()), "other values");
        Ok(std::fs::remove_file(path)?)
    };
    Contender::new(role, name, run)
}

fn verify(model: &Model, file: &TestFile) -> Result<()> {
    let tensors = model.weights.iter().enumerate().map(|(i, weight)| {
        let data = weight.val().into_data();
        (format!("weights.{i}"), data.as_bytes().to_vec())
    });
    ensure!(checksum(tensors) == file.sums.plain, "other bytes than were written");
    Ok(())
}
