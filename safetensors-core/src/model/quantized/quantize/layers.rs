//! [`LinearLayers`]: the weights that programs read as codes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Quantization;
use crate::format::error::Result;
use crate::format::python_json;
use crate::weights::{bad_config, model_types};

/// The linear layers of a model: transformers and vLLM would read codes of another tensor, such as
/// an embedding, as its values. The name of a weight and the architecture in `config.json` show its
/// kind. Heads and routers do not count: as codes, they lose the most and save the least.
///
/// ```
/// use safetensors_core::quantized::{LinearLayers, Quantization};
///
/// let nvfp4 = Quantization::Nvfp4;
/// let layers = LinearLayers::new().config(r#"{"model_type": "llama"}"#)?;
/// assert!(layers.suits(nvfp4, "model.layers.0.mlp.gate_proj.weight", &[96, 64]));
/// assert!(!layers.suits(nvfp4, "model.layers.0.mlp.gate.weight", &[8, 64]));
/// assert!(!layers.suits(nvfp4, "model.layers.0.mlp.up_proj.weight", &[64, 72]));
/// // Its rows are inputs.
/// let layers = LinearLayers::new().config(r#"{"model_type": "gpt2"}"#)?;
/// assert!(!layers.suits(nvfp4, "h.0.attn.c_attn.weight", &[64, 192]));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinearLayers {
    model_types: BTreeSet<String>,
}

impl LinearLayers {
    /// Decides by names alone. A name that transposed layers have, too, does not count as linear.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the architectures that the text of a `config.json` names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Quantization`](crate::ErrorKind::Quantization) if it is not a JSON object.
    pub fn config(mut self, config: &str) -> Result<Self> {
        let json = python_json::read(config.as_bytes());
        let json = json.map_err(|error| bad_config(format!("not JSON: {error}")))?;
        let Value::Object(_) = &json else {
            return Err(bad_config("not a JSON object".into()));
        };
        self.model_types.extend(model_types(&json));
        Ok(self)
    }

    /// Returns `true` for the weight of a linear layer with complete groups in its rows.
    #[doc(hidden)]
    pub fn suits(&self, how: Quantization, name: &str, shape: &[usize]) -> bool {
        self.has(name) && how.matrix(shape).is_some()
    }

    /// Returns `true` if a weight of this name belongs to a linear layer, if it is a matrix.
    #[doc(hidden)]
    pub fn has(&self, name: &str) -> bool {
        let Some(module) = name.strip_suffix(".weight") else { return false };
        let last = module.rsplit('.').next().unwrap_or_default();
        let stays = |part: &str| {
            let part = part.to_ascii_lowercase();
            part == "gate" || ["emb", "norm", "router"].iter().any(|word| part.contains(word))
        };
        let is_other = module.split('.').any(stays)
            || OTHERS.contains(&last)
            || PARTS.iter().any(|part| last.contains(part))
            || WHOLE.contains(&module)
            || CONV1D.contains(&last) && self.may_have_conv1d();
        !is_other
    }

    fn may_have_conv1d(&self) -> bool {
        self.model_types.is_empty()
            || self.model_types.iter().any(|found| WITH_CONV1D.contains(&&**found))
    }
}

/// Modules that stay unchanged: routers, heads, and embeddings with other names.
// These lists are from transformers 5.24. Files have no classes, so names decide.
const OTHERS: [&str; 23] = [
    "shared_expert_gate",
    "classifier",
    "decoder",
    "head",
    "lm_loss",
    "output_layer",
    "output_projection",
    "qa_outputs",
    "score",
    "vocab_projector",
    "bias_values",
    "codebook",
    "patterns",
    "prompt_ctx",
    "queries_features",
    "query_1024_resolution",
    "query_768_resolution",
    "query_feat",
    "recycle_disto",
    "reference_points",
    "shared",
    "wpe",
    "wte",
];

const PARTS: [&str; 3] = ["lm_head", "relative_attention_bias", "token"];

/// Modules of these full names: heads, and embeddings.
const WHOLE: [&str; 4] = ["output", "proj_out", "query", "transformer.w"];

/// Transposed layers of GPT-2 (`Conv1D`). Other models have linear layers of these names.
const CONV1D: [&str; 5] = ["c_attn", "c_fc", "c_fc2", "c_proj", "q_attn"];

const WITH_CONV1D: [&str; 7] =
    ["clvp", "clvp_decoder", "decision_transformer", "gpt2", "imagegpt", "jais", "openai-gpt"];
