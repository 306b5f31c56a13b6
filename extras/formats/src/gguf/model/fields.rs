//! [`Fields`]: the settings of `config.json`, which must all be known.

use serde_json::{Map, Value};

use crate::error::{ErrorKind, Quoted, Result};

/// Fields about training, generation, tokens, and the programs that wrote the file.
// Any other unknown field is an error and not a warning. It could be another activation, a window
// of attention or a scale: the model would run, and be wrong.
const WITHOUT_EFFECT: &[&str] = &[
    "attention_dropout",
    "attention_probs_dropout_prob",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cls_token_id",
    "compression_config",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "mask_token_id",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "quantization",
    "quantization_config",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Fields that may only have a value without effect.
const OFF: &[&str] = &[
    "add_cross_attention",
    "cross_attention_hidden_size",
    "is_decoder",
    "is_encoder_decoder",
    "pruned_heads",
    "rope_interleaved",
    "tie_encoder_decoder",
    "use_bidirectional_attention",
];

#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn new(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// Also for `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Marks the field as read. `None` for `null`.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// From 1 on.
    pub(super) fn size(&mut self, name: &str) -> Result<Option<u32>> {
        let read = |value: &Value| value.as_u64().and_then(|it| u32::try_from(it).ok());
        self.read(name, "an integer from 1 on", |value| read(value).filter(|&it| it > 0))
    }

    pub(super) fn required_size(&mut self, name: &str) -> Result<u32> {
        self.size(name)?.ok_or_else(|| missing(name))
    }

    /// Finite as F32.
    pub(super) fn float(&mut self, name: &str) -> Result<Option<f64>> {
        let finite = |it: &f64| (*it as f32).is_finite();
        self.read(name, "a number", |value| value.as_f64().filter(finite))
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>> {
        self.read(name, "a text", |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn object(&mut self, name: &str) -> Result<Option<Fields>> {
        let read = |value: &Value| value.as_object().cloned().map(Fields::new);
        self.read(name, "an object", read)
    }

    fn read<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong(name, expected, &value))
    }

    /// The field may be absent.
    pub(super) fn expect(&mut self, name: &str, known: &[Value]) -> Result<()> {
        match self.take(name) {
            Some(value) if !known.contains(&value) => {
                let known: Vec<_> = known.iter().map(Value::to_string).collect();
                let known = if known.is_empty() { "null".into() } else { known.join(" or ") };
                Err(wrong(name, &known, &value))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn finish(mut self) -> Result<()> {
        for name in OFF {
            let off = [Value::Bool(false), Value::Object(Map::new())];
            self.expect(name, &off)?;
        }
        let mut left =
            self.0.iter().filter(|(name, value)| !name.starts_with('_') && !value.is_null());
        match left.find(|(name, _)| !WITHOUT_EFFECT.contains(&name.as_str())) {
            Some((name, value)) => Err(bad(format!(
                "unknown field {} with the value {}: its effect would be lost",
                Quoted(name),
                Quoted(&value.to_string())
            ))),
            None => Ok(()),
        }
    }
}

pub(super) fn bad(problem: String) -> crate::Error {
    ErrorKind::BadModel { problem }.into()
}

pub(super) fn missing(name: &str) -> crate::Error {
    bad(format!("the field {name:?} is missing"))
}

pub(super) fn wrong(name: &str, expected: &str, found: &Value) -> crate::Error {
    let found = found.to_string();
    bad(format!("the field {name:?} should be {expected} here, found {}", Quoted(&found)))
}
