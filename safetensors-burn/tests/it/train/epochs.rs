//! Which epochs a directory has, and which stay.

use super::*;

/// The numbers of the epochs, and whether each is complete.
fn listed(epochs: &Epochs) -> Vec<(usize, bool)> {
    let list = epochs.list().unwrap();
    list.iter().map(|epoch| (epoch.number(), epoch.problem().is_none())).collect()
}

#[test]
fn an_epoch_appears_with_its_last_record() {
    let (dir, epochs) = empty();
    assert_eq!((listed(&epochs), epochs.newest().unwrap()), (vec![], None));
    let training = Training::trained(1);
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    // burn's order is the order of the tuple, but the threads may end in any order.
    let save: [&dyn Fn() -> Result<(), CheckpointerError>; 3] = [
        &|| model.save(12, training.model.clone().into_record()),
        &|| optimizer.save(12, training.optimizer.to_record()),
        &|| scheduler.save(12, training.scheduler.to_record()),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        for record in order {
            assert_eq!(listed(&epochs), []);
            save[record]().unwrap();
        }
        assert_eq!(listed(&epochs), [(12, true)]);
        assert_eq!(names_in(&dir.path().join("run/checkpoints")), ["epoch-12"]);
        let files = [
            "manifest.json",
            "model.safetensors",
            "optimizer.safetensors",
            "scheduler.safetensors",
        ];
        assert_eq!(names_in(&epochs.path(12)), files);
        epochs.verify(12).unwrap();
        assert_eq!(epochs.delete_after(11).unwrap(), [12]);
    }
}

#[test]
fn an_epoch_that_is_saved_again_is_replaced_at_once() {
    let (_dir, epochs) = saved(5);
    let (first, second) = (Training::trained(1), Training::trained(2));
    let checkpointers = epochs.checkpointers_without_module();
    first.save(&checkpointers, 5);
    // Half of another save changes nothing.
    checkpointers.0.save(5, second.model.clone().into_record()).unwrap();
    checkpointers.1.save(5, second.optimizer.to_record()).unwrap();
    let alone = Training::restored(&epochs.checkpointers_without_module(), 5);
    assert_eq!(alone.model.bits(), first.model.bits());
    checkpointers.2.save(5, second.scheduler.to_record()).unwrap();
    assert_eq!(restored(&checkpointers, 5), second.contents());
}

/// A thread may save its record a second time before another has ended its first save.
#[test]
fn the_records_of_two_saves_are_not_mixed() {
    let (_dir, epochs) = empty();
    let (first, second) = (Training::trained(1), Training::trained(2));
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    model.save(1, first.model.clone().into_record()).unwrap();
    model.save(1, second.model.clone().into_record()).unwrap();
    optimizer.save(1, first.optimizer.to_record()).unwrap();
    scheduler.save(1, first.scheduler.to_record()).unwrap();
    assert_eq!(content(model.restore(1).unwrap()), content(first.model.into_record()));
    scheduler.save(1, second.scheduler.to_record()).unwrap();
    optimizer.save(1, second.optimizer.to_record()).unwrap();
    assert_eq!(restored(&epochs.checkpointers_without_module(), 1), second.contents());
}

#[test]
fn the_last_epochs_and_the_best_are_kept() {
    let (_dir, epochs, _) = saved_to(6);
    fs::create_dir(epochs.path(4).join("x")).unwrap();
    fs::remove_file(epochs.path(4).join("model.safetensors")).unwrap();
    fs::create_dir(epochs.path(9)).unwrap();
    assert_eq!(epochs.newest().unwrap(), Some(6));
    // Epoch 4 is not complete. Epoch 9 may be one that is being copied.
    assert_eq!(epochs.delete_all_but(2, &[1]).unwrap(), [2, 3, 4]);
    assert_eq!(listed(&epochs), [(1, true), (5, true), (6, true), (9, false)]);
    assert!(epochs.delete_all_but(5, &[]).unwrap().is_empty());
}

/// As after a change by another program. It may be the newest state.
#[test]
fn an_epoch_after_the_newest_complete_one_is_passed_over_and_kept() {
    let (_dir, epochs, _) = saved_to(5);
    assert!(epochs.passed_over().unwrap().is_empty());
    for epoch in [2, 4, 5] {
        let path = epochs.path(epoch).join("model.safetensors");
        fs::write(&path, [fs::read(&path).unwrap(), vec![0]].concat()).unwrap();
    }
    for last in [1, 0] {
        let passed_over = epochs.passed_over().unwrap();
        assert_eq!(passed_over.iter().map(|epoch| epoch.number()).collect::<Vec<_>>(), [4, 5]);
        for epoch in passed_over {
            assert!(matches!(reason(epoch.problem().unwrap()), EpochError::Length { .. }));
        }
        assert_eq!(epochs.delete_all_but(last, &[]).unwrap(), [[3].as_slice(), &[1, 2]][last]);
    }
    assert_eq!(listed(&epochs), [(4, false), (5, false)]);
}

