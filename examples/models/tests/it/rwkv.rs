//! candle-transformers' RWKV v7, which asks for tensors without their shapes (`get_unchecked`): the
//! ranks of its low-rank matrices come from the file.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::rwkv_v7::{Config, Model, ModelVersion, State};
use safetensors_bridge::ShardOptions;
use safetensors_bridge::candle::{Checkpoint, CheckpointBackend, save_sharded};

const HIDDEN: usize = 8;
const VOCABULARY: usize = 6;
const LAYERS: usize = 2;

fn config() -> Config {
    Config {
        version: ModelVersion::V7,
        vocab_size: VOCABULARY,
        hidden_size: HIDDEN,
        num_hidden_layers: LAYERS,
        head_size: 4,
        intermediate_size: Some(16),
        rescale_every: 0,
    }
}

/// Weights of all names that the model has.
fn weights() -> BTreeMap<String, Tensor> {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("emb.weight".into(), vec![VOCABULARY, HIDDEN]),
        ("head.weight".into(), vec![VOCABULARY, HIDDEN]),
        ("ln_out.weight".into(), vec![HIDDEN]),
        ("ln_out.bias".into(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.push((format!("blocks.{layer}.{name}"), shape.to_vec()));
        };
        for norm in ["ln0", "ln1", "ln2", "att.ln_x"] {
            add(&format!("{norm}.weight"), &[HIDDEN]);
            add(&format!("{norm}.bias"), &[HIDDEN]);
        }
        for mix in ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "v0", "k_k", "k_a"] {
            add(&format!("att.{mix}"), &[1, 1, HIDDEN]);
        }
        // Each has another rank.
        for (rank, matrix) in (2..).zip(["w", "a", "v", "g"]) {
            add(&format!("att.{matrix}1"), &[HIDDEN, rank]);
            add(&format!("att.{matrix}2"), &[rank, HIDDEN]);
        }
        add("att.r_k", &[2, 4]);
        for matrix in ["receptance", "key", "value", "output"] {
            add(&format!("att.{matrix}.weight"), &[HIDDEN, HIDDEN]);
        }
        add("ffn.x_k", &[1, 1, HIDDEN]);
        add("ffn.key.weight", &[16, HIDDEN]);
        add("ffn.value.weight", &[HIDDEN, 16]);
    }
    let tensor = |(seed, (name, shape)): (usize, (String, Vec<usize>))| {
        let count = shape.iter().product::<usize>();
        let values = (0..count).map(|i| ((seed * 31 + i * 7) as f32 * 0.37).sin()).collect();
        (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
    };
    shapes.into_iter().enumerate().map(tensor).collect()
}

/// Returns the logits after some tokens.
fn logits(builder: VarBuilder<'_>) -> Vec<f32> {
    let model = Model::new(&config(), builder).unwrap();
    let mut state = State::new(&config(), &Device::Cpu).unwrap();
    model.forward_seq(&[1, 5, 0, 3], &mut state).unwrap().to_vec1().unwrap()
}

#[test]
fn rwkv_learns_its_ranks_from_a_sharded_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let options = ShardOptions::new().max_shard_size(1000.into());
    let saved = save_sharded(dir.path(), &weights(), &options).unwrap();
    assert!(saved.files.len() > 2);

    let in_memory = weights().into_iter().collect();
    let expected = logits(VarBuilder::from_tensors(in_memory, DType::F32, &Device::Cpu));
    assert!(expected.iter().all(|logit| logit.is_finite()) && expected[0] != expected[1]);
    for cached in [false, true] {
        let backend = CheckpointBackend::new(Checkpoint::open(dir.path()).unwrap());
        let backend = backend.cache_tensors(cached);
        assert_eq!(logits(backend.var_builder(DType::F32, &Device::Cpu)), expected);
        // Only the first block has the first norm.
        let unused: Vec<_> = backend.unused().map(|tensor| tensor.name().to_owned()).collect();
        assert_eq!(unused, ["blocks.1.ln0.bias", "blocks.1.ln0.weight"]);
    }
}
