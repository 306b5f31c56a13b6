//! Trains a small burn model with burn's own training loop, is killed at random again and again,
//! and resumes each time from the newest complete epoch. Every loss, and in the end every bit of
//! the model, the optimizer and the scheduler, equals a run that was never stopped.
//!
//! `cargo run -p model-examples --example burn_train [-- KILLS]`
//!
//! The example starts itself as a child process with a path to train at, and kills the child with
//! SIGKILL, which no process can catch. At least one kill must hit an epoch that is being saved.
//!
//! A resumed run repeats the epochs that follow, so all that is random must depend on the epoch
//! alone: see [`Points::iter`].

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::LossMetric;
use burn::train::metric::store::{Aggregate, EventStoreClient, Split};
use burn::train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
};
use model_examples::kills::{Kill, Random, run_child};
use safetensors_bridge::Checkpoint;
use safetensors_bridge::burn::train::{Epochs, KeepEpochs};

const EPOCHS: usize = 16;
/// How many epochs stay on the disk.
const KEPT: usize = 3;
const POINTS: usize = 256;
const BATCH: usize = 64;
const HIDDEN: usize = 24;
/// How often the run is killed, unless an argument says it.
const KILLS: usize = 6;
/// A child prints this many lines in an epoch: burn's progress, and the loss just before it saves.
const LINES: u64 = 13;

fn main() -> Result<()> {
    match env::args().nth(1) {
        None => compare(KILLS),
        Some(argument) => match argument.parse() {
            Ok(kills) => compare(kills),
            Err(_) => train(Path::new(&argument)),
        },
    }
}

/// Trains without a stop, and once with kills. Compares how the two runs end.
fn compare(kills: usize) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let whole = dir.path().join("whole");
    let run = run_child(&whole, None)?;
    ensure!(run.finished, "the run should not have been stopped");
    let expected = losses(&run.lines)?;
    let known = expected.values().filter(|loss| !loss.contains("NaN")).count();
    ensure!(known == EPOCHS, "a loss is missing");
    println!("Never stopped: {EPOCHS} epochs, the last loss is {}.", expected[&EPOCHS]);

    let mut random = Random(RandomState::new().hash_one(0));
    let (mut runs, mut times, mut in_saves) = (0, 0, 0);
    // A run may end before it was killed often enough. Then another one begins. On a fast disk all
    // kills may miss the saves. Then there are up to ten times more.
    while times < kills || (in_saves == 0 && times < 10 * kills) {
        let again = |run: &Kills| {
            let times = times + run.times;
            times < kills || (in_saves + run.in_saves == 0 && times < 10 * kills)
        };
        let killed = dir.path().join(format!("killed-{runs}"));
        let found = run_with_kills(&killed, &expected, &mut random, again)?;
        (runs, times, in_saves) = (runs + 1, times + found.times, in_saves + found.in_saves);
        ensure!(runs < 10 * kills, "the runs end before they can be killed");
        ends_as(&whole, &killed)?;
    }
    println!("Killed {times} times in {runs} runs, {in_saves} times while an epoch was saved.");
    ensure!(times >= kills, "expected {kills} kills, there were {times}");
    ensure!(in_saves > 0, "no kill has hit a save, so this run has shown little");
    println!("All runs end with the same tensors and scalars.");
    Ok(())
}

/// How often a run was killed.
#[derive(Default)]
struct Kills {
    times: usize,
    in_saves: usize,
}

/// Trains to the end. The run is killed, and then resumed, for as long as `again` says.
fn run_with_kills(
    directory: &Path,
    expected: &BTreeMap<usize, String>,
    random: &mut Random,
    again: impl Fn(&Kills) -> bool,
) -> Result<Kills> {
    let (mut kills, mut left) = (Kills::default(), None);
    loop {
        let run = run_child(directory, again(&kills).then(|| at_random(random)))?;
        for (epoch, loss) in losses(&run.lines)? {
            ensure!(loss == expected[&epoch], "epoch {epoch} has another loss when it is repeated");
        }
        if run.finished {
            return Ok(kills);
        }
        kills.times += 1;
        // The hidden directory that a save leaves when it is killed, until the epochs are listed. Each
        // has another name.
        let hidden = names_of(directory)?.into_iter().find(|name| name.starts_with(".epoch-"));
        let epochs = epochs_of(directory);
        kills.in_saves += usize::from(hidden.is_some() && hidden != left);
        left = hidden;
        for epoch in epochs.list()? {
            epochs.verify(epoch.number()).context("a kill has damaged an epoch")?;
        }
    }
}

