//! PyTorch's layout together with the other options of the store.

use burn::module::{Initializer, Param, ParamId};
use burn::nn::activation::{Activation, ActivationConfig};
use burn::nn::norm::{Normalization, NormalizationConfig};
use burn::nn::{BiLstm, BiLstmConfig, LinearConfig, LinearLayout, Lstm, PReluConfig};
use safetensors_core::Checkpoint;

use super::*;

fn lstm() -> Net<BiLstm> {
    Net { layer: BiLstmConfig::new(3, 5, true).init(&Device::default()) }
}

/// Returns the ids of all parameters of an LSTM.
fn ids(lstm: &Lstm) -> Vec<ParamId> {
    let gates = [&lstm.input_gate, &lstm.cell_gate, &lstm.output_gate];
    let gates = gates.into_iter().chain(lstm.forget_gate.as_ref());
    let linear = gates.flat_map(|gate| [&gate.input_transform, &gate.hidden_transform]);
    linear.flat_map(|linear| [linear.weight.id, linear.bias.as_ref().unwrap().id]).collect()
}

#[test]
fn each_part_of_a_tensor_keeps_its_id() {
    let (_dir, path) = place("saved.safetensors");
    let store = || CheckpointStore::from_file(&path).pytorch(true);
    let (saved, mut other) = (lstm(), lstm());
    saved.save_into(&mut store()).unwrap();
    other.load_from(&mut store().param_ids(true)).unwrap();
    assert_eq!(ids(&other.layer.forward), ids(&saved.layer.forward));
    assert_eq!(ids(&other.layer.reverse), ids(&saved.layer.reverse));

    let (mut other, own) = (lstm(), lstm());
    other.layer.forward = own.layer.forward.clone();
    other.load_from(&mut store()).unwrap();
    assert_eq!(ids(&other.layer.forward), ids(&own.layer.forward));
}

#[test]
fn parts_go_through_shards() {
    let dir = dir();
    let saved = Net { layer: loaded("lstm_bidirectional", lstm().layer) };
    let expected = layer_of(&fixture("lstm_bidirectional"));

    let sharded = || CheckpointStore::from_file(dir.path()).pytorch(true);
    saved.save_into(&mut sharded().max_shard_size(500.into())).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert!(checkpoint.files().len() > 2);
    let tensors: BTreeMap<_, _> = load(dir.path()).unwrap().into_iter().collect();
    assert_eq!(tensors, expected);
    let mut other = lstm();
    other.load_from(&mut sharded().max_extra_memory(300)).unwrap();
    let weight = |net: &Net<BiLstm>| net.layer.reverse.cell_gate.hidden_transform.weight.to_data();
    assert_eq!(weight(&other), weight(&saved));
}

#[test]
fn names_of_enum_variants_are_omitted() {
    #[derive(Module, Debug)]
    struct Block {
        norm: Normalization,
        activation: Activation,
    }
    let device = Device::default();
    let block = || Block {
        norm: NormalizationConfig::Batch(burn::nn::BatchNormConfig::new(4)).init(&device),
        activation: ActivationConfig::PRelu(PReluConfig::new().with_alpha(0.5)).init(&device),
    };
    let (_dir, path) = place("saved.safetensors");
    block().save_into(&mut CheckpointStore::from_file(&path).pytorch(true)).unwrap();
    let mut names: Vec<_> = load(&path).unwrap().into_keys().collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["activation.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.weight"]
    );
    let mut other = block();
    let result = other.load_from(&mut CheckpointStore::from_file(&path).pytorch(true)).unwrap();
    assert!(result.unused.is_empty(), "{result}");
}

#[test]
fn parameters_without_a_value_are_not_initialized() {
    let name = "linear";
    let device = Device::default();
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let mut net = Net { layer: LinearConfig::new(3, 5).with_layout(layout).init(&device) };
        let weight = &net.layer.weight;
        assert!(!weight.is_initialized(), "a new layer has no value yet");
        net.load_from(&mut CheckpointStore::from_file(fixture(name)).pytorch(true)).unwrap();
        assert_output(name, net.layer.forward(input::<2>(name)));
    }
}

#[test]
fn the_number_of_batches_is_neither_missing_nor_unused() {
    let path = fixture("batch_norm");
    assert!(load(&path).unwrap().contains_key("layer.num_batches_tracked"));
    let device = Device::default();
    let mut net = Net { layer: burn::nn::BatchNormConfig::new(4).init(&device) };
    let result = net.load_from(&mut CheckpointStore::from_file(&path).pytorch(true)).unwrap();
    assert_eq!(result.unused, ["input", "output"]);
    // Elsewhere such a name is a tensor like any other.
    #[derive(Module, Debug)]
    struct Counter {
        layer: Batches,
    }
    #[derive(Module, Debug)]
    struct Batches {
        running_mean: Param<Tensor<1>>,
    }
    let running_mean = Initializer::Zeros.init([4], &device);
    let mut other = Counter { layer: Batches { running_mean } };
    let result = other.load_from(&mut CheckpointStore::from_file(&path).pytorch(true)).unwrap();
    assert!(result.unused.contains(&"layer.num_batches_tracked".into()), "{result}");
}
