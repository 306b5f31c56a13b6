//! Tied tensors: every way to read finds the one tensor under each of its names.
//!
//! `saving.rs` tests how tied tensors are saved. Cases of a single library, such as views of one
//! storage in candle, are in its own tests.

use std::path::Path;

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use candle_core::{DType, Device};
use candle_nn::var_builder::Shard;
use safetensors_bridge::burn::{CheckpointStore, ModuleSnapshot};
use safetensors_bridge::candle::{CheckpointBackend, IntoCore};
use safetensors_bridge::ndarray::{DynArray, Reader};
use safetensors_bridge::ranks::RankRules;
use safetensors_bridge::slice::TensorPart;
use safetensors_bridge::tied::Tied;
use safetensors_bridge::{
    Checkpoint, LoadOptions, Result, Rewrite, SaveOptions, ShardOptions, TensorBuf,
    burn as to_burn, candle as to_candle, ndarray as to_ndarray, save, save_sharded,
};

/// Reads the tensor of this name, which has two elements.
type Way = fn(&Path, &str) -> Result<Vec<f32>>;

#[derive(Module, Debug)]
struct Weight {
    weight: Param<Tensor<1>>,
}

fn of_candle(tensor: candle_core::Result<candle_core::Tensor>) -> Result<Vec<f32>> {
    tensor.and_then(|tensor| tensor.to_vec1()).into_core()
}

fn of_array(array: DynArray) -> Vec<f32> {
    array.into_array::<f32, ndarray::Ix1>().unwrap().to_vec()
}

const WAYS: [(&str, Way); 15] = [
    ("Checkpoint::tensor", |path, name| Checkpoint::open(path)?.tensor(name)?.read()?.into_vec()),
    ("Checkpoint::read_named", |path, name| {
        let bufs = Checkpoint::open(path)?.read_named([name], &LoadOptions::new())?;
        bufs.into_iter().next().unwrap().into_vec()
    }),
    ("Checkpoint::read_parts", |path, name| {
        let part = [(name, TensorPart::Whole)];
        let bufs = Checkpoint::open(path)?.read_parts(part, &LoadOptions::new())?;
        bufs.into_iter().next().unwrap().into_vec()
    }),
    ("a rank's part of the name that the plan has", |path, name| {
        let checkpoint = Checkpoint::open(path)?;
        let own = checkpoint.tensor(name)?.name().to_owned();
        let plan = RankRules::new().parse_rule("*=replicate").unwrap().plan(&checkpoint, 1)?;
        let position = plan.tensors().position(|tensor| tensor.name() == own).unwrap();
        plan.read(&checkpoint, 0, &LoadOptions::new())?.swap_remove(position).into_vec()
    }),
    ("Rewrite::select", |path, name| {
        let checkpoint = Checkpoint::open(path)?;
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out.safetensors");
        Rewrite::from_checkpoint(&checkpoint)
            .select(|it, _| it == name)
            .save(&out, &SaveOptions::new())?;
        Checkpoint::open(&out)?.tensor(name)?.read()?.into_vec()
    }),
    ("candle's load", |path, name| {
        of_candle(Ok(to_candle::load(path, &Device::Cpu)?[name].clone()))
    }),
    ("candle's VarBuilder", |path, name| {
        let builder = to_candle::var_builder(path, DType::F32, &Device::Cpu)?;
        assert!(builder.contains_tensor(name));
        of_candle(builder.get(2, name))
    }),
    ("candle's VarBuilder, prefetched", |path, name| {
        let backend = CheckpointBackend::new(Checkpoint::open(path)?);
        assert_eq!(backend.prefetch(name, DType::F32)?, 1);
        // The other of the two tensors: one with an alias is not read again under its own name.
        assert_eq!(backend.prefetch("", DType::F32)?, 1);
        of_candle(backend.var_builder(DType::F32, &Device::Cpu).get(2, name))
    }),
    ("candle's tensor parallelism", |path, name| {
        let builder = to_candle::tensor_parallel_var_builder(path, DType::F32, &Device::Cpu)?;
        assert!(builder.contains_tensor(name));
        of_candle(builder.get_with_hints(2, name, Shard::default()))
    }),
    ("burn's load", |path, name| Ok(to_burn::load(path)?[name].try_to_vec().unwrap())),
    ("burn's share_tensor", |path, name| {
        let checkpoint = std::sync::Arc::new(Checkpoint::open_by(
            path,
            &safetensors_bridge::Limits::default(),
            |path| Ok(std::fs::read(path)?),
        )?);
        let data = to_burn::share_tensor(&checkpoint, name, safetensors_bridge::Widening::Refuse)?;
        Ok(data.try_to_vec().unwrap())
    }),
    ("burn's CheckpointStore", |path, name| {
        let mut store = CheckpointStore::from_file(path)
            .with_key_remapping(format!("^{}$", name.replace('.', "\\.")), "weight");
        let mut module = Weight { weight: Param::from_data([0.0; 2], &Default::default()) };
        module.load_from(&mut store)?;
        Ok(module.weight.to_data().try_to_vec().unwrap())
    }),
    ("ndarray's load", |path, name| Ok(of_array(to_ndarray::load(path)?.remove(name).unwrap()))),
    ("ndarray's Reader", |path, name| {
        Ok(Reader::open(path)?.read::<f32, ndarray::Ix1>(name)?.to_vec())
    }),
    ("ndarray's Reader in memory", |path, name| {
        let reader = Reader::open_in_memory(path)?;
        let view = reader.view::<f32, ndarray::Ix1>(name);
        if cfg!(target_endian = "big") {
            return reader.read::<f32, ndarray::Ix1>(name).map(|array| array.to_vec());
        }
        view.map(|array| array.to_vec())
    }),
];

#[test]
fn every_way_finds_a_tied_tensor_under_each_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let tied = TensorBuf::from_vec(vec![2], vec![1.0_f32, -2.0]).unwrap();
    let other = TensorBuf::from_vec(vec![2], vec![3.0_f32, 4.0]).unwrap();
    let names = ["model.embed.weight", "lm_head.weight", "a.shared"];
    let tensors = || names.map(|name| (name, &tied)).into_iter().chain([("other", &other)]);
    // The name that transformers keeps, which is not the first one.
    let options =
        SaveOptions::new().durable(false).tied(Tied::new().prefer(["model.embed.weight"]));
    let file = dir.path().join("tied.safetensors");
    save(&file, tensors(), &options).unwrap();
    let sharded = dir.path().join("sharded");
    let shards = ShardOptions::new().max_shard_size(8.into()).save_options(options);
    assert_eq!(save_sharded(&sharded, tensors(), &shards).unwrap().files.len(), 2);
    for path in [&file, &sharded] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!((checkpoint.len(), checkpoint.aliases().count()), (2, 2));
        assert!(checkpoint.position("model.embed.weight").is_some());
        for (way, read) in WAYS {
            for name in names {
                let found = read(path, name).unwrap_or_else(|error| panic!("{way}: {error}"));
                assert_eq!(found, [1.0, -2.0], "{way}: {name}");
            }
            assert_eq!(read(path, "other").unwrap(), [3.0, 4.0], "{way}");
        }
    }
}