/// A disk was full, so an epoch was moved to another one, and linked.
#[cfg(unix)]
#[test]
fn an_epoch_that_is_a_link_is_passed_over_and_never_ends_a_training() {
    let (dir, epochs) = empty();
    let [first, second] = [1, 2].map(Training::trained);
    let checkpointers = epochs.checkpointers_without_module();
    (1..=3).for_each(|epoch| first.save(&checkpointers, epoch));
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(epochs.path(3), &elsewhere).unwrap();
    let (target, nothing) = (dir.path().join("elsewhere"), dir.path().join("nothing"));
    for target in [&target, &nothing] {
        std::os::unix::fs::symlink(target, epochs.path(3)).unwrap();
        assert_eq!(listed(&epochs), [(1, true), (2, true), (3, false)]);
        let passed_over = epochs.passed_over().unwrap();
        assert_eq!(passed_over.len(), 1);
        assert!(matches!(reason(passed_over[0].problem().unwrap()), EpochError::Link));
        assert_eq!(epochs.newest().unwrap(), Some(2));
        // As `keep_last` and burn's strategies ask.
        assert!(epochs.delete_all_but(2, &[]).unwrap().is_empty());
        delete(&checkpointers, 3).unwrap();
        assert!(epochs.delete_after(2).unwrap().is_empty());
        // The training that is resumed repeats the epoch.
        second.save(&epochs.checkpointers_without_module(), 3);
        assert_eq!(listed(&epochs), [(1, true), (2, true), (3, true)]);
        epochs.verify(3).unwrap();
        assert_eq!(epochs.delete_after(2).unwrap(), [3]);
    }
    let names =
        ["manifest.json", "model.safetensors", "optimizer.safetensors", "scheduler.safetensors"];
    assert_eq!(names_in(&elsewhere), names);
}

/// An error of the system says nothing about the epoch. As root, not all of them can be caused.
#[cfg(unix)]
#[test]
fn an_epoch_that_cannot_be_read_is_neither_passed_over_nor_deleted() {
    let (_dir, epochs, _) = saved_to(3);
    for name in ["manifest.json", "model.safetensors"] {
        for epoch in [2, 3] {
            let path = epochs.path(epoch).join(name);
            let aside = path.with_extension("aside");
            fs::rename(&path, &aside).unwrap();
            // A link to itself has too many levels of links.
            std::os::unix::fs::symlink(&path, &path).unwrap();
            let error = epochs.delete_all_but(1, &[]).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
            assert_eq!(error.file(), path.to_str());
            // A newer epoch that is complete is enough.
            assert_eq!(epochs.newest().is_ok(), epoch == 2);
            fs::rename(aside, path).unwrap();
            assert_eq!(listed(&epochs), [(1, true), (2, true), (3, true)]);
        }
    }
}

#[test]
fn an_epoch_of_another_version_is_not_deleted() {
    let (_dir, epochs, _) = saved_to(4);
    let path = epochs.path(1).join("manifest.json");
    let manifest = fs::read_to_string(&path).unwrap();
    fs::write(path, manifest.replace("\"version\": 1", "\"version\": 9")).unwrap();
    assert_eq!(epochs.delete_all_but(1, &[]).unwrap(), [2, 3]);
    assert_eq!(listed(&epochs), [(1, false), (4, true)]);
}

/// The manifest is read before the files. Both must be of the same save. For a moment, there is only
/// the epoch before.
#[test]
fn a_reader_of_an_epoch_that_is_replaced_finds_a_complete_one() {
    let (_dir, epochs) = saved(1);
    let trainings = [Training::trained(1), Training::trained(2)];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let checkpointers = epochs.checkpointers_without_module();
            for training in trainings.iter().cycle().take(30) {
                training.save(&checkpointers, 2);
            }
        });
        while !writer.is_finished() {
            assert!(epochs.newest().unwrap().is_some());
            assert!(epochs.delete_all_but(2, &[]).unwrap().is_empty());
        }
    });
    assert_eq!(listed(&epochs), [(1, true), (2, true)]);
}

#[test]
fn a_resumed_run_can_delete_later_epochs() {
    assert!(empty().1.delete_after(0).unwrap().is_empty());
    let (_dir, epochs, _) = saved_to(5);
    fs::remove_file(epochs.path(4).join("model.safetensors")).unwrap();
    assert_eq!(epochs.delete_after(3).unwrap(), [5, 4]);
    assert_eq!(epochs.newest().unwrap(), Some(3));
    assert!(epochs.delete_after(3).unwrap().is_empty());
}

