//! [`Kind`]: how a module changes its weight, [`Role`]: the names of the tensors that do it, and
//! [`Tensors`]: the tensors of a module.

use std::collections::BTreeMap;
use std::fmt;

use super::source::{Source, at};
use crate::format::error::{AdapterProblem, Result};

/// How a module computes the sum that it adds to a weight, by the names of a library. s is its
/// factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// s·B·A, with PEFT's names.
    Peft,
    /// PEFT's embeddings, with both matrices transposed.
    Embedding,
    Kohya,
    Diffusers,
    /// mlx-lm, with both matrices transposed.
    Mlx,
    /// s·(W1a·W1b)∘(W2a·W2b), element by element.
    Loha,
    /// s·(W1 ⊗ W2), the Kronecker product. Each of both may be a product.
    Lokr,
    /// The sum as it is stored.
    Full,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loha => "LoHa",
            Self::Lokr => "LoKr",
            Self::Full => "full difference",
            _ => "LoRA",
        })
    }
}

impl Kind {
    /// Returns `true` for LoRA, by the names of any library.
    pub(super) fn is_lora(self) -> bool {
        !matches!(self, Self::Loha | Self::Lokr | Self::Full)
    }

    /// Returns `true` if a matrix is stored transposed.
    pub(super) fn is_turned(self, role: Role) -> bool {
        matches!(self, Self::Embedding | Self::Mlx) && matches!(role, Role::Up | Role::Down)
    }
}

/// The purpose of a tensor of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Down,
    Up,
    Mid,
    UpBias,
    Magnitude,
    Alpha,
    Diff,
    DiffBias,
    W1,
    W1A,
    W1B,
    T1,
    W2,
    W2A,
    W2B,
    T2,
}

impl Role {
    /// Returns `true` for a tensor that modules of several kinds have.
    pub(super) fn is_of_any_kind(self) -> bool {
        matches!(self, Self::Magnitude | Self::Alpha | Self::DiffBias)
    }
}

/// A model of a pipeline, of which one adapter may change several: its name in files of diffusers,
/// the start of names in kohya's files, and the starts of the names of its modules.
pub(super) type Model = (&'static str, &'static str, &'static [&'static str]);

/// Of several prefixes of a model, the first is written.
pub(super) const MODELS: &[Model] = &[
    ("unet", "lora_unet_", &["down_blocks.", "up_blocks.", "mid_block."]),
    ("transformer", "lora_unet_", &["transformer_blocks.", "single_transformer_blocks."]),
    ("text_encoder", "lora_te1_", &["text_model."]),
    ("text_encoder_2", "lora_te2_", &[]),
    ("text_encoder_3", "lora_te3_", &[]),
    ("text_encoder", "lora_te_", &[]),
    ("transformer", "lora_transformer_", &[]),
    // Of any model.
    ("lycoris", "lycoris_", &[]),
];

