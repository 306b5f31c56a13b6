//! Quantised weights of every scheme, read as numbers by every way into each library: the numbers
//! equal the reference implementation's.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use candle_core::{DType, Device};
use candle_nn::var_builder::Shard;
use safetensors_bridge::burn::{CheckpointStore, ModuleSnapshot};
use safetensors_bridge::candle::{CheckpointBackend, IntoCore, TensorParallelBackend};
use safetensors_bridge::checkpoint::{Assembled, Computed};
use safetensors_bridge::framework::prepare;
use safetensors_bridge::load::QuantizedWeights;
use safetensors_bridge::ndarray::{DynArray, Reader};
use safetensors_bridge::ranks::RankRules;
use safetensors_bridge::{
    Checkpoint, ConvertOptions, Dtype, LoadOptions, Result, Rewrite, SaveOptions, TensorBuf,
};
use safetensors_testing::quantized::{Case, Quantized};

type Numbers = Checkpoint<Computed<Assembled>>;

/// Reads the weight of this name, with its shape.
type Way = fn(&Quantized, &str, &LoadOptions) -> Result<(Vec<usize>, Vec<f32>)>;

/// Returns the checkpoint as a load with these options opens it.
fn open(fixture: &Quantized, options: &LoadOptions) -> Result<Numbers> {
    prepare(fixture.open(), options)
}

fn options(quantized: QuantizedWeights) -> LoadOptions {
    LoadOptions::new().all_as(Dtype::F32).quantized(quantized)
}

/// Returns the shape of a weight, or of the tensor of that name that is stored; else any.
fn shape_of(fixture: &Quantized, name: &str, options: &LoadOptions) -> Vec<usize> {
    let opened = open(fixture, options).ok();
    let shape = opened.and_then(|it| it.get(name).map(|tensor| tensor.shape().to_vec()));
    shape.filter(|shape| shape.len() > 1).unwrap_or_else(|| vec![1, 1])
}

fn of_candle(tensor: candle_core::Result<candle_core::Tensor>) -> Result<(Vec<usize>, Vec<f32>)> {
    let tensor = tensor.into_core()?;
    Ok((tensor.dims().to_vec(), tensor.flatten_all().unwrap().to_vec1().unwrap()))
}

fn of_array(array: DynArray) -> (Vec<usize>, Vec<f32>) {
    let array = array.into_array::<f32, ndarray::IxDyn>().unwrap();
    (array.shape().to_vec(), array.iter().copied().collect())
}

fn of_buf(buf: TensorBuf) -> (Vec<usize>, Vec<f32>) {
    (buf.shape().to_vec(), buf.into_vec().unwrap())
}

/// A module with one weight.
#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
}

/// A module with the weights of several experts.
#[derive(Module, Debug)]
struct Experts {
    weight: Param<Tensor<3>>,
}

/// Loads the weight of this name into a module that has it as `weight`.
fn load_into<M: ModuleSnapshot>(
    module: &mut M,
    fixture: &Quantized,
    name: &str,
    options: &LoadOptions,
) -> Result<()> {
    let mut store = CheckpointStore::from_file(fixture.model())
        .load_options(options.clone())
        .with_key_remapping(format!("^{}$", name.replace('.', "\\.")), "weight");
    module.load_from(&mut store).map(drop)
}

