//! Records that burn gives tensor by tensor are saved as their bytes are.

use burn::module::{Initializer, Param, ParamId};
use burn::nn::LinearLayout;
use burn::optim::LambConfig;
use burn::tensor::{Bool, BoolStore, Bytes, DType, Int};
use safetensors_burn::burn_pack::Tensor as PackTensor;

use super::foreign::{Net, optimizers};
use super::*;

/// Saves these records as an epoch.
fn save(
    (model, optimizer, scheduler): &Checkpointers,
    epoch: usize,
    module: &impl Module,
    state: OptimizerRecord,
) {
    model.save(epoch, module.clone().into_record()).unwrap();
    optimizer.save(epoch, state).unwrap();
    scheduler.save(epoch, LrSchedulerRecord::new()).unwrap();
}

/// Checks that an epoch has the files that the bytes of its records give. New checkpointers without
/// a module take no record apart.
fn assert_is_of_bytes(epochs: &Epochs, epoch: usize, module: &impl Module, state: OptimizerRecord) {
    let (_dir, plain) = empty();
    save(&plain.checkpointers(), epoch, module, state);
    assert_eq!(files(epochs, epoch), files(&plain, epoch));
}

/// Saves a module twice. The module tells what the first record has, which tells what the second
/// one has.
fn assert_saves_are_of_bytes(module: &impl Module) {
    let (_dir, epochs) = empty();
    let checkpointers = epochs.checkpointers_for(module);
    for epoch in [1, 2] {
        save(&checkpointers, epoch, module, OptimizerRecord::default());
        assert_is_of_bytes(&epochs, epoch, module, OptimizerRecord::default());
    }
}

#[test]
fn every_optimizer_of_burn_is_saved_as_its_bytes_are() {
    for (name, mut optimizer) in optimizers() {
        let (_dir, epochs) = empty();
        let net = Net::new(DType::F32);
        let checkpointers = epochs.checkpointers_for(&net);
        // The first record has no states, the second one new states, the third one as many.
        save(&checkpointers, 1, &net, optimizer.to_record());
        let mut net = net;
        for epoch in 2..5 {
            net = net.steps(&mut optimizer);
            save(&checkpointers, epoch, &net, optimizer.to_record());
        }
        for epoch in 1..5 {
            let found = epochs.checkpointers().1.restore(epoch).unwrap();
            assert_eq!(found.is_empty(), epoch == 1, "{name}");
        }
        assert_is_of_bytes(&epochs, 4, &net, optimizer.to_record());
    }
}

/// Checkpointers that have restored an epoch know the names and shapes of its model.
#[test]
fn a_resumed_training_saves_the_same() {
    let (_dir, epochs) = saved(2);
    let checkpointers = epochs.checkpointers_for(&Training::new().model);
    let mut resumed = Training::restored(&checkpointers, 2);
    resumed.steps(1);
    resumed.save(&checkpointers, 3);
    let (_dir, plain) = empty();
    resumed.save(&plain.checkpointers(), 3);
    assert_eq!(files(&epochs, 3), files(&plain, 3));
}

#[derive(Module, Debug)]
struct Mixed {
    half: Param<Tensor<3>>,
    double: Param<Tensor<1>>,
    empty: Param<Tensor<2>>,
    indices: Param<Tensor<1, Int>>,
    small: Param<Tensor<2, Int>>,
    mask: Param<Tensor<1, Bool>>,
    layers: Vec<Linear>,
}

impl Mixed {
    fn new() -> Self {
        let device = Device::default().autodiff();
        let values: Vec<f32> = (0_u8..24).map(f32::from).collect();
        let half = TensorData::new(values, [2, 3, 4]);
        let indices = Tensor::from_data([1_i64, -2, i64::MAX], (&device, DType::I64));
        let small = Tensor::from_data([[1_u8], [255]], (&device, DType::U8));
        let mask = Tensor::from_data([true, false, true], &device);
        Self {
            half: Param::from_tensor(Tensor::from_data(half, (&device, DType::BF16))),
            double: Param::from_tensor(Tensor::from_data([0.1_f64, -2.0], (&device, DType::F64))),
            empty: Param::from_tensor(Tensor::zeros([0, 3], &device)),
            indices: Param::initialized(ParamId::new(), indices),
            small: Param::initialized(ParamId::new(), small),
            mask: Param::initialized(ParamId::new(), mask),
            layers: vec![LinearConfig::new(3, 2).init(&device)],
        }
    }
}

