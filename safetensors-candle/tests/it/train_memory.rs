//! Loading into variables, and saving them in the background, takes the memory of the tensors and
//! little more.
//!
//! Each is measured in a separate process: the allocator keeps the memory that a thread frees for a
//! while, and the next measure would count it.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Var};
use candle_nn::{ParamsAdamW, VarMap};
use safetensors_candle::train::{self, AdamW};
use safetensors_core::save::BackgroundSaver;
use safetensors_core::{SaveOptions, ShardOptions};
use safetensors_testing::memory::peak;
use safetensors_testing::process::is_alone;

const MIB: u64 = 1 << 20;

/// Saves variables of 32 MiB, which copies nothing. Returns them with their file.
fn saved(dir: &Path) -> (VarMap, PathBuf) {
    let var_map = VarMap::new();
    for i in 0..4 {
        let var = Var::ones((8 * MIB / 4) as usize, DType::F32, &Device::Cpu).unwrap();
        var_map.data().lock().unwrap().insert(format!("layer.{i}"), var);
    }
    let (path, before) = (dir.join("model.safetensors"), peak());
    train::save(&path, &var_map, &options()).unwrap();
    assert!(peak() - before < 16 * MIB, "a save copies nothing");
    (var_map, path)
}

fn options() -> SaveOptions {
    SaveOptions::new().durable(false)
}

#[test]
fn a_load_takes_the_bytes_of_its_tensors_and_32_mib_at_most() {
    if !is_alone(a_load_takes_the_bytes_of_its_tensors_and_32_mib_at_most) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (var_map, model) = saved(dir.path());
    let mut optimizer = AdamW::from_var_map(&var_map, ParamsAdamW::default()).unwrap();
    let before = peak();
    train::load(&model, &var_map).unwrap();
    let taken = peak() - before;
    assert!((32 * MIB..64 * MIB).contains(&taken), "{} MiB for 32 MiB", taken / MIB);

    // The optimizer's first state is zeros that have never been in memory, and does not count.
    let both = dir.path().join("both.safetensors");
    train::save(&both, (&var_map, &optimizer), &options()).unwrap();
    train::load(&both, (&var_map, &mut optimizer)).unwrap();
    let taken = peak() - before;
    assert!((96 * MIB..128 * MIB).contains(&taken), "{} MiB for 96 MiB", taken / MIB);
}

#[test]
fn a_save_in_the_background_copies_the_variables_once_however_often_it_is_called() {
    if !is_alone(a_save_in_the_background_copies_the_variables_once_however_often_it_is_called) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (var_map, model) = saved(dir.path());
    let (before, mut saver) = (peak(), BackgroundSaver::new());
    for _ in 0..3 {
        train::save_in_background(&mut saver, &model, &var_map, &options()).unwrap();
    }
    let shards = ShardOptions::new().max_shard_size((8 * MIB).into()).save_options(options());
    for _ in 0..2 {
        train::save_sharded_in_background(&mut saver, dir.path(), &var_map, &shards).unwrap();
    }
    saver.wait().unwrap();
    let taken = peak() - before;
    assert!((31 * MIB..48 * MIB).contains(&taken), "{} MiB for 32 MiB", taken / MIB);
}
