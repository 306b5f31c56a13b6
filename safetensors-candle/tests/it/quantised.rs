//! Quantised weights of every kind, in every way in: refused, as numbers, or as they are stored.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use candle_nn::var_builder::Shard;
use safetensors_candle::train::StateOptions;
use safetensors_candle::{
    Candle, CheckpointBackend, IntoCore, ReadTensorExt, TensorParallelBackend, from_candle_dtype,
    load_with, to_candle_dtype,
};
use safetensors_core::framework::{self, Framework};
use safetensors_core::load::QuantizedWeights::{self, Numbers, Refuse, Stored};
use safetensors_core::slice::TensorPart;
use safetensors_core::{Checkpoint, LoadOptions, ReadAt, Result};
use safetensors_testing::quantized::{Quantized, check_error};

use crate::common::bytes;

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

    /// Returns the options of a load of all tensors. Only numbers need another dtype than their
    /// own.
    fn of_all(&self) -> Result<LoadOptions> {
        let dtype = from_candle_dtype(self.dtype)?;
        Ok(if self.quantized == Numbers { self.options().floats_as(dtype) } else { self.options() })
    }

    /// Returns the checkpoint with tensors that are read one by one. A tensor of codes never
    /// becomes numbers.
    fn prepared(&self) -> Result<(Checkpoint<Box<dyn ReadAt>>, LoadOptions)> {
        let stored = self.fixture.open();
        let checkpoint = match self.quantized {
            Numbers => stored.dequantized()?.into_boxed(),
            _ => stored.into_boxed(),
        };
        Ok((checkpoint, self.options().all_as(from_candle_dtype(self.dtype)?)))
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

const WAYS: [(&str, Way); 11] = [
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
        builder.get(ask.shape, ask.name).into_core()
    }),
    ("VarBuilder::get_unchecked", |ask| {
        let builder = ask.backend()?.var_builder(ask.dtype, &Device::Cpu);
        builder.get_unchecked(ask.name).into_core()
    }),
    ("VarBuilder, prefetched", |ask| {
        let backend = ask.backend()?;
        backend.prefetch(ask.name, ask.dtype)?;
        let builder = backend.var_builder(ask.dtype, &Device::Cpu);
        builder.get(ask.shape, ask.name).into_core()
    }),
    ("tensor parallelism, get", |ask| {
        let builder = ask.parallel()?.var_builder(ask.dtype, &Device::Cpu);
        assert!(builder.contains_tensor(ask.name));
        builder.get(ask.shape, ask.name).into_core()
    }),
    ("tensor parallelism, prefetched", |ask| {
        let backend = ask.parallel()?;
        backend.prefetch([(ask.name, Shard::default())], ask.dtype, &Device::Cpu)?;
        let builder = backend.var_builder(ask.dtype, &Device::Cpu);
        builder.get_unchecked(ask.name).into_core()
    }),
    ("read_tensor_with", |ask| {
        let (checkpoint, options) = ask.prepared()?;
        let tensor = checkpoint.tensor(ask.name)?;
        tensor.read_tensor_with(&Device::Cpu, &options).into_core()
    }),
    ("read_tensor_with of a slice", |ask| {
        let (checkpoint, options) = ask.prepared()?;
        let slice = checkpoint.tensor(ask.name)?.slice(TensorPart::Whole)?;
        slice.read_tensor_with(&Device::Cpu, &options).into_core()
    }),
    ("train", |ask| ask.train(false)),
    ("train with a cast", |ask| ask.train(true)),
];

/// Returns the ways that can hold a dtype. candle makes no variables of dtypes that it only stores.
fn ways(dtype: DType) -> impl Iterator<Item = (&'static str, Way)> {
    let is_only_stored = matches!(dtype, DType::F4 | DType::F8E8M0);
    WAYS.into_iter().filter(move |(way, _)| !(is_only_stored && way.starts_with("train")))
}

