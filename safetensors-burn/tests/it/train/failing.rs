//! Saves that fail leave the epochs as they were.

use burn::tensor::DType;
use safetensors_burn::burn_pack::{MAX_TENSOR_COUNT, Tensor as PackTensor};

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
    let expected = content(epochs.checkpointers().0.restore(1).unwrap());
    let (model, optimizer, scheduler) = epochs.checkpointers();
    let error = of(model.save(1, quantised()));
    assert!(matches!(error.kind(), ErrorKind::UnsupportedFrameworkType { .. }), "{error}");
    assert_eq!(error.tensor(), Some("enc.weight"));
    // The message names the place that the file would have had, not the hidden directory.
    assert_eq!(error.file(), epochs.path(1).join("model.safetensors").to_str());

    // The epoch cannot become complete any more.
    let others = [
        optimizer.save(1, OptimizerRecord::default()),
        scheduler.save(1, LrSchedulerRecord::new()),
    ];
    let error = others.into_iter().find(Result::is_err).unwrap();
    assert!(matches!(reason(&of(error)), EpochError::OtherFailed));
    assert_eq!(content(model.restore(1).unwrap()), expected);
    assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);

    // A later save is not affected.
    let training = Training::trained(3);
    training.save(&(model, optimizer, scheduler), 1);
    assert_eq!(
        content(epochs.checkpointers().0.restore(1).unwrap()),
        content(training.model.into_record())
    );
}

#[test]
fn more_tensors_than_burn_restores_are_refused() {
    let (_dir, epochs) = empty();
    let (model, optimizer, scheduler) = epochs.checkpointers();
    // burn itself writes such a container, and refuses to read it.
    let over = MAX_TENSOR_COUNT + 1;
    let error = of(model.save(1, Many::new(over).into_record()));
    let EpochError::TooManyTensors { limit, found } = reason(&error) else { panic!("{error}") };
    assert_eq!((*limit, *found), (100_000, over));
    let others = [
        optimizer.save(1, OptimizerRecord::default()),
        scheduler.save(1, LrSchedulerRecord::new()),
    ];
    for error in others.map(of) {
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
    let dir = tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "").unwrap();
    let epochs = Epochs::new(path.join("checkpoints"));
    let (model, optimizer, scheduler) = epochs.checkpointers();
    let error = of(model.save(1, Model::new().into_record()));
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    of(optimizer.save(1, OptimizerRecord::default()));
    of(scheduler.save(1, LrSchedulerRecord::new()));
    fs::remove_file(&path).unwrap();
    Training::trained(1).save(&(model, optimizer, scheduler), 1);
    assert_eq!(epochs.newest().unwrap(), Some(1));
}

/// A file is where the directory of the epoch should be.
#[test]
fn a_file_in_the_place_of_an_epoch_is_left_alone() {
    let (_dir, epochs) = saved(1);
    fs::write(epochs.path(2), "notes").unwrap();
    let (model, ..) = epochs.checkpointers();
    let error = of(model.save(2, Model::new().into_record()));
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    assert_eq!(error.file(), epochs.path(2).to_str());
    assert_eq!(fs::read_to_string(epochs.path(2)).unwrap(), "notes");
}
