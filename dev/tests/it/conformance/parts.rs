//! Parts of tensors that ranks have saved, by us or by PyTorch: every way by path has whole
//! tensors, and no way takes a part for one.

use std::fs;
use std::path::{Path, PathBuf};

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use candle_core::{DType, Device};
use candle_nn::var_builder::Shard;
use ndarray::{Ix1, Ix2, s};
use safetensors_bridge::burn::{CheckpointStore, ModuleSnapshot};
use safetensors_bridge::checkpoint::store::MemoryStore;
use safetensors_bridge::ndarray as to_ndarray;
use safetensors_bridge::ndarray::Reader;
use safetensors_bridge::ranks::RankRules;
use safetensors_bridge::{
    Checkpoint, Limits, Rewrite, SaveOptions, ShardOptions, burn as to_burn, candle as to_candle,
};
use safetensors_testing::dcp::{check, sample, save_parts};

#[derive(Module, Debug)]
struct Weights {
    grid: Param<Tensor<2>>,
    norm: Param<Tensor<1>>,
}

fn weights() -> Weights {
    let device = Default::default();
    Weights {
        grid: Param::from_data([[0.0; 6]; 4], &device),
        norm: Param::from_data([0.0; 3], &device),
    }
}

/// The sample, as the ranks of PyTorch save it.
fn of_pytorch(directory: &Path) {
    save_parts(directory, &sample());
}

/// The sample, as our ranks save it.
fn ours(directory: &Path) {
    let from = tempfile::tempdir().unwrap();
    of_pytorch(from.path());
    let whole = Checkpoint::open(from.path()).unwrap();
    let rewrite = Rewrite::from_checkpoint(&whole);
    let rules = RankRules::new().parse_rule("grid=uneven:1").unwrap();
    let rules = rules.parse_rule("norm=uneven:0").unwrap().parse_rule("*=replicate").unwrap();
    let plan = rewrite.plan_ranks(&rules, 3, &SaveOptions::new()).unwrap();
    rewrite.save_ranks(directory, &plan, "1", &ShardOptions::new()).unwrap();
}

/// Returns the files of a directory, sorted.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_way_to_read_has_whole_tensors() {
    for save in [of_pytorch, ours] {
        let directory = tempfile::tempdir().unwrap();
        save(directory.path());
        check_every_way(directory.path());
    }
}

fn check_every_way(path: &Path) {
    let grid: Vec<f32> = (0..24).map(|value| value as f32).collect();

    let loaded = to_candle::load(path, &Device::Cpu).unwrap();
    assert_eq!(loaded.len(), sample().len());
    assert_eq!(loaded["grid"].flatten_all().unwrap().to_vec1::<f32>().unwrap(), grid);
    let builder = to_candle::var_builder(path, DType::F32, &Device::Cpu).unwrap();
    let found = builder.get((4, 6), "grid").unwrap();
    assert_eq!(found.flatten_all().unwrap().to_vec1::<f32>().unwrap(), grid);
    let ranks = to_candle::tensor_parallel_var_builder(path, DType::F32, &Device::Cpu).unwrap();
    let half = Shard { dim: 1, rank: 1, world_size: 2 };
    let part = ranks.get_with_hints((4, 6), "grid", half).unwrap();
    assert_eq!(part.to_vec2::<f32>().unwrap()[3], [21.0, 22.0, 23.0]);

    let loaded = to_burn::load(path).unwrap();
    assert_eq!(loaded["grid"].as_slice::<f32>().unwrap(), grid);
    let mut store = CheckpointStore::from_file(path).allow_partial(true);
    let mut module = weights();
    module.load_from(&mut store).unwrap();
    assert_eq!(module.grid.to_data().as_slice::<f32>().unwrap(), grid);
    assert_eq!(module.norm.to_data().as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0]);

    let loaded = to_ndarray::load(path).unwrap();
    assert_eq!(loaded.len(), sample().len());
    let reader = Reader::open(path).unwrap();
    let found = reader.read::<f32, Ix2>("grid").unwrap();
    assert_eq!(found.iter().copied().collect::<Vec<_>>(), grid);
    assert_eq!(reader.read::<f32, Ix1>("norm").unwrap().len(), 3);
    let columns = reader.slice::<f32, _>("grid", s![1.., 1..3]).unwrap();
    assert_eq!(columns.iter().copied().collect::<Vec<_>>(), [7., 8., 13., 14., 19., 20.]);

    check(&Checkpoint::open(path).unwrap(), &sample());
    let held = files_in(path).into_iter().map(|file| {
        let name = file.file_name().unwrap().to_str().unwrap();
        (format!("s/{name}"), fs::read(&file).unwrap())
    });
    let store: MemoryStore = held.collect();
    check(&Checkpoint::open_in(store, "s", &Limits::default()).unwrap(), &sample());
}

#[test]
fn no_way_to_read_takes_a_part_for_a_whole_tensor() {
    for save in [of_pytorch, ours] {
        let directory = tempfile::tempdir().unwrap();
        save(directory.path());
        check_refused(directory.path());
    }
}

fn check_refused(directory: &Path) {
    let path = files_in(directory).swap_remove(0);
    let bytes = fs::read(&path).unwrap();
    let load_module =
        |mut store: CheckpointStore| weights().load_from(&mut store).unwrap_err().to_string();
    let errors = [
        to_candle::load(&path, &Device::Cpu).unwrap_err().to_string(),
        to_candle::var_builder(&path, DType::F32, &Device::Cpu).err().unwrap().to_string(),
        to_burn::load(&path).unwrap_err().to_string(),
        load_module(CheckpointStore::from_file(&path)),
        load_module(CheckpointStore::from_bytes(Some(bytes.clone()))),
        to_ndarray::load(&path).unwrap_err().to_string(),
        Reader::open(&path).unwrap_err().to_string(),
        Reader::open_in_memory(&path).unwrap_err().to_string(),
        Reader::open_in_memory(directory).unwrap_err().to_string(),
        Reader::from_bytes(bytes).unwrap_err().to_string(),
        Checkpoint::open(&path).unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.contains("parts that ranks have saved: open the directory"), "{error}");
    }
}
