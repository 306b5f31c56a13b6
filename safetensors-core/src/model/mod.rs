//! Computations over a checkpoint, and changes to it.
//! Views are computed when they are read. There are also reports, and changed files. Only `edit`
//! and `rewrite` use the other modules. Begin with `rewrite/mod.rs`: most operations are a rewrite.
//!
//! | module | is about |
//! |---|---|
//! | `quantized` | quantised weights as numbers, and the reverse |
//! | `experts` | experts of a mixture, split and stacked |
//! | `lora` | adapters that are merged into the weights |
//! | `optimizer` | PyTorch's optimizers by names of parameters |
//! | `digest`, `audit` | data that has changed; oddities |
//! | `rewrite` | merge, select, rename, convert, divide |
//! | `edit` | metadata, names and tensors of a file |

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
