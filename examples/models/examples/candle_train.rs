//! Trains a small candle model, is killed at random again and again, and resumes each time. In the
//! end every bit of the model and of its optimizer equals a run that was never stopped.
//!
//! `cargo run -p model-examples --example candle_train`
//!
//! The example starts itself as a child process with a path to train at, and kills the child with
//! SIGKILL, which no process can catch. One run saves to a single file, another one in shards. The
//! child saves after every step, so that many kills hit a save. At least one kill of each run must.

use std::collections::BTreeMap;
use std::env;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use model_examples::kills::{Kill, Random, run_child};
use safetensors_bridge::candle::train::{self, AdamW};
use safetensors_bridge::{Checkpoint, SaveOptions, ShardOptions};

const STEPS: usize = 60;
const BATCH: usize = 64;
const HIDDEN: usize = 24;
/// How often each run is killed at random.
const KILLS: usize = 10;

fn main() -> Result<()> {
    match env::args_os().nth(1) {
        Some(path) => run(Path::new(&path)),
        None => compare(),
    }
}

/// Trains without a stop, and twice with kills. Compares how the three runs end.
fn compare() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let whole = dir.path().join("whole.safetensors");
    let run = run_child(&whole, None)?;
    ensure!(run.finished, "the run should not have been stopped");
    println!("Never stopped: {STEPS} steps, the last loss is {}.", run.loss);
    let expected = content(&whole)?;

    let mut random = Random(RandomState::new().hash_one(0));
    for (what, name) in [("One file", "killed.safetensors"), ("In shards", "killed")] {
        let path = dir.path().join(name);
        let (mut kills, mut in_saves) = (0, 0);
        let end = loop {
            // On a fast disk all kills may miss the saves. Further ones come as soon as a save
            // begins. A run that they miss again has made a step, so they end when training does.
            let kill = match kills {
                0..KILLS => Some(Kill::at_random(&mut random)),
                _ if in_saves == 0 => Some(Kill { lines: 1, wait: Duration::ZERO }),
                _ => None,
            };
            let run = run_child(&path, kill)?;
            if run.finished {
                break run;
            }
            kills += 1;
            in_saves += usize::from(run.was_saving);
            verify(&path)?;
        };
        println!(
            "{what}: killed {kills} times, {in_saves} times during a save; the last loss is {}.",
            end.loss
        );
        ensure!(in_saves > 0, "no kill has hit a save, so this run has shown little");
        let found = content(&path)?;
        let differing: Vec<&String> =
            expected.keys().filter(|key| found.get(*key) != expected.get(*key)).collect();
        ensure!(differing.is_empty(), "these differ: {differing:?}");
        ensure!(found.len() == expected.len(), "the run that was killed has more tensors");
    }
    println!("All runs end with the same {} tensors and metadata entries.", expected.len());
    Ok(())
}

/// Checks that the checkpoint at a path is complete, whenever the child was killed.
fn verify(path: &Path) -> Result<()> {
    let mut training = Training::new()?;
    training.resume(path).context("a kill has damaged the checkpoint")
}

/// Returns the tensors and the metadata of a checkpoint as bytes, by name.
fn content(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let checkpoint = Checkpoint::open(path)?;
    let mut content = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        content.insert(format!("tensor {}", tensor.name()), tensor.read()?.bytes().to_vec());
    }
    // A sharded save adds `format`.
    for (key, value) in checkpoint.metadata().iter().filter(|(key, _)| *key != "format") {
        content.insert(format!("metadata {key}"), value.clone().into_bytes());
    }
    Ok(content)
}

/// The child process: resumes if there is something to resume, then trains to the end.
fn run(path: &Path) -> Result<()> {
    let mut training = Training::new()?;
    if path.exists() {
        training.resume(path)?;
    } else {
        training.save(path)?;
    }
    while training.optimizer.step_count() < STEPS {
        let loss = training.step()?;
        println!("saving");
        training.save(path)?;
        println!("saved, loss {loss}");
    }
    Ok(())
}

/// Everything that the next step depends on.
struct Training {
    var_map: VarMap,
    layers: [Linear; 3],
    optimizer: AdamW,
    random: Random,
}

impl Training {
    /// A model with weights that are always the same.
    fn new() -> Result<Self> {
        let mut random = Random(1);
        let mut var_map = VarMap::new();
        let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
        let mut layer = |name: &str, inputs: usize, outputs: usize| -> Result<Linear> {
            let layer = candle_nn::linear(inputs, outputs, builder.pp(name))?;
            // candle's random numbers on the CPU cannot be seeded.
            let scale = 1.0 / (inputs as f32).sqrt();
            let weight = tensor(&mut random, &[outputs, inputs])?.affine(f64::from(scale), 0.0)?;
            var_map.set_one(format!("{name}.weight"), weight)?;
            var_map.set_one(
                format!("{name}.bias"),
                Tensor::zeros(outputs, DType::F32, &Device::Cpu)?,
            )?;
            Ok(layer)
        };
        let layers = [
            layer("input", 2, HIDDEN)?,
            layer("hidden", HIDDEN, HIDDEN)?,
            layer("output", HIDDEN, 1)?,
        ];
        let params = ParamsAdamW { lr: 0.05, ..ParamsAdamW::default() };
        let optimizer = AdamW::from_var_map(&var_map, params)?;
        Ok(Self { var_map, layers, optimizer, random })
    }

    /// Takes one step: which of the points in a square are in a circle?
    fn step(&mut self) -> Result<f32> {
        let points = tensor(&mut self.random, &[BATCH, 2])?;
        let inside = points.sqr()?.sum_keepdim(1)?.le(0.6)?.to_dtype(DType::F32)?;
        let [input, hidden, output] = &self.layers;
        let hidden = hidden.forward(&input.forward(&points)?.tanh()?)?.tanh()?;
        let logits = output.forward(&hidden)?;
        let loss = candle_nn::loss::binary_cross_entropy_with_logit(&logits, &inside)?;
        self.optimizer.backward_step(&loss)?;
        Ok(loss.to_scalar()?)
    }

    /// Saves the model, the optimizer, and where the random numbers are, as one unit.
    fn save(&self, path: &Path) -> Result<()> {
        let random = [("random", self.random.0.to_string())];
        if path.extension().is_some() {
            let options = SaveOptions::new().metadata(random);
            train::save(path, (&self.var_map, &self.optimizer), &options)?;
        } else {
            let options = ShardOptions::new().max_shard_size(4096.into()).metadata(random);
            train::save_sharded(path, (&self.var_map, &self.optimizer), &options)?;
        }
        Ok(())
    }

    fn resume(&mut self, path: &Path) -> Result<()> {
        let loaded = train::load(path, (&self.var_map, &mut self.optimizer))?;
        let random = loaded.metadata.get("random").context("the metadata lacks \"random\"")?;
        self.random = Random(random.parse()?);
        Ok(())
    }
}

/// F32 elements from -1 to 1.
fn tensor(random: &mut Random, shape: &[usize]) -> Result<Tensor> {
    let count = shape.iter().product();
    let values = (0..count).map(|_| (random.draw() >> 40) as f32 / (1 << 23) as f32 - 1.0);
    Ok(Tensor::from_vec(values.collect::<Vec<f32>>(), shape, &Device::Cpu)?)
}
