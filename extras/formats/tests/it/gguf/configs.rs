//! Settings that are not known, or that GGUF cannot say.

use safetensors_formats::gguf::{Model, Type};
use serde_json::{Value, json};

use super::{HEAD, Tiny, tensors};

/// Returns the error of a llama with this field.
fn refused(name: &str, value: Value) -> String {
    let mut tiny = Tiny::llama();
    tiny.config[name] = value;
    tiny.refused()
}

#[test]
fn fields_that_may_change_the_model_are_errors_that_name_them() {
    for (name, value, expected) in [
        (
            "mup_scale",
            json!(2.0),
            r#"unknown field "mup_scale" with the value "2.0": its effect would be lost"#,
        ),
        ("hidden_act", json!("gelu"), r#""hidden_act" should be "silu" here, found "\"gelu\"""#),
        ("sliding_window", json!(4096), r#""sliding_window" should be null here, found "4096""#),
        ("rms_norm_eps", json!("small"), r#""rms_norm_eps" should be a number here"#),
        ("rms_norm_eps", json!(1e300), r#""rms_norm_eps" should be a number here"#),
        ("rms_norm_eps", json!(null), r#"the field "rms_norm_eps" is missing"#),
        ("hidden_size", json!(null), r#"the field "hidden_size" is missing"#),
        ("num_hidden_layers", json!(0), "should be an integer from 1 on here, found \"0\""),
        ("num_hidden_layers", json!(-1), "should be an integer from 1 on here, found \"-1\""),
        ("vocab_size", json!(1_u64 << 32), "should be an integer from 1 on here"),
        ("vocab_size", json!(2.5), "should be an integer from 1 on here"),
        ("is_decoder", json!(true), r#""is_decoder" should be false"#),
        ("auto_map", json!({}), r#"unknown field "auto_map""#),
        ("partial_rotary_factor", json!(0.5), r#""partial_rotary_factor" should be 1.0 or 1"#),
        ("rope_scaling", json!(7), r#""rope_scaling" should be an object here"#),
        ("rope_scaling", json!({"type": "linear"}), r#"the field "factor" is missing"#),
        (
            "rope_scaling",
            json!({"rope_type": "longrope"}),
            "rotary embeddings of type \"longrope\" are not known; expected default, linear, yarn or \
             llama3",
        ),
        (
            "rope_scaling",
            json!({"type": "linear", "factor": 2.0, "mscale": 1.0}),
            r#"unknown field "mscale""#,
        ),
    ] {
        let error = refused(name, value);
        assert!(error.starts_with("config.json: ") && error.contains(expected), "{error}");
    }
}

#[test]
fn fields_of_training_and_generation_are_not_errors() {
    let mut tiny = Tiny::llama();
    for (name, value) in [
        ("_name_or_path", json!("a/b")),
        ("eos_token_id", json!([1, 2])),
        ("quantization_config", json!({"quant_method": "fp8"})),
        ("quantization", json!({"group_size": 64, "bits": 4})),
        ("rope_scaling", json!(null)),
        ("sliding_window", json!(null)),
        ("an_unknown_field", json!(null)),
        ("pruned_heads", json!({})),
        ("is_decoder", json!(false)),
        ("temperature", json!(0.7)),
    ] {
        tiny.config[name] = value;
    }
    let dir = tempfile::tempdir().unwrap();
    tiny.plan(dir.path(), Type::Q8_0).unwrap();
}

#[test]
fn unknown_architectures_are_refused_by_name() {
    for (value, found) in [
        (json!(["FalconForCausalLM"]), r#"["FalconForCausalLM"]"#),
        (json!(["LlamaForCausalLM", "Other"]), r#"["LlamaForCausalLM","Other"]"#),
        (json!("LlamaForCausalLM"), "LlamaForCausalLM"),
        (json!([]), "[]"),
        (json!(null), "null"),
    ] {
        let error = refused("architectures", value);
        let known = "config.json: architectures should be one of LlamaForCausalLM, MistralForCausalLM, \
                     Qwen2ForCausalLM, Qwen3ForCausalLM, GemmaForCausalLM, Gemma2ForCausalLM, \
                     Gemma3ForCausalLM, BertModel, BertForMaskedLM, found ";
        assert!(error.starts_with(known), "{error}");
        assert!(error.replace('\\', "").contains(found), "{error}");
    }
}

#[test]
fn settings_that_only_some_programs_support_are_refused() {
    let gemma2 = |name: &str, value: Value| {
        let mut tiny = Tiny::new(
            "Gemma2ForCausalLM",
            json!({
                "head_dim": HEAD, "tie_word_embeddings": true, "sliding_window": 32,
                "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0
            }),
            &[],
        );
        tiny.config[name] = value;
        tiny.refused()
    };
    for (name, value, expected) in [
        ("query_pre_attn_scalar", json!(20), "should be 16 here, found \"20\""),
        ("layer_types", json!(["full_attention", "full_attention"]), "for each 2th layer"),
        ("layer_types", json!(["sliding_attention"]), "for each 2th layer"),
        ("tie_word_embeddings", json!(false), "should be true here"),
        ("sliding_window", json!(null), "\"sliding_window\" is missing"),
        ("final_logit_softcapping", json!(null), "\"final_logit_softcapping\" is missing"),
        ("use_bidirectional_attention", json!(true), "should be false"),
    ] {
        let error = gemma2(name, value);
        assert!(error.contains(expected), "{error}");
    }
    let qwen = |name: &str, value: Value| {
        let mut tiny = Tiny::new("Qwen2ForCausalLM", json!({}), &[]);
        tiny.config[name] = value;
        tiny.refused()
    };
    assert!(qwen("use_sliding_window", json!(true)).contains("should be false here"));
    let kinds = json!(["full_attention", "sliding_attention"]);
    assert!(qwen("layer_types", kinds).contains("should be full_attention in all layers"));
    // Without this field, transformers takes a window of 4096.
    let error = Tiny::new("MistralForCausalLM", json!({}), &[]).refused();
    assert_eq!(error, "config.json: the field \"sliding_window\" is missing");
}

#[test]
fn sizes_that_no_memory_holds_cost_nothing() {
    for name in [
        "num_hidden_layers",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ] {
        let mut tiny = Tiny::llama();
        tiny.config[name] = u32::MAX.into();
        tiny.config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64
        });
        let error = tiny.refused();
        assert!(error.contains("settings ask for shape") || error.contains("lacks"), "{error}");
    }
}

#[test]
fn files_that_are_not_there_or_not_json_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let error = || Model::open(dir.path()).unwrap_err().to_string();
    assert_eq!(error(), format!("{}: there is no such file", path.display()));
    for (text, expected) in [
        ("{", "not JSON: "),
        ("[]", "an object is expected"),
        ("", "not JSON: "),
        ("\u{feff}{}", "architectures should be one of"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = error();
        assert!(error.starts_with(&format!("{}: {expected}", path.display())), "{error}");
    }
}

#[test]
fn an_odd_head_has_no_halves() {
    let mut tiny = Tiny::llama();
    tiny.config["head_dim"] = 15.into();
    tiny.tensors.retain(|(name, _)| name.contains("q_proj"));
    tiny.tensors.iter_mut().for_each(|(_, shape)| *shape = vec![60, 64]);
    let dir = tempfile::tempdir().unwrap();
    let model = tiny.open(dir.path()).unwrap();
    let error = model.writer(tensors(&tiny.tensors), Type::F32).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("heads of 15 have no halves to interleave"), "{error}");
}
