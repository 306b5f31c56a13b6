//! Attention: burn's query, key and value are parts of PyTorch's `in_proj`.

use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::tensor::DType;
use safetensors_burn::{FloatCastAdapter, save};
use safetensors_core::{Dtype, LoadOptions, SaveOptions};

use super::*;

fn attention(bias: bool) -> MultiHeadAttention {
    MultiHeadAttentionConfig::new(8, 2)
        .with_query_bias(bias)
        .with_key_bias(bias)
        .with_value_bias(bias)
        .with_output_bias(bias)
        .init(&Device::default())
}

#[test]
fn fused_projections_are_split_and_joined() {
    for (name, bias) in [("attention", true), ("attention_without_bias", false)] {
        let layer = loaded(name, attention(bias));
        assert_output(name, layer.forward(MhaInput::self_attn(input(name))).context);
    }
}

#[test]
fn projections_may_be_separate_in_the_file() {
    let (_dir, path) = place("separate.safetensors");
    let net = Net { layer: loaded("attention", attention(true)) };
    let store = || CheckpointStore::from_file(&path).pytorch(true).fused_attention(false);
    net.save_into(&mut store()).unwrap();

    let (saved, fused) = (load(&path).unwrap(), load(fixture("attention")).unwrap());
    let expected = [
        "layer.key.bias",
        "layer.key.weight",
        "layer.output.bias",
        "layer.output.weight",
        "layer.query.bias",
        "layer.query.weight",
        "layer.value.bias",
        "layer.value.weight",
    ];
    assert!(layer_of(&path).into_keys().eq(expected));
    assert_eq!(saved["layer.output.weight"], fused["layer.out_proj.weight"]);
    let rows = |data: &TensorData| data.as_slice::<f32>().unwrap().to_vec();
    for (part, name) in ["query", "key", "value"].into_iter().enumerate() {
        let weight = rows(&saved[&format!("layer.{name}.weight")]);
        assert_eq!(weight, rows(&fused["layer.in_proj_weight"])[part * 64..][..64], "{name}");
    }

    // Both options load both forms.
    for (path, fused) in [(&path, true), (&path, false), (&fixture("attention"), false)] {
        let mut other = Net { layer: attention(true) };
        let mut store = CheckpointStore::from_file(path).pytorch(true).fused_attention(fused);
        other.load_from(&mut store).unwrap();
        assert_eq!(other.layer.key.weight.to_data(), net.layer.key.weight.to_data());
    }
}

#[test]
fn dtypes_are_converted_before_and_after_the_split() {
    let expected = loaded("attention", attention(true)).value.weight.to_data();
    let path = fixture("attention");
    let store = || CheckpointStore::from_file(&path).pytorch(true);
    for (mut store, to) in [
        (store().load_options(LoadOptions::new().floats_as(Dtype::F64)), DType::F64),
        (store().load_options(LoadOptions::new().floats_as(Dtype::BF16)), DType::BF16),
        (store().with_from_adapter(FloatCastAdapter::to(DType::F16)), DType::F16),
    ] {
        let mut net = Net { layer: attention(true) };
        net.load_from(&mut store).unwrap();
        let found = net.layer.value.weight.to_data();
        assert_eq!(found, expected.clone().convert_dtype(to), "{to:?}");
    }
}

#[test]
fn one_fused_tensor_serves_tied_layers() {
    #[derive(Module, Debug)]
    struct Tied {
        first: MultiHeadAttention,
        second: MultiHeadAttention,
    }
    let (_dir, path) = place("tied.safetensors");
    let store = || CheckpointStore::from_file(&path).pytorch(true).overwrite(true);
    let layer = loaded("attention", attention(true));
    let tied = Tied { first: layer.clone(), second: layer };
    tied.save_into(&mut store()).unwrap();
    let stored = safetensors_core::Checkpoint::open(&path).unwrap();
    assert_eq!(stored.len(), 4, "each tensor is saved once");

    let mut other = Tied { first: attention(true), second: attention(true) };
    other.load_from(&mut store()).unwrap();
    for layer in [&other.first, &other.second] {
        assert_eq!(layer.key.weight.to_data(), tied.first.key.weight.to_data());
    }

    // One of the two changes: its fused weight is another tensor.
    let mut tied = tied;
    tied.second.query = attention(true).query;
    tied.save_into(&mut store()).unwrap();
    let stored = safetensors_core::Checkpoint::open(&path).unwrap();
    assert_eq!(stored.len(), 6, "the second has its own weight and bias of the projections");
    other.load_from(&mut store()).unwrap();
    let (found, expected) = (&other.second.query, &tied.second.query);
    assert_eq!(found.weight.to_data(), expected.weight.to_data());
}

#[test]
fn values_shared_with_transposed_parameters_are_read_once() {
    // In the file two names are one tensor: an embedding, and the weight of a linear layer.
    #[derive(Module, Debug)]
    struct Head {
        embedding: burn::nn::Embedding,
        linear: burn::nn::Linear,
    }
    let device = Device::default();
    let head = || Head {
        embedding: burn::nn::EmbeddingConfig::new(5, 3).init(&device),
        linear: burn::nn::LinearConfig::new(3, 5).with_bias(false).init(&device),
    };
    let (_dir, path) = place("head.safetensors");
    let table = TensorData::new((0..15).map(|i| i as f32).collect(), [5, 3]);
    save(
        &path,
        [("embedding.weight", &table), ("linear.weight", &table)],
        &SaveOptions::new().tied(safetensors_core::tied::Tied::new()),
    )
    .unwrap();
    let mut found = head();
    found.load_from(&mut CheckpointStore::from_file(&path).pytorch(true)).unwrap();
    assert_eq!(found.embedding.weight.to_data(), table);
    assert_eq!(found.linear.weight.val().transpose().into_data(), table);
}
