//! Conversion between files: where tensors come from, what becomes of them, where they go.
//!
//! | file | what it knows |
//! |---|---|
//! | `source` | the kinds of input; a new one is added here and nowhere else |
//! | `numpy` | tensors in `.npy` and `.npz` files |
//! | `changes` | which tensors are taken, under which names, in which dtypes |
//! | `output` | the kinds of output |
//!
//! Every tensor is a [`TensorSource`](safetensors_core::TensorSource) all the way: nothing is read before it is written, and then piece by piece.

mod changes;
mod numpy;
mod output;
mod source;

pub(crate) use changes::{Change, Changes};
pub(crate) use output::Output;
pub(crate) use source::Source;
