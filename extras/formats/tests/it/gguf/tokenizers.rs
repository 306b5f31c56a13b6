//! Tokenizers of type BPE that work on bytes, and all others, which are errors.

use std::fs;
use std::path::Path;

use safetensors_formats::ErrorKind;
use safetensors_formats::gguf::{Type, Value as Gguf, Writer};
use serde_json::{Value, json};

use super::{Tiny, VOCABULARY, tensors, write};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Returns the pre-tokenizer of Llama 3, with another expression.
fn split(regex: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]})
}

fn tokenizer() -> Value {
    let begin = json!({"SpecialToken": {"id": "<|begin|>", "type_id": 0}});
    json!({
        "added_tokens": [
            {"id": 5, "content": "<|begin|>", "special": true},
            {"id": 6, "content": "<|end|>", "special": false},
            {"id": 8, "content": "<tool>", "special": false},
        ],
        "normalizer": null,
        "pre_tokenizer": split(LLAMA3),
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel", "trim_offsets": false},
            {"type": "TemplateProcessing", "single": [begin, {"Sequence": {"id": "A"}}]},
        ]},
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE", "ignore_merges": true, "byte_fallback": false,
            "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4},
            "merges": [["a", "b"], [" ", "ab"]],
        },
    })
}

/// Returns the metadata of a model with these files, as `Debug` shows it, by key.
fn metadata(
    tokenizer: &Value,
    more: &[(&str, Value)],
) -> Result<String, safetensors_formats::Error> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    for (name, content) in more {
        let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        fs::write(dir.path().join(name), text).unwrap();
    }
    let tiny = Tiny::llama();
    let mut model = tiny.open(dir.path())?;
    model.read_tokenizer()?;
    let (writer, _) = model.writer(tensors(&tiny.tensors), Type::F32)?;
    Ok(raw_metadata(&writer, &dir.path().join("a.gguf")))
}

/// Returns the bytes of the header, as text. Arrays of many values are not read back by our reader.
fn raw_metadata(writer: &Writer<'_>, path: &Path) -> String {
    write(writer, path).unwrap();
    fs::read(path).unwrap()[..8192].iter().map(|&byte| char::from(byte)).collect()
}

