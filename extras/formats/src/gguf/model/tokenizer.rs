//! [`Tokenizer`]: tokens, merges and special tokens of `tokenizer.json`, as metadata.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;

use super::files::{read_json, read_text};
use super::pre::{self, bad, is_off};
use crate::error::{Quoted, Result};
use crate::gguf::Value;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Names in `tokenizer_config.json`, and keys in GGUF, which misspells one.
const SPECIAL: [(&str, &str); 6] = [
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    ("sep", "tokenizer.ggml.seperator_token_id"),
    ("pad", "tokenizer.ggml.padding_token_id"),
    ("mask", "tokenizer.ggml.mask_token_id"),
];

#[derive(Debug)]
pub(super) struct Tokenizer {
    /// By number: text and kind.
    tokens: BTreeMap<u32, (String, i32)>,
    metadata: Vec<(String, Value)>,
}

impl Tokenizer {
    pub(super) fn open(directory: &Path, config: &Json) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        let located = |error: crate::Error| error.in_path(&path);
        let Some(tokenizer) = read_json(directory, "tokenizer.json", bad)? else {
            return Err(located(bad("there is no such file")));
        };
        let other = |name| read_json(directory, name, bad).map(Option::unwrap_or_default);
        let settings = other("tokenizer_config.json")?;
        let generation = other("generation_config.json")?;
        let mut read = Self::read(&tokenizer).map_err(located)?;
        read.read_special(&tokenizer, [&settings, config, &generation]).map_err(located)?;
        read.read_templates(directory, &settings)?;
        Ok(read)
    }

    fn read(tokenizer: &Json) -> Result<Self> {
        let model = &tokenizer["model"];
        let kind = model["type"].as_str().unwrap_or_default();
        let is_bytes = tokenizer["decoder"]["type"] == "ByteLevel";
        if kind != "BPE" || !is_bytes || !is_off(&model["byte_fallback"]) {
            let kind = if kind == "BPE" { "BPE of characters" } else { kind };
            return Err(bad(format!(
                "only tokenizers of type BPE that work on bytes are written; found {}",
                Quoted(kind)
            )));
        }
        for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if !is_off(&model[name]) && model[name] != "" {
                return Err(bad(format!("{name} has no place in GGUF; found {}", model[name])));
            }
        }
        let normalizer = &tokenizer["normalizer"];
        let pre = pre::name(&tokenizer["pre_tokenizer"], model["ignore_merges"] == true)?;
        // The name qwen2 of llama.cpp has always been used without it.
        let is_known = normalizer.is_null() || pre == "qwen2" && normalizer["type"] == "NFC";
        if !is_known {
            let found = normalizer.to_string();
            return Err(bad(format!("its normalizer has no place in GGUF: {}", Quoted(&found))));
        }
        let metadata = vec![
            ("tokenizer.ggml.model".into(), "gpt2".into()),
            ("tokenizer.ggml.pre".into(), pre.into()),
            ("tokenizer.ggml.merges".into(), read_merges(&model["merges"])?.into()),
        ];
        Ok(Self { tokens: read_tokens(tokenizer)?, metadata })
    }

    /// The first source with a number counts.
    fn read_special(&mut self, tokenizer: &Json, sources: [&Json; 3]) -> Result<()> {
        let mut special = BTreeMap::new();
        for (name, _) in SPECIAL {
            let [settings, configs @ ..] = sources;
            let id = by_text(tokenizer, &settings[format!("{name}_token")]);
            let id = id.or_else(|| {
                configs.into_iter().find_map(|config| {
                    let id = &config[format!("{name}_token_id")];
                    id.as_u64().or(id[0].as_u64())
                })
            });
            if let Some(id) = id {
                if !u32::try_from(id).is_ok_and(|id| self.tokens.contains_key(&id)) {
                    return Err(bad(format!("there is no token {id}, which {name} should be")));
                }
                special.insert(name, id as u32);
            }
        }
        let around = Around::read(&tokenizer["post_processor"])?;
        for (name, text) in [("bos", &around.first), ("eos", &around.last)] {
            let id = text.as_ref().map(|text| {
                let id = by_text(tokenizer, text).and_then(|id| u32::try_from(id).ok());
                id.ok_or_else(|| bad(format!("its post-processor adds an unknown token {text}")))
            });
            let id = id.transpose()?;
            match (id, special.get(name)) {
                (Some(id), Some(&other)) if id != other => {
                    return Err(bad(format!(
                        "its post-processor adds the token {id}, but {name} is {other}"
                    )));
                }
                (Some(id), None) => _ = special.insert(name, id),
                _ => {}
            }
            let settings = sources[0][format!("add_{name}_token")].as_bool();
            // Where there is a post-processor, it alone decides.
            let adds = id.is_some() || around.is_default && settings == Some(true);
            self.metadata.push((format!("tokenizer.ggml.add_{name}_token"), adds.into()));
        }
        for (name, key) in SPECIAL {
            if let Some(&id) = special.get(name) {
                self.metadata.push((key.into(), id.into()));
            }
        }
        Ok(())
    }

    fn read_templates(&mut self, directory: &Path, settings: &Json) -> Result<()> {
        let template = match &settings["chat_template"] {
            Json::Null => match read_text(directory, "chat_template.jinja")? {
                Some(text) => text.into(),
                None => {
                    let file = read_json(directory, "chat_template.json", bad)?;
                    file.map_or(Json::Null, |file| file["chat_template"].clone())
                }
            },
            template => template.clone(),
        };
        let key = "tokenizer.chat_template";
        if let Some(text) = template.as_str() {
            self.metadata.push((key.into(), text.into()));
        }
        let mut names = Vec::new();
        for one in template.as_array().into_iter().flatten() {
            let (Some(name), Some(text)) = (one["name"].as_str(), one["template"].as_str()) else {
                continue;
            };
            if name == "default" {
                self.metadata.push((key.into(), text.into()));
                continue;
            }
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            let name: String = name.chars().map(plain).collect();
            self.metadata.push((format!("{key}.{name}"), text.into()));
            names.push(name);
        }
        if !names.is_empty() {
            self.metadata.push(("tokenizer.chat_templates".into(), names.into()));
        }
        Ok(())
    }

    /// For an embedding of `vocabulary` rows. Rows without a token get an unused one.
    pub(super) fn metadata(&self, vocabulary: u32) -> Result<Vec<(String, Value)>> {
        if let Some((&id, _)) = self.tokens.last_key_value().filter(|(id, _)| **id >= vocabulary) {
            return Err(bad(format!("token {id} has no row in an embedding of {vocabulary}")));
        }
        let token = |id| match self.tokens.get(&id) {
            Some((text, kind)) => (text.clone(), *kind),
            None => (format!("[PAD{id}]"), UNUSED),
        };
        let (texts, kinds): (Vec<_>, Vec<_>) = (0..vocabulary).map(token).unzip();
        let mut metadata = self.metadata.clone();
        metadata.push(("tokenizer.ggml.tokens".into(), texts.into()));
        metadata.push(("tokenizer.ggml.token_type".into(), kinds.into()));
        Ok(metadata)
    }
}

