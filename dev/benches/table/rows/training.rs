//! Checkpoints of burn's training loop: the model and its AdamW, saved until they are on the disk,
//! and restored until the first step is done.

use std::path::Path;
use std::rc::Rc;
use std::thread;

use anyhow::{Result, ensure};
use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::{Initializer, Module, Param};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::{Device, Tensor};
use burn::train::checkpoint::{Checkpointer, FileCheckpointer};
use safetensors_burn::train::Epochs;

use super::Spec;
use harness::files::checksum;
use harness::sample::{Contender, Goal, Row, Run, Watch};

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("burn checkpoint of model and optimizer, save", |data| {
            save(data.path(), (Contender::ours, OURS, with_ours), 1)
        }),
        Spec::new("burn checkpoint of model and optimizer, first save", |data| {
            save(data.path(), (Contender::ours, OURS, with_unknown), 0)
        }),
        Spec::new("burn checkpoint of model and optimizer, first save of a known model", |data| {
            save(data.path(), (Contender::ours, KNOWN, with_ours), 0)
        }),
        #[cfg(target_os = "linux")]
        Spec::new("burn checkpoint of model and optimizer, first save through /dev/shm", |data| {
            save(data.path(), (Contender::ours, STAGED, with_staged), 0)
        }),
        Spec::new("burn checkpoint of model and optimizer, resume", |data| resume(data.path())),
    ]
}

const OURS: &str = "SafetensorsCheckpointer";
const KNOWN: &str = "SafetensorsCheckpointer, checkpointers_for";
#[cfg(target_os = "linux")]
const STAGED: &str = "SafetensorsCheckpointer, Epochs::staging";
const PEER: &str = "burn-train FileCheckpointer";

/// 16 matrices of 4 MiB: 64 MiB of weights, and twice as much of moments.
const COUNT: usize = 16;
const SIZE: usize = 1024;
const BYTES: u64 = 3 * (COUNT * SIZE * SIZE * size_of::<f32>()) as u64;

#[derive(Module, Debug)]
struct Model {
    weights: Vec<Param<Tensor<2>>>,
}

/// A model and its optimizer after a step.
struct Training {
    model: Model,
    optimizer: ModuleOptimizer,
}

impl Training {
    fn new() -> Self {
        let device = Device::default().autodiff();
        let normal = Initializer::Normal { mean: 0.0, std: 1.0 };
        let weights = (0..COUNT).map(|_| normal.init([SIZE, SIZE], &device)).collect();
        Self { model: Model { weights }, optimizer: AdamWConfig::new().init() }
    }

    fn trained() -> Self {
        let mut training = Self::new();
        let gradients = training.gradients();
        training.step(gradients);
        training
    }

    fn gradients(&self) -> GradientsParams {
        let loss = self.model.weights.iter().map(|weight| weight.val().powi_scalar(2).mean());
        let loss = loss.reduce(|a, b| a + b);
        let gradients = loss.map(|loss| loss.backward());
        gradients.map_or_else(GradientsParams::new, |g| GradientsParams::from_grads(g, &self.model))
    }

    fn step(&mut self, gradients: GradientsParams) {
        self.model = self.optimizer.step(0.01, self.model.clone(), gradients);
    }

    fn checksum(&self) -> u64 {
        checksum(
            self.model
                .weights
                .iter()
                .enumerate()
                .map(|(i, weight)| (i.to_string(), weight.val().into_data().as_bytes().to_vec())),
        )
    }
}

/// The checkpointers of model, optimizer and scheduler.
type Three<'a> = (
    &'a dyn Checkpointer<ModuleRecord>,
    &'a dyn Checkpointer<OptimizerRecord>,
    &'a dyn Checkpointer<LrSchedulerRecord>,
);

