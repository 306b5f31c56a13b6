//! Epochs that burn asks to delete are deleted only once training can be resumed without them.

use super::*;

/// A run goes back from epoch 6 to epoch 3. burn asks for the deletions although the save fails.
#[test]
fn a_save_that_fails_deletes_nothing() {
    let (_dir, epochs, training) = saved_to(6);
    let checkpointers = epochs.checkpointers_without_module();
    Training::restored(&checkpointers, 3);
    unwrap_error(checkpointers.0.save(4, failing::quantised()));
    unwrap_error(checkpointers.1.save(4, training.optimizer.to_record()));
    unwrap_error(checkpointers.2.save(4, training.scheduler.to_record()));
    for epoch in [1, 2, 3] {
        delete(&checkpointers, epoch).unwrap();
    }
    training.save(&checkpointers, 4);
    assert_eq!(numbers(&epochs), [1, 2, 3, 4, 5, 6]);
    for epoch in [1, 2, 3] {
        delete(&checkpointers, epoch).unwrap();
    }
    assert_eq!(numbers(&epochs), [4, 5, 6]);
}

/// burn's `MetricCheckpointingStrategy` deletes before it saves.
#[test]
fn the_epoch_that_was_restored_stays_until_another_is_saved() {
    let (_dir, epochs, training) = saved_to(6);
    let checkpointers = epochs.checkpointers_without_module();
    Training::restored(&checkpointers, 3);
    delete(&checkpointers, 3).unwrap();
    delete(&checkpointers, 2).unwrap();
    assert_eq!(numbers(&epochs), [1, 3, 4, 5, 6]);
    training.save(&checkpointers, 4);
    assert_eq!(numbers(&epochs), [1, 4, 5, 6]);
    delete(&checkpointers, 4).unwrap();
    assert_eq!(numbers(&epochs), [1, 4, 5, 6]);
}

#[test]
fn a_deletion_that_fails_is_tried_again_and_does_not_fail_the_save() {
    let (_dir, epochs, training) = saved_to(1);
    let checkpointers = epochs.checkpointers_without_module();
    training.save(&checkpointers, 1);
    delete(&checkpointers, 1).unwrap();
    // A file in the place of the epoch is not deleted.
    let elsewhere = epochs.path(1).with_file_name("elsewhere");
    fs::rename(epochs.path(1), &elsewhere).unwrap();
    fs::write(epochs.path(1), "a file").unwrap();
    training.save(&checkpointers, 2);
    training.save(&checkpointers, 3);
    let error = unwrap_error(delete(&checkpointers, 2));
    assert_eq!(error.file(), epochs.path(1).to_str());
    // The other one is deleted all the same.
    assert_eq!(numbers(&epochs), [3]);
    fs::remove_file(epochs.path(1)).unwrap();
    fs::rename(&elsewhere, epochs.path(1)).unwrap();
    training.save(&checkpointers, 4);
    assert_eq!(numbers(&epochs), [3, 4]);
}
