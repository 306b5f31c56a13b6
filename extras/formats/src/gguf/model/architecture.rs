//! [`Architecture`]: the tensors of a kind of model, and their conversions.

use std::f64::consts::TAU;

use super::fields::Fields;
use crate::error::Result;
use crate::gguf::Value;

pub(super) struct Architecture {
    pub(super) name: &'static str,
    /// In transformers: `architectures` of `config.json`.
    pub(super) classes: &'static [&'static str],
    pub(super) prefix: &'static str,
    /// Before the number of a layer.
    pub(super) layers: &'static str,
    pub(super) outer: &'static [Row],
    pub(super) layer: &'static [&'static [Row]],
    /// Ends of names of tensors that can be computed or are not used, and so are not in GGUF.
    pub(super) unused: &'static [&'static str],
    pub(super) is_tied: bool,
    pub(super) activation: (&'static str, &'static [&'static str]),
    pub(super) read: fn(&mut Fields, &Sizes) -> Result<Settings>,
}

impl Architecture {
    /// Finds a tensor, with `layers` before the number of a layer, and names of modules by
    /// `module`.
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

    pub(super) fn rows_of_layer(&self) -> impl Iterator<Item = &'static Row> + use<> {
        self.layer.iter().copied().flatten()
    }
}

/// Before the number of a layer in GGUF.
pub(super) const LAYERS: &str = "blk.";

#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) row: &'static Row,
    pub(super) layer: Option<u32>,
    pub(super) is_bias: bool,
}

impl Part {
    pub(super) fn target(self) -> String {
        let layer = self.layer.map(|layer| format!("{LAYERS}{layer}.")).unwrap_or_default();
        format!("{layer}{}{}", self.row.target, self.end())
    }

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

#[derive(Default)]
pub(super) struct Settings {
    /// Keys lack the name of the architecture.
    pub(super) metadata: Vec<(&'static str, Value)>,
    pub(super) llama3: Option<Llama3>,
}

/// Scaling of Llama 3.1: high frequencies stay, low ones are divided by the factor, between them it
/// is interpolated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Llama3 {
    pub(super) theta: f64,
    pub(super) factor: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) context: f64,
}

impl Llama3 {
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

#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) vocabulary: u32,
    pub(super) positions: u32,
    pub(super) hidden: u32,
    pub(super) feed_forward: u32,
    pub(super) layers: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head: u32,
    /// Of BERT; otherwise 0.
    pub(super) token_types: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Dim {
    Vocabulary,
    Positions,
    TokenTypes,
    Hidden,
    FeedForward,
    Queries,
    KeyValues,
    Head,
}

impl Sizes {
    pub(super) fn size(&self, dim: Dim) -> u64 {
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
    /// In a checkpoint, without prefix, layer and `.weight`.
    pub(super) source: &'static str,
    /// In GGUF, without layer and `.weight`.
    pub(super) target: &'static str,
    /// Of the weight. A bias has the first dimension.
    pub(super) dims: &'static [Dim],
    pub(super) bias: Bias,
    pub(super) change: Change,
    /// The weight stays F32 though it is a matrix.
    pub(super) is_exact: bool,
    pub(super) is_head: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    Never,
    Perhaps,
    Always,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// Interleaves the rows of each head: GGUF's rotary embedding pairs neighbours, not halves of a
    /// head.
    InterleaveQueries,
    InterleaveKeys,
    /// Adds one, because the model adds it.
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