#[test]
fn every_kind_of_parameter_is_saved_as_its_bytes_are() {
    assert_saves_are_of_bytes(&Mixed::new());
}

/// A weight in columns is saved in rows. A weight without a value gets one when it is first used.
#[test]
fn parameters_that_are_converted_are_saved_as_their_bytes_are() {
    let device = Device::default().autodiff();
    let columns = LinearConfig::new(3, 5).with_layout(LinearLayout::Col).init(&device);
    let half = Initializer::Ones.init::<1, _>([4], &device);
    let half = half.save_mapper(|value| value.cast(DType::F16));
    assert_saves_are_of_bytes(&vec![(columns, half)]);
}

/// Only tensors of up to 8 dimensions are taken.
#[test]
fn a_parameter_of_many_dimensions_is_saved() {
    #[derive(Module, Debug)]
    struct Deep {
        weight: Param<Tensor<9>>,
    }
    let weight = Param::from_tensor(Tensor::zeros([1, 1, 2, 1, 1, 1, 1, 1, 3], &Device::default()));
    assert_saves_are_of_bytes(&Deep { weight });
}

/// As after a weight was enlarged in the middle of a training.
#[test]
fn a_parameter_of_another_shape_is_saved_as_its_bytes_are() {
    let (_dir, epochs) = empty();
    let net = Net::new(DType::F32);
    let checkpointers = epochs.checkpointers_for(&net);
    save(&checkpointers, 1, &net, OptimizerRecord::default());

    let larger = Net::of_shape([5, 3], DType::F32);
    for (epoch, net) in [(2, &larger), (3, &larger), (4, &net)] {
        save(&checkpointers, epoch, net, OptimizerRecord::default());
        assert_is_of_bytes(&epochs, epoch, net, OptimizerRecord::default());
    }
}

/// As many parameters of the same shapes.
#[test]
fn parameters_of_other_names_are_saved_as_their_bytes_are() {
    #[derive(Module, Debug)]
    struct Renamed {
        scale: Param<Tensor<1>>,
    }
    #[derive(Module, Debug)]
    struct Named {
        weight: Param<Tensor<1>>,
    }
    let weight = || Param::from_tensor(Tensor::from_data([1.0_f32, 2.0], &Device::default()));
    let (_dir, epochs) = empty();
    let named = Named { weight: weight() };
    let checkpointers = epochs.checkpointers_for(&named);
    save(&checkpointers, 1, &named, OptimizerRecord::default());
    let renamed = Renamed { scale: weight() };
    save(&checkpointers, 2, &renamed, OptimizerRecord::default());
    assert_is_of_bytes(&epochs, 2, &renamed, OptimizerRecord::default());
}

/// A state of AdamW has two tensors and two numbers, and so has one of LAMB. burn gives neither
/// without its name, and the record is lost when that is found out.
#[test]
fn another_optimizer_in_the_middle_of_a_run_is_an_error_once() {
    let (_dir, epochs) = empty();
    let mut adam = AdamWConfig::new().init();
    let mut lamb = LambConfig::new().init();
    let net = Net::new(DType::F32).steps(&mut adam);
    let checkpointers = epochs.checkpointers_for(&net);
    save(&checkpointers, 1, &net, adam.to_record());

    let net = net.steps(&mut lamb);
    checkpointers.0.save(2, net.clone().into_record()).unwrap();
    let error = of(checkpointers.1.save(2, lamb.to_record()));
    let expected = "burn gave 0 of 4 tensors and 2 of 4 numbers; save the epoch again";
    assert!(error.to_string().ends_with(expected), "{error}");
    assert_eq!(error.file(), epochs.path(2).join("optimizer.safetensors").to_str());
    of(checkpointers.2.save(2, LrSchedulerRecord::new()));
    assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);
    for epoch in [2, 3] {
        save(&checkpointers, epoch, &net, lamb.to_record());
        assert_is_of_bytes(&epochs, epoch, &net, lamb.to_record());
    }
}

