//! Records come back bit for bit, and have readable names in the files.

use burn::tensor::{BoolStore, f16};
use safetensors_core::{Checkpoint as Safetensors, Dtype};

use super::*;

#[test]
fn records_come_back_bit_for_bit() {
    let (_dir, epochs) = empty();
    let training = Training::trained(3);
    let checkpointers = epochs.checkpointers_without_module();
    training.save(&checkpointers, 3);
    let expected = training.contents();
    // Two moments of three parameters, two numbers of each, three paths.
    let [_, (tensors, numbers, paths), (_, of_scheduler, _)] = &expected;
    assert_eq!([tensors.len(), numbers.len(), paths.len()], [6, 6, 3]);
    assert!(!of_scheduler.is_empty());
    assert_eq!(restored(&checkpointers, 3), expected);
}

#[test]
fn tensors_are_named_after_the_parameters() {
    let (_dir, epochs) = saved(1);
    let open = |name: &str| Safetensors::open(epochs.path(1).join(name)).unwrap();
    let names = |checkpoint: &Safetensors| -> Vec<String> {
        let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name().into()).collect();
        names.sort();
        names
    };
    let parameters = ["first.bias", "first.weight", "layers.0.weight"];
    let model = open("model.safetensors");
    assert_eq!(names(&model), parameters);
    let optimizer = open("optimizer.safetensors");
    let moments = parameters.map(|path| ["1", "2"].map(|i| format!("{path}.momentum.moment_{i}")));
    assert_eq!(names(&optimizer), moments.concat());
    let metadata = optimizer.metadata();
    let scalars: serde_json::Value =
        serde_json::from_str(&metadata["safetensors_bridge.scalars"]).unwrap();
    assert_eq!(scalars["first.bias.momentum.time"], serde_json::json!({ "u64": 2 }));
    // No metadata entry is taken for another name of a tensor.
    for checkpoint in [&model, &optimizer, &open("scheduler.safetensors")] {
        assert_eq!(checkpoint.aliases().count(), 0);
    }
}

/// Saves a record of these tensors as a model, and returns the restored content.
fn through_model(tensors: Vec<PackTensor>) -> (TempDir, Epochs, Content, Content) {
    let (dir, epochs) = empty();
    let bytes = Writer::new(tensors).into_bytes().unwrap();
    let record = ModuleRecord::from_bytes(bytes).unwrap();
    let expected = content(record.clone());
    save_model(&epochs.checkpointers_without_module(), record);
    let found = content(epochs.checkpointers_without_module().0.restore(1).unwrap());
    (dir, epochs, expected, found)
}

#[test]
fn every_dtype_comes_back() {
    let dtypes = [
        (DType::F64, Dtype::F64),
        (DType::F32, Dtype::F32),
        (DType::Flex32, Dtype::F32),
        (DType::F16, Dtype::F16),
        (DType::BF16, Dtype::BF16),
        (DType::I64, Dtype::I64),
        (DType::I32, Dtype::I32),
        (DType::I16, Dtype::I16),
        (DType::I8, Dtype::I8),
        (DType::U64, Dtype::U64),
        (DType::U32, Dtype::U32),
        (DType::U16, Dtype::U16),
        (DType::U8, Dtype::U8),
        (DType::Bool(BoolStore::Native), Dtype::BOOL),
        (DType::Bool(BoolStore::U8), Dtype::BOOL),
        (DType::Bool(BoolStore::U32), Dtype::BOOL),
    ];
    let tensors = dtypes.iter().enumerate().map(|(i, (dtype, _))| {
        let mut bytes: Vec<u8> = (0..6 * dtype.size()).map(|byte| (byte * 37 + i) as u8).collect();
        if dtype.is_bool() {
            bytes = (0..6).flat_map(|n| [n % 2, 0, 0, 0][..dtype.size()].to_vec()).collect();
        }
        let id = Some(u64::MAX - i as u64);
        PackTensor::new(format!("t{i}"), *dtype, [2, 3], id, Bytes::from_bytes_vec(bytes))
    });
    let (_dir, epochs, expected, found) = through_model(tensors.collect());
    assert_eq!(found, expected);
    let file = Safetensors::open(epochs.path(1).join("model.safetensors")).unwrap();
    for (i, (_, dtype)) in dtypes.iter().enumerate() {
        assert_eq!(file.tensor(&format!("t{i}")).unwrap().dtype(), *dtype);
    }
}

