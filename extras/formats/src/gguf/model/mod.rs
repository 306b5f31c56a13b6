//! [`Model`]: GGUF's metadata and tensor names for a model of transformers.
//!
//! The rules come from llama.cpp: its converter (`conversion/`, `gguf-py`) and readers
//! (`src/models`).

mod architecture;
mod arrange;
mod bert;
mod fields;
mod files;
mod gemma;
mod llama;
mod modules;
mod names;
mod pre;
mod qwen;
mod rope;
mod tensors;
mod tokenizer;

use std::fmt;
use std::path::{Path, PathBuf};

use architecture::{Architecture, Settings, Sizes};
use fields::{Fields, bad, wrong};
use files::read_json;
pub(super) use names::rename;
use serde_json::Value as Json;
pub use tensors::Notes;
use tokenizer::Tokenizer;

use super::Value;
use crate::error::{Quoted, Result};

/// By their classes in transformers.
// A table for each, because one list of names for all, as `tensor_mapping.py` of llama.cpp has it,
// also maps models that need other keys, rows or norms.
static ARCHITECTURES: [&Architecture; 8] = [
    &llama::LLAMA,
    &llama::MISTRAL,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &bert::BERT,
];

const ROPE_FACTORS: &str = "rope_freqs.weight";

/// A model of transformers for GGUF: architecture, sizes and tokenizer, from the files next to the
/// weights.
///
/// Known classes of `config.json`: `LlamaForCausalLM`, `MistralForCausalLM`, `Qwen2ForCausalLM`,
/// `Qwen3ForCausalLM`, `GemmaForCausalLM`, `Gemma2ForCausalLM`, `Gemma3ForCausalLM`, `BertModel`,
/// `BertForMaskedLM`. A setting that is unknown, or that GGUF cannot express, is an error.
///
/// Files differ from the ones of llama.cpp's converter. They lack `general.size_label`, and have
/// `vocab_size`, `rope.freq_base`, `add_bos_token` and `add_eos_token`, if known. Rows of an
/// embedding without a token are kept. The 1 for norms of Gemma is added in F32. With `Q4_0`, all
/// matrices are Q4_0, as with `llama-quantize --pure`.
///
/// ```no_run
/// use safetensors_core::save::AtomicFile;
/// use safetensors_core::{Checkpoint, SaveOptions};
/// use safetensors_formats::gguf::{Model, Type};
///
/// let checkpoint = Checkpoint::open("llama/")?;
/// let mut model = Model::open("llama/")?;
/// model.read_tokenizer()?;
/// let tensors = checkpoint.tensors().map(|tensor| (tensor.name().to_owned(), tensor));
/// let (writer, notes) = model.writer(tensors, Type::Q8_0)?;
/// assert!(notes.not_quantised.is_empty());
///
/// let mut file = AtomicFile::create("llama.gguf", &SaveOptions::new())?;
/// writer.write(&file, |_| ())?;
/// file.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Model {
    directory: PathBuf,
    architecture: &'static Architecture,
    sizes: Sizes,
    settings: Settings,
    is_tied: bool,
    config: Json,
    tokenizer: Option<Tokenizer>,
}

