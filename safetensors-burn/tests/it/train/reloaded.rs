//! Weights that are loaded in the middle of a training give the parameters other ids. burn's
//! optimizer then has two states of each, of which one is never used again.

use safetensors_burn::{CheckpointStore, ModuleSnapshot};
use safetensors_core::{Checkpoint as Safetensors, SaveOptions};

use super::*;

/// A training whose first layer got other ids after some steps. Only what `filter` matches is
/// loaded.
fn reloaded(filter: &str) -> Training {
    let mut training = Training::trained(3);
    reload(&mut training, filter);
    training.steps(3);
    training
}

/// Loads the weights that a training has, under other ids.
fn reload(training: &mut Training, filter: &str) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("plain.safetensors");
    training.model.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
    let weights = safetensors_burn::load(&path).unwrap();
    let other = Training::new().model;
    let plain = dir.path().join("without-ids.safetensors");
    other.save_into(&mut CheckpointStore::from_file(&plain)).unwrap();
    // The ids of another model with the values of this one.
    let ids = Safetensors::open(&plain).unwrap().metadata().clone();
    safetensors_burn::save(&plain, &weights, &SaveOptions::new().metadata(ids)).unwrap();
    let mut store = CheckpointStore::from_file(&plain).with_regex(filter).param_ids(true);
    training.model.load_from(&mut store).unwrap();
}

#[test]
fn the_state_in_use_meets_its_parameters() {
    let (_dir, epochs) = empty();
    let mut whole = reloaded("^first");
    // Two moments of three parameters, and of the old ids of two of them.
    assert_eq!(whole.optimizer.to_record().len(), 10);
    whole.save(&epochs.checkpointers(), 6);

    let new = Training::new();
    let id = new.model.first.weight.id;
    let checkpointers = epochs.checkpointers_for(&new.model);
    let mut resumed = new.restore(&checkpointers, 6);
    assert_eq!(resumed.model.first.weight.id, id);
    // The states that nothing uses are left out.
    assert_eq!(resumed.optimizer.to_record().len(), 6);
    whole.steps(4);
    resumed.steps(4);
    assert_eq!(resumed.model.bits(), whole.model.bits());
}

/// Without a module, the record is restored with all that it has. In the file, the parameters that
/// have one state still have readable names.
#[test]
fn the_record_comes_back_whole() {
    let (_dir, epochs) = empty();
    let training = reloaded("^first");
    training.save(&epochs.checkpointers(), 6);
    let restored = epochs.checkpointers().1.restore(6).unwrap();
    assert_eq!(content(restored), content(training.optimizer.to_record()));
    let file = Safetensors::open(epochs.path(6).join("optimizer.safetensors")).unwrap();
    let readable: Vec<_> = file.tensors().filter(|t| t.name().starts_with("layers.0")).collect();
    assert_eq!((readable.len(), file.len()), (2, 10));
}

/// The epoch was saved between loading the weights and the next step. burn never uses the old
/// states, so the training goes on without any.
#[test]
fn a_state_from_before_the_weights_were_loaded_is_left_out() {
    let (_dir, epochs) = empty();
    let mut whole = Training::trained(3);
    reload(&mut whole, "^first");
    assert_eq!(whole.optimizer.to_record().len(), 6);
    whole.save(&epochs.checkpointers(), 3);
    let mut resumed = Training::resumed(&epochs, 3);
    assert_eq!(resumed.optimizer.to_record().len(), 2);
    whole.steps(4);
    resumed.steps(4);
    assert_eq!(resumed.model.bits(), whole.model.bits());
}

/// The file cannot tell loaded weights, for which burn would begin anew, from a saved copy of the
/// model, whose states are all needed.
#[test]
fn no_state_is_lost_silently_if_none_is_in_use() {
    let (_dir, epochs) = empty();
    let mut training = Training::trained(3);
    reload(&mut training, "");
    training.save(&epochs.checkpointers(), 3);
    let (_, optimizer, _) = epochs.checkpointers_for(&Training::new().model);
    let error = optimizer.restore(3).unwrap_err().to_string();
    assert!(error.contains("none of the 3 parameters"), "{error}");
    // With burn's own ids, nothing is lost.
    let restored = epochs.checkpointers().1.restore(3).unwrap();
    assert_eq!(content(restored), content(training.optimizer.to_record()));
}

/// The second time, the weights are loaded just before the epoch is saved. So there are two states
/// of a parameter, of which none is in use.
#[test]
fn two_states_from_before_are_left_out() {
    let (_dir, epochs) = empty();
    let mut whole = reloaded("^first.bias$");
    reload(&mut whole, "^first.bias$");
    assert_eq!(whole.optimizer.to_record().len(), 8);
    whole.save(&epochs.checkpointers(), 6);
    let mut resumed = Training::resumed(&epochs, 6);
    assert_eq!(resumed.optimizer.to_record().len(), 4);
    whole.steps(4);
    resumed.steps(4);
    assert_eq!(resumed.model.bits(), whole.model.bits());
}