const WAYS: [(&str, Way); 10] = [
    ("candle's load_with", |fixture, name, options| {
        let all = safetensors_bridge::candle::load_with(fixture.model(), &Device::Cpu, options)?;
        of_candle(Ok(all[name].clone()))
    }),
    ("candle's VarBuilder", |fixture, name, options| {
        let shape = shape_of(fixture, name, options);
        let backend = CheckpointBackend::new_with(fixture.open(), options)?;
        of_candle(backend.var_builder(DType::F32, &Device::Cpu).get(shape, name))
    }),
    ("candle's tensor parallelism", |fixture, name, options| {
        let shape = shape_of(fixture, name, options);
        let backend = TensorParallelBackend::new_with(fixture.open(), options)?;
        let builder = backend.var_builder(DType::F32, &Device::Cpu);
        of_candle(builder.get_with_hints(shape, name, Shard::default()))
    }),
    ("burn's load_with", |fixture, name, options| {
        let all = safetensors_bridge::burn::load_with(fixture.model(), options)?;
        let data = &all[name];
        Ok((data.shape().to_vec(), data.try_to_vec().unwrap()))
    }),
    ("burn's CheckpointStore", |fixture, name, options| {
        let shape = shape_of(fixture, name, options);
        let device = Default::default();
        let data = match shape[..] {
            [rows, columns] => {
                let zeros = Tensor::zeros([rows, columns], &device);
                let mut module = Layer { weight: Param::from_tensor(zeros) };
                load_into(&mut module, fixture, name, options)?;
                module.weight.to_data()
            }
            [experts, rows, columns] => {
                let zeros = Tensor::zeros([experts, rows, columns], &device);
                let mut module = Experts { weight: Param::from_tensor(zeros) };
                load_into(&mut module, fixture, name, options)?;
                module.weight.to_data()
            }
            _ => panic!("{}: a weight of shape {shape:?}", fixture.name),
        };
        Ok((shape, data.try_to_vec().unwrap()))
    }),
    ("ndarray's load_with", |fixture, name, options| {
        let mut all = safetensors_bridge::ndarray::load_with(fixture.model(), options)?;
        Ok(of_array(all.remove(name).unwrap()))
    }),
    ("ndarray's Reader", |fixture, name, options| {
        let quantized = match options.reads_numbers() {
            true => QuantizedWeights::Numbers,
            false => QuantizedWeights::Refuse,
        };
        let reader = Reader::new(fixture.open()).quantized(quantized)?;
        reader.read_any(name).map(of_array)
    }),
    ("a rank of two", |fixture, name, options| {
        let checkpoint = open(fixture, options)?;
        checkpoint.tensor(name)?;
        let rules = RankRules::new().parse_rule("*=replicate").unwrap();
        let plan = rules.plan(&checkpoint, 2).unwrap();
        let position = plan.tensors().position(|tensor| tensor.name() == name).unwrap();
        let mut parts = plan.read(&checkpoint, 1, options)?;
        Ok(of_buf(parts.swap_remove(position)))
    }),
    ("Rewrite", |fixture, name, options| {
        let checkpoint = open(fixture, options)?;
        checkpoint.tensor(name)?;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let floats = |it: &str| (it == name).then_some(Dtype::F32);
        Rewrite::from_checkpoint(&checkpoint)
            .cast(&ConvertOptions::new(), |name, _| floats(name))?
            .save(&path, &SaveOptions::new().durable(false))?;
        Ok(of_buf(Checkpoint::open(&path).unwrap().tensor(name)?.read()?))
    }),
    ("shards with the scales in another file", |fixture, name, options| {
        let stored = fixture.open();
        let dir = tempfile::tempdir().unwrap();
        let sizes = stored.tensors().map(|tensor| tensor.byte_len());
        let most = safetensors_bridge::checkpoint::MaxShardSize(sizes.max().unwrap().max(1));
        let shards = safetensors_bridge::ShardOptions::new().max_shard_size(most);
        let shards = shards.metadata(stored.metadata().clone());
        let tensors = stored.tensors().map(|tensor| (tensor.name(), tensor));
        safetensors_bridge::save_sharded(dir.path(), tensors, &shards).unwrap();
        for entry in std::fs::read_dir(&fixture.directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "json") {
                std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert!(checkpoint.files().len() > 1 || stored.len() == 1, "{}", fixture.name);
        let checkpoint = prepare(checkpoint, options)?;
        Ok(of_buf(checkpoint.tensor(name)?.read_with(options)?))
    }),
];

#[test]
fn every_way_reads_every_scheme_as_its_reference_does_or_refuses_it() {
    let mut rows = Vec::new();
    for fixture in Quantized::all() {
        let weights = fixture.open().quantized_weights().unwrap();
        let mut passed = Vec::new();
        for (way, read) in WAYS {
            for weight in &weights {
                let found = read(&fixture, &weight.name, &options(QuantizedWeights::Numbers));
                let (shape, values) = found.unwrap();
                assert_eq!(shape, weight.shape, "{way}");
                fixture.compare(&weight.name, &shape, &values);
                let refused = read(&fixture, &weight.name, &options(QuantizedWeights::Refuse));
                let error = refused.expect_err(&format!("{}: {way}", fixture.name)).to_string();
                for part in [weight.scheme, "QuantizedWeights::Numbers"] {
                    assert!(error.contains(part), "{}: {way}: {error}", fixture.name);
                }
            }
            passed.push(way);
        }
        rows.push((fixture, weights, passed));
    }
    super::schemes::check_documents(&rows, &WAYS.map(|(way, _)| way));
}

#[test]
fn every_way_reads_files_of_public_tools_or_names_the_scheme() {
    for case in Case::all() {
        let directory = tempfile::tempdir().unwrap();
        let fixture = case.write(directory.path());
        for (way, read) in WAYS {
            let name = if case.weight.is_empty() { case.tensors[0].0 } else { case.weight };
            let numbers = read(&fixture, name, &options(QuantizedWeights::Numbers));
            let numbers = numbers.map(|(_, values)| values).map_err(|error| error.to_string());
            case.check(way, numbers.as_deref().map_err(|error| &**error));
            let refused = read(&fixture, name, &options(QuantizedWeights::Refuse));
            // A mark without its module is an error of the whole, not of another tensor.
            let is_plain = fixture.open().get(name).is_some_and(|it| it.dtype() == Dtype::F32);
            assert!(refused.is_err() || is_plain, "{}: {way}: {refused:?}", case.about);
        }
    }
}