/// Compares how two runs end.
fn ends_as(whole: &Path, killed: &Path) -> Result<()> {
    let (expected, found) = (names_of(whole)?, names_of(killed)?);
    ensure!(found == expected, "expected the epochs {expected:?}, found {found:?}");
    let (expected, found) = (content(whole)?, content(killed)?);
    let differing: Vec<&String> =
        expected.keys().filter(|key| found.get(*key) != expected.get(*key)).collect();
    ensure!(differing.is_empty(), "these differ: {differing:?}");
    ensure!(found.len() == expected.len(), "the run that was killed has more tensors");
    Ok(())
}

/// A kill in one of the first two epochs of a child: at any time, or when the epoch is saved.
fn at_random(random: &mut Random) -> Kill {
    let lines = match random.below(2) {
        0 => 1 + random.below(2 * LINES),
        _ => 1 + LINES * (1 + random.below(2)),
    };
    let longest = 1 << random.below(14);
    Kill { lines: lines as usize, wait: Duration::from_micros(random.below(longest)) }
}

/// Returns the losses that a child has printed, by epoch.
fn losses(lines: &[String]) -> Result<BTreeMap<usize, String>> {
    let lines = lines.iter().filter_map(|line| line.strip_prefix("epoch "));
    let parse = |line: &str| -> Result<(usize, String)> {
        let (epoch, loss) = line.split_once(" loss ").context("no loss")?;
        Ok((epoch.parse()?, loss.into()))
    };
    lines.map(parse).collect()
}

/// Returns the epochs of a run. Next to them are the metrics that burn logs.
fn epochs_of(run: &Path) -> Epochs {
    Epochs::new(run.join("checkpoints"))
}

/// Returns the names in the directory of the epochs, sorted. The first save creates it.
fn names_of(run: &Path) -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(run.join("checkpoints")) else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Returns the tensors of the last epoch as bytes, and its scalars, by name. Ids of parameters are
/// random.
fn content(run: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut content = BTreeMap::new();
    for file in ["model", "optimizer", "scheduler"] {
        let path = epochs_of(run).path(EPOCHS).join(format!("{file}.safetensors"));
        let checkpoint = Checkpoint::open(path)?;
        for tensor in checkpoint.tensors() {
            let bytes = tensor.read()?.bytes().to_vec();
            content.insert(format!("{file}: {}", tensor.name()), bytes);
        }
        if let Some(scalars) = checkpoint.metadata().get("safetensors_bridge.scalars") {
            content.insert(format!("{file}: scalars"), scalars.clone().into_bytes());
        }
    }
    Ok(content)
}

/// The child process: resumes if there is something to resume, then trains to the end.
fn train(directory: &Path) -> Result<()> {
    let device = Device::default().autodiff();
    device.seed(0);
    let steps = EPOCHS * POINTS / BATCH;
    let schedule = CosineAnnealingLrSchedulerConfig::new(0.05, steps).init();
    let net = Net::new(&device);
    let epochs = epochs_of(directory);
    let (model, optimizer, scheduler) = epochs.checkpointers(&net);
    let learner =
        Learner::new(net, AdamWConfig::new().init(), schedule.map_err(|error| anyhow!(error))?);

    // The last run may have been killed while it deleted old epochs.
    epochs.delete_all_but(KEPT, &[])?;
    for epoch in epochs.passed_over()? {
        let problem = epoch.problem().map(ToString::to_string).unwrap_or_default();
        eprintln!("epoch {} is passed over: {problem}", epoch.number());
    }
    let newest = epochs.newest()?;
    let training = Arc::new(Points::new(1, Some(newest.map_or(1, |epoch| epoch + 1)), &device));
    let validation = Arc::new(Points::new(2, None, &device));
    let mut run = SupervisedTraining::new(directory, training, validation)
        .num_epochs(EPOCHS)
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .with_application_logger(None)
        .with_custom_checkpointers(model, optimizer, scheduler)
        .with_checkpointing_strategy(Printing(epochs.keep_last(KEPT)));
    if let Some(newest) = newest {
        // An epoch of another network is an error here, where burn would panic.
        epochs.check(newest, &learner.model())?;
        run = run.checkpoint(newest);
    }
    let result = run.launch(learner);
    result.error.map_or(Ok(()), |error| Err(anyhow!("{error}")))
}