/// No tensors, tensors without elements, without dimensions, and of more bytes than one thread
/// reads.
#[test]
fn every_shape_comes_back() {
    let (_dir, _, expected, found) = through_model(Vec::new());
    assert_eq!(found, expected);
    let shapes: [&[usize]; 5] = [&[], &[0], &[3, 0, 2], &[1, 1, 1, 1, 1], &[3_000_001]];
    let tensors = shapes.iter().enumerate().map(|(i, shape)| {
        let count = shape.iter().product::<usize>();
        let values: Vec<f16> = (0..count).map(|n| f16::from_bits((n * 31 + i) as u16)).collect();
        let bytes = Bytes::from_elems(values);
        PackTensor::new(format!("t.{i}"), DType::F16, shape.to_vec(), Some(7), bytes)
    });
    let (_dir, _, expected, found) = through_model(tensors.collect());
    assert_eq!(found, expected);
}

#[test]
fn scalars_keep_their_types_and_all_their_bits() {
    let (_dir, epochs) = empty();
    let (model, optimizer, scheduler) = epochs.checkpointers_without_module();
    let record = LrSchedulerRecord::new()
        .with_scalar("most", u64::MAX)
        .with_scalar("least", i64::MIN)
        .with_scalar("zero", 0_i64)
        .with_scalar("unsigned zero", 0_u64)
        .with_scalar("minus zero", -0.0)
        .with_scalar("nan", f64::from_bits(0x7ff8_0000_dead_beef))
        .with_scalar("infinite", f64::NEG_INFINITY)
        .with_scalar("tenth", 0.1)
        .with_scalar("tiny", f64::from_bits(1))
        .with_scalar("on", true)
        .with_scalar("\"quoted\"\n.权", false);
    model
        .save(1, ModuleRecord::from_bytes(Writer::new(vec![]).into_bytes().unwrap()).unwrap())
        .unwrap();
    optimizer.save(1, OptimizerRecord::default()).unwrap();
    scheduler.save(1, record.clone()).unwrap();
    assert_eq!(content(scheduler.restore(1).unwrap()), content(record));
}

/// burn would panic when such a record is loaded into an optimizer.
#[test]
fn a_tensor_without_a_parameter_is_an_error_that_names_it() {
    let of_parameters = Writer::new(vec![pack("7.m", Some(7)), pack("ema", None)]);
    let of_numbers = Writer::new(vec![pack("ema", None)]).with_scalar("7.__rank", Scalar::UInt(1));
    for writer in [of_parameters, of_numbers] {
        let (_dir, epochs) = empty();
        let checkpointers = epochs.checkpointers_without_module();
        let record = optimizer_record(&writer.into_bytes().unwrap());
        save_records(&checkpointers, 1, Model::new(), record);
        let error = unwrap_error(checkpointers.1.restore(1));
        assert_eq!(error.tensor(), Some("ema"), "{error}");
        assert!(error.to_string().contains("belongs to no parameter"), "{error}");
        assert_eq!(error.file(), epochs.path(1).join("optimizer.safetensors").to_str());
    }
}

/// Optimizers that are not AdamW, and odd records: without paths, or with names that are no ids.
#[test]
fn every_optimizer_comes_back() {
    let one = || Writer::new(vec![pack("7.m", Some(7))]);
    let plain = Writer::new(vec![pack("7.m", Some(7)), pack("8.m", Some(8))]);
    let writers = [
        plain.with_scalar("7.__rank", Scalar::UInt(1)),
        Writer::new(vec![pack("history_s.0", None)]).with_scalar("k", Scalar::Int(-1)),
        one().with_metadata("7", "").with_metadata("x", "y"),
        Writer::new(vec![pack("7.m", Some(9))]).with_metadata("7", "w"),
        Writer::new(vec![pack("7.m", Some(7)), pack("w.m", Some(8))]).with_metadata("7", "w"),
        // A path may be the name of anything.
        one()
            .with_metadata("7", "safetensors_bridge.record")
            .with_scalar("7.nan", Scalar::Float(f64::NAN)),
    ];
    for writer in writers {
        let (_dir, epochs) = empty();
        let checkpointers = epochs.checkpointers_without_module();
        let bytes = writer.into_bytes().unwrap();
        save_records(&checkpointers, 1, Model::new(), optimizer_record(&bytes));
        let restored = checkpointers.1.restore(1).unwrap();
        assert_eq!(content(restored), content(optimizer_record(&bytes)));
    }
}
