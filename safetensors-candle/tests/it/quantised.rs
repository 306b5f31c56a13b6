//! Quantised weights of every kind, in every way in: refused, as numbers, or as they are stored.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use candle_nn::var_builder::Shard;
use safetensors_candle::train::StateOptions;
use safetensors_candle::{
    Candle, CheckpointBackend, ReadTensorExt, TensorParallelBackend, from_candle_dtype,
    from_candle_error, load, load_with, to_candle_dtype, var_builder,
};
use safetensors_core::error::QuantizationProblem;
use safetensors_core::framework::{self, Framework};
use safetensors_core::load::QuantizedWeights::{self, Numbers, Refuse, Stored};
use safetensors_core::quantized::QuantizedWeight;
use safetensors_core::slice::TensorPart;
use safetensors_core::{
    Checkpoint, Dtype, Error, ErrorKind, LoadOptions, Result, SaveOptions, TensorView, save,
};
use safetensors_testing::quantized::Quantized;
use tempfile::TempDir;

use crate::common::bytes;

/// Fixtures: scales under names of their own, codes of every dtype, names that are not the
/// weight's, stacked experts.
const KINDS: [&str; 15] = [
    "bnb-int8",
    "bnb-nf4",
    "ct-int-channel",
    "deepseek-fp8-block",
    "deepseek-v4-experts-fp4",
    "deepseek-v4-fp8",
    "fbgemm-fp8-experts",
    "fp8-qscale-weight",
    "gpt-oss-mxfp4",
    "gptq-v1-4bits",
    "hqq-4bits",
    "mlx-4bits",
    "modelopt-nvfp4-experts",
    "quanto-qint8",
    "torchao-int8",
];

/// The kinds, and one more: codes of F4 with a scale for each row.
fn kinds() -> (TempDir, Vec<Quantized>) {
    let dir = tempfile::tempdir().unwrap();
    let codes: Vec<u8> = (0..32).map(|i| i * 7 + 3).collect();
    let codes = TensorView::new(Dtype::F4, &[2, 32], &codes).unwrap();
    let scales = TensorView::from_slice(&[2, 1], &[0.5_f32, 3.0]).unwrap();
    let fixture = Quantized { name: "f4".into(), directory: dir.path().into() };
    let tensors = [("up.weight", codes), ("up.weight_scale", scales)];
    save(fixture.model(), tensors, &SaveOptions::new().durable(false)).unwrap();
    let all = KINDS.map(Quantized::named).into_iter().chain([fixture]);
    (dir, all.collect())
}

/// A tensor that is asked for.
struct Ask<'a> {
    fixture: &'a Quantized,
    name: &'a str,
    shape: &'a [usize],
    dtype: DType,
    quantized: QuantizedWeights,
}

impl Ask<'_> {
    fn options(&self) -> LoadOptions {
        LoadOptions::new().quantized(self.quantized)
    }

    /// The options of a load of all tensors. Only numbers need another dtype than their own.
    fn of_all(&self) -> Result<LoadOptions> {
        let dtype = from_candle_dtype(self.dtype)?;
        Ok(if self.quantized == Numbers { self.options().floats_as(dtype) } else { self.options() })
    }

    fn backend(&self) -> Result<CheckpointBackend<'static>> {
        CheckpointBackend::new_with(self.fixture.open(), &self.options())
    }

    fn parallel(&self) -> Result<TensorParallelBackend<'static>> {
        TensorParallelBackend::new_with(self.fixture.open(), &self.options())
    }

    fn train(&self, cast: bool) -> Result<Tensor> {
        let variable = Var::zeros(self.shape, self.dtype, &Device::Cpu).unwrap();
        let map = VarMap::new();
        map.data().lock().unwrap().insert(self.name.into(), variable.clone());
        let options = StateOptions::new().cast(cast).allow_missing(true).allow_extra(true);
        options.load_options(self.options()).load(self.fixture.model(), &map)?;
        Ok(variable.as_detached_tensor())
    }
}

