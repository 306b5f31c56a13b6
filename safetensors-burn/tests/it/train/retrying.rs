//! Saves that are repeated after one has failed never mix the records of two saves.

use super::*;

/// Saves all records as a program does that stops at the first error. `optimizer` may be broken.
fn save_in_order(
    (model, optimizer, scheduler): &Checkpointers,
    training: &Training,
    record: OptimizerRecord,
) -> Result<(), CheckpointerError> {
    model.save(1, training.model.clone().into_record())?;
    optimizer.save(1, record)?;
    scheduler.save(1, training.scheduler.to_record())
}

/// An optimizer record that cannot be saved.
fn broken() -> OptimizerRecord {
    OptimizerRecord::from_bytes(failing::quantised().checkpoint_into_bytes().unwrap()).unwrap()
}

/// Epoch 1 must have the records of this training, and nothing else may be left.
fn holds(epochs: &Epochs, training: &Training) {
    assert_eq!(restored(&epochs.checkpointers_without_module(), 1), training.contents());
    assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);
}

#[test]
fn all_records_are_saved_again_after_one_failed() {
    let (_dir, epochs) = empty();
    let checkpointers = epochs.checkpointers_without_module();
    for steps in 1..=3 {
        let training = Training::trained(steps);
        unwrap_error(save_in_order(&checkpointers, &training, broken()));
        // A failed attempt gives back its room on the disk.
        let directory = epochs.path(1).parent().unwrap().to_owned();
        let left = if directory.exists() { names_in(&directory) } else { vec![] };
        assert_eq!(left, ["epoch-1"][..(steps - 1).min(1)]);
        let again = Training::trained(steps + 3);
        save_in_order(&checkpointers, &again, again.optimizer.to_record()).unwrap();
        holds(&epochs, &again);
    }
}

/// The state of an optimizer that fails is saved again, with or without the scheduler.
#[test]
fn one_record_cannot_be_saved_again_without_the_others() {
    for with_scheduler in [false, true] {
        let (_dir, epochs) = empty();
        let checkpointers = epochs.checkpointers_without_module();
        let (_, optimizer, scheduler) = &checkpointers;
        let [first, second] = [1, 2].map(Training::trained);
        unwrap_error(save_in_order(&checkpointers, &first, broken()));
        if with_scheduler {
            unwrap_error(scheduler.save(1, first.scheduler.to_record()));
        }
        for _ in 0..3 {
            let error = unwrap_error(optimizer.save(1, first.optimizer.to_record()));
            assert!(matches!(reason(&error), EpochError::OtherFailed), "{error}");
            assert_eq!(error.file(), epochs.path(1).to_str());
        }
        unwrap_error(scheduler.save(1, first.scheduler.to_record()));
        save_in_order(&checkpointers, &second, second.optimizer.to_record()).unwrap();
        holds(&epochs, &second);
    }
}

/// All records are saved, but the epoch cannot be put in place.
#[test]
fn an_epoch_that_cannot_be_put_in_place_is_saved_again_completely() {
    let (_dir, epochs) = empty();
    let checkpointers = epochs.checkpointers_without_module();
    let [first, second] = [1, 2].map(Training::trained);
    let (model, optimizer, scheduler) = &checkpointers;
    scheduler.save(1, first.scheduler.to_record()).unwrap();
    optimizer.save(1, first.optimizer.to_record()).unwrap();
    fs::write(epochs.path(1), "a file").unwrap();
    unwrap_error(model.save(1, first.model.clone().into_record()));
    fs::remove_file(epochs.path(1)).unwrap();
    unwrap_error(model.save(1, first.model.into_record()));
    scheduler.save(1, second.scheduler.to_record()).unwrap();
    optimizer.save(1, second.optimizer.to_record()).unwrap();
    assert_eq!(epochs.newest().unwrap(), None);
    model.save(1, second.model.clone().into_record()).unwrap();
    holds(&epochs, &second);
}

/// As burn's threads: each goes on with the old save after another has begun the new one.
#[test]
fn threads_do_not_mix_a_failed_save_with_the_next() {
    for round in 0..20 {
        let (_dir, epochs) = empty();
        let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
        let trainings = [1, 2, 3].map(Training::trained);
        // How long the threads wait differs, so each is the first one at times.
        let each = |which: u64, save: &dyn Fn(usize, &Training)| {
            for (number, training) in trainings.iter().enumerate() {
                std::thread::sleep(std::time::Duration::from_millis((round * which) % 5));
                save(number, training);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                each(1, &|number, training| {
                    let record = match number {
                        0 => failing::quantised(),
                        _ => training.model.clone().into_record(),
                    };
                    assert!(model.save(1, record).is_err() || number > 0);
                });
            });
            scope.spawn(|| {
                each(2, &|_, training| _ = optimizer.save(1, training.optimizer.to_record()));
            });
            scope.spawn(|| {
                each(3, &|_, training| _ = scheduler.save(1, training.scheduler.to_record()));
            });
        });
        holds(&epochs, &trainings[2]);
    }
}