/// The end of the name of a module's tensor, and its meaning.
pub(super) type End = (&'static str, Kind, Role);

/// The end of the name of LyCORIS' magnitudes.
pub(super) const DORA_SCALE: &str = ".dora_scale";

/// The ends of the names of a module's tensors.
pub(super) const ENDS: &[End] = &[
    (".lora_A.weight", Kind::Peft, Role::Down),
    (".lora_B.weight", Kind::Peft, Role::Up),
    (".lora_B.bias", Kind::Peft, Role::UpBias),
    (".lora_embedding_A", Kind::Embedding, Role::Up),
    (".lora_embedding_B", Kind::Embedding, Role::Down),
    (".lora_magnitude_vector", Kind::Peft, Role::Magnitude),
    (".lora_magnitude_vector.weight", Kind::Peft, Role::Magnitude),
    (".lora_down.weight", Kind::Kohya, Role::Down),
    (".lora_up.weight", Kind::Kohya, Role::Up),
    (".lora_mid.weight", Kind::Kohya, Role::Mid),
    (".lora.down.weight", Kind::Diffusers, Role::Down),
    (".lora.up.weight", Kind::Diffusers, Role::Up),
    (".alpha", Kind::Kohya, Role::Alpha),
    (DORA_SCALE, Kind::Kohya, Role::Magnitude),
    (".diff", Kind::Full, Role::Diff),
    (".w_norm", Kind::Full, Role::Diff),
    (".diff_b", Kind::Full, Role::DiffBias),
    (".b_norm", Kind::Full, Role::DiffBias),
    (".hada_w1_a", Kind::Loha, Role::W1A),
    (".hada_w1_b", Kind::Loha, Role::W1B),
    (".hada_t1", Kind::Loha, Role::T1),
    (".hada_w2_a", Kind::Loha, Role::W2A),
    (".hada_w2_b", Kind::Loha, Role::W2B),
    (".hada_t2", Kind::Loha, Role::T2),
    (".lokr_w1", Kind::Lokr, Role::W1),
    (".lokr_w1_a", Kind::Lokr, Role::W1A),
    (".lokr_w1_b", Kind::Lokr, Role::W1B),
    (".lokr_w2", Kind::Lokr, Role::W2),
    (".lokr_w2_a", Kind::Lokr, Role::W2A),
    (".lokr_w2_b", Kind::Lokr, Role::W2B),
    (".lokr_t2", Kind::Lokr, Role::T2),
    (".lora_a", Kind::Mlx, Role::Down),
    (".lora_b", Kind::Mlx, Role::Up),
    (".m", Kind::Mlx, Role::Magnitude),
];

/// The tensors of a module that were found so far.
#[derive(Debug)]
pub(super) struct Tensors<'a> {
    pub(super) source: &'a Source,
    pub(super) module: String,
    pub(super) kind: Option<Kind>,
    pub(super) positions: BTreeMap<Role, usize>,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(source: &'a Source, module: &str) -> Self {
        Self { source, module: module.to_owned(), kind: None, positions: BTreeMap::new() }
    }

    /// Adds a tensor, unless it conflicts with another.
    pub(super) fn add(&mut self, (_, kind, role): End, position: usize) -> Result<()> {
        let is_known = role.is_of_any_kind() || *self.kind.get_or_insert(kind) == kind;
        let conflict = if !is_known {
            "kinds of change or of names for"
        } else if self.positions.insert(role, position).is_some() {
            "tensors for one end of"
        } else {
            return Ok(());
        };
        let found = format!("two {conflict} module {:?}", self.module);
        Err(at(self.source, position, AdapterProblem::Unsupported { found }))
    }

    pub(super) fn get(&self, role: Role) -> Option<usize> {
        self.positions.get(&role).copied()
    }

    /// Returns the position of a tensor that the module needs.
    pub(super) fn need(&self, role: Role) -> Result<usize> {
        self.get(role).ok_or_else(|| {
            let mut ends = ENDS.iter().filter(|end| end.2 == role);
            let of_kind = ends.clone().find(|end| Some(end.1) == self.kind);
            let end = of_kind.or_else(|| ends.next());
            let expected = format!("{}{}", self.module, end.map_or("", |end| end.0));
            let other = self.positions.values().next().copied().unwrap_or(usize::MAX);
            at(self.source, other, AdapterProblem::Missing { expected })
        })
    }
}

/// Parts of names in adapters of other kinds.
const OTHERS: &[(&str, &str)] = &[
    (".boft_", "BOFT"),
    (".oft_", "OFT"),
    (".vera_", "VeRA"),
    (".ia3_l", "IA3"),
    (".on_input", "IA3"),
    (".lora_E", "AdaLoRA"),
    (".a1.weight", "GLoRA"),
    (".set_weight", "a replaced weight"),
];

/// Returns a description of a tensor that is not supported.
pub(super) fn unknown(tensor: &str) -> String {
    match OTHERS.iter().find(|(part, _)| tensor.contains(part)) {
        Some((_, kind)) => format!("tensor {tensor:?} of {kind}"),
        None => format!("tensor {tensor:?}"),
    }
}
