//! Quantised weights as tensors store them: which tensors these are, which weight they stand for,
//! and the numbers of the weight. [`Known::weights`] finds all of a checkpoint, [`Known::of_tensor`]
//! the one of a tensor. They know no files, only the [`Tensors`] that they are given.

mod codes;
mod config;
mod groups;
mod known;
mod matrix;
mod model;
mod panel;
mod reading;
mod recognise;
mod schemes;
mod spare;
mod tensors;
mod weight;

#[cfg(test)]
pub(crate) use codes::{Codes, Order};
pub(crate) use config::{KEYS, bad_config, is_of_mlx};
pub(crate) use known::Known;
pub(crate) use matrix::Stored;
pub(crate) use model::Weight;
pub(crate) use schemes::{LAYERS, TENSOR_NAMES, bare};
pub(crate) use tensors::{Tensors, may_be_codes};
