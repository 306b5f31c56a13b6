//! Mixtures of candle-transformers, which ask for the matrices of single experts, from files with
//! stacked experts.

use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::{deepseek2, mixtral, qwen3_moe};
use safetensors_bridge::candle::{Checkpoint, CheckpointBackend, save};
use safetensors_bridge::load::{ExpertLayout, ExpertOptions, QuantizedWeights};
use safetensors_bridge::quantized::{LinearLayers, Quantization};
use safetensors_bridge::{ConvertOptions, LoadOptions, Rewrite, SaveOptions};
use serde_json::{Value, json};

/// Builds a model of these settings, and returns its logits.
type Logits = fn(Value, VarBuilder<'_>) -> Result<Tensor>;

fn tokens() -> Tensor {
    Tensor::new(&[[1_u32, 5, 0, 3]], &Device::Cpu).unwrap()
}

/// The models, each with the settings that only it has.
fn models() -> [(&'static str, Value, Logits); 3] {
    let mixtral = json!({
        "num_local_experts": 4, "sliding_window": 32, "use_flash_attn": false,
    });
    let qwen = json!({
        "num_experts": 4, "head_dim": 8, "attention_bias": false, "max_window_layers": 0,
        "tie_word_embeddings": false, "use_sliding_window": false, "decoder_sparse_step": 1,
        "norm_topk_prob": true,
    });
    let deepseek = json!({
        "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "attention_bias": false, "q_lora_rank": null, "qk_rope_head_dim": 4, "kv_lora_rank": 8,
        "v_head_dim": 8, "qk_nope_head_dim": 4, "n_group": 1, "topk_group": 1,
    });
    [
        ("mixtral", mixtral, |config, builder| {
            let config: mixtral::Config = serde_json::from_value(config).unwrap();
            mixtral::Model::new(&config, builder)?.forward(&tokens(), 0)
        }),
        ("qwen3_moe", qwen, |config, builder| {
            let config: qwen3_moe::Config = serde_json::from_value(config).unwrap();
            qwen3_moe::ModelForCausalLM::new(&config, builder)?.forward(&tokens(), 0)
        }),
        ("deepseek_v2", deepseek, |config, builder| {
            let config: deepseek2::DeepSeekV2Config = serde_json::from_value(config).unwrap();
            deepseek2::DeepSeekV2::new(&config, builder)?.forward(&tokens(), 0)
        }),
    ]
}

/// Adds the settings that all models have. Blocks of 128 rows divide the experts.
fn config(model: &str, own: &Value) -> Value {
    let mut config = json!({
        "model_type": model, "vocab_size": 8, "hidden_size": 16, "intermediate_size": 256,
        "moe_intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 32,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "num_experts_per_tok": 2,
    });
    let own = own.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(own);
    config
}

/// The logits of a model that is loaded from a file.
fn loaded(path: &Path, options: &LoadOptions, config: &Value, logits: Logits) -> Vec<f32> {
    let backend = CheckpointBackend::new_with(Checkpoint::open(path).unwrap(), options).unwrap();
    let builder = backend.var_builder(DType::F32, &Device::Cpu);
    logits(config.clone(), builder).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The model is also quantised, and stacked with its scales.
#[test]
fn mixtures_have_the_same_logits_from_stacked_experts() {
    for (model, own, logits) in models() {
        let config = config(model, &own);
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("config.json"), config.to_string()).unwrap();
        let weights = VarMap::new();
        let builder = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
        logits(config.clone(), builder).unwrap();
        let weights: Vec<_> = weights.data().lock().unwrap().clone().into_iter().collect();
        let weights = weights.iter().map(|(name, weight)| (name, weight.as_tensor()));
        save(at("split"), weights, &SaveOptions::new()).unwrap();
        let (layers, convert) = (LinearLayers::new(), ConvertOptions::new());
        Rewrite::from_checkpoint(&Checkpoint::open(at("split")).unwrap())
            .quantize(Quantization::Fp8Block128, &convert, &layers, |_, _| None)
            .and_then(|rewrite| rewrite.save(at("split-fp8"), &SaveOptions::new()))
            .unwrap();
        for end in ["", "-fp8"] {
            let (split, stacked) = (at(&format!("split{end}")), at(&format!("stacked{end}")));
            let options = ExpertOptions::new();
            let checkpoint = Checkpoint::open(&split).unwrap();
            let view = checkpoint.experts(ExpertLayout::Stacked, &options).unwrap();
            assert!(view.tensors().all(|tensor| !tensor.name().contains(".experts.0.")));
            Rewrite::from_checkpoint(&view).save(&stacked, &SaveOptions::new()).unwrap();

            let numbers = LoadOptions::new().quantized(QuantizedWeights::Numbers);
            let expected = loaded(&split, &numbers, &config, logits);
            let split = numbers.experts(ExpertLayout::Split, options);
            assert_eq!(loaded(&stacked, &split, &config, logits), expected, "{model}{end}");
        }
    }
}