/// Prints the loss of each epoch before the epoch is saved.
struct Printing(KeepEpochs);

impl CheckpointingStrategy for Printing {
    fn checkpointing(
        &mut self,
        epoch: usize,
        store: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        let loss = |split| store.find_metric("Loss", epoch, Aggregate::Mean, &split);
        let [train, valid] =
            [Split::Train, Split::Valid].map(|split| loss(split).unwrap_or(f64::NAN));
        println!("epoch {epoch} loss {train}, validation {valid}");
        self.0.checkpointing(epoch, store)
    }
}

/// Which of the points in a square are in a circle?
#[derive(Module, Debug)]
struct Net {
    input: Linear,
    dropout: Dropout,
    output: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            input: LinearConfig::new(2, HIDDEN).init(device),
            dropout: DropoutConfig::new(0.1).init(),
            output: LinearConfig::new(HIDDEN, 1).init(device),
        }
    }

    fn forward(&self, batch: Batch) -> RegressionOutput {
        let hidden = self.dropout.forward(self.input.forward(batch.points).tanh());
        let output = self.output.forward(hidden);
        let loss = (output.clone() - batch.inside.clone()).powi_scalar(2).mean();
        RegressionOutput::new(loss, output, batch.inside)
    }
}

impl TrainStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let output = self.forward(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = RegressionOutput;

    fn step(&self, batch: Batch) -> RegressionOutput {
        self.forward(batch)
    }
}

/// Points, and whether each is in the circle: 1 or 0.
#[derive(Clone, Debug)]
struct Batch {
    points: Tensor<2>,
    inside: Tensor<2>,
}

/// Loads the batches of an epoch.
#[derive(Clone)]
struct Points {
    all: Arc<Vec<[f32; 2]>>,
    /// The next epoch; `None` if nothing is random.
    epoch: Option<Arc<AtomicUsize>>,
    device: Device,
}

impl Points {
    fn new(seed: u64, epoch: Option<usize>, device: &Device) -> Self {
        let mut random = Random(seed);
        let mut number = || (random.draw() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        let all = (0..POINTS).map(|_| [number(), number()]).collect();
        let epoch = epoch.map(|epoch| Arc::new(AtomicUsize::new(epoch)));
        Self { all: Arc::new(all), epoch, device: device.clone() }
    }

    fn batch(&self, points: &[[f32; 2]]) -> Batch {
        let inside = |[x, y]: &[f32; 2]| f32::from(u8::from(x * x + y * y < 0.6));
        let inside: Vec<f32> = points.iter().map(inside).collect();
        let count = points.len();
        let points = TensorData::new(points.concat(), [count, 2]);
        let inside = TensorData::new(inside, [count, 1]);
        Batch {
            points: Tensor::from_data(points, &self.device),
            inside: Tensor::from_data(inside, &self.device),
        }
    }
}

impl DataLoader<Batch> for Points {
    /// Begins an epoch. The order of the points and the random numbers of dropout follow from the
    /// number of the epoch. So a run that is resumed in this epoch does the same.
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch> + 'a> {
        let mut points = self.all.to_vec();
        if let Some(epoch) = &self.epoch {
            let seed = epoch.fetch_add(1, Ordering::Relaxed) as u64;
            self.device.seed(seed);
            let mut random = Random(seed);
            for i in (1..points.len()).rev() {
                points.swap(i, random.below(i as u64 + 1) as usize);
            }
        }
        Box::new(Batches { loader: self, points, done: 0 })
    }

    fn num_items(&self) -> usize {
        self.all.len()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Batch>> {
        Arc::new(Self { device: device.clone(), ..self.clone() })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<Batch>> {
        Arc::new(Self { all: Arc::new(self.all[start..end].to_vec()), ..self.clone() })
    }
}

struct Batches<'a> {
    loader: &'a Points,
    points: Vec<[f32; 2]>,
    done: usize,
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let points = self.points.get(self.done..)?.chunks(BATCH).next()?;
        self.done += points.len();
        Some(Ok(self.loader.batch(points)))
    }
}

impl DataLoaderIterator<Batch> for Batches<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.done, self.points.len(), Some("points".into()))
    }
}
