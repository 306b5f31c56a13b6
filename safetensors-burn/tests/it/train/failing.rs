//! Saves that fail leave the epochs as they were.

use std::path::Path;

use safetensors_burn::burn_pack::MAX_TENSOR_COUNT;

use super::*;

pub(super) fn quantised() -> ModuleRecord {
    let data = TensorData::quantized(
        vec![1_i8, 2, 3, 4],
        [4],
        burn::tensor::quantization::QuantScheme::default(),
        &[0.5],
        None,
    );
    let dtype = data.dtype();
    assert!(matches!(dtype, DType::QFloat(_)));
    let tensor = PackTensor::new("enc.weight".into(), dtype, [4], Some(1), data.into_bytes());
    ModuleRecord::from_bytes(Writer::new(vec![tensor]).into_bytes().unwrap()).unwrap()
}

#[test]
fn a_quantised_tensor_is_refused_by_name() {
    let (_dir, epochs) = saved(1);
    let expected = restored(&epochs.checkpointers_without_module(), 1);
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    let error = unwrap_error(model.save(1, quantised()));
    assert!(matches!(error.kind(), ErrorKind::UnsupportedFrameworkType { .. }), "{error}");
    assert_eq!(error.tensor(), Some("enc.weight"));
    // The message names the place that the file would have had, not the hidden directory.
    assert_eq!(error.file(), epochs.path(1).join("model.safetensors").to_str());
    for error in others(&optimizer, &scheduler) {
        assert!(matches!(reason(&error), EpochError::OtherFailed), "{error}");
    }
    assert_eq!(restored(&epochs.checkpointers_without_module(), 1), expected);
    assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);
}

/// Returns the errors of the records of an epoch without a saved model.
fn others(
    optimizer: &SafetensorsCheckpointer<OptimizerRecord>,
    scheduler: &SafetensorsCheckpointer<LrSchedulerRecord>,
) -> [Error; 2] {
    let optimizer = optimizer.save(1, OptimizerRecord::default());
    [unwrap_error(optimizer), unwrap_error(scheduler.save(1, LrSchedulerRecord::new()))]
}

#[test]
fn more_tensors_than_burn_restores_are_refused() {
    let (_dir, epochs) = empty();
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    // burn itself writes such a container, and refuses to read it.
    let over = MAX_TENSOR_COUNT + 1;
    let error = unwrap_error(model.save(1, Many::new(over).into_record()));
    let EpochError::TooManyTensors { limit, found } = reason(&error) else { panic!("{error}") };
    assert_eq!((*limit, *found), (100_000, over));
    for error in others(&optimizer, &scheduler) {
        assert!(matches!(reason(&error), EpochError::OtherFailed), "{error}");
    }
    assert!(epochs.list().unwrap().is_empty());
}

/// A module of many tensors without elements.
#[derive(Module, Debug)]
struct Many {
    tensors: Vec<burn::module::Param<Tensor<1>>>,
}

impl Many {
    fn new(count: usize) -> Self {
        let device = Device::default();
        let tensor = Tensor::<1>::zeros([0], &device);
        let tensors = (0..count).map(|_| burn::module::Param::from_tensor(tensor.clone()));
        Self { tensors: tensors.collect() }
    }
}

#[test]
fn a_directory_that_cannot_be_created_is_an_error() {
    let (_dir, path) = place("file");
    fs::write(&path, "").unwrap();
    let epochs = Epochs::new(path.join("checkpoints"));
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    let error = unwrap_error(model.save(1, Model::new().into_record()));
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    others(&optimizer, &scheduler);
    fs::remove_file(&path).unwrap();
    Training::trained(1).save(&(model, optimizer, scheduler), 1);
    assert_eq!(epochs.newest().unwrap(), Some(1));
}

/// Puts something at a path.
type Make = fn(&Path);

/// Such as `train/epoch-1/Loss.log`, which burn's own logger writes.
#[test]
fn foreign_files_are_neither_replaced_nor_deleted() {
    let make: [(&str, Make); 5] = [
        ("found a file", |path| fs::write(path, "notes").unwrap()),
        ("found a directory with \"Loss.log\"", |path| write(path, "Loss.log", "0.5,1")),
        ("found a directory with \"Loss.log\"", |path| {
            fs::create_dir(path).unwrap();
            write(path, "Loss.log/x", "");
        }),
        // Manifests of other programs.
        ("manifest.json", |path| write(path, "manifest.json", r#"{"format":"of mine"}"#)),
        ("manifest.json", |path| write(path, "manifest.json", "")),
    ];
    for (found, make) in make {
        let (_dir, epochs) = saved(1);
        let path = epochs.path(2);
        let training = Training::trained(1);
        let before = |path: &Path| (path.is_dir().then(|| names_in(path)), fs::read(path).ok());
        make(&path);
        let seen = before(&path);
        let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
        let error = unwrap_error(model.save(2, training.model.clone().into_record()));
        assert!(matches!(reason(&error), EpochError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains(found), "{error}");
        assert!(error.to_string().contains("run/checkpoints"), "{error}");
        assert_eq!(error.file(), path.to_str());
        unwrap_error(optimizer.save(2, training.optimizer.to_record()));
        unwrap_error(scheduler.save(2, training.scheduler.to_record()));
        if path.is_dir() {
            training.save(&epochs.checkpointers_without_module(), 3);
            let error = epochs.delete_after(0).unwrap_err();
            assert!(matches!(reason(&error), EpochError::Foreign { .. }), "{error}");
            assert_eq!(epochs.delete_all_but(1, &[]).unwrap(), [1]);
            assert_eq!(epochs.newest().unwrap(), Some(3));
        }
        assert_eq!(before(&path), seen);

        // It appears while the epoch is saved.
        fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
        model.save(2, training.model.clone().into_record()).unwrap();
        optimizer.save(2, training.optimizer.to_record()).unwrap();
        make(&path);
        let error = unwrap_error(scheduler.save(2, training.scheduler.to_record()));
        assert!(matches!(reason(&error), EpochError::Foreign { .. }), "{error}");
        assert_eq!(before(&path), seen);
    }
}

/// Writes a file and the directory that it is in.
fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
