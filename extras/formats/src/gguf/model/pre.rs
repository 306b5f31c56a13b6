//! Pre-tokenizers, which split a text before byte pairs are merged, by GGUF's names.

use serde_json::Value;

use crate::error::{ErrorKind, Quoted, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step<'a> {
    Split(&'a str),
    Digits,
    /// Maps bytes to letters; `true` splits like GPT-2.
    Bytes(bool),
}

struct PreTokenizer {
    steps: &'static [Step<'static>],
    /// A word that is a token is taken without merges.
    ignores_merges: bool,
    name: &'static str,
}

const LLAMA3: Step<'_> = Step::Split(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: Step<'_> = Step::Split(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: Step<'_> = Step::Split(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// After `llama-vocab.cpp` of llama.cpp, which quotes the expressions.
// llama.cpp's converter recognises a pre-tokenizer by a hash of its output for a text. That needs
// the tokenizer to run, and each vocabulary has another hash.
const KNOWN: [PreTokenizer; 6] = [
    PreTokenizer { steps: &[LLAMA3, Step::Bytes(false)], ignores_merges: true, name: "llama-bpe" },
    PreTokenizer { steps: &[LLAMA3, Step::Bytes(false)], ignores_merges: false, name: "smaug-bpe" },
    PreTokenizer { steps: &[QWEN2, Step::Bytes(false)], ignores_merges: false, name: "qwen2" },
    PreTokenizer { steps: &[TEKKEN, Step::Bytes(false)], ignores_merges: true, name: "tekken" },
    PreTokenizer { steps: &[Step::Bytes(true)], ignores_merges: false, name: "gpt-2" },
    PreTokenizer {
        steps: &[Step::Digits, Step::Bytes(true)],
        ignores_merges: false,
        name: "smollm",
    },
];

pub(super) fn name(pre_tokenizer: &Value, ignores_merges: bool) -> Result<&'static str> {
    let steps = match pre_tokenizer["type"].as_str() {
        Some("Sequence") => pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice),
        _ => Some(std::slice::from_ref(pre_tokenizer)),
    };
    let steps = steps.and_then(|steps| steps.iter().map(step).collect::<Option<Vec<_>>>());
    let is_it = |known: &&PreTokenizer| {
        Some(known.steps) == steps.as_deref() && known.ignores_merges == ignores_merges
    };
    match KNOWN.iter().find(is_it) {
        Some(known) => Ok(known.name),
        None => Err(bad(format!(
            "its pre-tokenizer has no known name in GGUF: {} (ignore_merges: {ignores_merges})",
            Quoted(&pre_tokenizer.to_string())
        ))),
    }
}

fn step(step: &Value) -> Option<Step<'_>> {
    match step["type"].as_str()? {
        "Split" if step["behavior"] == "Isolated" && is_off(&step["invert"]) => {
            step["pattern"]["Regex"].as_str().map(Step::Split)
        }
        "Digits" if step["individual_digits"] == true => Some(Step::Digits),
        "ByteLevel" if is_off(&step["add_prefix_space"]) => {
            Some(Step::Bytes(step["use_regex"].as_bool().unwrap_or(true)))
        }
        _ => None,
    }
}

pub(super) fn is_off(value: &Value) -> bool {
    value.is_null() || *value == false
}

pub(super) fn bad(problem: impl Into<String>) -> crate::Error {
    ErrorKind::BadTokenizer { problem: problem.into() }.into()
}
