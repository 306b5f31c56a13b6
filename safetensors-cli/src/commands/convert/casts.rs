//! [`Cast`]: what `--cast` says of the tensors that match a pattern; the dtypes and schemes of options.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use safetensors_core::Dtype;
use safetensors_core::glob::Pattern;
use safetensors_core::quantized::Quantization;

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

/// The same for the ways to quantise.
pub(super) fn quantization_parser() -> impl TypedValueParser<Value = Quantization> {
    PossibleValuesParser::new(Quantization::ALL.map(Quantization::name))
        .try_map(|text| text.parse::<Quantization>())
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
