//! A `VarBuilder` over a file, several, a directory, bytes in memory; and candle's own methods.

use std::collections::HashMap;

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use candle_nn::var_builder::{Rename, Renamer};
use safetensors_candle::{CheckpointBackend, load, var_builder, var_builder_from};
use safetensors_core::checkpoint::MaxShardSize;
use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::{
    Checkpoint, Limits, SaveOptions, ShardOptions, save, save_sharded, serialize,
};

use super::spy::{assert_values, model, sorted};

/// Asserts that all tensors of a model of 11 layers come out of a builder.
#[track_caller]
fn assert_model(builder: &VarBuilder<'_>) {
    for (name, len) in model(11) {
        assert_values(&name, &builder.get(len, &name).unwrap());
    }
}

#[test]
fn every_source_gives_the_same_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = sorted(&model(11));
    let each = || tensors.iter().map(|(name, buf)| (name, buf));
    let (dtype, device) = (DType::F32, Device::Cpu);

    let file = dir.path().join("whole.safetensors");
    save(&file, each(), &SaveOptions::new().durable(false)).unwrap();
    assert_model(&var_builder(&file, dtype, &device).unwrap());

    let shards = dir.path().join("shards");
    let options = ShardOptions::new().max_shard_size(MaxShardSize(20_000));
    let saved = save_sharded(&shards, each(), &options).unwrap();
    drop(saved);
    let sharded = Checkpoint::open(&shards).unwrap();
    assert!(sharded.files().len() > 3);
    assert_model(&var_builder(&shards, dtype, &device).unwrap());

    // The same files without their index, in any order.
    let mut files: Vec<_> = sharded.files().iter().map(|file| file.path().to_owned()).collect();
    files.reverse();
    assert_model(&var_builder_from(Checkpoint::open_files(&files).unwrap(), dtype, &device));
    assert_model(&var_builder_from(sharded, dtype, &device));

    let bytes = std::fs::read(&file).unwrap();
    assert_model(&var_builder_from(
        Checkpoint::from_source(&bytes[..], "bytes in memory").unwrap(),
        dtype,
        &device,
    ));
    let store = MemoryStore::from_iter([("model.safetensors", bytes.clone())]);
    let checkpoint = Checkpoint::open_in(store, "", &Limits::default()).unwrap();
    assert_model(&CheckpointBackend::new(checkpoint).var_builder(dtype, &device));
    assert_model(&var_builder_from(
        Checkpoint::from_source(bytes, "bytes in memory").unwrap(),
        dtype,
        &device,
    ));

    // candle's own over tensors in memory.
    let tensors: HashMap<_, _> = load(&file, &device).unwrap().into_iter().collect();
    assert_model(&VarBuilder::from_tensors(tensors, dtype, &device));
}

#[test]
fn the_methods_of_candles_builder_work() {
    let tensors = sorted(&model(2));
    let tensors = tensors.iter().map(|(name, buf)| (name, buf));
    let bytes = serialize(tensors, &SaveOptions::new()).unwrap();
    let open = || {
        var_builder_from(
            Checkpoint::from_source(&bytes[..], "bytes in memory").unwrap(),
            DType::F32,
            &Device::Cpu,
        )
    };
    let name = "model.layers.1.self_attn.q.weight";

    let layer = open().pp("model").pp("layers").pp(1);
    assert_eq!(layer.prefix(), "model.layers.1");
    assert_values(name, &layer.pp("self_attn.q").get(512, "weight").unwrap());
    assert_values(
        name,
        &layer.set_prefix("model.layers.1.self_attn").get(512, "q.weight").unwrap(),
    );
    assert_values(name, &layer.root().get_unchecked(name).unwrap());
    assert!(layer.contains_tensor("norm.weight") && !layer.contains_tensor("norm"));

    let half = layer.to_dtype(DType::BF16).get(16, "norm.weight").unwrap();
    assert_eq!(half.dtype(), DType::BF16);
    let wide = layer.clone().set_dtype(DType::F64).get_unchecked("norm.weight").unwrap();
    assert_eq!(wide.dtype(), DType::F64);
    assert_values("model.layers.1.norm.weight", &wide);
    let moved = layer.clone().set_device(Device::Cpu).get(16, "norm.weight").unwrap();
    assert_values("model.layers.1.norm.weight", &moved);

    // The model asks for other names than the file has.
    let renamed = open().rename_f(|name| name.replace("transformer.h", "model.layers"));
    let layer = renamed.pp("transformer.h.1");
    assert!(layer.contains_tensor("self_attn.q.weight") && !layer.contains_tensor("attn"));
    assert_values(name, &layer.get(512, "self_attn.q.weight").unwrap());
    assert_values(name, &layer.get_unchecked("self_attn.q.weight").unwrap());
    let error = layer.get(512, "attn.q.weight").unwrap_err().to_string();
    assert!(error.contains(r#"did you mean "model.layers.1.self_attn.q.weight"?"#), "{error}");

    struct Below(&'static str);
    impl Renamer for Below {
        fn rename(&self, name: &str) -> std::borrow::Cow<'_, str> {
            format!("{}.{name}", self.0).into()
        }
    }
    let below = open().rename(Below("model.layers.1"));
    assert_values(name, &below.get(512, "self_attn.q.weight").unwrap());
    let backend = Rename::new(open(), Below("model"));
    let below = VarBuilder::from_backend(Box::new(backend), DType::F32, Device::Cpu);
    assert_values(name, &below.get(512, "layers.1.self_attn.q.weight").unwrap());
}
