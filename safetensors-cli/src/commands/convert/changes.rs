//! [`Changes`]: which tensors are taken, under which names, in which dtypes.

use std::collections::{HashMap, HashSet};

use clap::builder::TypedValueParser;
use safetensors_core::convert::Overflow;
use safetensors_core::glob::Pattern;
use safetensors_core::quantized::{LinearLayers, Quantization, QuantizedWeight};
use safetensors_core::{ConvertOptions, Dtype, Error, ErrorKind, TensorSource};

use super::casts::{Cast, Scheme, To, dtype_parser, named, scheme_parser};
use super::experts::Experts;
use super::{FILES, NAMES};
use crate::input::Rewrite;
use crate::input::renames::Renames;
use crate::input::select::{Matcher, Replaced, Select};
use crate::terminal::report::{warn, wrong_usage};
use crate::terminal::text;

/// The options that select, rename and convert tensors.
#[derive(Debug, clap::Args)]
pub(super) struct Changes {
    /// Convert floating-point tensors to this dtype, such as bf16, f16 or f32
    ///
    /// Rounds to nearest, ties to even. Names are in upper or lower case, also PyTorch's: bfloat16,
    /// half, torch.float32, fp8 (f8_e4m3). The others are f64, f8_e5m2, f8_e8m0, f8_e4m3fnuz,
    /// f8_e5m2fnuz, f6_e2m3, f6_e3m2, f4, bool, u8, i8, u16, i16, u32, i32, u64, i64 and c64
    #[arg(
        long,
        value_name = "DTYPE",
        value_parser = dtype_parser(),
        hide_possible_values = true
    )]
    dtype: Option<Dtype>,
    /// With --dtype: convert integers and booleans too
    ///
    /// A value that does not fit is an error
    #[arg(long, requires = "dtype")]
    all: bool,
    /// Convert matching tensors to DTYPE, `keep` them unchanged, or `quantize` them
    ///
    /// Applies to every dtype, and precedes --dtype and --quantize. May be repeated: the first
    /// match counts
    #[arg(long = "cast", value_name = "GLOB=DTYPE", value_parser = Cast::parse)]
    casts: Vec<Cast>,
    /// Convert quantised tensors to numbers: f32, or another dtype
    ///
    /// For tensors of GGUF files, and the weights of every scheme that `safetensors inspect` names,
    /// such as GPTQ. Computed as f32, then rounded once. --dtype (with all floats) and --cast
    /// (some) convert them, too, and precede this option. A quantised tensor of a GGUF file needs
    /// one of the three
    #[arg(
        long,
        value_name = "DTYPE",
        value_parser = dtype_parser(),
        hide_possible_values = true
    )]
    dequantize: Option<Dtype>,
    /// Copy codes and scales of quantised weights unchanged, despite --dtype
    ///
    /// If scales cannot be distinguished, all floats stay unchanged, with a warning. NumPy's files
    /// and burnpack need this option to hold codes
    #[arg(long, conflicts_with_all = ["dequantize", "quantize"])]
    pub(super) keep_quantized: bool,
    /// Also take the optimizer's state from a DeepSpeed checkpoint
    ///
    /// Its tensors are named like optimizer.state.NAME.exp_avg, for the parameter NAME. Other
    /// trainers' state is always taken
    #[arg(long, help_heading = FILES)]
    pub(super) optimizer_state: bool,
    /// Quantise weights, without calibration
    ///
    /// OUT.gguf needs it: norms, biases and other vectors are F32 there, and weights with rows that
    /// are not whole blocks of 32 are F16.
    ///
    /// For other outputs it quantises the weights of linear layers: matrices of floats named
    /// *.weight, except embeddings, norms, routers, the head, transposed layers (GPT-2) and stacked
    /// experts. --cast excludes more with `keep` or a dtype, and adds others with `quantize`.
    /// --dtype converts the other floats. Quantised weights are quantised again. Codes and scales
    /// equal compressed-tensors'.
    ///
    /// fp8-block128, or fp8, has a scale for each block of 128 by 128, as DeepSeek; fp8-channel and
    /// int8-channel, or int8, one for each row; fp8-tensor one in all. nvfp4 has one for 16 columns
    /// (4.5 bits), mxfp4 a power of two for 32 (4.25 bits), and rows must be whole groups of these.
    /// fp8-channel, fp8-tensor and int8-channel also ask for 8-bit activations when the model runs
    #[arg(long, value_name = "SCHEME", value_parser = scheme_parser())]
    pub(super) quantize: Option<Scheme>,
    /// How to convert numbers that are too large for the new dtype
    #[arg(long, value_name = "HOW", value_parser = overflows(), default_value = "ieee")]
    overflow: Overflow,
    #[command(flatten, next_help_heading = NAMES)]
    select: Select,
    /// Skip tensors with matching names
    ///
    /// May be repeated. A PyTorch object that holds tensors and cannot be read is an error unless
    /// dropped
    #[arg(long, value_name = "GLOB")]
    drop: Vec<Pattern>,
    /// Give the tensors of a GGUF file the names of transformers
    ///
    /// Such as model.layers.0.self_attn.q_proj.weight. Values return to transformers' order, such
    /// as the rows of Llama's queries and keys; rope_freqs.weight is skipped. For the models that
    /// OUT.gguf can be made of. All other options apply to the new names
    #[arg(long, value_name = "WHOSE", value_enum)]
    pub(super) names: Option<NamesOf>,
    #[command(flatten)]
    pub(super) experts: Experts,
    /// Replace REGEX in names by NEW; $1 is the first group
    ///
    /// Write ${1} if a letter follows. May be repeated
    #[arg(long, num_args = 2, value_names = ["REGEX", "NEW"], allow_hyphen_values = true)]
    rename: Vec<String>,
    /// Put this before all names, after renaming
    ///
    /// It may start with -
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    prefix: String,
}