#[test]
fn each_is_an_error_or_the_numbers_of_the_dequantised_checkpoint_bit_for_bit() {
    for fixture in &Quantized::kinds() {
        let stored = fixture.open();
        let numbers = fixture.open().dequantized().unwrap();
        for weight in &stored.quantized_weights().unwrap() {
            let codes = stored.tensor(&weight.tensors[0]).unwrap();
            let ask =
                |name, shape, dtype, quantized| Ask { fixture, name, shape, dtype, quantized };
            // The codes are no numbers either, in any dtype.
            let own = to_candle_dtype(weight.dtype).unwrap_or(DType::I16);
            for ask in [
                // Under the name of the weight, which may differ from the codes'.
                ask(&weight.name, &weight.shape, DType::F32, Refuse),
                ask(codes.name(), codes.shape(), own, Refuse),
            ] {
                for (way, read) in ways(ask.dtype) {
                    let way = format!("{}: {way}", fixture.name);
                    check_error(&way, &read(&ask).unwrap_err(), weight);
                }
            }
            // Half of it, along a dimension that the codes may not have.
            let parallel = TensorParallelBackend::new(fixture.open());
            let half = Shard { dim: weight.shape.len() - 1, rank: 1, world_size: 2 };
            let builder = parallel.var_builder(DType::F32, &Device::Cpu);
            let error = builder.get_with_hints((), &weight.name, half).unwrap_err();
            check_error(&fixture.name, &error.into_core(), weight);

            for dtype in [DType::F32, DType::BF16] {
                let options = LoadOptions::new().all_as(from_candle_dtype(dtype).unwrap());
                let expected = numbers.tensor(&weight.name).unwrap().read_with(&options).unwrap();
                let expected = Candle::from_exact(expected, &Device::Cpu).unwrap();
                let ask = ask(&weight.name, &weight.shape, dtype, Numbers);
                // Without a cast, a variable has the dtype of the numbers.
                let ways = WAYS.iter().filter(|(way, _)| *way != "train" || dtype == DType::F32);
                for (way, read) in ways {
                    let read = read(&ask).unwrap();
                    assert!(bytes(&read) == bytes(&expected), "{}: {way}", fixture.name);
                }
            }
        }
    }
}

#[test]
fn stored_codes_are_as_they_are() {
    for fixture in &Quantized::kinds() {
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
    }
}

#[test]
fn a_checkpoint_of_numbers_has_no_scales_and_each_rank_reads_its_part() {
    let numbers = LoadOptions::new().quantized(Numbers);
    for fixture in &Quantized::kinds() {
        let backend = CheckpointBackend::new_with(fixture.open(), &numbers).unwrap();
        let builder = backend.var_builder(DType::F32, &Device::Cpu);
        let parallel = TensorParallelBackend::new_with(fixture.open(), &numbers).unwrap();
        let ranks = parallel.var_builder(DType::F32, &Device::Cpu);
        let weights = fixture.open().quantized_weights().unwrap();
        for weight in &weights {
            let whole = builder.get_unchecked(&weight.name).unwrap();
            let is_cut = |dim: &usize| whole.dims()[*dim].is_multiple_of(2);
            for dim in (0..whole.rank()).filter(is_cut) {
                let hint = Shard { dim, rank: 1, world_size: 2 };
                let part = ranks.get_with_hints(whole.shape(), &weight.name, hint).unwrap();
                let len = whole.dims()[dim] / 2;
                let expected = whole.narrow(dim, len, len).unwrap();
                assert!(bytes(&part) == bytes(&expected), "{}: {hint:?}", fixture.name);
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
fn a_filter_hides_the_weights_that_are_stored_under_the_names_that_it_hides() {
    let fixture = Quantized::named("gptq-v1-4bits");
    let backend = CheckpointBackend::new(fixture.open()).filter(|name| !name.starts_with("layer."));
    let builder = backend.var_builder(DType::F32, &Device::Cpu);
    assert!(!builder.contains_tensor("layer.weight"));
    let error = builder.get((32, 96), "layer.weight").unwrap_err().to_string();
    assert!(error.contains("cannot find tensor layer.weight"), "{error}");

    let numbers = LoadOptions::new().quantized(Numbers);
    let backend = CheckpointBackend::new_with(fixture.open(), &numbers).unwrap();
    let backend = backend.filter(|name| name == "layer.weight");
    assert_eq!(backend.prefetch("", DType::F32).unwrap(), 1);
}
