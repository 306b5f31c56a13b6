//! [`Kind`]: how a module changes its weight, and [`Role`]: the names of the tensors that do it.

use std::fmt;

/// How a module computes the sum that it adds to a weight. s is its factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// s·B·A.
    Lora,
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
            Self::Lora => "LoRA",
            Self::Loha => "LoHa",
            Self::Lokr => "LoKr",
            Self::Full => "full difference",
        })
    }
}

/// The libraries that name tensors differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Peft,
    /// PEFT's embeddings, with both matrices transposed.
    Embedding,
    Kohya,
    Diffusers,
    /// LyCORIS, and PEFT with the same names.
    Lycoris,
    /// mlx-lm, with both matrices transposed.
    Mlx,
}

impl Family {
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
pub(super) type End = (&'static str, Family, Kind, Role);

/// The end of the name of LyCORIS' magnitudes.
pub(super) const DORA_SCALE: &str = ".dora_scale";

/// The ends of the names of a module's tensors.
pub(super) const ENDS: &[End] = &[
    (".lora_A.weight", Family::Peft, Kind::Lora, Role::Down),
    (".lora_B.weight", Family::Peft, Kind::Lora, Role::Up),
    (".lora_B.bias", Family::Peft, Kind::Lora, Role::UpBias),
    (".lora_embedding_A", Family::Embedding, Kind::Lora, Role::Up),
    (".lora_embedding_B", Family::Embedding, Kind::Lora, Role::Down),
    (".lora_magnitude_vector", Family::Peft, Kind::Lora, Role::Magnitude),
    (".lora_magnitude_vector.weight", Family::Peft, Kind::Lora, Role::Magnitude),
    (".lora_down.weight", Family::Kohya, Kind::Lora, Role::Down),
    (".lora_up.weight", Family::Kohya, Kind::Lora, Role::Up),
    (".lora_mid.weight", Family::Kohya, Kind::Lora, Role::Mid),
    (".lora.down.weight", Family::Diffusers, Kind::Lora, Role::Down),
    (".lora.up.weight", Family::Diffusers, Kind::Lora, Role::Up),
    (".alpha", Family::Kohya, Kind::Lora, Role::Alpha),
    (DORA_SCALE, Family::Kohya, Kind::Lora, Role::Magnitude),
    (".diff", Family::Kohya, Kind::Full, Role::Diff),
    (".w_norm", Family::Kohya, Kind::Full, Role::Diff),
    (".diff_b", Family::Kohya, Kind::Full, Role::DiffBias),
    (".b_norm", Family::Kohya, Kind::Full, Role::DiffBias),
    (".hada_w1_a", Family::Lycoris, Kind::Loha, Role::W1A),
    (".hada_w1_b", Family::Lycoris, Kind::Loha, Role::W1B),
    (".hada_t1", Family::Lycoris, Kind::Loha, Role::T1),
    (".hada_w2_a", Family::Lycoris, Kind::Loha, Role::W2A),
    (".hada_w2_b", Family::Lycoris, Kind::Loha, Role::W2B),
    (".hada_t2", Family::Lycoris, Kind::Loha, Role::T2),
    (".lokr_w1", Family::Lycoris, Kind::Lokr, Role::W1),
    (".lokr_w1_a", Family::Lycoris, Kind::Lokr, Role::W1A),
    (".lokr_w1_b", Family::Lycoris, Kind::Lokr, Role::W1B),
    (".lokr_w2", Family::Lycoris, Kind::Lokr, Role::W2),
    (".lokr_w2_a", Family::Lycoris, Kind::Lokr, Role::W2A),
    (".lokr_w2_b", Family::Lycoris, Kind::Lokr, Role::W2B),
    (".lokr_t2", Family::Lycoris, Kind::Lokr, Role::T2),
    (".lora_a", Family::Mlx, Kind::Lora, Role::Down),
    (".lora_b", Family::Mlx, Kind::Lora, Role::Up),
    (".m", Family::Mlx, Kind::Lora, Role::Magnitude),
];

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

/// Returns a description of a tensor that cannot be merged.
pub(super) fn unknown(tensor: &str) -> String {
    match OTHERS.iter().find(|(part, _)| tensor.contains(part)) {
        Some((_, kind)) => format!("tensor {tensor:?} of {kind}"),
        None => format!("tensor {tensor:?}"),
    }
}
