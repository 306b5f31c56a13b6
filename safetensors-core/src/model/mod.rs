//! Computations over a checkpoint, and changes to it.
//!
//! Each module takes a `Checkpoint` and gives another view of it, a report, or changed files. A
//! view is computed when it is read, tensor by tensor, so that nothing needs a second copy in
//! memory. The modules do not know each other, except `edit` and `rewrite`, which use the results
//! of the others.
//!
//! This module knows no framework.
//!
//! Begin with `rewrite/mod.rs`: most operations are a rewrite.
//!
//! | module | is about |
//! |---|---|
//! | `quantized` | quantised weights as numbers, and numbers as quantised weights |
//! | `experts` | experts of a mixture, split and stacked |
//! | `lora` | adapters that are merged into the weights |
//! | `optimizer` | the state of PyTorch's optimizers by the names of parameters |
//! | `digest`, `audit` | data that has changed; oddities of a checkpoint |
//! | `rewrite` | merge, select, rename, convert, divide: a checkpoint from others |
//! | `edit` | the metadata, names and tensors of a file, changed in place |

#[cfg(feature = "std")]
pub mod quantized;

#[cfg(feature = "std")]
pub mod audit;
pub mod digest;
#[cfg(feature = "std")]
pub mod experts;
#[cfg(feature = "std")]
pub mod lora;
#[cfg(feature = "std")]
pub mod optimizer;
#[cfg(feature = "std")]
pub mod rewrite;

#[cfg(feature = "std")]
pub mod edit;