/// A restored record tells nothing about the optimizer that goes on.
#[test]
fn a_training_that_is_resumed_with_another_optimizer_is_saved_as_its_bytes_are() {
    let (_dir, epochs) = empty();
    let mut adam = AdamWConfig::new().init();
    let net = Net::new(DType::F32).steps(&mut adam);
    save(&epochs.checkpointers_for(&net), 1, &net, adam.to_record());

    let checkpointers = epochs.checkpointers_for(&net);
    let mut lamb = LambConfig::new().init().load_record(checkpointers.1.restore(1).unwrap());
    let net = net.steps(&mut lamb);
    for epoch in [2, 3] {
        save(&checkpointers, epoch, &net, lamb.to_record());
        assert_is_of_bytes(&epochs, epoch, &net, lamb.to_record());
    }
}

/// The names come from burn's bytes, whatever they are.
#[test]
fn a_first_record_may_have_any_names() {
    for (name, numbers) in [("7.\"m\"", 4), ("7.m\n", 4), ("7.", 4), ("7.moment", 1)] {
        let bytes = Bytes::from_elems(vec![1.0_f32, 2.0]);
        let tensor = PackTensor::new(name.into(), DType::F32, [2], Some(7), bytes);
        let writer = Writer::new(vec![tensor]).with_scalar("7.__rank", Scalar::UInt(1));
        let writer = (1..numbers)
            .fold(writer, |writer, i| writer.with_scalar(&format!("7.\\ \"{i}"), Scalar::UInt(i)));
        let bytes = writer.into_bytes().unwrap();
        let record = || OptimizerRecord::from_bytes(bytes.clone()).unwrap();
        let (_dir, epochs) = empty();
        let net = Net::new(DType::F32);
        let checkpointers = epochs.checkpointers_for(&net);
        for epoch in [1, 2] {
            save(&checkpointers, epoch, &net, record());
            assert_is_of_bytes(&epochs, epoch, &net, record());
            let restored = epochs.checkpointers().1.restore(epoch).unwrap();
            assert_eq!(content(restored), content(record()), "{name:?}");
        }
    }
}

/// A record with every kind of name, number and tensor.
fn every_kind() -> Writer {
    let tensor = |name: &str, dtype: DType, shape: &[usize]| {
        let count = shape.iter().product::<usize>() * dtype.size();
        let byte =
            |i: usize| if dtype.is_bool() { u8::from(i.is_multiple_of(8)) } else { (i * 37) as u8 };
        let bytes = Bytes::from_bytes_vec((0..count).map(byte).collect());
        let id = name.split_once('.').unwrap().0.parse().ok();
        PackTensor::new(name.into(), dtype, shape.to_vec(), id, bytes)
    };
    let tensors = vec![
        tensor("7.momentum.moment_1", DType::F32, &[2, 3]),
        tensor("7.momentum.moment_2", DType::F32, &[2, 3]),
        tensor("7.history.0", DType::F64, &[2]),
        tensor("7.history.10", DType::F64, &[]),
        tensor("9.mask", DType::Bool(BoolStore::U32), &[4]),
        tensor("9.empty", DType::I64, &[0, 3]),
        tensor("18446744073709551615.velocity", DType::BF16, &[3]),
    ];
    let scalars = [
        ("7.__rank", Scalar::UInt(2)),
        ("7.momentum.time", Scalar::UInt(u64::MAX)),
        ("9.__rank", Scalar::UInt(1)),
        ("9.least", Scalar::Int(i64::MIN)),
        ("9.nan", Scalar::Float(f64::from_bits(0x7ff8_0000_dead_beef))),
        ("9.on", Scalar::Bool(true)),
        ("11.__rank", Scalar::UInt(0)),
        ("18446744073709551615.__rank", Scalar::UInt(1)),
    ];
    let writer = Writer::new(tensors).with_metadata("7", "enc.0.weight").with_metadata("11", "b");
    scalars.into_iter().fold(writer, |writer, (name, value)| writer.with_scalar(name, value))
}

