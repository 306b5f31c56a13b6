//! A module that has values is loaded without room for a second copy of them.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use safetensors_burn::{CheckpointStore, ModuleSnapshot};
use safetensors_testing::memory::peak;
use safetensors_testing::process::is_alone;

const MIB: u64 = 1 << 20;

/// As many parameters of a MiB.
const COUNT: u64 = 128;

#[derive(Module, Debug)]
struct Model {
    weights: Vec<Param<Tensor<2>>>,
}

impl Model {
    fn filled(value: f32) -> Self {
        let device = Device::default();
        let weight = |_| Param::from_tensor(Tensor::full([512, 512], value, &device));
        Self { weights: (0..COUNT).map(weight).collect() }
    }

    fn value(&self) -> f32 {
        let values = self.weights.iter().map(|weight| weight.val().mean().into_scalar::<f32>());
        values.sum::<f32>() / COUNT as f32
    }
}

#[test]
fn an_initialised_module_takes_the_memory_that_is_allowed() {
    if !is_alone(an_initialised_module_takes_the_memory_that_is_allowed) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut model = Model::filled(1.0);
    model.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    model.weights.iter_mut().for_each(|weight| {
        *weight = Param::from_tensor(weight.val().mul_scalar(2.0));
    });
    assert_eq!(model.value(), 2.0);

    let before = peak();
    let limit = 8 * MIB;
    model.load_from(&mut CheckpointStore::from_file(&path).max_extra_memory(limit)).unwrap();
    let taken = peak() - before;
    assert!(taken < limit + 32 * MIB, "{} MiB", taken / MIB);
    assert_eq!(model.value(), 1.0);

    // Without a limit all new values are read before the old ones go.
    model.load_from(&mut CheckpointStore::from_file(&path)).unwrap();
    let taken = peak() - before;
    assert!(taken > (COUNT - 32) * MIB, "{} MiB", taken / MIB);
}
