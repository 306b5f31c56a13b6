//! Models of the other architectures: Mistral, Qwen, Gemma and BERT.

use safetensors_formats::gguf::Type;
use serde_json::json;

use super::super::{FEED, HEAD, HIDDEN, Tiny, VOCABULARY, attention_and_mlp, numbers, written};
use super::names::assert_names_again;
use super::{ATTENTION_AND_MLP, assert_metadata, assert_names, converted, values};

#[test]
fn mistral_biases_and_llama_3_factors_are_written() {
    let biases: [(&str, &[usize]); 2] =
        [("self_attn.q_proj.bias", &[4 * HEAD]), ("mlp.down_proj.bias", &[HIDDEN])];
    let layer = [&attention_and_mlp()[..], &biases].concat();
    let rope = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64
    });
    let fields = json!({
        "sliding_window": null, "rope_theta": 500_000.0, "rope_scaling": rope,
        "attention_bias": true, "mlp_bias": true
    });
    let read = converted(&Tiny::new("MistralForCausalLM", fields, &layer));
    assert_metadata(
        &read,
        &[("general.architecture", "llama"), ("llama.rope.freq_base", "500000")],
    );
    let given = numbers("model.layers.0.self_attn.q_proj.bias", 4 * HEAD);
    let found = values(&read, "blk.0.attn_q.bias");
    assert_eq!(found[..4], [given[0], given[8], given[1], given[9]]);
    let factors = values(&read, "rope_freqs.weight");
    assert_eq!(factors.len(), HEAD / 2);
    // The wavelengths are 2π, 2π·5.16 and so on: below 16 nothing changes, above 64 all of it.
    assert_eq!((factors[0], factors[2], factors[7]), (1.0, 8.0, 8.0));
    assert!((1.0..8.0).contains(&factors[1]), "{factors:?}");
}

#[test]
fn qwen_keeps_the_order_of_rows() {
    let layer = attention_and_mlp();
    let biases: [(&str, &[usize]); 3] = [
        ("self_attn.q_proj.bias", &[4 * HEAD]),
        ("self_attn.k_proj.bias", &[2 * HEAD]),
        ("self_attn.v_proj.bias", &[2 * HEAD]),
    ];
    let fields = json!({
        "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 1,
        "rope_parameters": {
            "rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 32, "beta_fast": 16.0
        }
    });
    let read = converted(&Tiny::new("Qwen2ForCausalLM", fields, &[&layer[..], &biases].concat()));
    let outer = ["token_embd.weight", "output_norm.weight", "output.weight"];
    let names = ["attn_q.bias", "attn_k.bias", "attn_v.bias"];
    assert_names(&read, &outer, &[&ATTENTION_AND_MLP[..], &names].concat());
    assert_metadata(
        &read,
        &[
            ("qwen2.rope.freq_base", "1000000"),
            ("qwen2.rope.scaling.type", "yarn"),
            ("qwen2.rope.scaling.factor", "4"),
            ("qwen2.rope.scaling.original_context_length", "32"),
            ("qwen2.rope.scaling.yarn_beta_fast", "16"),
        ],
    );
    let name = "model.layers.0.self_attn.q_proj.weight";
    assert!(values(&read, "blk.0.attn_q.weight") == numbers(name, 4 * HEAD * HIDDEN));

    let norms: [(&str, &[usize]); 2] =
        [("self_attn.q_norm.weight", &[HEAD]), ("self_attn.k_norm.weight", &[HEAD])];
    let fields = json!({"head_dim": HEAD, "tie_word_embeddings": true});
    let read = converted(&Tiny::new("Qwen3ForCausalLM", fields, &[&layer[..], &norms].concat()));
    let names = ["attn_q_norm.weight", "attn_k_norm.weight"];
    assert_names(&read, &outer[..2], &[&ATTENTION_AND_MLP[..], &names].concat());
    assert_metadata(
        &read,
        &[("qwen3.attention.key_length", "16"), ("qwen3.attention.value_length", "16")],
    );
}

