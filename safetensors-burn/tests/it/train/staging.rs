//! Records that go to their epoch through a directory in memory.

use burn::tensor::BoolStore;

use super::*;

/// Tensors without elements, tensors in one piece and in several, and booleans, which are
/// converted.
#[test]
fn every_tensor_is_the_same_and_nothing_stays_in_the_directory() {
    let staging = tempdir().unwrap();
    let tensor = |name: &str, dtype: DType, count: usize| {
        let byte =
            |i: usize| if dtype.is_bool() { u8::from(i.is_multiple_of(8)) } else { (i * 37) as u8 };
        let bytes = (0..count * dtype.size()).map(byte).collect();
        PackTensor::new(name.into(), dtype, [count], Some(7), Bytes::from_bytes_vec(bytes))
    };
    let pack = || {
        Writer::new(vec![
            tensor("empty", DType::F32, 0),
            tensor("large", DType::F64, 100_003),
            tensor("mask", DType::Bool(BoolStore::U32), 77),
            tensor("native", DType::Bool(BoolStore::Native), 80),
            tensor("odd", DType::U8, 524_289),
        ])
    };
    let save = |epochs: &Epochs| {
        let record = ModuleRecord::from_bytes(pack().into_bytes().unwrap()).unwrap();
        save_model(&epochs.checkpointers_without_module(), record);
    };
    let (_dir, plain) = empty();
    save(&plain);
    let (_dir, epochs) = empty();
    let epochs = epochs.staging(staging.path());
    save(&epochs);
    assert_eq!(files(&epochs, 1), files(&plain, 1));
    assert!(names_in(staging.path()).is_empty());
}

#[test]
fn a_directory_that_is_missing_is_an_error_and_the_old_epoch_stays() {
    let (dir, epochs) = saved(1);
    let before = files(&epochs, 1);
    let missing = dir.path().join("missing");
    let epochs = epochs.staging(&missing);
    let training = Training::trained(1);
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    let error = unwrap_error(model.save(1, training.model.into_record()));
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    assert!(error.file().unwrap().starts_with(missing.to_str().unwrap()), "{error}");
    unwrap_error(optimizer.save(1, training.optimizer.to_record()));
    unwrap_error(scheduler.save(1, training.scheduler.to_record()));
    assert_eq!(files(&epochs, 1), before);
    assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);
}

/// As at every other error of the system.
#[cfg(target_os = "linux")]
#[test]
fn an_error_of_the_directory_keeps_its_kind() {
    // No user can create anything in this directory.
    let (_dir, epochs) = empty();
    let epochs = epochs.staging("/proc");
    let result =
        epochs.checkpointers_without_module().0.save(1, Training::new().model.into_record());
    let Err(CheckpointerError::IOError(error)) = result else { panic!("{result:?}") };
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().contains("/proc"), "{error}");
}

/// A quantised tensor is refused by its name, as without the directory.
#[test]
fn staged_files_are_removed_after_an_error() {
    let staging = tempdir().unwrap();
    let (_dir, epochs) = empty();
    let epochs = epochs.staging(staging.path());
    let error =
        unwrap_error(epochs.checkpointers_without_module().0.save(1, super::failing::quantised()));
    assert!(matches!(error.kind(), ErrorKind::UnsupportedFrameworkType { .. }), "{error}");
    assert_eq!(error.tensor(), Some("enc.weight"));
    assert_eq!(error.file(), epochs.path(1).join("model.safetensors").to_str());
    assert!(names_in(staging.path()).is_empty());
}

/// As after a kill: a hidden directory that no process holds.
#[cfg(unix)]
#[test]
fn leftovers_of_killed_processes_are_removed_from_staging() {
    let staging = tempdir().unwrap();
    let left = staging.path().join(".safetensors-record.aB3dE6.tmp");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("record.bpk"), "half").unwrap();
    fs::write(left.join(".lock"), "").unwrap();
    let (_dir, epochs) = empty();
    Training::trained(1).save(&epochs.staging(staging.path()).checkpointers_without_module(), 1);
    assert!(names_in(staging.path()).is_empty());
}
