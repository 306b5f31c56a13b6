//! An epoch is saved with one copy of the model. The first one of a process copies the optimizer,
//! and the others do not.

use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn::train::checkpoint::Checkpointer;
use safetensors_burn::train::Epochs;
use safetensors_testing::memory::{growth, resident};
use safetensors_testing::process::is_alone;

use crate::train::Checkpointers;

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

/// How much memory some work takes in addition, in MiB.
fn taken_by(work: impl FnOnce()) -> u64 {
    growth(resident(), work).1 / MIB
}

/// Saves an epoch. Returns how much memory the model and the optimizer take in addition to their
/// records, in MiB.
fn save(
    (model, optimizer, scheduler): &Checkpointers,
    epoch: usize,
    module: &Model,
    state: &ModuleOptimizer,
) -> [u64; 2] {
    let (module, state) = (module.clone().into_record(), state.to_record());
    let taken = [
        taken_by(|| model.save(epoch, module).unwrap()),
        taken_by(|| optimizer.save(epoch, state).unwrap()),
    ];
    scheduler.save(epoch, LrSchedulerRecord::new()).unwrap();
    taken
}

#[test]
fn a_save_after_the_first_takes_memory_for_the_model_alone() {
    if !is_alone(a_save_after_the_first_takes_memory_for_the_model_alone) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let epochs = Epochs::new(dir.path());
    let mut optimizer = AdamWConfig::new().init();
    let model = Model::new().step(&mut optimizer);
    let checkpointers = epochs.checkpointers(&model);

    // The first record of an optimizer goes through burn's bytes, which have twice the bytes of the
    // model. The next ones have the same names. The model is kept until burn has given all of it.
    for (epoch, is_known) in [(1, false), (2, true), (3, true)] {
        let taken = save(&checkpointers, epoch, &model, &optimizer);
        let is_copied = taken[1] > COUNT;
        assert!(taken[0] < COUNT + COUNT / 4, "{epoch}: {taken:?} MiB");
        assert!(is_copied != is_known, "{epoch}: {taken:?} MiB");
        assert!(is_copied || taken[1] < COUNT / 4, "{epoch}: {taken:?} MiB");
    }

    // Checkpointers that have restored an epoch know nothing of the optimizer that goes on.
    let resumed = epochs.checkpointers(&model);
    resumed.0.restore(3).unwrap();
    resumed.1.restore(3).unwrap();
    let first = save(&resumed, 4, &model, &optimizer);
    assert!(first[0] < COUNT + COUNT / 4 && first[1] > COUNT, "{first:?} MiB");
    let next = save(&resumed, 5, &model, &optimizer);
    assert!(next[0] < COUNT + COUNT / 4 && next[1] < COUNT / 4, "{next:?} MiB");
}
