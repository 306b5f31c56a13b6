//! Finds a tensor by its name.

use safetensors_core::{Checkpoint, Error, ErrorKind, LazyTensor, ReadAt};

use crate::terminal::text;

/// The tensor of this name. If there is none, the error suggests similar names.
pub(crate) fn tensor<'a, S: ReadAt>(
    checkpoint: &'a Checkpoint<S>,
    name: &str,
) -> anyhow::Result<LazyTensor<'a, S>> {
    checkpoint.tensor(name).map_err(|error| {
        let last = |name: &str| name.rsplit('.').take(2).map(str::to_owned).collect::<Vec<_>>();
        let similar =
            |other: &&str| !name.is_empty() && (other.contains(name) || last(other) == last(name));
        let mut similar: Vec<_> =
            checkpoint.tensors().map(|tensor| tensor.name()).filter(similar).collect();
        // Names that only add modules in front come first.
        similar.sort_by_key(|other| (!other.ends_with(name), other.len()));
        let similar: Vec<_> = similar.into_iter().take(3).map(text::short).collect();
        // Names with the same components are nearer than the error's own suggestions, which only
        // have similar letters.
        match (similar.as_slice(), error.similar()) {
            ([], []) => anyhow::anyhow!("{error}; `safetensors inspect --flat` lists them all"),
            ([], _) => error.into(),
            (similar, _) => {
                let missing = Error::from(ErrorKind::TensorNotFound).in_tensor(name);
                let missing = match error.file() {
                    Some(file) => missing.in_file(file),
                    None => missing,
                };
                anyhow::anyhow!("{missing}; did you mean {}?", similar.join(", "))
            }
        }
    })
}