/// Also of epochs that no run saves or deletes any more.
#[cfg(unix)]
#[test]
fn a_save_removes_leftovers_of_killed_processes() {
    let (_dir, epochs) = saved(2);
    let directory = epochs.path(2).parent().unwrap().to_owned();
    let others = [".epoch-x.aB3dE6.tmp", ".model.aB3dE6.tmp", "epoch-1.aB3dE6.tmp"];
    for name in others.into_iter().chain([".epoch-1.aB3dE6.tmp", ".epoch-7.aB3dE7.tmp"]) {
        fs::create_dir_all(directory.join(name).join("old")).unwrap();
        fs::write(directory.join(name).join(".lock"), "").unwrap();
    }
    Training::trained(1).save(&epochs.checkpointers_without_module(), 3);
    let expected =
        [".epoch-x.aB3dE6.tmp", ".model.aB3dE6.tmp", "epoch-1.aB3dE6.tmp", "epoch-2", "epoch-3"];
    assert_eq!(names_in(&directory), expected);
}

/// As after a kill while an epoch was replaced: the new one has a hidden name, and of the old one
/// nothing is left, or a part that could not be renamed.
#[cfg(unix)]
#[test]
fn an_epoch_that_has_a_hidden_name_is_listed_and_deleted() {
    for (old, deletes) in [("old", true), ("old", false), ("rest", true), ("rest", false)] {
        let (_dir, epochs) = saved(2);
        let hidden = epochs.path(2).with_file_name(".epoch-2.aB3dE6.tmp");
        fs::create_dir(&hidden).unwrap();
        fs::rename(epochs.path(2), hidden.join("new")).unwrap();
        fs::write(hidden.join(old), "").unwrap();
        fs::write(hidden.join(".lock"), "").unwrap();
        if old == "rest" {
            fs::create_dir(epochs.path(2)).unwrap();
            fs::copy(hidden.join("new/manifest.json"), epochs.path(2).join("manifest.json"))
                .unwrap();
        }
        if deletes {
            assert_eq!(epochs.delete_after(1).unwrap(), [2], "{old}");
        }
        assert_eq!(listed(&epochs), [(2, true)][usize::from(deletes)..], "{old}");
        let names = names_in(hidden.parent().unwrap());
        assert_eq!(names, ["epoch-2"][usize::from(deletes)..], "{old}");
    }
}

#[test]
fn names_that_are_no_epochs_are_left_alone() {
    let (_dir, epochs) = saved(2);
    let directory = epochs.path(2).parent().unwrap().to_owned();
    for name in
        ["epoch-", "epoch-02", "epoch--1", "epoch-1x", "epochs", "EPOCH-1", "epoch-5.previous"]
    {
        fs::create_dir(directory.join(name)).unwrap();
    }
    fs::write(directory.join("epoch-7"), "a file").unwrap();
    assert_eq!(listed(&epochs), [(2, true)]);
    assert_eq!(epochs.delete_all_but(0, &[]).unwrap(), [2]);
    assert_eq!(names_in(&directory).len(), 8);
}

#[test]
fn the_newest_epoch_is_deleted_only_after_a_newer_one_is_complete() {
    let (_dir, epochs) = empty();
    let training = Training::trained(1);
    let checkpointers = epochs.checkpointers_without_module();
    let (model, optimizer, scheduler) = &checkpointers;
    let delete = |epoch| delete(&checkpointers, epoch).unwrap();
    training.save(&checkpointers, 1);
    training.save(&checkpointers, 2);
    model.delete(1).unwrap();
    optimizer.delete(1).unwrap();
    assert_eq!(listed(&epochs).len(), 2);
    scheduler.delete(1).unwrap();
    assert_eq!(listed(&epochs), [(2, true)]);
    // As burn's MetricCheckpointingStrategy does: it deletes first, and saves then.
    delete(2);
    assert_eq!(listed(&epochs), [(2, true)]);
    training.save(&checkpointers, 3);
    assert_eq!(listed(&epochs), [(3, true)]);
    // An epoch that is saved again after its deletion was asked for stays.
    delete(3);
    training.save(&checkpointers, 3);
    training.save(&checkpointers, 4);
    assert_eq!(listed(&epochs), [(3, true), (4, true)]);
    delete(7);
    assert_eq!(listed(&epochs), [(3, true), (4, true)]);
}

#[test]
fn two_runs_in_one_directory_do_not_mix_their_records() {
    let (_dir, epochs) = empty();
    let trainings = [Training::trained(1), Training::trained(2)];
    std::thread::scope(|scope| {
        for training in &trainings {
            let checkpointers = epochs.checkpointers_without_module();
            scope.spawn(move || (0..10).for_each(|_| training.save(&checkpointers, 1)));
        }
    });
    epochs.verify(1).unwrap();
    let found = restored(&epochs.checkpointers_without_module(), 1);
    assert!(trainings.iter().any(|training| training.contents() == found));
    assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);
}
