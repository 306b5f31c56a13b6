//! Models of each architecture, under the names that llama.cpp reads.

mod names;
mod others;

use std::collections::BTreeSet;

use safetensors_core::{Checkpoint, TensorBuf};
use safetensors_formats::gguf::Type;
use safetensors_formats::{ErrorKind, TensorFile};

use super::{FEED, HEAD, HIDDEN, Listed, Tiny, numbers, tensors, written};

/// Converts a model, as F32. Opened under the names of transformers, it is the same again.
fn converted(tiny: &Tiny) -> Checkpoint<TensorFile> {
    let dir = tempfile::tempdir().unwrap();
    let (writer, notes) = tiny.plan(dir.path(), Type::F32).unwrap();
    assert!(notes.left_out.is_empty() && notes.not_quantised.is_empty(), "{notes:?}");
    let path = dir.path().join("a.gguf");
    let read = written(&writer, &path);
    names::assert_same_again(&path, tiny);
    read
}

fn assert_names(read: &Checkpoint<TensorFile>, outer: &[&str], layer: &[&str]) {
    let layers = (0..2).flat_map(|i| layer.iter().map(move |name| format!("blk.{i}.{name}")));
    let expected: BTreeSet<_> = outer.iter().map(|name| name.to_string()).chain(layers).collect();
    let found: BTreeSet<_> = read.tensors().map(|tensor| tensor.name().to_owned()).collect();
    assert_eq!(found, expected);
}

fn values(read: &Checkpoint<TensorFile>, name: &str) -> Vec<f32> {
    read.tensor(name).unwrap().read().unwrap().into_vec().unwrap()
}

fn assert_metadata(read: &Checkpoint<TensorFile>, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(read.metadata().get(*key).map(String::as_str), Some(*value), "{key}");
    }
}

const ATTENTION_AND_MLP: [&str; 9] = [
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_output.weight",
    "ffn_norm.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
];

#[test]
fn llama_interleaves_the_rows_of_queries_and_keys() {
    let read = converted(&Tiny::llama());
    assert_names(
        &read,
        &["token_embd.weight", "output_norm.weight", "output.weight"],
        &ATTENTION_AND_MLP,
    );
    assert_metadata(
        &read,
        &[
            ("general.architecture", "llama"),
            ("general.type", "model"),
            ("general.file_type", "0"),
            ("general.quantization_version", "2"),
            ("llama.vocab_size", "40"),
            ("llama.context_length", "128"),
            ("llama.embedding_length", "64"),
            ("llama.block_count", "2"),
            ("llama.feed_forward_length", "96"),
            ("llama.attention.head_count", "4"),
            ("llama.attention.head_count_kv", "2"),
            ("llama.attention.layer_norm_rms_epsilon", "0.00001"),
            ("llama.rope.dimension_count", "16"),
            ("tokenizer.ggml.model", "none"),
        ],
    );
    for (module, target, rows) in [
        ("q_proj", "attn_q", 4 * HEAD),
        ("k_proj", "attn_k", 2 * HEAD),
        ("v_proj", "attn_v", 2 * HEAD),
    ] {
        let given = numbers(&format!("model.layers.1.self_attn.{module}.weight"), rows * HIDDEN);
        let found = values(&read, &format!("blk.1.{target}.weight"));
        for row in 0..rows {
            let (head, within) = (row / HEAD * HEAD, row % HEAD);
            let half = within % 2 * (HEAD / 2) + within / 2;
            let from = if module == "v_proj" { row } else { head + half };
            let expected = &given[from * HIDDEN..][..HIDDEN];
            assert!(found[row * HIDDEN..][..HIDDEN] == *expected, "{module} {row}");
        }
    }
}

