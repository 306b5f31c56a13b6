//! Records that burn gives tensor by tensor are saved as their bytes are.

use burn::module::{Initializer, Param, ParamId};
use burn::nn::LinearLayout;
use burn::optim::LambConfig;
use burn::tensor::{Bool, BoolStore, Int};

use super::foreign::{Net, optimizers};
use super::*;

/// Checks that an epoch has the files that the bytes of its records give. New checkpointers without
/// a module take no record apart.
fn assert_is_of_bytes(epochs: &Epochs, epoch: usize, module: &impl Module, state: OptimizerRecord) {
    let (_dir, plain) = empty();
    save_records(&plain.checkpointers_without_module(), epoch, module.clone(), state);
    assert_eq!(files(epochs, epoch), files(&plain, epoch));
}

/// Saves a module twice.
fn assert_saves_are_of_bytes(module: &impl Module) {
    let (_dir, epochs) = empty();
    let checkpointers = epochs.checkpointers(module);
    for epoch in [1, 2] {
        save_records(&checkpointers, epoch, module.clone(), OptimizerRecord::default());
        assert_is_of_bytes(&epochs, epoch, module, OptimizerRecord::default());
    }
}

#[test]
fn every_optimizer_of_burn_is_saved_as_its_bytes_are() {
    for (name, mut optimizer) in optimizers() {
        let (_dir, epochs) = empty();
        let net = Net::new(DType::F32);
        let checkpointers = epochs.checkpointers(&net);
        // The first record has no states, the second one new states, the third one the same number.
        save_records(&checkpointers, 1, net.clone(), optimizer.to_record());
        let mut net = net;
        for epoch in 2..5 {
            net = net.steps(&mut optimizer);
            save_records(&checkpointers, epoch, net.clone(), optimizer.to_record());
        }
        for epoch in 1..5 {
            let found = epochs.checkpointers_without_module().1.restore(epoch).unwrap();
            assert_eq!(found.is_empty(), epoch == 1, "{name}");
        }
        assert_is_of_bytes(&epochs, 4, &net, optimizer.to_record());
    }
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
    let checkpointers = epochs.checkpointers(&net);
    save_records(&checkpointers, 1, net.clone(), OptimizerRecord::default());

    let larger = Net::of_shape([5, 3], DType::F32);
    for (epoch, net) in [(2, &larger), (3, &larger), (4, &net)] {
        save_records(&checkpointers, epoch, net.clone(), OptimizerRecord::default());
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
    let checkpointers = epochs.checkpointers(&named);
    save_records(&checkpointers, 1, named.clone(), OptimizerRecord::default());
    let renamed = Renamed { scale: weight() };
    save_records(&checkpointers, 2, renamed.clone(), OptimizerRecord::default());
    assert_is_of_bytes(&epochs, 2, &renamed, OptimizerRecord::default());
}

/// A state of AdamW has the same number of tensors and numbers as one of LAMB.
#[test]
fn another_optimizer_of_burn_is_saved_as_its_bytes_are() {
    for is_resumed in [false, true] {
        let (_dir, epochs) = empty();
        let mut adam = AdamWConfig::new().init();
        let net = Net::new(DType::F32).steps(&mut adam);
        let mut checkpointers = epochs.checkpointers(&net);
        save_records(&checkpointers, 1, net.clone(), adam.to_record());
        let mut lamb = LambConfig::new().init();
        if is_resumed {
            checkpointers = epochs.checkpointers(&net);
            lamb = lamb.load_record(checkpointers.1.restore(1).unwrap());
        }
        let net = net.steps(&mut lamb);
        for epoch in [2, 3] {
            save_records(&checkpointers, epoch, net.clone(), lamb.to_record());
            assert_is_of_bytes(&epochs, epoch, &net, lamb.to_record());
        }
    }
}

/// Any names come from burn's bytes. The state of L-BFGS belongs to no parameter.
#[test]
fn a_record_of_an_unknown_optimizer_may_have_any_names() {
    for (name, id, numbers) in [
        ("7.\"m\"", Some(7), 4),
        ("7.m\n", Some(7), 4),
        ("7.", Some(7), 4),
        ("7.moment", Some(7), 1),
        ("history_s.0", None, 0),
    ] {
        let named = |i| if i == 0 { "7.__rank".to_owned() } else { format!("7.\\ \"{i}") };
        let writer = Writer::new(vec![pack(name, id)]).with_scalar("g_iter", Scalar::UInt(7));
        let writer =
            (0..numbers).fold(writer, |writer, i| writer.with_scalar(&named(i), Scalar::UInt(1)));
        let bytes = writer.into_bytes().unwrap();
        let (_dir, epochs) = empty();
        let net = Net::new(DType::F32);
        let checkpointers = epochs.checkpointers(&net);
        for epoch in 1..4 {
            save_records(&checkpointers, epoch, net.clone(), optimizer_record(&bytes));
            assert_is_of_bytes(&epochs, epoch, &net, optimizer_record(&bytes));
            let restored = epochs.checkpointers_without_module().1.restore(epoch).unwrap();
            assert_eq!(content(restored), content(optimizer_record(&bytes)), "{name:?}");
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

/// The fixture was saved by an earlier version.
#[test]
fn a_record_is_the_same_file_as_by_earlier_versions() {
    let fixture =
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/optimizer_record.safetensors");
    let bytes = every_kind().into_bytes().unwrap();
    let record = || optimizer_record(&bytes);
    let (_dir, epochs) = empty();
    let net = Net::new(DType::F32);
    let checkpointers = epochs.checkpointers(&net);
    for epoch in [1, 2] {
        save_records(&checkpointers, epoch, net.clone(), record());
        let file = fs::read(epochs.path(epoch).join("optimizer.safetensors")).unwrap();
        assert_eq!(file, fs::read(fixture).unwrap());
        let restored = epochs.checkpointers_without_module().1.restore(epoch).unwrap();
        assert_eq!(content(restored), content(record()));
    }
}

/// Records of another optimizer after records of AdamW, with equal numbers of tensors and numbers.
/// burn gives none of the tensors, or panics when they are loaded into an optimizer of parameters.
#[test]
fn a_record_that_burn_does_not_give_fails_one_save() {
    for (id, expected) in [(Some(7), "burn gave 0 of 4 tensors"), (None, "panicked")] {
        let named = |i: usize| id.map_or_else(|| format!("s.{i}"), |id| format!("{id}.s.{i}"));
        let tensors = (0..4).map(|i| pack(&named(i), id)).collect();
        let numbers = (0..4).map(|i| format!("g_{i}"));
        let writer = Writer::new(tensors);
        let writer =
            numbers.fold(writer, |writer, name| writer.with_scalar(&name, Scalar::UInt(7)));
        let bytes = writer.into_bytes().unwrap();
        let record = || optimizer_record(&bytes);
        let (_dir, epochs) = empty();
        let mut adam = AdamWConfig::new().init();
        let net = Net::new(DType::F32).steps(&mut adam);
        let checkpointers = epochs.checkpointers(&net);
        save_records(&checkpointers, 1, net.clone(), adam.to_record());

        checkpointers.0.save(2, net.clone().into_record()).unwrap();
        let error = unwrap_error(checkpointers.1.save(2, record()));
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(error.file(), epochs.path(2).join("optimizer.safetensors").to_str());
        unwrap_error(checkpointers.2.save(2, LrSchedulerRecord::new()));
        assert_eq!(names_in(epochs.path(1).parent().unwrap()), ["epoch-1"]);
        save_records(&checkpointers, 2, net.clone(), record());
        assert_is_of_bytes(&epochs, 2, &net, record());
    }
}