/// What is done with the checkpointers.
type Work<'a> = &'a mut dyn FnMut(Three<'_>) -> Result<()>;

/// Calls `work` with the checkpointers of a folder, for this model.
type With = fn(&Path, &Model, Work<'_>) -> Result<()>;

fn with_ours(folder: &Path, model: &Model, work: Work<'_>) -> Result<()> {
    let epochs = Epochs::new(folder.join("ours"));
    let (model, optimizer, scheduler) = epochs.checkpointers_for(model);
    work((&model, &optimizer, &scheduler))
}

/// Those that know no model, so that burn gives the first records as bytes.
fn with_unknown(folder: &Path, _model: &Model, work: Work<'_>) -> Result<()> {
    let (model, optimizer, scheduler) = Epochs::new(folder.join("ours")).checkpointers();
    work((&model, &optimizer, &scheduler))
}

#[cfg(target_os = "linux")]
fn with_staged(folder: &Path, _model: &Model, work: Work<'_>) -> Result<()> {
    let epochs = Epochs::new(folder.join("ours")).staging("/dev/shm");
    let (model, optimizer, scheduler) = epochs.checkpointers();
    work((&model, &optimizer, &scheduler))
}

fn with_peer(folder: &Path, _model: &Model, work: Work<'_>) -> Result<()> {
    let [model, optimizer, scheduler] = ["model", "optim", "scheduler"]
        .map(|name| FileCheckpointer::new(folder.join("peer"), name));
    work((&model, &optimizer, &scheduler))
}

/// Makes a contender of a role.
type Role = fn(&'static str, Box<Run>) -> Contender;

/// How to make a contender: its role, its name, and its checkpointers.
type Maker = (Role, &'static str, With);

const PEERS: Maker = (Contender::peer, PEER, with_peer);

/// Saves the first epoch of a model with few parameters to a directory of epochs.
pub(super) fn small_epoch(directory: &Path) -> Result<()> {
    let normal = Initializer::Normal { mean: 0.0, std: 1.0 };
    let weights = vec![normal.init([4, 4], &Device::default().autodiff())];
    let model = Model { weights };
    let mut training = Training { model, optimizer: AdamWConfig::new().init() };
    let gradients = training.gradients();
    training.step(gradients);
    let (model, optimizer, scheduler) = Epochs::new(directory).checkpointers_for(&training.model);
    saving((&model, &optimizer, &scheduler), 1, &training)()
}

/// Makes the records, and returns the work that saves them at the same time, as burn's threads do.
fn saving<'a>(
    (model, optimizer, scheduler): Three<'a>,
    epoch: usize,
    training: &Training,
) -> impl FnOnce() -> Result<()> + use<'a> {
    let records = (training.model.clone().into_record(), training.optimizer.to_record());
    move || {
        thread::scope(|scope| {
            let threads = [
                scope.spawn(|| model.save(epoch, records.0)),
                scope.spawn(|| optimizer.save(epoch, records.1)),
                scope.spawn(|| scheduler.save(epoch, LrSchedulerRecord::new())),
            ];
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => Ok(result?),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }
}

/// Loads the three records into a new model and its optimizer.
fn restore(
    (model, optimizer, scheduler): Three<'_>,
    epoch: usize,
    into: Training,
) -> Result<Training> {
    let model = into.model.load_record(model.restore(epoch)?);
    let optimizer = into.optimizer.load_record(optimizer.restore(epoch)?);
    scheduler.restore(epoch)?;
    Ok(Training { model, optimizer })
}

/// Each sample saves an epoch that was not there, after `earlier` others by the same checkpointers.
/// It waits until the epoch is on the disk.
fn save(folder: &Path, ours: Maker, earlier: usize) -> Result<Row> {
    let folder = Rc::new(tempfile::tempdir_in(folder)?);
    let training = Rc::new(Training::trained());
    let sum = training.checksum();
    let contenders = [ours, PEERS].map(|(role, name, with)| {
        let (folder, training) = (folder.clone(), training.clone());
        role(
            name,
            Box::new(move |watch: &mut Watch| {
                with(folder.path(), &training.model, &mut |three| {
                    for epoch in 1..=earlier {
                        saving(three, epoch, &training)()?;
                    }
                    let epoch = earlier + 1;
                    watch.time(saving(three, epoch, &training))?;
                    let restored = restore(three, epoch, Training::new())?;
                    ensure!(restored.checksum() == sum, "other weights");
                    Ok(())
                })?;
                let entries = std::fs::read_dir(folder.path())?;
                Ok(entries.into_iter().try_for_each(|e| std::fs::remove_dir_all(e?.path()))?)
            }),
        )
    });
    // Each epoch is in the page cache, and the first one is copied twice.
    Ok(row(contenders.into(), 10 * BYTES))
}

/// burn reads its own files when an element is first used. So the work ends with the first step.
fn resume(folder: &Path) -> Result<Row> {
    let folder = Rc::new(tempfile::tempdir_in(folder)?);
    let mut training = Training::trained();
    let makers: [Maker; 2] = [(Contender::ours, OURS, with_ours), PEERS];
    for (_, _, with) in makers {
        with(folder.path(), &training.model, &mut |three| saving(three, 1, &training)())?;
    }
    // The parameters that are restored have the same ids, so they have the same gradients.
    let first = Rc::new(Training { model: training.model.clone(), ..Training::new() });
    training.step(first.gradients());
    let sum = training.checksum();
    let contenders = makers.map(|(role, name, with)| {
        let (folder, first) = (folder.clone(), first.clone());
        role(
            name,
            Box::new(move |watch: &mut Watch| {
                with(folder.path(), &first.model, &mut |three| {
                    let (new, gradients) = (Training::new(), first.gradients());
                    let resumed = watch.time(|| {
                        let mut resumed = restore(three, 1, new)?;
                        resumed.step(gradients);
                        anyhow::Ok(resumed)
                    })?;
                    ensure!(resumed.checksum() == sum, "other weights after the first step");
                    Ok(())
                })
            }),
        )
    });
    Ok(row(contenders.into(), 4 * BYTES))
}

/// `memory` is how much a sample needs.
fn row(contenders: Vec<Contender>, memory: u64) -> Row {
    Row::new(contenders).goals([Goal::Faster(PEER, 1.0)]).bytes(BYTES).samples(11).memory(memory)
}