type Way = fn(&Ask<'_>) -> Result<Tensor>;

const WAYS: [(&str, Way); 12] = [
    ("load_with", |ask| {
        let mut all = load_with(ask.fixture.model(), &Device::Cpu, &ask.of_all()?)?;
        Ok(all.remove(ask.name).unwrap())
    }),
    ("load of an open checkpoint", |ask| {
        let checkpoint = ask.fixture.open();
        let mut all = framework::load::<Candle>(&checkpoint, &Device::Cpu, &ask.of_all()?)?;
        Ok(all.remove(ask.name).unwrap())
    }),
    ("VarBuilder::get", |ask| {
        let builder = ask.backend()?.var_builder(ask.dtype, &Device::Cpu);
        assert!(builder.contains_tensor(ask.name));
        builder.get(ask.shape, ask.name).map_err(from_candle_error)
    }),
    ("VarBuilder::get_unchecked", |ask| {
        let builder = ask.backend()?.var_builder(ask.dtype, &Device::Cpu);
        builder.get_unchecked(ask.name).map_err(from_candle_error)
    }),
    ("VarBuilder, prefetched", |ask| {
        let backend = ask.backend()?;
        backend.prefetch(ask.name, ask.dtype)?;
        let builder = backend.var_builder(ask.dtype, &Device::Cpu);
        builder.get(ask.shape, ask.name).map_err(from_candle_error)
    }),
    ("tensor parallelism, get", |ask| {
        let builder = ask.parallel()?.var_builder(ask.dtype, &Device::Cpu);
        assert!(builder.contains_tensor(ask.name));
        builder.get(ask.shape, ask.name).map_err(from_candle_error)
    }),
    ("tensor parallelism, read_parts", |ask| {
        let parts = [(ask.name, Shard::default())];
        Ok(ask.parallel()?.read_parts(parts, ask.dtype, &Device::Cpu)?.remove(0))
    }),
    ("tensor parallelism, prefetched", |ask| {
        let backend = ask.parallel()?;
        backend.prefetch([(ask.name, Shard::default())], ask.dtype, &Device::Cpu)?;
        let builder = backend.var_builder(ask.dtype, &Device::Cpu);
        builder.get_unchecked(ask.name).map_err(from_candle_error)
    }),
    ("read_tensor_with", |ask| {
        let options = ask.options().all_as(from_candle_dtype(ask.dtype)?);
        let (stored, numbers) = (ask.fixture.open(), ask.fixture.open().dequantized()?);
        let read = match ask.quantized {
            Numbers => numbers.tensor(ask.name)?.read_tensor_with(&Device::Cpu, &options),
            _ => stored.tensor(ask.name)?.read_tensor_with(&Device::Cpu, &options),
        };
        read.map_err(from_candle_error)
    }),
    ("read_tensor_with of a slice", |ask| {
        let options = ask.options().all_as(from_candle_dtype(ask.dtype)?);
        let (stored, numbers) = (ask.fixture.open(), ask.fixture.open().dequantized()?);
        let whole = TensorPart::Whole;
        let read = match ask.quantized {
            Numbers => {
                numbers.tensor(ask.name)?.slice(whole)?.read_tensor_with(&Device::Cpu, &options)
            }
            _ => stored.tensor(ask.name)?.slice(whole)?.read_tensor_with(&Device::Cpu, &options),
        };
        read.map_err(from_candle_error)
    }),
    ("train", |ask| ask.train(false)),
    ("train with a cast", |ask| ask.train(true)),
];

/// The ways that can hold a dtype. candle makes no variables of those that it only stores.
fn ways(dtype: DType) -> impl Iterator<Item = (&'static str, Way)> {
    let is_only_stored = matches!(dtype, DType::F4 | DType::F8E8M0);
    WAYS.into_iter().filter(move |(way, _)| !(is_only_stored && way.starts_with("train")))
}

/// The quantised weights of a checkpoint that has some.
fn weights(fixture: &Quantized) -> Vec<QuantizedWeight> {
    let weights = fixture.open().quantized_weights().unwrap();
    assert!(!weights.is_empty(), "{}", fixture.name);
    weights
}

/// Asserts that an error says how the weight is stored, and what to do.
#[track_caller]
fn assert_refused(error: &Error, way: &str, weight: &QuantizedWeight) {
    let ErrorKind::Quantization { problem, .. } = error.kind() else { panic!("{way}: {error}") };
    let QuantizationProblem::Codes { scheme, weight: name } = problem else {
        panic!("{way}: {error}")
    };
    assert_eq!((*scheme, &**name), (weight.scheme, &*weight.name), "{way}");
    assert!(error.to_string().contains("QuantizedWeights::Numbers"), "{way}: {error}");
    assert!(error.file().is_some_and(|file| file.ends_with("model.safetensors")), "{way}: {error}");
}

#[test]
fn by_default_each_is_an_error_that_names_the_weight_and_its_scheme() {
    let (_dir, kinds) = kinds();
    for fixture in &kinds {
        for weight in &weights(fixture) {
            let (stored, codes) = (fixture.open(), &*weight.tensors[0]);
            let ask = |name, shape, dtype| Ask { fixture, name, shape, dtype, quantized: Refuse };
            let shape = stored.tensor(codes).unwrap().shape();
            // The codes are no numbers either, whatever the dtype.
            let own = to_candle_dtype(weight.dtype).unwrap_or(DType::I16);
            for ask in [
                // Under the name of the weight, which may be another one than that of the codes.
                ask(&weight.name, &weight.shape, DType::F32),
                ask(codes, shape, DType::F32),
                ask(codes, shape, own),
            ] {
                for (way, read) in ways(ask.dtype) {
                    let way = format!("{}: {way}", fixture.name);
                    assert_refused(&read(&ask).unwrap_err(), &way, weight);
                }
            }
            let error = load(fixture.model(), &Device::Cpu).unwrap_err();
            assert_refused(&error, &fixture.name, weight);
            let builder = var_builder(fixture.model(), DType::BF16, &Device::Cpu).unwrap();
            let error = builder.get((7, 7), &weight.name).unwrap_err();
            assert_refused(&from_candle_error(error), &fixture.name, weight);
            // Half of it, along a dimension that the codes may not have.
            let parallel = TensorParallelBackend::new(fixture.open());
            let half = Shard { dim: weight.shape.len() - 1, rank: 1, world_size: 2 };
            let builder = parallel.var_builder(DType::F32, &Device::Cpu);
            for shape in [&weight.shape[..], &[]] {
                let error = builder.get_with_hints(shape, &weight.name, half).unwrap_err();
                assert_refused(&from_candle_error(error), &fixture.name, weight);
            }
            let error = parallel.prefetch([(&*weight.name, half)], DType::F32, &Device::Cpu);
            assert_refused(&error.unwrap_err(), &fixture.name, weight);
            // What is not quantised is not concerned.
            if fixture.open().get("norm.weight").is_some() {
                builder.get(3, "norm.weight").unwrap();
            }
        }
    }
}

#[test]
fn numbers_are_those_of_the_dequantised_checkpoint_bit_for_bit() {
    let (_dir, kinds) = kinds();
    for fixture in &kinds {
        let numbers = fixture.open().dequantized().unwrap();
        for weight in &weights(fixture) {
            let (name, shape) = (&*weight.name, &*weight.shape);
            for dtype in [DType::F32, DType::BF16] {
                let options = LoadOptions::new().all_as(from_candle_dtype(dtype).unwrap());
                let expected = numbers.tensor(name).unwrap().read_with(&options).unwrap();
                let expected = Candle::from_exact(expected, &Device::Cpu).unwrap();
                let ask = Ask { fixture, name, shape, dtype, quantized: Numbers };
                for (way, read) in WAYS {
                    // Without a cast, a variable has the dtype of the numbers.
                    if way == "train" && dtype != DType::F32 {
                        continue;
                    }
                    let read = read(&ask).unwrap();
                    assert!(bytes(&read) == bytes(&expected), "{}: {way}", fixture.name);
                }
            }
        }
    }
}

#[test]
fn stored_codes_are_as_they_are() {
    let (_dir, kinds) = kinds();
    for fixture in &kinds {
        let stored = fixture.open();
        let plain = LoadOptions::new().for_framework::<Candle>().quantized(Stored);
        for tensor in stored.tensors() {
            let expected = Candle::from_exact(tensor.read_with(&plain).unwrap(), &Device::Cpu);
            let expected = expected.unwrap();
            let (name, shape, dtype) = (tensor.name(), expected.dims(), expected.dtype());
            let ask = Ask { fixture, name, shape, dtype, quantized: Stored };
            for (way, read) in ways(dtype) {
                let read = read(&ask).unwrap();
                assert!(bytes(&read) == bytes(&expected), "{}: {way} of {name}", fixture.name);
            }
        }
        for weight in weights(fixture) {
            let backend = CheckpointBackend::new_with(fixture.open(), &plain).unwrap();
            let builder = backend.var_builder(DType::F32, &Device::Cpu);
            let is_stored = stored.get(&weight.name).is_some();
            assert_eq!(builder.contains_tensor(&weight.name), is_stored, "{}", fixture.name);
        }
    }
}

#[test]
fn a_checkpoint_of_numbers_has_no_scales_and_each_rank_reads_its_part() {
    let (_dir, kinds) = kinds();
    let numbers = LoadOptions::new().quantized(Numbers);
    for fixture in &kinds {
        let backend = CheckpointBackend::new_with(fixture.open(), &numbers).unwrap();
        let builder = backend.var_builder(DType::F32, &Device::Cpu);
        let parallel = TensorParallelBackend::new_with(fixture.open(), &numbers).unwrap();
        let ranks = parallel.var_builder(DType::F32, &Device::Cpu);
        let weights = weights(fixture);
        for weight in &weights {
            let whole = builder.get_unchecked(&weight.name).unwrap();
            let is_cut = |dim: &usize| whole.dims()[*dim].is_multiple_of(2);
            for dim in (0..whole.rank()).filter(is_cut) {
                for rank in 0..2 {
                    let hint = Shard { dim, rank, world_size: 2 };
                    let part = ranks.get_with_hints(whole.shape(), &weight.name, hint).unwrap();
                    let len = whole.dims()[dim] / 2;
                    let expected = whole.narrow(dim, rank * len, len).unwrap();
                    assert!(bytes(&part) == bytes(&expected), "{}: {hint:?}", fixture.name);
                }
            }
        }
        let is_weight = |name: &str| weights.iter().any(|weight| weight.name == name);
        for part in weights.iter().flat_map(|weight| &weight.tensors) {
            assert!(is_weight(part) || !builder.contains_tensor(part), "{}: {part}", fixture.name);
        }
        assert!(!backend.unused().any(|tensor| is_weight(tensor.name())), "{}", fixture.name);
    }
}

#[test]
fn a_tensor_of_codes_does_not_become_numbers_and_the_error_says_where_they_are() {
    let fixture = Quantized::named("fp8-qscale-weight");
    let stored = fixture.open();
    let [weight] = &stored.quantized_weights().unwrap()[..] else { panic!() };
    let numbers = LoadOptions::new().quantized(Numbers);
    let codes = stored.tensor(&weight.name).unwrap();
    let error = codes.read_tensor_with(&Device::Cpu, &numbers).unwrap_err();
    assert_refused(&from_candle_error(error), "read_tensor_with", weight);
}

#[test]
fn settings_that_cannot_be_read_are_an_error_before_a_model_is_built() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Quantized { name: "wrong".into(), directory: dir.path().into() };
    std::fs::copy(Quantized::named("gptq-v1-4bits").model(), fixture.model()).unwrap();
    std::fs::write(dir.path().join("config.json"), "{\"quantization_config\": 4").unwrap();
    let numbers = LoadOptions::new().quantized(Numbers);
    let ask =
        Ask { fixture: &fixture, name: "", shape: &[], dtype: DType::F32, quantized: Numbers };
    let errors = [
        ask.backend().map(drop).unwrap_err(),
        ask.parallel().map(drop).unwrap_err(),
        ask.train(true).map(drop).unwrap_err(),
        load_with(fixture.model(), &Device::Cpu, &numbers).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
    }
}