/// The first record goes through burn's bytes, and the second one is taken by its names. The fixture
/// was saved when the names of the first one were read in what burn prints.
#[test]
fn a_record_is_the_same_file_as_by_earlier_versions() {
    let fixture =
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/optimizer_record.safetensors");
    let bytes = every_kind().into_bytes().unwrap();
    let record = || OptimizerRecord::from_bytes(bytes.clone()).unwrap();
    let (_dir, epochs) = empty();
    let net = Net::new(DType::F32);
    let checkpointers = epochs.checkpointers_for(&net);
    for epoch in [1, 2] {
        save(&checkpointers, epoch, &net, record());
        let file = fs::read(epochs.path(epoch).join("optimizer.safetensors")).unwrap();
        assert_eq!(file, fs::read(fixture).unwrap());
        assert_eq!(content(epochs.checkpointers().1.restore(epoch).unwrap()), content(record()));
    }
}

/// The state of L-BFGS belongs to no parameter.
#[test]
fn states_of_no_parameter_are_saved_again_and_again() {
    let record = || {
        let bytes = Bytes::from_elems(vec![1.0_f32, 2.0]);
        let tensor = PackTensor::new("history_s.0".into(), DType::F32, [2], None, bytes);
        let writer = Writer::new(vec![tensor]).with_scalar("g_iter", Scalar::UInt(7));
        OptimizerRecord::from_bytes(writer.into_bytes().unwrap()).unwrap()
    };
    let (_dir, epochs) = empty();
    let net = Net::new(DType::F32);
    let checkpointers = epochs.checkpointers_for(&net);
    for epoch in 1..4 {
        save(&checkpointers, epoch, &net, record());
        assert_eq!(content(epochs.checkpointers().1.restore(epoch).unwrap()), content(record()));
    }
}

/// burn panics when the tensors of this record are loaded into an optimizer of parameters.
#[test]
fn a_panic_of_burn_is_a_save_that_failed_once() {
    use safetensors_burn::StoreError;

    let moment = |i: usize| {
        let bytes = Bytes::from_elems(vec![1.0_f32, 2.0]);
        PackTensor::new(format!("history_s.{i}"), DType::F32, [2], None, bytes)
    };
    let record = || {
        let writer = Writer::new((0..4).map(moment).collect());
        let writer = ["a", "b", "c", "d"]
            .iter()
            .fold(writer, |writer, name| writer.with_scalar(name, Scalar::UInt(7)));
        OptimizerRecord::from_bytes(writer.into_bytes().unwrap()).unwrap()
    };
    let (_dir, epochs) = empty();
    let mut adam = AdamWConfig::new().init();
    let net = Net::new(DType::F32).steps(&mut adam);
    let checkpointers = epochs.checkpointers_for(&net);
    save(&checkpointers, 1, &net, adam.to_record());
    assert_eq!(format!("{:?}", record()), format!("{:?}", adam.to_record()));

    checkpointers.0.save(2, net.clone().into_record()).unwrap();
    let error = of(checkpointers.1.save(2, record()));
    let ErrorKind::Framework { source, .. } = error.kind() else { panic!("{error}") };
    assert!(matches!(source.downcast_ref(), Some(StoreError::Panicked { .. })), "{error}");
    assert_eq!(error.file(), epochs.path(2).join("optimizer.safetensors").to_str());
    of(checkpointers.2.save(2, LrSchedulerRecord::new()));
    assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);
    save(&checkpointers, 2, &net, record());
    assert_eq!(content(epochs.checkpointers().1.restore(2).unwrap()), content(record()));
}
