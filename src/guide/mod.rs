//! The guide: four jobs from start to end, each in a module without items. All code in it runs as
//! a test.
//!
//! | chapter | for | features |
//! |---|---|---|
//! | `candle_server` | who serves a model with candle, and replaces it while requests come | `candle` |
//! | `burn_training` | who trains with burn, is killed, and goes on | `burn-train` |
//! | `science` | who computes with ndarray, and keeps labelled arrays that grow | `ndarray` |
//! | [`operator`] | who looks after files of others, with the command `safetensors` | |
//!
//! Each chapter says what to do, what goes wrong, and what the library says then. It needs no
//! knowledge of the format, and links what it does not explain. Where a chapter writes to a
//! temporary directory, your program has its own path.

#[cfg(feature = "burn")]
pub mod burn_training;
#[cfg(feature = "candle")]
pub mod candle_server;
pub mod operator;
#[cfg(feature = "ndarray")]
pub mod science;
