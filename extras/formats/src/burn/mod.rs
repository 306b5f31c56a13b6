//! Files of burn: burnpack (`.bpk`), read and written, and records of old versions (`.mpk`), read.
//!
//! [`open`](crate::open) reads both: see [`Format::Burn`] and [`Format::Burnpack`]. [`Writer`]
//! writes burnpack.

mod pack;
mod reader;
mod record;

use std::sync::Arc;

use safetensors_core::Dtype;

pub use self::pack::Writer;
use crate::Format;
use crate::budget::Budget;
use crate::error::Result;
use crate::input::{Cursor, Input};
use crate::tensor_file::{Builder, Container, TensorFile};

const MOST_DIMS: usize = 64;

/// Of several names for a dtype, the first is written.
const DTYPES: [(&str, Dtype); 16] = [
    ("F64", Dtype::F64),
    ("F32", Dtype::F32),
    ("Flex32", Dtype::F32),
    ("F16", Dtype::F16),
    ("BF16", Dtype::BF16),
    ("I64", Dtype::I64),
    ("I32", Dtype::I32),
    ("I16", Dtype::I16),
    ("I8", Dtype::I8),
    ("U64", Dtype::U64),
    ("U32", Dtype::U32),
    ("U16", Dtype::U16),
    ("U8", Dtype::U8),
    ("Bool(Native)", Dtype::BOOL),
    ("Bool(U8)", Dtype::BOOL),
    // Up to burn 0.20.
    ("Bool", Dtype::BOOL),
];

fn dtype_of(name: &str) -> Option<Dtype> {
    DTYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

fn name_of(dtype: Dtype) -> Option<&'static str> {
    DTYPES.iter().find(|(_, known)| *known == dtype).map(|(name, _)| *name)
}

pub(crate) fn open(format: Format, input: Input<'static>, budget: &Budget) -> Result<TensorFile> {
    let read: fn(Cursor<'static>, &Budget) -> Result<Builder> = match format {
        // The crate `burn-pack` needs burn's `burn-std` and writes one tensor at a time.
        // `rmp-serde` would hold all of a model in memory.
        Format::Burnpack => pack::read,
        _ => record::read,
    };
    let input = Arc::new(input);
    let builder = read(Cursor { input: Arc::clone(&input), at: 0 }, budget)?;
    builder.build(format, Container::File(input), budget)
}
