//! Records of old versions of burn: see [`Format::Burn`].

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