impl Model {
    /// Reads `config.json` of a directory, without the tokenizer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadModel`](crate::ErrorKind::BadModel) for an unknown architecture, field or
    /// value; [`Io`](safetensors_core::ErrorKind::Io).
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref();
        let path = directory.join("config.json");
        let located = |error: crate::Error| error.in_path(&path);
        let config = read_json(directory, "config.json", bad)?;
        let config = config.ok_or_else(|| located(bad("there is no such file".into())))?;
        let mut model = Self::read(directory, config).map_err(located)?;
        if model.architecture.name == "bert" {
            model.read_pooling()?;
        }
        Ok(model)
    }

    fn read(directory: &Path, config: Json) -> Result<Self> {
        let Json::Object(fields) = config.clone() else {
            return Err(bad("an object is expected".into()));
        };
        let mut fields = Fields::new(fields);
        let architecture = find(&fields.take("architectures").unwrap_or_default())?;
        fields.take("model_type");
        let mut sizes = read_sizes(&mut fields)?;
        let is_tied = fields.flag("tie_word_embeddings")?.unwrap_or(architecture.is_tied);
        if architecture.is_tied && !is_tied {
            return Err(wrong("tie_word_embeddings", "true", &false.into()));
        }
        let (name, activations) = architecture.activation;
        let activations: Vec<Json> = activations.iter().map(|&name| name.into()).collect();
        fields.expect(name, &activations)?;
        let is_bert = architecture.name == "bert";
        let (name, key) = if is_bert {
            sizes.token_types = fields.required_size("type_vocab_size")?;
            ("layer_norm_eps", "attention.layer_norm_epsilon")
        } else {
            ("rms_norm_eps", "attention.layer_norm_rms_epsilon")
        };
        let epsilon = fields.float(name)?.ok_or_else(|| fields::missing(name))?;
        let has_head = fields.size("head_dim")?.inspect(|&head| sizes.head = head).is_some();
        let mut settings = (architecture.read)(&mut fields, &sizes)?;
        settings.metadata.push((key, (epsilon as f32).into()));
        if has_head {
            settings.metadata.push(("attention.key_length", sizes.head.into()));
            settings.metadata.push(("attention.value_length", sizes.head.into()));
        }
        fields.finish()?;
        let directory = directory.to_owned();
        Ok(Self { directory, architecture, sizes, settings, is_tied, config, tokenizer: None })
    }

    /// Reads a byte-level BPE tokenizer: `tokenizer.json`, special tokens of
    /// `tokenizer_config.json` and `generation_config.json`, and chat templates. Without this, the
    /// file declares that it has no tokenizer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadTokenizer`](crate::ErrorKind::BadTokenizer) if there is none, or a different
    /// one; [`Io`](safetensors_core::ErrorKind::Io).
    pub fn read_tokenizer(&mut self) -> Result<()> {
        self.tokenizer = Some(Tokenizer::open(&self.directory, &self.config)?);
        Ok(())
    }

    /// How embeddings of a text become one, by files of sentence-transformers.
    fn read_pooling(&mut self) -> Result<()> {
        let modules = read_json(&self.directory, "modules.json", bad)?.unwrap_or_default();
        let is_pooling =
            |module: &&Json| module["type"].as_str().is_some_and(|kind| kind.ends_with("Pooling"));
        let pooling = modules.as_array().and_then(|modules| modules.iter().find(is_pooling));
        let Some(folder) = pooling.and_then(|module| module["path"].as_str()) else {
            return Ok(());
        };
        let name = Path::new(folder).join("config.json");
        let config = read_json(&self.directory, &name, bad)?.unwrap_or_default();
        let kinds = [
            ("pooling_mode_mean_tokens", "mean", 1_u32),
            ("pooling_mode_cls_token", "cls", 2),
            ("pooling_mode_lasttoken", "lasttoken", 3),
        ];
        let is_it = |(name, mode, _): &&(&str, &str, u32)| {
            config[*name] == true || config["pooling_mode"] == *mode
        };
        let kind = kinds.iter().find(is_it).ok_or_else(|| {
            bad("its pooling is none of mean, cls and lasttoken".into())
                .in_path(self.directory.join(&name))
        })?;
        self.settings.metadata.push(("pooling_type", kind.2.into()));
        Ok(())
    }

    fn metadata(&self, kind: u32) -> Vec<(String, Value)> {
        let name = self.directory.canonicalize().ok();
        let name = name.as_deref().and_then(Path::file_name).unwrap_or_default();
        let mut all: Vec<(String, Value)> = vec![
            ("general.architecture".into(), self.architecture.name.into()),
            ("general.type".into(), "model".into()),
            ("general.name".into(), name.to_string_lossy().into_owned().into()),
            ("general.file_type".into(), kind.into()),
            ("general.quantization_version".into(), 2_u32.into()),
        ];
        let sizes = &self.sizes;
        let keys = [
            ("vocab_size", sizes.vocabulary),
            ("context_length", sizes.positions),
            ("embedding_length", sizes.hidden),
            ("block_count", sizes.layers),
            ("feed_forward_length", sizes.feed_forward),
            ("attention.head_count", sizes.heads),
            ("attention.head_count_kv", sizes.kv_heads),
        ];
        let keys = keys.map(|(key, value)| (key, Value::from(value)));
        for (key, value) in keys.into_iter().chain(self.settings.metadata.iter().cloned()) {
            all.push((format!("{}.{key}", self.architecture.name), value));
        }
        if sizes.token_types > 0 {
            all.push(("tokenizer.ggml.token_type_count".into(), sizes.token_types.into()));
        }
        all
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("directory", &self.directory)
            .field("architecture", &self.architecture.name)
            .finish_non_exhaustive()
    }
}

fn find(classes: &Json) -> Result<&'static Architecture> {
    let is_it = |it: &&&Architecture| {
        let class = classes.as_array().filter(|all| all.len() == 1).and_then(|all| all[0].as_str());
        class.is_some_and(|class| it.classes.contains(&class))
    };
    ARCHITECTURES.iter().find(is_it).copied().ok_or_else(|| {
        let known: Vec<_> = ARCHITECTURES.iter().flat_map(|it| it.classes).copied().collect();
        let found = classes.to_string();
        bad(format!(
            "architectures should be one of {}, found {}",
            known.join(", "),
            Quoted(&found)
        ))
    })
}

fn read_sizes(fields: &mut Fields) -> Result<Sizes> {
    let hidden = fields.required_size("hidden_size")?;
    let heads = fields.required_size("num_attention_heads")?;
    Ok(Sizes {
        vocabulary: fields.required_size("vocab_size")?,
        positions: fields.required_size("max_position_embeddings")?,
        hidden,
        feed_forward: fields.required_size("intermediate_size")?,
        layers: fields.required_size("num_hidden_layers")?,
        heads,
        kv_heads: fields.size("num_key_value_heads")?.unwrap_or(heads),
        head: hidden / heads,
        token_types: 0,
    })
}
