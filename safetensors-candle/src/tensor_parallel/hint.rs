//! [`PartHint`]: the part of a tensor that a model asks for.

use candle_nn::var_builder::Shard;
use safetensors_core::slice::{RankPart, TensorPart};

/// The hints that a model passes to [`get_with_hints`] of a
/// [`TensorParallelVarBuilder`](crate::TensorParallelVarBuilder): candle's [`Shard`], a
/// [`TensorPart`], or your own type.
///
/// ```
/// use safetensors_candle::PartHint;
/// use safetensors_core::slice::TensorPart;
///
/// /// The experts of this rank, among those of all ranks.
/// #[derive(Default)]
/// enum Experts {
///     #[default]
///     All,
///     From(usize, usize),
/// }
///
/// impl PartHint for Experts {
///     fn part(&self) -> TensorPart {
///         match *self {
///             Self::All => TensorPart::Whole,
///             Self::From(first, count) => TensorPart::span(0, first, count),
///         }
///     }
/// }
/// assert_eq!(Experts::default().part(), TensorPart::Whole);
/// ```
///
/// The default is the hint of [`get`], so its part should be the entire tensor.
///
/// [`get`]: candle_nn::var_builder::VarBuilderArgs::get
/// [`get_with_hints`]: candle_nn::var_builder::VarBuilderArgs::get_with_hints
pub trait PartHint: Default {
    /// Returns the part of a tensor that the model wants.
    fn part(&self) -> TensorPart;
}

impl PartHint for TensorPart {
    fn part(&self) -> TensorPart {
        *self
    }
}

/// A single rank holds the entire tensor, as in candle's own backend.
impl PartHint for Shard {
    fn part(&self) -> TensorPart {
        match *self {
            Self { rank: 0, world_size: 1, .. } => TensorPart::Whole,
            Self { dim, rank, world_size } => RankPart::new(dim, rank, world_size).into(),
        }
    }
}
