//! Records of burn 0.14 to 0.21, as its `NamedMpkFileRecorder` wrote them (`.mpk`). It was burn's
//! default; burn 0.22 reads none of them.
//!
//! A record is MessagePack: maps by the names of fields, lists of layers, and at their ends the
//! bytes, the shape and the dtype of each tensor. A tensor is named by the keys that lead to it, as
//! burn names its parameters: `layers.0.weight`. The elements are read where they lie, so a model
//! larger than memory passes through. Names of enum variants are parts of the names of tensors, as
//! in burn.
//!
//! The ids of parameters become the metadata entry by which the burn adapter finds them
//! (`safetensors_bridge.param_ids`); the version of burn becomes `burn.version`.
//!
//! | in the file | here |
//! |---|---|
//! | F64 F32 F16 BF16, I64 to I8, U64 to U8, Bool | the same |
//! | Flex32 | F32, as which burn stores it |
//!
//! A tensor of another dtype, which is quantised or has booleans of 4 bytes, is
//! [`ErrorKind::NoDtype`].
//!
//! What is no tensor is left out and counted in [`TensorFile::notes`]. Records of burn 0.13 and
//! older list their numbers without a dtype; burn 0.14 to 0.16 read them with the feature
//! `record-backward-compat`, and save them anew.
//!
//! [`ErrorKind::NoDtype`]: crate::ErrorKind::NoDtype

mod reader;
mod record;

use std::path::Path;
use std::sync::Arc;

use safetensors_core::ReadAt;

use crate::error::{self, Result};
use crate::input::{Cursor, Input};
use crate::tensor_file::{Container, TensorFile};
use crate::{Format, Options};

/// Opens the tensors of a record.
pub(crate) fn open<S: ReadAt>(
    input: Input<S>,
    path: &Path,
    options: &Options,
) -> Result<TensorFile<S>> {
    let input = Arc::new(input);
    let open = || {
        let builder = record::read(Cursor { input: Arc::clone(&input), at: 0 }, &options.limits)?;
        let built = builder.build(input.source.byte_len(), &options.limits)?;
        TensorFile::new(Format::Burn, built, Container::File(Arc::clone(&input)))
    };
    open().map_err(|error| error.in_file(error::label(path)))
}
