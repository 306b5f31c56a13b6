//! Conversion of elements from one dtype to another.
//!
//! [`widen`] is the lossless part, which a framework needs that lacks a dtype.

mod small_float;
mod widen;

pub use widen::widen;