fn by_text(tokenizer: &Json, text: &Json) -> Option<u64> {
    let text = text["content"].as_str().or(text.as_str())?;
    let added = tokenizer["added_tokens"].as_array()?;
    added.iter().find(|token| token["content"] == text)?["id"].as_u64()
}

fn read_tokens(tokenizer: &Json) -> Result<BTreeMap<u32, (String, i32)>> {
    let number = |id: &Json| id.as_u64().and_then(|id| u32::try_from(id).ok());
    let wrong = |text: &str| bad(format!("the token {} has no number", Quoted(text)));
    let mut tokens = BTreeMap::new();
    let vocabulary = tokenizer["model"]["vocab"].as_object();
    for (text, id) in vocabulary.ok_or_else(|| bad("it has no vocabulary"))? {
        let id = number(id).ok_or_else(|| wrong(text))?;
        if let Some((other, _)) = tokens.insert(id, (text.clone(), NORMAL)) {
            let one = Quoted(text);
            let other = Quoted(&other);
            return Err(bad(format!("the tokens {one} and {other} have the number {id}")));
        }
    }
    for token in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        let text = token["content"].as_str().ok_or_else(|| bad("an added token has no text"))?;
        let id = number(&token["id"]).ok_or_else(|| wrong(text))?;
        let is_special = token["special"] == true || looks_special(text);
        let kind = if is_special { CONTROL } else { USER_DEFINED };
        tokens.insert(id, (text.to_owned(), kind));
    }
    Ok(tokens)
}

/// Finds control tokens that are not marked as such, like llama.cpp.
fn looks_special(text: &str) -> bool {
    let within = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || within("<|", "|>")
        || within("<｜", "｜>")
        || within("<unused", ">")
}

/// From either form. A letter replaces a space in a token.
fn read_merges(merges: &Json) -> Result<Vec<String>> {
    let merges = merges.as_array().ok_or_else(|| bad("it has no merges"))?;
    let wrong = |merge: &Json| bad(format!("a merge of two tokens is expected, found {merge}"));
    let merge = |merge: &Json| match merge {
        Json::String(text) if text.split(' ').count() == 2 => Ok(text.clone()),
        Json::Array(pair) => match pair.as_slice() {
            [Json::String(first), Json::String(second)] => {
                Ok([first, second].map(|text| text.replace(' ', "Ġ")).join(" "))
            }
            _ => Err(wrong(merge)),
        },
        _ => Err(wrong(merge)),
    };
    merges.iter().map(merge).collect()
}

struct Around {
    first: Option<Json>,
    last: Option<Json>,
    is_default: bool,
}

impl Around {
    fn read(processor: &Json) -> Result<Self> {
        let is_default = processor.is_null();
        let mut around = Self { first: None, last: None, is_default };
        let all = match processor["processors"].as_array() {
            Some(all) => all.as_slice(),
            None => std::slice::from_ref(processor),
        };
        for one in all.iter().filter(|one| !one.is_null()) {
            match one["type"].as_str() {
                Some("ByteLevel") => {}
                Some("TemplateProcessing") => {
                    let single = one["single"].as_array().map_or(&[][..], Vec::as_slice);
                    let token = |part: &Json| {
                        let id = &part["SpecialToken"]["id"];
                        (!id.is_null()).then(|| id.clone())
                    };
                    let text = single.iter().position(|part| token(part).is_none());
                    let known = match text {
                        Some(text) => text <= 1 && single.len() - text <= 2,
                        None => single.is_empty(),
                    };
                    if !known {
                        return Err(bad("its post-processor adds several tokens to one end"));
                    }
                    if let [first, _, ..] = single {
                        around.first = token(first);
                        around.last = single.last().and_then(token);
                    }
                }
                _ => {
                    let found = one.to_string();
                    return Err(bad(format!(
                        "its post-processor has no place in GGUF: {}",
                        Quoted(&found)
                    )));
                }
            }
        }
        Ok(around)
    }
}
