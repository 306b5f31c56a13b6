//! Quantised weights as tensors store them.
//!
//! [`TensorFacts::weights`] finds the weights of a checkpoint, [`TensorFacts::of_tensor`] the
//! weight of a tensor. Every way to read asks here, so that none takes codes for numbers. Begin
//! with `schemes/mod.rs`, a row for each scheme, and `recognise.rs`.
//!
//! | files | are about |
//! |---|---|
//! | `schemes/` | the tensors, settings and form of each scheme |
//! | `recognise.rs`, `facts.rs`, `config.rs` | the scheme of a module; the table of a checkpoint |
//! | `codes.rs`, `groups.rs`, `weight.rs` | bits as integers; scales of groups; the formula |
//! | `matrix/`, `panel.rs`, `reading.rs` | the numbers of any part of a weight |

mod codes;
mod config;
mod facts;
mod groups;
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
pub use config::settings_files;
pub(crate) use config::{KEYS, MOST_SETTINGS, bad_config, is_of_mlx, model_types};
pub(crate) use facts::TensorFacts;
pub(crate) use matrix::Stored;
pub(crate) use model::Weight;
pub(crate) use schemes::{LAYERS, TENSOR_NAMES, bare};
pub(crate) use tensors::{Tensors, may_be_codes};
