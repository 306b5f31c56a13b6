//! The behaviour of a `VarBuilder` that candle's models rely on.

mod candles_own;
mod missing;
mod prefetching;
mod reading_ahead;
mod scaled;
mod sharing;
mod sources;
mod spy;
mod tensors;
mod threads;
mod trouble;