/// Returns the bytes of a key and its value, as text.
fn entry(key: &str, value: impl Into<Gguf>) -> String {
    let mut writer = Writer::new();
    writer.metadata(key, value);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    write(&writer, &path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let text: String = bytes[24..].iter().map(|&byte| char::from(byte)).collect();
    text.trim_end_matches('\0').to_owned()
}

fn assert_has(header: &str, key: &str, value: impl Into<Gguf>) {
    let entry = entry(&format!("tokenizer.{key}"), value);
    assert!(header.contains(&entry), "{key}");
}

#[test]
fn tokens_merges_and_special_tokens_are_metadata() {
    let settings = json!({
        "bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "pad_token": null,
        "chat_template": [{"name": "default", "template": "{{ x }}"}, {"name": "a b", "template": "{{ y }}"}]
    });
    let generation = json!({"pad_token_id": [6, 7]});
    let more = [("tokenizer_config.json", settings), ("generation_config.json", generation)];
    let header = metadata(&tokenizer(), &more).unwrap();
    assert_has(&header, "ggml.model", "gpt2");
    assert_has(&header, "ggml.pre", "llama-bpe");
    assert_has(&header, "ggml.merges", vec!["a b".to_owned(), "Ġ ab".to_owned()]);
    let given = ["a", "b", "Ġ", "ab", "Ġab", "<|begin|>", "<|end|>", "[PAD7]", "<tool>"];
    let given = given.map(str::to_owned).into_iter();
    let texts: Vec<_> = given.chain((9..VOCABULARY).map(|i| format!("[PAD{i}]"))).collect();
    assert_has(&header, "ggml.tokens", texts);
    let kinds =
        [1, 1, 1, 1, 1, 3, 3, 5, 4].into_iter().chain([5; VOCABULARY - 9]).collect::<Vec<_>>();
    assert_has(&header, "ggml.token_type", kinds);
    assert_has(&header, "ggml.bos_token_id", 5_u32);
    assert_has(&header, "ggml.eos_token_id", 6_u32);
    assert_has(&header, "ggml.padding_token_id", 6_u32);
    assert_has(&header, "ggml.add_bos_token", true);
    assert_has(&header, "ggml.add_eos_token", false);
    assert_has(&header, "chat_template", "{{ x }}");
    assert_has(&header, "chat_template.a_b", "{{ y }}");
    assert_has(&header, "chat_templates", vec!["a_b".to_owned()]);
}

#[test]
fn templates_have_files_of_their_own() {
    let jinja = metadata(&tokenizer(), &[("chat_template.jinja", json!("{{ j }}"))]).unwrap();
    assert_has(&jinja, "chat_template", "{{ j }}");
    // The token before a text begins it, where nothing else sets it.
    assert_has(&jinja, "ggml.bos_token_id", 5_u32);
    let file = [("chat_template.json", json!({"chat_template": "{{ f }}"}))];
    assert_has(&metadata(&tokenizer(), &file).unwrap(), "chat_template", "{{ f }}");
}

#[test]
fn pre_tokenizers_are_recognised_by_their_steps() {
    let pre = |pre_tokenizer: Value, ignores: bool, normalizer: Value| {
        let mut tokenizer = tokenizer();
        tokenizer["pre_tokenizer"] = pre_tokenizer;
        tokenizer["model"]["ignore_merges"] = ignores.into();
        tokenizer["normalizer"] = normalizer;
        metadata(&tokenizer, &[])
    };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let both = json!({"type": "Sequence", "pretokenizers": [digits, bytes]});
    let qwen2 = split(&LLAMA3.replace("{1,3}", ""));
    for (given, ignores, normalizer, name) in [
        (split(LLAMA3), true, json!(null), "llama-bpe"),
        (split(LLAMA3), false, json!(null), "smaug-bpe"),
        (qwen2.clone(), false, json!({"type": "NFC"}), "qwen2"),
        (bytes.clone(), false, json!(null), "gpt-2"),
        (both, false, json!(null), "smollm"),
    ] {
        assert_has(&pre(given, ignores, normalizer).unwrap(), "ggml.pre", name);
    }
    let spaced = json!({"type": "ByteLevel", "add_prefix_space": true});
    for (given, ignores, normalizer) in [
        (split(r"\w+"), false, json!(null)),
        (qwen2, true, json!(null)),
        (spaced, false, json!(null)),
        (json!(null), false, json!(null)),
        (bytes, false, json!({"type": "Lowercase"})),
    ] {
        let error = pre(given, ignores, normalizer).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::BadTokenizer { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains("no known name in GGUF") || text.contains("normalizer"), "{text}");
    }
}

#[test]
fn other_tokenizers_are_errors() {
    let changed = |pointer: &str, value: Value| {
        let mut tokenizer = tokenizer();
        *tokenizer.pointer_mut(pointer).unwrap() = value;
        let error = metadata(&tokenizer, &[]).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::BadTokenizer { .. })), "{error}");
        error
            .to_string()
            .split_once("tokenizer.json: ")
            .map_or_else(|| error.to_string(), |it| it.1.into())
    };
    let only = "only tokenizers of type BPE that work on bytes are written; found ";
    assert_eq!(changed("/model/type", json!("Unigram")), format!("{only}\"Unigram\""));
    assert_eq!(changed("/model/type", json!("WordPiece")), format!("{only}\"WordPiece\""));
    let characters = format!("{only}\"BPE of characters\"");
    assert_eq!(changed("/model/byte_fallback", json!(true)), characters);
    assert_eq!(changed("/decoder/type", json!("Metaspace")), characters);
    for (pointer, value, expected) in [
        ("/model/merges", json!(["a b c"]), "a merge of two tokens is expected, found \"a b c\""),
        ("/model/merges", json!([["a"]]), "a merge of two tokens is expected, found [\"a\"]"),
        ("/model/merges", json!(null), "it has no merges"),
        ("/model/vocab", json!([]), "it has no vocabulary"),
        ("/model/vocab", json!({"a": 0, "b": 0}), "the tokens \"b\" and \"a\" have the number 0"),
        ("/model/vocab", json!({"a": -1}), "the token \"a\" has no number"),
        ("/model/vocab", json!({"a": 40}), "token 40 has no row in an embedding of 40"),
        (
            "/model/vocab",
            json!({"a": u32::MAX}),
            "token 4294967295 has no row in an embedding of 40",
        ),
        ("/post_processor", json!({"type": "BertProcessing"}), "its post-processor has no place"),
        ("/added_tokens", json!([]), "its post-processor adds an unknown token \"<|begin|>\""),
    ] {
        let error = changed(pointer, value);
        assert!(error.starts_with(expected), "{error}");
    }
    let token = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let two = json!([token("<|begin|>"), token("<|end|>"), text]);
    let error = changed("/post_processor/processors/1/single", two);
    assert_eq!(error, "its post-processor adds several tokens to one end");
    let other = [("tokenizer_config.json", json!({"bos_token": "<|end|>"}))];
    let error = metadata(&tokenizer(), &other).unwrap_err().to_string();
    assert!(error.ends_with("its post-processor adds the token 5, but bos is 6"), "{error}");
    let other = [
        ("tokenizer_config.json", json!({})),
        ("generation_config.json", json!({"eos_token_id": 7})),
    ];
    let error = metadata(&tokenizer(), &other).unwrap_err().to_string();
    assert!(error.ends_with("there is no token 7, which eos should be"), "{error}");
}

#[test]
fn a_checkpoint_without_a_tokenizer_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Tiny::llama().open(dir.path()).unwrap();
    let error = model.read_tokenizer().unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::BadTokenizer { .. })), "{error}");
    let path = dir.path().join("tokenizer.json");
    assert_eq!(error.to_string(), format!("{}: there is no such file", path.display()));
}

#[test]
fn files_of_the_tokenizer_that_are_not_json_are_errors_of_the_tokenizer() {
    let files =
        ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.json"];
    for name in files {
        let error = metadata(&tokenizer(), &[(name, json!("{"))]).unwrap_err();
        let is_it = matches!(error.other(), Some(ErrorKind::BadTokenizer { .. }));
        assert!(is_it && error.to_string().contains(&format!("{name}: not JSON: ")), "{error}");
    }
}

#[test]
fn a_file_of_templates_that_has_none_is_no_error() {
    for content in [json!([]), json!("\"text\""), json!(1), json!({})] {
        metadata(&tokenizer(), &[("chat_template.json", content)]).unwrap();
    }
}
