//! A training that is resumed goes on as if it had never been stopped.

use safetensors_burn::{CheckpointStore, ModuleSnapshot};
use safetensors_core::error::Mismatch;

use super::*;

#[test]
fn a_resumed_training_ends_with_the_same_bits() {
    let (_dir, epochs) = empty();
    let mut whole = Training::trained(7);
    whole.save(&epochs.checkpointers_without_module(), 7);
    whole.steps(5);
    let mut resumed = Training::restored(&epochs.checkpointers_without_module(), 7);
    resumed.steps(5);
    assert_eq!(resumed.model.bits(), whole.model.bits());
    assert_eq!(content(resumed.optimizer.to_record()), content(whole.optimizer.to_record()));
    // Without the state of the optimizer the bits differ, so the test can fail.
    let mut forgetful = Training::restored(&epochs.checkpointers_without_module(), 7);
    forgetful.optimizer = Training::new().optimizer;
    forgetful.steps(5);
    assert_ne!(forgetful.model.bits(), whole.model.bits());
}

/// The weights come from elsewhere, so the parameters have other ids than the record.
#[test]
fn the_state_meets_the_parameters_of_a_module_with_other_ids() {
    let (_dir, epochs) = empty();
    let mut whole = Training::trained(4);
    whole.save(&epochs.checkpointers_without_module(), 4);
    let mut resumed = Training::new();
    let path = epochs.path(4).join("model.safetensors");
    let weights = safetensors_burn::load(&path).unwrap();
    let plain = epochs.path(4).with_file_name("plain.safetensors");
    safetensors_burn::save(&plain, &weights, &safetensors_core::SaveOptions::new()).unwrap();
    resumed.model.load_from(&mut CheckpointStore::from_file(plain)).unwrap();
    let id = resumed.model.first.weight.id;
    assert_ne!(id, whole.model.first.weight.id);

    let (model, optimizer, scheduler) = epochs.checkpointers(&resumed.model);
    resumed.optimizer = resumed.optimizer.load_record(optimizer.restore(4).unwrap());
    resumed.scheduler = resumed.scheduler.load_record(scheduler.restore(4).unwrap());
    assert_eq!(resumed.model.first.weight.id, id);
    let loaded = resumed.model.clone().load_record(model.restore(4).unwrap());
    assert_eq!(loaded.first.weight.id, id);
    resumed.steps(4);
    whole.steps(4);
    assert_eq!(resumed.model.bits(), whole.model.bits());
}

#[derive(Module, Debug)]
struct Wider {
    first: Linear,
    second: Linear,
}

#[test]
fn another_model_is_refused_with_all_differences() {
    let (_dir, epochs) = saved(1);
    let device = Device::default();
    let other = Wider {
        first: LinearConfig::new(3, 5).init(&device),
        second: LinearConfig::new(5, 1).with_bias(false).init(&device),
    };
    let (model, optimizer, scheduler) = epochs.checkpointers(&other);
    let error = unwrap_error(model.restore(1));
    assert_eq!(error.file(), epochs.path(1).join("model.safetensors").to_str());
    let ErrorKind::Mismatches { mismatches } = error.kind() else { panic!("{error}") };
    let shape = |name: &str, expected: &[usize], found: &[usize]| Mismatch::Shape {
        name: name.into(),
        expected: expected.into(),
        found: found.into(),
    };
    let expected = [
        shape("first.bias", &[5], &[4]),
        shape("first.weight", &[3, 5], &[3, 4]),
        Mismatch::Missing { name: "second.weight".into() },
        Mismatch::Extra { name: "layers.0.weight".into() },
    ];
    assert_eq!(mismatches, &expected);
    // Whichever record comes first, so that none is loaded.
    assert_eq!(unwrap_error(optimizer.restore(1)).to_string(), error.to_string());
    assert_eq!(unwrap_error(scheduler.restore(1)).to_string(), error.to_string());
}
