//! The behaviour of a `VarBuilder` that candle's models rely on.

mod candle_builders;
mod missing;
mod numbers;
mod prefetching;
mod reading_ahead;
mod sharing;
mod spy;
mod tensors;
mod threads;
mod trouble;
