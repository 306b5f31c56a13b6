//! [`Architecture`]: the tensors of a kind of model, and how each is converted.

use std::f64::consts::TAU;

use super::fields::Fields;
use crate::error::Result;
use crate::gguf::Value;

/// A kind of model that GGUF has names for.
pub(super) struct Architecture {
    /// The name in GGUF.
    pub(super) name: &'static str,
    /// The classes of transformers: `architectures` in `config.json`.
    pub(super) classes: &'static [&'static str],
    /// The optional start of the names of all tensors.
    pub(super) prefix: &'static str,
    /// The text before the number of a layer.
    pub(super) layers: &'static str,
    /// The tensors outside of layers.
    pub(super) outer: &'static [Row],
    /// The tensors of each layer, part by part.
    pub(super) layer: &'static [&'static [Row]],
    /// The ends of names of tensors that GGUF does not hold, because they can be computed or are
    /// not used.
    pub(super) unused: &'static [&'static str],
    /// Whether the head is the embedding if the settings do not say.
    pub(super) is_tied: bool,
    /// The field that names the activation, and the values that programs compute.
    pub(super) activation: (&'static str, &'static [&'static str]),
    /// Reads the settings that only this architecture has.
    pub(super) read: fn(&mut Fields, &Sizes) -> Result<Settings>,
}

impl Architecture {
    /// Returns the tensor of this name, with `layers` before the number of a layer, and with the
    /// names of modules that `module` gives.
    pub(super) fn part(
        &self,
        name: &str,
        layers: &str,
        module: fn(&Row) -> &'static str,
    ) -> Option<Part> {
        let (path, end) = name.rsplit_once('.')?;
        let is_bias = match end {
            "weight" => false,
            "bias" => true,
            // Older files of BERT.
            "gamma" if path.ends_with("LayerNorm") => false,
            "beta" if path.ends_with("LayerNorm") => true,
            _ => return None,
        };
        let (layer, row) = match path.strip_prefix(layers) {
            Some(rest) => {
                let (number, path) = rest.split_once('.')?;
                let layer =
                    number.parse().ok().filter(|layer: &u32| layer.to_string() == number)?;
                (Some(layer), self.rows_of_layer().find(|row| module(row) == path)?)
            }
            None => (None, self.outer.iter().find(|row| module(row) == path)?),
        };
        (!is_bias || row.bias != Bias::Never).then_some(Part { row, layer, is_bias })
    }

    /// Returns the tensors of each layer.
    pub(super) fn rows_of_layer(&self) -> impl Iterator<Item = &'static Row> + use<> {
        self.layer.iter().copied().flatten()
    }
}

/// The text before the number of a layer in GGUF.
pub(super) const LAYERS: &str = "blk.";

/// A tensor that a model has.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) row: &'static Row,
    pub(super) layer: Option<u32>,
    pub(super) is_bias: bool,
}

impl Part {
    /// Returns the name in GGUF.
    pub(super) fn target(self) -> String {
        let layer = self.layer.map(|layer| format!("{LAYERS}{layer}.")).unwrap_or_default();
        format!("{layer}{}{}", self.row.target, self.end())
    }

    /// Returns the name in transformers.
    pub(super) fn source(self, architecture: &Architecture) -> String {
        let Architecture { prefix, layers, classes, .. } = architecture;
        // A class without a head has no prefix.
        let is_base = classes.iter().any(|class| class.ends_with("Model"));
        let prefix = if self.row.is_head || is_base { "" } else { prefix };
        let layer = self.layer.map(|layer| format!("{layers}{layer}.")).unwrap_or_default();
        format!("{prefix}{layer}{}{}", self.row.source, self.end())
    }

    fn end(self) -> &'static str {
        if self.is_bias { ".bias" } else { ".weight" }
    }
}

