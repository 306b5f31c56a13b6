//! The guide: four jobs from start to end. All code in it runs as a test.
//!
//! | chapter | for | features |
//! |---|---|---|
//! | `candle_server` | serving a model with candle, and replacing it while requests come | `candle` |
//! | `burn_training` | training with burn, being killed, and going on | `burn-train` |
//! | `science` | computing with ndarray, and keeping labelled arrays that grow | `ndarray` |
//! | [`operator`] | looking after files of others, with the command `safetensors` | |
//!
//! Each chapter has the steps, and the possible errors with their messages. Where it writes to a
//! temporary directory, your program has its own path.

#[cfg(feature = "burn")]
pub mod burn_training;
#[cfg(feature = "candle")]
pub mod candle_server;
pub mod operator;
#[cfg(feature = "ndarray")]
pub mod science;
