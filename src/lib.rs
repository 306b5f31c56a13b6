//! Move tensors between safetensors files and the library they are used in.
#[cfg(feature = "burn")]
pub use safetensors_burn as burn;
#[cfg(feature = "candle")]
pub use safetensors_candle as candle;
pub use safetensors_core::*;
#[cfg(feature = "ndarray")]
pub use safetensors_ndarray as ndarray;
