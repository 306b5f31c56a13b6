//! Quantised weights of every scheme, read as numbers by every way into each library: what comes
//! out is what the reference implementation of the scheme computes.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use candle_core::{DType, Device};
use candle_nn::var_builder::{Shard, VarBuilderArgs};
use safetensors_bridge::burn::{CheckpointStore, ModuleSnapshot};
use safetensors_bridge::candle::{TensorParallelBackend, var_builder_from};
use safetensors_bridge::checkpoint::Computed;
use safetensors_bridge::io::FileSource;
use safetensors_bridge::load::QuantizedWeights;
use safetensors_bridge::ndarray::{DynArray, Reader};
use safetensors_bridge::ranks::RankRules;
use safetensors_bridge::{Checkpoint, Dtype, LoadOptions, Rewrite, SaveOptions};
use safetensors_testing::quantized::Quantized;

type Numbers = Checkpoint<Computed<FileSource>>;

/// Reads the weight of this name, with its shape.
type Way = fn(&Quantized, &str) -> (Vec<usize>, Vec<f32>);

fn numbers(fixture: &Quantized) -> Numbers {
    fixture.open().dequantized().unwrap()
}

fn options() -> LoadOptions {
    LoadOptions::new().all_as(Dtype::F32).quantized(QuantizedWeights::Numbers)
}

fn of_candle(tensor: &candle_core::Tensor) -> (Vec<usize>, Vec<f32>) {
    (tensor.dims().to_vec(), tensor.flatten_all().unwrap().to_vec1().unwrap())
}

fn of_array(array: DynArray) -> (Vec<usize>, Vec<f32>) {
    let array = array.into_array::<f32, ndarray::IxDyn>().unwrap();
    (array.shape().to_vec(), array.iter().copied().collect())
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
fn load_into<M: ModuleSnapshot>(module: &mut M, fixture: &Quantized, name: &str) {
    let mut store = CheckpointStore::from_file(fixture.model())
        .load_options(options())
        .with_key_remapping(format!("^{}$", name.replace('.', "\\.")), "weight");
    module.load_from(&mut store).unwrap();
}

const WAYS: [(&str, Way); 10] = [
    ("candle's load_with", |fixture, name| {
        let all = safetensors_bridge::candle::load_with(fixture.model(), &Device::Cpu, &options());
        of_candle(&all.unwrap()[name])
    }),
    ("candle's VarBuilder", |fixture, name| {
        let checkpoint = numbers(fixture);
        let shape = checkpoint.tensor(name).unwrap().shape().to_vec();
        let builder = var_builder_from(checkpoint, DType::F32, &Device::Cpu);
        of_candle(&builder.get(shape, name).unwrap())
    }),
    ("candle's tensor parallelism", |fixture, name| {
        let checkpoint = numbers(fixture);
        let shape = checkpoint.tensor(name).unwrap().shape().to_vec();
        let backend = TensorParallelBackend::new(checkpoint);
        let builder = VarBuilderArgs::new_with_args(backend, DType::F32, &Device::Cpu);
        of_candle(&builder.get_with_hints(shape, name, Shard::default()).unwrap())
    }),
    ("burn's load_with", |fixture, name| {
        let all = safetensors_bridge::burn::load_with(fixture.model(), &options()).unwrap();
        let data = &all[name];
        (data.shape().to_vec(), data.try_to_vec().unwrap())
    }),
    ("burn's CheckpointStore", |fixture, name| {
        let shape = numbers(fixture).tensor(name).unwrap().shape().to_vec();
        let device = Default::default();
        let data = match shape[..] {
            [rows, columns] => {
                let zeros = Tensor::zeros([rows, columns], &device);
                let mut module = Layer { weight: Param::from_tensor(zeros) };
                load_into(&mut module, fixture, name);
                module.weight.to_data()
            }
            [experts, rows, columns] => {
                let zeros = Tensor::zeros([experts, rows, columns], &device);
                let mut module = Experts { weight: Param::from_tensor(zeros) };
                load_into(&mut module, fixture, name);
                module.weight.to_data()
            }
            _ => panic!("{}: a weight of shape {shape:?}", fixture.name),
        };
        (shape, data.try_to_vec().unwrap())
    }),
    ("ndarray's load_with", |fixture, name| {
        let mut all = safetensors_bridge::ndarray::load_with(fixture.model(), &options()).unwrap();
        of_array(all.remove(name).unwrap())
    }),
    ("ndarray's Reader", |fixture, name| {
        of_array(Reader::new(numbers(fixture)).read_any(name).unwrap())
    }),
    ("a rank of two", |fixture, name| {
        let checkpoint = numbers(fixture);
        let shape = checkpoint.tensor(name).unwrap().shape().to_vec();
        let rules = RankRules::new().parse_rule("*=replicate").unwrap();
        let plan = rules.plan(&checkpoint, 2).unwrap();
        let position = plan.tensors().position(|tensor| tensor.name() == name).unwrap();
        let mut parts = plan.read(&checkpoint, 1, &LoadOptions::new()).unwrap();
        (shape, parts.swap_remove(position).into_vec().unwrap())
    }),
    ("Rewrite", |fixture, name| {
        let checkpoint = numbers(fixture);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        Rewrite::of(&checkpoint).save(&path, &SaveOptions::new().durable(false)).unwrap();
        let saved = Checkpoint::open(&path).unwrap();
        let tensor = saved.tensor(name).unwrap();
        (tensor.shape().to_vec(), tensor.read().unwrap().into_vec().unwrap())
    }),
    ("shards with the scales in another file", |fixture, name| {
        let stored = fixture.open();
        let dir = tempfile::tempdir().unwrap();
        let sizes = stored.tensors().map(|tensor| tensor.byte_len());
        let most = safetensors_bridge::checkpoint::MaxShardSize(sizes.max().unwrap().max(1));
        let options = safetensors_bridge::ShardOptions::new().max_shard_size(most);
        let options = options.metadata(stored.metadata().clone());
        let tensors = stored.tensors().map(|tensor| (tensor.name(), tensor));
        safetensors_bridge::save_sharded(dir.path(), tensors, &options).unwrap();
        for entry in std::fs::read_dir(&fixture.directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "json") {
                std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert!(checkpoint.files().len() > 1, "{}", fixture.name);
        let checkpoint = checkpoint.dequantized().unwrap();
        let tensor = checkpoint.tensor(name).unwrap();
        (tensor.shape().to_vec(), tensor.read().unwrap().into_vec().unwrap())
    }),
];

#[test]
fn every_way_reads_every_scheme_as_its_reference_does() {
    let mut rows = Vec::new();
    for fixture in Quantized::all() {
        let weights = fixture.open().quantized_weights().unwrap();
        let mut passed = Vec::new();
        for (way, read) in WAYS {
            for weight in &weights {
                let (shape, values) = read(&fixture, &weight.name);
                assert_eq!(shape, weight.shape, "{way}");
                fixture.compare(&weight.name, &shape, &values);
            }
            passed.push(way);
        }
        rows.push((fixture, weights, passed));
    }
    super::schemes::check_documents(&rows, &WAYS.map(|(way, _)| way));
}