#[test]
fn gemma_adds_one_to_norms() {
    let gemma = json!({"head_dim": HEAD, "tie_word_embeddings": true, "hidden_act": "gelu"});
    let read = converted(&Tiny::new("GemmaForCausalLM", gemma, &attention_and_mlp()));
    assert_names(&read, &["token_embd.weight", "output_norm.weight"], &ATTENTION_AND_MLP);
    let plus_one = |name: &str| numbers(name, HIDDEN).iter().map(|x| x + 1.0).collect::<Vec<_>>();
    assert_eq!(values(&read, "output_norm.weight"), plus_one("model.norm.weight"));
    let more: [(&str, &[usize]); 2] = [
        ("pre_feedforward_layernorm.weight", &[HIDDEN]),
        ("post_feedforward_layernorm.weight", &[HIDDEN]),
    ];
    let layer = [&attention_and_mlp()[..], &more].concat();
    let fields = json!({
        "head_dim": HEAD, "tie_word_embeddings": true, "sliding_window": 32,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": HEAD, "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "full_attention"]
    });
    let read = converted(&Tiny::new("Gemma2ForCausalLM", fields, &layer));
    let names = ["post_attention_norm.weight", "post_ffw_norm.weight"];
    let names = [&ATTENTION_AND_MLP[..], &names].concat();
    assert_names(&read, &["token_embd.weight", "output_norm.weight"], &names);
    for (name, source) in [
        ("blk.0.attn_norm", "input_layernorm"),
        ("blk.0.post_attention_norm", "post_attention_layernorm"),
        ("blk.0.ffn_norm", "pre_feedforward_layernorm"),
        ("blk.0.post_ffw_norm", "post_feedforward_layernorm"),
    ] {
        let expected = plus_one(&format!("model.layers.0.{source}.weight"));
        assert_eq!(values(&read, &format!("{name}.weight")), expected, "{name}");
    }
    assert_metadata(
        &read,
        &[
            ("gemma2.attention.sliding_window", "32"),
            ("gemma2.attn_logit_softcapping", "50"),
            ("gemma2.final_logit_softcapping", "30"),
        ],
    );
    let norms: [(&str, &[usize]); 2] =
        [("self_attn.q_norm.weight", &[HEAD]), ("self_attn.k_norm.weight", &[HEAD])];
    let fields = json!({
        "head_dim": HEAD, "tie_word_embeddings": true, "sliding_window": 32,
        "sliding_window_pattern": 6, "query_pre_attn_scalar": HEAD, "rope_theta": 1e6,
        "rope_local_base_freq": 10_000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}
    });
    let read = converted(&Tiny::new("Gemma3ForCausalLM", fields, &[&layer[..], &norms].concat()));
    let names = [&names[..], &["attn_q_norm.weight", "attn_k_norm.weight"]].concat();
    assert_names(&read, &["token_embd.weight", "output_norm.weight"], &names);
    assert_metadata(
        &read,
        &[
            ("gemma3.rope.freq_base", "1000000"),
            ("gemma3.rope.freq_base_swa", "10000"),
            ("gemma3.rope.scaling.type", "linear"),
        ],
    );
}

/// Makes a model of BERT with names that begin with `prefix`.
fn bert(class: &str, prefix: &str) -> Tiny {
    let mut tiny = Tiny::new(class, json!({"type_vocab_size": 2, "layer_norm_eps": 1e-12}), &[]);
    let config = tiny.config.as_object_mut().unwrap();
    config.remove("rms_norm_eps");
    config.remove("num_key_value_heads");
    let mut listed: Vec<(String, Vec<usize>)> = vec![
        ("embeddings.word_embeddings.weight".into(), vec![VOCABULARY, HIDDEN]),
        ("embeddings.position_embeddings.weight".into(), vec![128, HIDDEN]),
        ("embeddings.token_type_embeddings.weight".into(), vec![2, HIDDEN]),
        ("embeddings.LayerNorm.gamma".into(), vec![HIDDEN]),
        ("embeddings.LayerNorm.beta".into(), vec![HIDDEN]),
        ("pooler.dense.weight".into(), vec![HIDDEN, HIDDEN]),
    ];
    for i in 0..2 {
        for (module, shape) in [
            ("attention.self.query", vec![HIDDEN, HIDDEN]),
            ("attention.self.key", vec![HIDDEN, HIDDEN]),
            ("attention.self.value", vec![HIDDEN, HIDDEN]),
            ("attention.output.dense", vec![HIDDEN, HIDDEN]),
            ("attention.output.LayerNorm", vec![HIDDEN]),
            ("intermediate.dense", vec![FEED, HIDDEN]),
            ("output.dense", vec![HIDDEN, FEED]),
            ("output.LayerNorm", vec![HIDDEN]),
        ] {
            listed.push((format!("encoder.layer.{i}.{module}.bias"), vec![shape[0]]));
            listed.push((format!("encoder.layer.{i}.{module}.weight"), shape));
        }
    }
    tiny.tensors =
        listed.into_iter().map(|(name, shape)| (format!("{prefix}{name}"), shape)).collect();
    tiny
}

