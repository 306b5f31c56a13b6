//! [`ModelSpec`]: the description of a model in the metadata of its file, as the [Stability AI
//! Model Metadata Standard](https://github.com/Stability-AI/ModelSpec) 1.0.1 defines it.
//!
//! The keys of the standard are in a file's `__metadata__` and begin with `modelspec.`.
//! [`ModelSpec`] reads and writes them as typed fields. [`validate`] lists every difference from
//! the standard.
//!
//! ```
//! use safetensors_core::modelspec::{ModelSpec, Resolution, validate};
//! use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
//!
//! let mut spec = ModelSpec::new("stable-diffusion-xl-v1-base", "sgm", "Example Model 1.0");
//! spec.resolution = Some(Resolution { width: 1024, height: 1024 });
//! let options = SaveOptions::new().metadata(spec.to_metadata()?);
//! let file = serialize([("w", TensorView::from_slice(&[1], &[1_u8])?)], &options)?;
//!
//! let file = SafeTensors::parse(file)?;
//! assert_eq!(ModelSpec::from_metadata(file.metadata())?, Some(spec));
//! for problem in validate(file.metadata()) {
//!     // warning: "modelspec.description" is missing: it should be text
//!     println!("{}: {problem}", problem.level);
//! }
//! # Ok::<(), safetensors_core::Error>(())
//! ```

mod date;
mod form;
mod keys;
mod spec;
mod validate;
mod value;

pub use spec::ModelSpec;
pub use validate::{Level, Problem, validate};
pub use value::{Resolution, TimestepRange, Version};
