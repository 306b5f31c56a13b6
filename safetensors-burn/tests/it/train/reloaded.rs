//! Weights that are loaded in the middle of a training give the parameters other ids. burn's
//! optimizer then has two states of each, and never uses one of them again.

use safetensors_burn::{CheckpointStore, ModuleSnapshot};
use safetensors_core::{Checkpoint as Safetensors, SaveOptions};

use super::*;

/// Returns a training with a first layer that got other ids after some steps. Only parameters that
/// match `filter` are loaded.
fn reloaded(filter: &str) -> Training {
    let mut training = Training::trained(3);
    reload(&mut training, filter);
    training.steps(3);
    training
}

/// Loads the weights that a training has, under other ids.
fn reload(training: &mut Training, filter: &str) {
    let (dir, path) = place("plain.safetensors");
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

/// Weights are loaded before the last steps, after them, or before and after them. burn never uses
/// the states of the old ids, so the training goes on without them.
#[test]
fn only_the_states_in_use_are_restored() {
    type Prepare = fn() -> Training;
    let cases: [(Prepare, usize, usize); 3] = [
        // Two moments of three parameters, and of the old ids of two of them.
        (|| reloaded("^first"), 10, 6),
        // The epoch is saved between loading the weights and the next step.
        (
            || {
                let mut training = Training::trained(3);
                reload(&mut training, "^first");
                training
            },
            6,
            2,
        ),
        // There are two states of a parameter, and neither is in use.
        (
            || {
                let mut training = reloaded("^first.bias$");
                reload(&mut training, "^first.bias$");
                training
            },
            8,
            4,
        ),
    ];
    for (prepare, saved, restored) in cases {
        let (_dir, epochs) = empty();
        let mut whole = prepare();
        assert_eq!(whole.optimizer.to_record().len(), saved);
        whole.save(&epochs.checkpointers_without_module(), 6);

        let new = Training::new();
        let id = new.model.first.weight.id;
        let checkpointers = epochs.checkpointers(&new.model);
        let mut resumed = new.restore(&checkpointers, 6);
        assert_eq!(resumed.model.first.weight.id, id);
        assert_eq!(resumed.optimizer.to_record().len(), restored);
        whole.steps(4);
        resumed.steps(4);
        assert_eq!(resumed.model.bits(), whole.model.bits());
    }
}

/// Without a module, the record is restored with all that it has. In the file, the parameters that
/// have one state still have readable names.
#[test]
fn a_record_with_other_ids_is_restored_completely() {
    let (_dir, epochs) = empty();
    let checkpointers = epochs.checkpointers_without_module();
    // This record has fewer tensors.
    Training::trained(3).save(&checkpointers, 3);
    let training = reloaded("^first");
    training.save(&checkpointers, 6);
    let restored = epochs.checkpointers_without_module().1.restore(6).unwrap();
    assert_eq!(content(restored), content(training.optimizer.to_record()));
    let file = Safetensors::open(epochs.path(6).join("optimizer.safetensors")).unwrap();
    let readable: Vec<_> = file.tensors().filter(|t| t.name().starts_with("layers.0")).collect();
    assert_eq!((readable.len(), file.len()), (2, 10));
}

/// The file does not distinguish loaded weights, for which burn would start over, from a saved copy
/// of the model with states that are all needed.
#[test]
fn no_state_is_lost_silently_if_none_is_in_use() {
    let (_dir, epochs) = empty();
    let mut training = Training::trained(3);
    reload(&mut training, "");
    training.save(&epochs.checkpointers_without_module(), 3);
    let (_, optimizer, _) = epochs.checkpointers(&Training::new().model);
    let error = optimizer.restore(3).unwrap_err().to_string();
    assert!(error.contains("none of the optimizer's 3 parameters"), "{error}");
    // With burn's own ids, nothing is lost.
    let restored = epochs.checkpointers_without_module().1.restore(3).unwrap();
    assert_eq!(content(restored), content(training.optimizer.to_record()));
}
