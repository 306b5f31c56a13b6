//! A saved module loads again unchanged.

use super::*;

#[test]
fn a_module_comes_back_bit_for_bit() {
    let dir = dir();
    let model = Model::new(2);
    let mut store = saved(&dir, &model);
    assert_eq!(store.keys().unwrap(), PATHS);
    let mut other = Model::new(7);
    assert_ne!(state(&model), state(&other));
    let result = other.load_from(&mut store).unwrap();
    assert_eq!(state(&model), state(&other));
    let mut applied = result.applied.clone();
    applied.sort_unstable();
    assert_eq!(applied, PATHS);
    assert!(result.is_success() && result.skipped.is_empty() && result.missing.is_empty());
    assert!(result.unused.is_empty());
}

#[test]
fn a_sharded_checkpoint_loads_from_its_directory_and_its_index() {
    let dir = dir();
    let model = Model::new(4);
    let store = || CheckpointStore::from_file(dir.path()).max_shard_size(64.into());
    let mut out = store().metadata("title", "Test");
    model.save_into(&mut out).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().metadata()["title"], "Test");
    Model::new(9).load_from(&mut out).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    for path in [dir.path(), &index] {
        let mut other = Model::new(9);
        other.load_from(&mut CheckpointStore::from_file(path)).unwrap();
        assert_eq!(state(&model), state(&other));
    }
    // The error for a tensor that does not fit names the tensor and its shard.
    let mut wrong = Model::new(4);
    wrong.norm = LayerNormConfig::new(3).init(&Device::default());
    wrong.save_into(&mut store().overwrite(true)).unwrap();
    let error = refused(&mut CheckpointStore::from_file(dir.path()));
    assert!(matches!(source(&error), ApplyError::ShapeMismatch { .. }), "{error}");
    let shard = Checkpoint::open(dir.path()).unwrap();
    let shard = shard.files()[shard.tensor("norm.gamma").unwrap().file_index()].path();
    assert_eq!((error.tensor(), error.file()), (Some("norm.gamma"), shard.to_str()));
    // Saving to the index is refused, because it would replace the index with tensors.
    let error = model.save_into(&mut CheckpointStore::from_file(&index)).unwrap_err();
    assert!(matches!(source(&error), StoreError::IndexDestination), "{error}");
    assert!(error.file().unwrap().ends_with("index.json"));
    assert!(matches!(
        model.save_into(&mut CheckpointStore::from_file(dir.path())).unwrap_err().kind(),
        ErrorKind::NotAFile { .. }
    ));
}

#[derive(Module, Debug)]
struct Block {
    scale: Param<Tensor<1>>,
    counts: Param<Tensor<1, Int>>,
}

#[derive(Module, Debug)]
struct Nested {
    kernel: Param<Tensor<3>>,
    double: Param<Tensor<2>>,
    pair: (Block, Block),
    maybe: Option<Linear>,
    blocks: [Block; 2],
}

impl Nested {
    /// Values that other dtypes or a conversion would change, or zeros.
    fn new(is_zero: bool) -> Self {
        let device = Device::default();
        let floats = [f32::MAX, f32::MIN, f32::MIN_POSITIVE, -1e-30];
        let ints = [i64::MAX, i64::MIN, 0, -1];
        let factor = if is_zero { 0 } else { 1 };
        let block = || Block {
            scale: Param::from_data(floats.map(|value| value * factor as f32), &device),
            counts: initialized(Tensor::from_data(
                TensorData::from(ints.map(|value| value * factor)),
                (&device, DType::I64),
            )),
        };
        let double = TensorData::from([[1.234_567_890_123_456_7 * factor as f64, 1e300]]);
        Self {
            kernel: Param::from_data([[[1.0, 2.0], [3.0, 4.0 * factor as f32]]], &device),
            double: initialized(Tensor::from_data(double, (&device, DType::F64))),
            pair: (block(), block()),
            maybe: Some(LinearConfig::new(2, 2).init(&device)),
            blocks: [block(), block()],
        }
    }
}

#[test]
fn nested_modules_and_extreme_values_of_each_dtype_come_back() {
    let (model, mut other) = (Nested::new(false), Nested::new(true));
    let mut store = CheckpointStore::from_bytes(None);
    model.save_into(&mut store).unwrap();
    assert_ne!(state(&model), state(&other));
    let result = other.load_from(&mut store).unwrap();
    assert_eq!(result.applied.len(), 12);
    assert_eq!(state(&model), state(&other));
    assert!(store.keys().unwrap().contains(&"pair.1.counts".to_owned()));
}

#[test]
fn half_precision_goes_out_and_comes_back() {
    let model = Model::new(2);
    let adapter = HalfPrecisionAdapter::new().without_module("LayerNorm");
    let mut store = CheckpointStore::from_bytes(None).with_to_adapter(adapter.clone());
    model.save_into(&mut store).unwrap();
    for (name, tensor) in store.get_all_tensors().unwrap() {
        let expected = match name.split('.').next() {
            Some("encoder" | "layers") => DType::F16,
            Some("norm" | "batch") => DType::F32,
            _ => continue,
        };
        assert_eq!(tensor.dtype, expected, "{name}");
    }
    let mut other = Model::new(7);
    other.load_from(&mut store.with_from_adapter(adapter)).unwrap();
    assert_eq!(other.encoder.weight.val().dtype(), DType::F32);
    other.encoder.weight.to_data().assert_approx_eq::<f32>(
        &model.encoder.weight.to_data(),
        burn::tensor::Tolerance::absolute(1e-3),
    );
}
