//! [`Cast`]: what `--cast` says of the tensors that match a pattern; the dtypes and schemes of options.

use std::fmt;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use safetensors_core::Dtype;
use safetensors_core::glob::Pattern;
use safetensors_core::quantized::Quantization;
use safetensors_formats::gguf::Type;

/// What becomes of the tensors that match a pattern.
#[derive(Clone, Debug)]
pub(super) struct Cast {
    pub(super) pattern: Pattern,
    pub(super) to: To,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Kept,
    Dtype(Dtype),
    Quantised,
}

/// Parses a dtype in lower case, as a command line has it, or in the format's own spelling.
fn dtype(text: &str) -> Result<Dtype, String> {
    text.to_uppercase()
        .parse()
        .map_err(|_| format!("expected keep, quantize, or a dtype: {}", dtypes().join(", ")))
}

/// The parser of an option that takes only a dtype. Shells can complete it, and a misspelt dtype
/// gets a suggestion.
pub(super) fn dtype_parser() -> impl TypedValueParser<Value = Dtype> {
    PossibleValuesParser::new(dtypes()).try_map(|text| dtype(&text))
}

fn dtypes() -> Vec<String> {
    Dtype::ALL.iter().map(|dtype| dtype.name().to_lowercase()).collect()
}

/// How `--quantize` stores weights.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scheme {
    /// As several tensors of safetensors files.
    Tensors(Quantization),
    /// As a tensor of a GGUF file.
    Gguf(Type),
}

impl Scheme {
    /// The names of those for GGUF.
    pub(super) fn for_gguf() -> String {
        let for_gguf = Self::all().filter(|scheme| matches!(scheme, Self::Gguf(_)));
        for_gguf.map(|scheme| scheme.to_string()).collect::<Vec<_>>().join(", ")
    }

    fn all() -> impl Iterator<Item = Self> {
        Quantization::ALL.map(Self::Tensors).into_iter().chain(Type::WRITTEN.map(Self::Gguf))
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensors(how) => how.fmt(f),
            Self::Gguf(kind) => f.write_str(&kind.to_string().to_lowercase()),
        }
    }
}

/// The parser of `--quantize`.
pub(super) fn scheme_parser() -> impl TypedValueParser<Value = Scheme> {
    let values = Scheme::all().map(|scheme| match scheme {
        Scheme::Tensors(_) => PossibleValue::new(scheme.to_string()),
        Scheme::Gguf(_) => PossibleValue::new(scheme.to_string()).help("For OUT.gguf"),
    });
    PossibleValuesParser::new(values).try_map(|text| {
        Scheme::all().find(|scheme| scheme.to_string() == text).ok_or("there is no such scheme")
    })
}

impl Cast {
    /// Parses `GLOB=DTYPE`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (pattern, to) =
            text.rsplit_once('=').ok_or("expected GLOB=DTYPE, such as 'lm_head.*=f32'")?;
        let pattern = pattern.parse::<Pattern>().map_err(|error| error.to_string())?;
        let to = match to {
            "keep" => To::Kept,
            "quantize" => To::Quantised,
            to => To::Dtype(dtype(to)?),
        };
        Ok(Self { pattern, to })
    }
}
