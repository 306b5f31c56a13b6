//! [`Cast`]: the `--cast` option; the dtypes and schemes of options.

use std::ffi::OsStr;
use std::fmt;

use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Command};
use safetensors_core::Dtype;
use safetensors_core::glob::Pattern;
use safetensors_core::quantized::Quantization;
use safetensors_formats::gguf::Type;

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

/// Parses several spellings of a value. Shells complete one of each.
#[derive(Clone)]
pub(super) struct Words<T> {
    listed: fn() -> Vec<PossibleValue>,
    parse: fn(&str) -> Result<T, String>,
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Words<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        option: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let parse = self.parse;
        StringValueParser::new().try_map(move |text| parse(&text)).parse_ref(command, option, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.listed)().into_iter()))
    }
}

/// Takes the names of these values, each with its help.
pub(super) fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(T, &'static str, &'static str); N],
) -> impl TypedValueParser<Value = T> {
    let names = values.map(|(_, name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(names).try_map(move |name| {
        values.iter().find(|value| value.1 == name).map(|value| value.0).ok_or(name)
    })
}

fn dtype(text: &str) -> Result<Dtype, String> {
    let all = "`safetensors convert --help` lists all";
    text.parse().map_err(|error: safetensors_core::Error| format!("{error}; {all}"))
}

pub(super) fn dtype_parser() -> Words<Dtype> {
    let listed = || {
        let names = Dtype::ALL.iter().map(|dtype| dtype.name().to_lowercase());
        names.map(PossibleValue::new).collect()
    };
    Words { listed, parse: dtype }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Scheme {
    /// Several tensors of safetensors files.
    Tensors(Quantization),
    /// A tensor of a GGUF file.
    Gguf(Type),
}

impl Scheme {
    pub(super) fn for_gguf() -> String {
        Type::WRITTEN.map(|kind| Self::Gguf(kind).to_string()).join(", ")
    }

    fn all() -> impl Iterator<Item = Self> {
        Quantization::ALL.map(Self::Tensors).into_iter().chain(Type::WRITTEN.map(Self::Gguf))
    }

    fn listed(self) -> PossibleValue {
        let value = PossibleValue::new(self.to_string());
        match self {
            Self::Tensors(_) => value,
            Self::Gguf(_) => value.help("For OUT.gguf"),
        }
    }

    /// Parses a name, its short form in config.json, or a dtype of GGUF.
    fn parse(text: &str) -> Result<Self, String> {
        let name = match text.to_lowercase() {
            name if name == "fp8" => Quantization::Fp8Block128.to_string(),
            name if name == "int8" => Quantization::Int8Channel.to_string(),
            name => name,
        };
        let dtype = name.parse::<Dtype>().ok();
        let is_it = |scheme: &Self| match scheme {
            Self::Gguf(kind) if dtype.is_some() => kind.dtype() == dtype,
            scheme => scheme.to_string() == name,
        };
        Self::all().find(is_it).ok_or_else(|| {
            let names = Quantization::ALL.map(|how| how.to_string()).join(", ");
            format!("expected {names}, or for OUT.gguf {}", Self::for_gguf())
        })
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

pub(super) fn scheme_parser() -> Words<Scheme> {
    Words { listed: || Scheme::all().map(Scheme::listed).collect(), parse: Scheme::parse }
}

impl Cast {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (pattern, to) =
            text.rsplit_once('=').ok_or("expected GLOB=DTYPE, such as 'lm_head.*=f32'")?;
        let pattern = pattern.parse::<Pattern>().map_err(|error| error.to_string())?;
        let to = match &*to.to_lowercase() {
            "keep" => To::Kept,
            "quantize" => To::Quantised,
            _ => To::Dtype(dtype(to).map_err(|error| format!("{error}; or keep, or quantize"))?),
        };
        Ok(Self { pattern, to })
    }
}
