//! The guide: four jobs from start to end. All code in it runs as a test.
//!
//! | chapter | for | features |
//! |---|---|---|
//! | `candle_server` | serving a model with candle, and replacing it while requests come | `candle` |
//! | `burn_training` | training with burn, and resuming after a kill | `burn-train` |
//! | `science` | computing with ndarray, and keeping labelled arrays that grow | `ndarray` |
//! | [`operator`] | managing other people's files with the command `safetensors` | |
//!
//! Each chapter has the steps, and the possible errors with their messages. Replace its temporary
//! directories by your own paths.

#[cfg(feature = "burn")]
pub mod burn_training;
#[cfg(feature = "candle")]
pub mod candle_server;
pub mod operator;
#[cfg(feature = "ndarray")]
pub mod science;
