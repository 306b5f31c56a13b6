//! Finds tensors by their names, which include aliases.

use safetensors_core::{Checkpoint, Error, ErrorKind, LazyTensor, ReadAt};

use super::unmatched::near;
use crate::terminal::text;

/// Aliases are last.
pub(crate) fn names<S>(checkpoint: &Checkpoint<S>) -> Vec<&str> {
    let names = checkpoint.tensors().map(|tensor| tensor.name());
    names.chain(checkpoint.aliases().map(|(alias, _)| alias)).collect()
}

/// The error suggests similar names.
pub(crate) fn tensor<'a, S: ReadAt>(
    checkpoint: &'a Checkpoint<S>,
    name: &str,
) -> anyhow::Result<LazyTensor<'a, S>> {
    checkpoint.tensor(name).map_err(|error| {
        let near = near(name, &names(checkpoint));
        if !(1..=3).contains(&near.len()) {
            // More near names are no help. The error may have similar names.
            return match error.similar() {
                [] => anyhow::anyhow!("{error}; `safetensors inspect --flat` lists them all"),
                _ => error.into(),
            };
        }
        let missing = Error::from(ErrorKind::TensorNotFound).in_tensor(name);
        let missing = match error.file() {
            Some(file) => missing.in_file(file),
            None => missing,
        };
        anyhow::anyhow!("{missing}; did you mean {}?", text::some(near))
    })
}