#[test]
fn types_follow_the_shape() {
    let mut tiny = Tiny::llama();
    // Rows of `down_proj` are not whole blocks then.
    tiny.config["intermediate_size"] = 80.into();
    for (_, shape) in &mut tiny.tensors {
        shape.iter_mut().filter(|dim| **dim == FEED).for_each(|dim| *dim = 80);
    }
    let dir = tempfile::tempdir().unwrap();
    for (kind, number) in
        [(Type::Q8_0, "7"), (Type::Q4_0, "2"), (Type::F16, "1"), (Type::BF16, "32")]
    {
        let (writer, notes) = tiny.plan(dir.path(), kind).unwrap();
        let uneven = ["blk.0.ffn_down.weight", "blk.1.ffn_down.weight"];
        let is_blocks = kind.dtype().is_none();
        assert!(notes.not_quantised.iter().eq(uneven.iter().filter(|_| is_blocks)), "{notes:?}");
        for (name, found, shape) in writer.tensors() {
            let expected = match shape {
                [_] => Type::F32,
                _ if is_blocks && uneven.contains(&name) => Type::F16,
                _ => kind,
            };
            assert_eq!(found, expected, "{name}");
        }
        let read = written(&writer, &dir.path().join("a.gguf"));
        assert_metadata(&read, &[("general.file_type", number)]);
    }
}

#[test]
fn tied_heads_and_unused_tensors_are_skipped() {
    let mut tiny = Tiny::llama();
    tiny.config["tie_word_embeddings"] = true.into();
    for name in ["model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"] {
        tiny.tensors.push((name.into(), vec![HEAD / 2]));
    }
    let dir = tempfile::tempdir().unwrap();
    let (writer, notes) = tiny.plan(dir.path(), Type::Q8_0).unwrap();
    assert!(writer.tensors().all(|(name, _, _)| name != "output.weight"));
    assert_eq!(notes.left_out.len(), 3);
    tiny.tensors.retain(|(name, _)| !name.contains("lm_head"));
    tiny.plan(dir.path(), Type::Q8_0).unwrap();
    tiny.config["tie_word_embeddings"] = false.into();
    assert_eq!(tiny.refused(), "the model lacks \"lm_head.weight\"");
}

#[test]
fn tensors_that_do_not_belong_are_errors() {
    let plan = |change: &dyn Fn(&mut Vec<Listed>)| {
        let mut tiny = Tiny::llama();
        change(&mut tiny.tensors);
        tiny.refused()
    };
    for name in [
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.2.input_layernorm.weight",
        "model.layers.00.input_layernorm.weight",
        "model.layers.+0.input_layernorm.weight",
        "model.layers.0.input_layernorm.bias",
        "model.layers.0.mlp.gate.weight",
        "visual.patch_embed.weight",
        "weight",
        "",
    ] {
        let error = plan(&|tensors| tensors.push((name.into(), vec![1])));
        let expected = format!(
            "tensor {name:?}: it is no tensor of the architecture llama that is known here"
        );
        assert_eq!(error, expected);
    }
    let error = plan(&|tensors| {
        tensors
            .retain(|(name, _)| !name.starts_with("model.layers.1.mlp") && !name.contains("embed"));
    });
    assert_eq!(
        error,
        "the model lacks \"model.embed_tokens.weight\", \"model.layers.1.mlp.gate_proj.weight\", \
         \"model.layers.1.mlp.up_proj.weight\""
    );
    let error = plan(&|tensors| tensors[3].1 = vec![HIDDEN, 1]);
    assert_eq!(
        error,
        "tensor \"model.layers.0.input_layernorm.weight\": the model's settings ask for shape [64], \
         found [64, 1]"
    );
    let error = plan(&|tensors| {
        let twice = ("embed_tokens.weight".to_owned(), tensors[0].1.clone());
        tensors.push(twice);
    });
    assert!(error.starts_with("tensor \"embed_tokens.weight\": "), "{error}");
}

#[test]
fn integers_and_other_types_are_refused() {
    let tiny = Tiny::llama();
    let dir = tempfile::tempdir().unwrap();
    let model = tiny.open(dir.path()).unwrap();
    let mut listed = tensors(&tiny.tensors);
    let codes = TensorBuf::from_vec(vec![4 * HEAD, HIDDEN], vec![1_i8; 4 * HEAD * HIDDEN]).unwrap();
    listed[4].1 = codes;
    let error = model.writer(listed, Type::Q8_0).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("its elements are I8, not floats"), "{error}");
    let q6_k = Type::from_id(14).unwrap();
    let error = model.writer(tensors(&tiny.tensors), q6_k).map(|_| ()).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::NotForGguf { .. })), "{error}");
}
