//! A module is loaded with less memory than its values take.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};
use safetensors_burn::{CheckpointStore, ModuleSnapshot};
use safetensors_core::{SaveOptions, TensorView};
use safetensors_testing::memory::{growth, peak, resident};
use safetensors_testing::process::is_alone;

use crate::place;

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
    let (_dir, path) = place("model.safetensors");
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

/// The values go to a device with separate memory: only one number of each stays in the host's
/// memory.
#[test]
fn a_module_on_a_device_takes_the_memory_of_one_step() {
    if !is_alone(a_module_on_a_device_takes_the_memory_of_one_step) {
        return;
    }
    let (_dir, path) = place("model.safetensors");
    let values = vec![3.0_f32; 512 * 512];
    let weight = TensorView::from_slice(&[512, 512], &values).unwrap();
    let tensors = (0..COUNT).map(|i| (format!("weights.{i}"), weight));
    safetensors_core::save(&path, tensors, &SaveOptions::new()).unwrap();
    let load = |limit: u64| {
        let device = Device::default();
        let on_device = |value: Tensor<2>| value.mean().reshape([1, 1]);
        let weight = |_| Initializer::Zeros.init([512, 512], &device).load_mapper(on_device);
        let mut model = Model { weights: (0..COUNT).map(weight).collect() };
        let mut store = CheckpointStore::from_file(&path).max_extra_memory(limit);
        let (_, taken) = growth(resident(), || model.load_from(&mut store).unwrap());
        assert_eq!(model.value(), 3.0);
        taken / MIB
    };
    let limit = 8;
    let taken = [load(limit * MIB), load(0), load(u64::MAX)];
    assert!(taken[0] < limit + 16 && taken[1] < 16, "{taken:?} MiB");
    assert!(taken[2] > COUNT - 32, "{taken:?} MiB");
}