fn overflows() -> impl TypedValueParser<Value = Overflow> {
    let ieee = "Use infinity, or NaN if the dtype has no infinity, as PyTorch does";
    named([
        (Overflow::Saturate, "saturate", "Use the largest number of the dtype"),
        (Overflow::Ieee, "ieee", ieee),
        (Overflow::Error, "error", "Fail, and write nothing"),
    ])
}

/// Who gives the tensors of a GGUF file their names.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum NamesOf {
    /// As its checkpoints have them
    Transformers,
}

#[derive(Clone, Copy)]
enum Kind {
    Plain,
    /// Another name of a tensor, which it follows.
    Alias,
    Quantised,
    /// Stores a part of a weight that stays quantised.
    Kept,
}

/// How tensors are stored, by their names in the inputs.
#[derive(Default)]
pub(super) struct Stored<'s> {
    pub(super) quantised: HashSet<String>,
    pub(super) kept: HashSet<&'s str>,
    /// The dtypes of tensors that are F32 only because adapters were merged.
    pub(super) merged: HashMap<&'s str, Dtype>,
    pub(super) layers: LinearLayers,
}

impl Stored<'_> {
    fn kind(&self, name: &str, is_alias: bool) -> Kind {
        if is_alias {
            Kind::Alias
        } else if self.quantised.contains(name) {
            Kind::Quantised
        } else if self.kept.contains(name) {
            Kind::Kept
        } else {
            Kind::Plain
        }
    }
}

pub(super) struct Change<'a> {
    pub(super) changes: &'a Changes,
    pub(super) dequantize: Option<Dtype>,
    pub(super) select: Matcher<'a>,
    renames: Renames<'a>,
}

impl Changes {
    pub(super) fn prepare(&self) -> anyhow::Result<Change<'_>> {
        if self.quantize.is_none() && self.casts.iter().any(|cast| cast.to == To::Quantised) {
            return Err(wrong_usage("--cast GLOB=quantize needs --quantize SCHEME"));
        }
        let renames = Renames::new(&self.rename)?;
        let (dequantize, select) = (self.dequantize, self.select.matcher());
        Ok(Change { changes: self, dequantize, select, renames })
    }

    pub(super) fn name_dtypes(&self) -> bool {
        let dtypes = self.dtype.or(self.dequantize).is_some() || !self.casts.is_empty();
        dtypes || self.keep_quantized || self.overflow != Overflow::Ieee
    }
}

