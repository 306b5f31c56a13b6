//! An epoch is saved without a copy of its tensors. This test is a program of its own, because the
//! peak is measured for the whole process.
#![cfg(all(target_os = "linux", feature = "train"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn::train::checkpoint::Checkpointer;
use safetensors_burn::train::{Checkpointers, Epochs};

const MIB: u64 = 1 << 20;

/// As many parameters of a MiB, with two moments each.
const COUNT: u64 = 32;

#[derive(Module, Debug)]
struct Model {
    weights: Vec<Param<Tensor<2>>>,
}

impl Model {
    fn new() -> Self {
        let device = Device::default().autodiff();
        let weight = |_| Param::from_tensor(Tensor::ones([512, 512], &device));
        Self { weights: (0..COUNT).map(weight).collect() }
    }

    fn step(self, optimizer: &mut ModuleOptimizer) -> Self {
        let losses = self.weights.iter().map(|weight| weight.val().powi_scalar(2).mean());
        let loss = losses.reduce(|a, b| a + b).unwrap();
        let gradients = GradientsParams::from_grads(loss.backward(), &self);
        optimizer.step(0.1, self, gradients)
    }
}

fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Saves an epoch. Returns how much memory that takes in addition to the records, in MiB.
fn save(
    (model, optimizer, scheduler): &Checkpointers,
    epoch: usize,
    module: &Model,
    state: &ModuleOptimizer,
) -> u64 {
    let records = (module.clone().into_record(), state.to_record());
    // Resets the peak, `VmHWM`.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    model.save(epoch, records.0).unwrap();
    optimizer.save(epoch, records.1).unwrap();
    scheduler.save(epoch, LrSchedulerRecord::new()).unwrap();
    status("VmHWM:").saturating_sub(before) / MIB
}

#[test]
fn a_save_takes_no_memory_for_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let epochs = Epochs::new(dir.path());
    let mut optimizer = AdamWConfig::new().init();
    let model = Model::new().step(&mut optimizer);
    let checkpointers = epochs.checkpointers_for(&model);

    // The first records go through burn's bytes.
    let first = save(&checkpointers, 1, &model, &optimizer);
    assert!(first > COUNT, "{first} MiB");
    let second = save(&checkpointers, 2, &model, &optimizer);
    assert!(second < COUNT / 4, "{second} MiB");

    // Checkpointers that have restored an epoch know its names and shapes.
    let resumed = epochs.checkpointers_for(&model);
    resumed.0.restore(2).unwrap();
    resumed.1.restore(2).unwrap();
    let next = save(&resumed, 3, &model, &optimizer);
    assert!(next < COUNT / 4, "{next} MiB");
}
