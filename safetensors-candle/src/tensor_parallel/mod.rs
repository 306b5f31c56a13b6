//! Tensor parallelism: each rank reads its own part of every weight.
//!
//! A model asks a [`TensorParallelBackend`] for a tensor with a hint: the part that the rank holds.
//! Only these bytes are read, and gaps of at most 512 bytes between them.
//!
//! | hint | part | shape that the model asks for |
//! |---|---|---|
//! | none, [`TensorPart::Whole`], or a [`Shard`] of 1 rank | the whole tensor | the tensor's |
//! | [`Shard`] or [`TensorPart::Rank`]: dimension, rank, number of ranks | one of that many equal parts, along any dimension | the *whole* tensor's, or the part's |
//! | [`TensorPart::Span`]: dimension, offset, length | these positions, such as one of several fused weights, a head that ranks share, or some experts | the part's |
//!
//! Any other shape is an error, except for `()`, which candle's own models use to skip the check.
//!
//! With [`Shard`], the default type of the hints, models that are generic over `B: Backend<Hints =
//! Shard>` load. With [`TensorPart`] a model can take spans, too.
//!
//! # Models written for candle's `ShardedVarBuilder`
//!
//! In a model with the type `ShardedVarBuilder<'a>`, which has one backend, change the import:
//!
//! ```
//! // Before: use candle_nn::var_builder::ShardedVarBuilder as VarBuilder;
//! use safetensors_candle::TensorParallelVarBuilder as VarBuilder;
//! # use candle_core::{DType, Device, Result};
//! # use candle_nn::Linear;
//! # use candle_nn::var_builder::Shard;
//! # use safetensors_core::{SaveOptions, TensorView, save};
//!
//! fn column_parallel(builder: VarBuilder, rank: usize, world_size: usize) -> Result<Linear> {
//!     let weight = builder.get_with_hints((), "weight", Shard { dim: 0, rank, world_size })?;
//!     Ok(Linear::new(weight, None))
//! }
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.safetensors");
//! # let weight = TensorView::from_slice(&[4, 2], &[0.0_f32; 8])?;
//! # save(&path, [("up.weight", weight)], &SaveOptions::new())?;
//! # let builder =
//! #     safetensors_candle::tensor_parallel_var_builder(&path, DType::F32, &Device::Cpu)?;
//! # assert_eq!(column_parallel(builder.pp("up"), 1, 2)?.weight().dims(), [2, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Open the checkpoint with [`tensor_parallel_var_builder`] instead of
//! `ShardedSafeTensors::var_builder`. The results are the same, bit for bit. In addition, any
//! dimension can be cut, a dimension or rank that does not exist is an error instead of a panic,
//! and `get_unchecked` returns the entire tensor.

mod backend;
mod hint;
mod prefetched;

use std::path::Path;

pub use backend::TensorParallelBackend;
use candle_core::{DType, Device};
#[cfg(doc)]
use candle_nn::var_builder::Backend;
use candle_nn::var_builder::{Shard, VarBuilderArgs};
pub use hint::PartHint;
#[cfg(doc)]
use safetensors_core::slice::TensorPart;
use safetensors_core::{Checkpoint, Result};

/// Gives each rank its part of a tensor. It has the methods of candle's `ShardedVarBuilder`, and
/// replaces it in a model.
pub type TensorParallelVarBuilder<'a, H = Shard> = VarBuilderArgs<'a, TensorParallelBackend<'a, H>>;

/// Makes a [`TensorParallelVarBuilder`] over a checkpoint: a file, an index of shards, or the
/// directory of either. Only headers are read.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::var_builder::Shard;
/// use safetensors_core::{SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let weight = TensorView::from_slice(&[2, 4], &[0_f32, 1., 2., 3., 4., 5., 6., 7.])?;
/// save(&path, [("down.weight", weight)], &SaveOptions::new())?;
///
/// let builder = safetensors_candle::tensor_parallel_var_builder(&path, DType::F32, &Device::Cpu)?;
/// let right_half = Shard { dim: 1, rank: 1, world_size: 2 };
/// let part = builder.pp("down").get_with_hints((2, 4), "weight", right_half)?;
/// assert_eq!(part.to_vec2::<f32>()?, [[2., 3.], [6., 7.]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Like [`Checkpoint::open`]. [`TensorParallelBackend`] lists the errors of the builder.
pub fn tensor_parallel_var_builder(
    path: impl AsRef<Path>,
    dtype: DType,
    device: &Device,
) -> Result<TensorParallelVarBuilder<'static>> {
    let backend = TensorParallelBackend::new(Checkpoint::open(path)?);
    Ok(backend.var_builder(dtype, device))
}