impl Change<'_> {
    pub(super) fn dequantizing(self) -> Self {
        Self { dequantize: Some(Dtype::F32), ..self }
    }

    pub(super) fn select<'a>(&self, rewrite: Rewrite<'a>) -> Rewrite<'a> {
        rewrite.select(|name, _| self.select.matches(name)).exclude(|name, _| self.drops(name))
    }

    pub(super) fn apply<'a>(
        &self,
        rewrite: Rewrite<'a>,
        stored: &Stored<'_>,
    ) -> anyhow::Result<Rewrite<'a>> {
        let is_for_gguf = matches!(self.changes.quantize, Some(Scheme::Gguf(_)));
        let mut rewrite = rewrite.cast(&self.options(), |name, tensor| {
            let kind = stored.kind(name, tensor.is_alias());
            match stored.merged.get(tensor.tensor().map_or(name, |tensor| tensor.name())) {
                Some(&from) if !is_for_gguf => {
                    self.cast(name, from, kind).or((!tensor.is_alias()).then_some(from))
                }
                _ => self.cast(name, tensor.dtype(), kind),
            }
        })?;
        if let Some(how) = self.quantization() {
            rewrite = rewrite.quantize(how, &self.options(), &stored.layers, |name, tensor| {
                self.quantizes(name, stored.kind(name, tensor.is_alias()))
            })?;
            warn_of_what_stays(&rewrite);
        }
        Ok(rewrite.rename(|name| self.rename(name)))
    }

    /// `name` is the name in the input. Returns `None` if no option applies.
    fn quantizes(&self, name: &str, kind: Kind) -> Option<bool> {
        match (self.cast_of(name), kind) {
            (Some(to), _) => Some(to == To::Quantised),
            (None, Kind::Kept) => Some(false),
            (None, Kind::Plain | Kind::Alias | Kind::Quantised) => None,
        }
    }

    fn cast_of(&self, name: &str) -> Option<To> {
        Some(self.changes.casts.iter().find(|cast| cast.pattern.matches(name))?.to)
    }

    /// Fails if a pattern matches no name, or only tensors that weights replace. Warns of a
    /// --dequantize without effect.
    pub(super) fn check(
        &self,
        names: &[&str],
        numbers: Vec<&QuantizedWeight>,
        any_quantised: bool,
    ) -> anyhow::Result<()> {
        if self.changes.dequantize.is_some() && !any_quantised {
            warn("--dequantize: no tensor is quantised");
        }
        let drops = self.changes.drop.iter().map(|pattern| ("--drop", pattern));
        let casts = self.changes.casts.iter().map(|cast| ("--cast", &cast.pattern));
        let replaced = Replaced { weights: numbers, instead: "--keep-quantized" };
        self.select.check(names, &replaced)?;
        self.select.check_others(drops.chain(casts), names, &replaced)?;
        if self.changes.select.ignore_unmatched {
            return Ok(());
        }
        self.renames.check(names)
    }

    pub(super) fn may_make_numbers(&self) -> bool {
        let dtype = self.changes.dtype.or(self.dequantize);
        dtype.is_some() || self.quantization().is_some() || !self.changes.casts.is_empty()
    }

    /// Returns the start of names that stay as stored, because quantised weights cannot be
    /// recognised, or `None` if that is an error.
    pub(super) fn left_by<'e>(&self, error: &'e Error) -> Option<&'e str> {
        let stays = |name: &&str| match self.cast_of(name) {
            _ if !self.takes(name) => true,
            _ if self.quantization().is_some() => false,
            Some(to) => to == To::Kept,
            None => self.changes.dtype.or(self.dequantize).is_none(),
        };
        let module = |name: &'e str| &name[..name.rfind('.').map_or(name.len(), |dot| dot + 1)];
        let module = error.tensor().filter(stays).map(module);
        let module = module.or(self.changes.keep_quantized.then_some(""));
        module.filter(|_| matches!(error.kind(), ErrorKind::Quantization { .. }))
    }

    /// Returns `None` for GGUF.
    pub(super) fn quantization(&self) -> Option<Quantization> {
        match self.changes.quantize {
            Some(Scheme::Tensors(how)) => Some(how),
            Some(Scheme::Gguf(_)) | None => None,
        }
    }

    /// Returns `false` for a weight that stays in its dtype.
    pub(super) fn makes_numbers_of(&self, weight: &QuantizedWeight, layers: &LinearLayers) -> bool {
        if self.quantizes_again(&weight.name, &weight.shape, layers) {
            return true;
        }
        let to = |from| self.cast(&weight.name, from, Kind::Quantised);
        // Of a weight that keeps its dtype, `cast` returns the dtype that it was given. --dequantize
        // makes numbers of that dtype, too.
        let may_stay = self.changes.dtype.is_some() || self.cast_of(&weight.name).is_some();
        to(Dtype::F32).is_some() && !(may_stay && to(weight.dtype) == Some(weight.dtype))
    }

    /// Returns `true` if a quantised tensor of a GGUF file becomes numbers.
    pub(super) fn makes_numbers(&self, name: &str, shape: &[usize], layers: &LinearLayers) -> bool {
        let by_default =
            !self.changes.keep_quantized && self.changes.dtype.or(self.dequantize).is_some();
        let is_cast = matches!(self.cast_of(name), Some(To::Dtype(_)));
        is_cast || by_default || self.quantizes_again(name, shape, layers)
    }

    fn quantizes_again(&self, name: &str, shape: &[usize], layers: &LinearLayers) -> bool {
        let Some(how) = self.quantization() else { return false };
        self.quantizes(name, Kind::Quantised).unwrap_or_else(|| layers.suits(how, name, shape))
    }

    /// `name` is the name in the input.
    pub(super) fn takes(&self, name: &str) -> bool {
        self.select.matches(name) && !self.drops(name)
    }

    /// `name` is the name in the input.
    pub(super) fn drops(&self, name: &str) -> bool {
        self.changes.drop.iter().any(|pattern| pattern.matches(name))
    }

    /// `name` is the name in the input. Only --cast applies to aliases and parts of quantised
    /// weights.
    fn cast(&self, name: &str, from: Dtype, kind: Kind) -> Option<Dtype> {
        match self.cast_of(name) {
            Some(To::Kept | To::Quantised) => return Some(from),
            Some(To::Dtype(to)) => return Some(to),
            None => {}
        }
        let dtype = self.changes.dtype.filter(|_| from.is_float() || self.changes.all);
        match kind {
            Kind::Alias | Kind::Kept => None,
            Kind::Plain => dtype,
            Kind::Quantised if self.changes.keep_quantized => None,
            Kind::Quantised if self.changes.dtype.is_none() => self.dequantize,
            Kind::Quantised => dtype,
        }
    }

    pub(super) fn rename(&self, name: &str) -> String {
        format!("{}{}", self.changes.prefix, self.renames.apply(name))
    }

    fn options(&self) -> ConvertOptions {
        ConvertOptions::new().overflow(self.changes.overflow)
    }
}

/// Warns if --quantize changes no weight, or leaves stacked experts.
fn warn_of_what_stays(rewrite: &Rewrite<'_>) {
    if !rewrite.tensors().any(|(_, tensor)| tensor.is_quantized()) {
        warn("--quantize: no weight is quantised; --cast 'GLOB=quantize' picks some");
    }
    let experts = || rewrite.stacked_experts().filter(|(_, tensor)| !tensor.is_alias());
    let bytes: u64 = experts().map(|(_, tensor)| tensor.byte_len()).sum();
    if bytes > 0 {
        let names: Vec<_> = experts().map(|(name, _)| name).collect();
        let (_, all) = rewrite.quantized_bytes();
        warn(format!(
            "--quantize: stacked experts stay unchanged, {} with {} of the bytes: {}",
            text::counted(names.len() as u64, "tensor"),
            text::percent(bytes, all),
            text::some(names)
        ));
    }
}

#[cfg(test)]
mod tests;