/// The settings of an architecture that are not sizes.
#[derive(Default)]
pub(super) struct Settings {
    /// Keys without the name of the architecture before them, and values.
    pub(super) metadata: Vec<(&'static str, Value)>,
    /// The source of the tensor `rope_freqs.weight`, if there is one.
    pub(super) llama3: Option<Llama3>,
}

/// How Llama 3.1 scales: high frequencies are kept, low ones are divided by the factor, and those
/// between by something between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Llama3 {
    pub(super) theta: f64,
    pub(super) factor: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) context: f64,
}

impl Llama3 {
    /// Returns the divisor of each frequency of a head of this size.
    pub(super) fn factors(&self, head: u32) -> Vec<f32> {
        let factor = |i: u32| {
            let wavelength = TAU * self.theta.powf(f64::from(2 * i) / f64::from(head));
            if wavelength < self.context / self.high {
                1.0
            } else if wavelength > self.context / self.low {
                self.factor
            } else {
                let smooth = (self.context / wavelength - self.low) / (self.high - self.low);
                1.0 / ((1.0 - smooth) / self.factor + smooth)
            }
        };
        (0..head / 2).map(|i| factor(i) as f32).collect()
    }
}

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) vocabulary: u32,
    pub(super) positions: u32,
    pub(super) hidden: u32,
    pub(super) feed_forward: u32,
    pub(super) layers: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    /// The dimension of a head.
    pub(super) head: u32,
    /// The types of tokens of BERT; else 0.
    pub(super) token_types: u32,
}

/// A dimension of a tensor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dim {
    Vocabulary,
    Positions,
    TokenTypes,
    Hidden,
    FeedForward,
    /// All heads of queries.
    Queries,
    /// All heads of keys or values.
    KeyValues,
    Head,
}

impl Sizes {
    pub(super) fn of(&self, dim: Dim) -> u64 {
        let product = |a, b| u64::from(a) * u64::from(b);
        match dim {
            Dim::Vocabulary => self.vocabulary.into(),
            Dim::Positions => self.positions.into(),
            Dim::TokenTypes => self.token_types.into(),
            Dim::Hidden => self.hidden.into(),
            Dim::FeedForward => self.feed_forward.into(),
            Dim::Queries => product(self.heads, self.head),
            Dim::KeyValues => product(self.kv_heads, self.head),
            Dim::Head => self.head.into(),
        }
    }
}

/// A module with a weight, and perhaps a bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Its name in a checkpoint, without prefix, layer and `.weight`.
    pub(super) source: &'static str,
    /// Its name in GGUF, without layer and `.weight`.
    pub(super) target: &'static str,
    /// The shape of the weight. A bias has the first dimension.
    pub(super) dims: &'static [Dim],
    pub(super) bias: Bias,
    pub(super) change: Change,
    /// Whether the weight stays F32 though it is a matrix.
    pub(super) is_exact: bool,
    /// Whether it is the head, which may be the embedding.
    pub(super) is_head: bool,
}

/// Whether a module has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    Never,
    Perhaps,
    Always,
}

/// How the elements are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// The rows of each head are interleaved, because GGUF's rotary embedding takes neighbours as
    /// pairs, and not the halves of a head.
    InterleaveQueries,
    InterleaveKeys,
    /// One is added, because the model adds it.
    AddOne,
}

impl Row {
    pub(super) const fn new(
        source: &'static str,
        target: &'static str,
        dims: &'static [Dim],
    ) -> Self {
        let bias = Bias::Never;
        let change = Change::Nothing;
        Self { source, target, dims, bias, change, is_exact: false, is_head: false }
    }

    pub(super) const fn bias(self, bias: Bias) -> Self {
        Self { bias, ..self }
    }

    pub(super) const fn change(self, change: Change) -> Self {
        Self { change, ..self }
    }

    pub(super) const fn exact(self) -> Self {
        Self { is_exact: true, ..self }
    }

    pub(super) const fn head(self) -> Self {
        Self { is_head: true, ..self }
    }
}