#[test]
fn bert_keeps_small_embeddings_exact() {
    let dir = tempfile::tempdir().unwrap();
    for (class, prefix) in [("BertModel", ""), ("BertForMaskedLM", "bert.")] {
        let tiny = bert(class, prefix);
        let (writer, notes) = tiny.plan(dir.path(), Type::Q8_0).unwrap();
        assert_eq!(notes.left_out, [format!("{prefix}pooler.dense.weight")]);
        for (name, kind, _) in writer.tensors() {
            let is_quantised = !name.contains("norm") && !name.ends_with(".bias");
            let is_exact = ["position_embd.weight", "token_types.weight"].contains(&name);
            let expected = if is_quantised && !is_exact { Type::Q8_0 } else { Type::F32 };
            assert_eq!(kind, expected, "{name}");
        }
        let read = written(&writer, &dir.path().join("a.gguf"));
        let again = tiny.tensors.iter().filter(|(name, _)| !name.contains("pooler"));
        let again = again.map(|(name, _)| name.strip_prefix(prefix).unwrap());
        let again = again.map(|name| name.replace("gamma", "weight").replace("beta", "bias"));
        assert_names_again(&dir.path().join("a.gguf"), again.collect());
        let pair = |name: &str| ["weight", "bias"].map(|end| format!("{name}.{end}"));
        let modules = [
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_output",
            "attn_output_norm",
            "ffn_up",
            "ffn_down",
            "layer_output_norm",
        ];
        let layer: Vec<_> = modules.into_iter().flat_map(pair).collect();
        let mut outer = pair("token_embd_norm").to_vec();
        outer.extend(
            ["token_embd", "position_embd", "token_types"].map(|it| format!("{it}.weight")),
        );
        let outer: Vec<_> = outer.iter().map(String::as_str).collect();
        let layer: Vec<_> = layer.iter().map(String::as_str).collect();
        assert_names(&read, &outer, &layer);
        assert_metadata(
            &read,
            &[
                ("general.architecture", "bert"),
                ("bert.attention.causal", "false"),
                ("bert.attention.head_count_kv", "4"),
                ("bert.attention.layer_norm_epsilon", "1e-12"),
                ("tokenizer.ggml.token_type_count", "2"),
            ],
        );
    }
}

#[test]
fn the_pooling_of_bert_is_read_from_its_modules() {
    let dir = tempfile::tempdir().unwrap();
    let modules =
        json!([{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1"}]);
    std::fs::write(dir.path().join("modules.json"), modules.to_string()).unwrap();
    std::fs::create_dir(dir.path().join("1")).unwrap();
    let config = dir.path().join("1/config.json");
    std::fs::write(&config, r#"{"pooling_mode_mean_tokens": true}"#).unwrap();
    let (writer, _) = bert("BertModel", "").plan(dir.path(), Type::F32).unwrap();
    let read = written(&writer, &dir.path().join("a.gguf"));
    assert_metadata(&read, &[("bert.pooling_type", "1")]);
    std::fs::write(&config, r#"{"pooling_mode_max_tokens": true}"#).unwrap();
    let error = bert("BertModel", "").open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("its pooling is none of mean, cls and lasttoken"), "{error}");
    // The file names no other directory.
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("config.json"), "{\"pooling_mode_cls_token\": true}")
        .unwrap();
    for folder in [elsewhere.path().to_str().unwrap(), "..", "1/../.."] {
        let modules = json!([{"type": "a.Pooling", "path": folder}]);
        std::fs::write(dir.path().join("modules.json"), modules.to_string()).unwrap();
        let error = bert("BertModel", "").open(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("found a path that leads out of its directory"), "{error}");
    }
}