#[test]
fn a_filter_hides_the_weights_that_are_stored_under_the_names_that_it_hides() {
    let fixture = Quantized::named("gptq-v1-4bits");
    let backend = CheckpointBackend::new(fixture.open()).filter(|name| !name.starts_with("layer."));
    let builder = backend.var_builder(DType::F32, &Device::Cpu);
    assert!(!builder.contains_tensor("layer.weight"));
    let error = builder.get((32, 96), "layer.weight").unwrap_err().to_string();
    assert!(error.contains("cannot find tensor layer.weight"), "{error}");
    let numbers = LoadOptions::new().quantized(Numbers);
    let backend = CheckpointBackend::new_with(Checkpoint::open(fixture.model()).unwrap(), &numbers);
    let backend = backend.unwrap().filter(|name| name == "layer.weight");
    assert_eq!(backend.prefetch("", DType::F32).unwrap(), 1);
}

#[test]
fn a_plain_checkpoint_does_not_look_for_settings() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    let fixture = Quantized { name: "plain".into(), directory: dir.path().into() };
    let values = TensorView::from_slice(&[2], &[0.5_f32, 3.0]).unwrap();
    let options = SaveOptions::new().durable(false);
    save(fixture.model(), [("norm.weight", values)], &options).unwrap();
    for quantized in [Refuse, Numbers, Stored] {
        let ask = |name| Ask { fixture: &fixture, name, shape: &[2], dtype: DType::F32, quantized };
        for (way, read) in WAYS {
            let read = read(&ask("norm.weight")).unwrap();
            assert_eq!(read.to_vec1::<f32>().unwrap(), [0.5, 3.0], "{way}");
        }
        let builder = ask("").backend().unwrap().var_builder(DType::F32, &Device::Cpu);
        assert!(!builder.contains_tensor("norm.bias"));
        assert!(
            builder.get(2, "norm.bias").unwrap_err().to_string().contains("cannot find tensor")
        );
    }
}
