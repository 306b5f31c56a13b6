//! Dropping the copies that [`resolve`] finds, and recording their names.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Resolved, Tied, resolve};
use crate::{Error, ErrorKind, Metadata, Result, SaveOptions, TensorSource, modelspec};

/// Leaves the tensors that are to be saved, and gives the options to save them with. Nothing
/// changes unless the options ask for it.
pub(crate) fn apply<'a, N: AsRef<str>, S: TensorSource>(
    tensors: &mut Vec<(N, S)>,
    options: &'a SaveOptions,
) -> Result<Cow<'a, SaveOptions>> {
    let Some(tied) = &options.tied else { return Ok(Cow::Borrowed(options)) };
    let aliases = drop_copies(tensors, tied)?;
    let mut options = options.clone();
    record(&mut options.metadata, aliases)?;
    Ok(Cow::Owned(options))
}

/// Leaves the tensors that are kept, in their order, and gives each dropped name with the kept one.
pub(crate) fn drop_copies<N: AsRef<str>, S: TensorSource>(
    tensors: &mut Vec<(N, S)>,
    tied: &Tied,
) -> Result<BTreeMap<String, String>> {
    let Resolved { keep, aliases } = resolve(tensors, tied)?;
    let mut keep = keep.into_iter().peekable();
    let mut positions = 0..tensors.len();
    tensors
        .retain(|_| positions.next().is_some_and(|position| keep.next_if_eq(&position).is_some()));
    Ok(aliases)
}

/// Whether a metadata key has a meaning of its own, so that it is never another name of a tensor,
/// whatever its value is.
pub(crate) fn is_reserved(key: &str) -> bool {
    // The second is what the keys of this project begin with, those of digests among them.
    key == "format" || key.starts_with("safetensors_bridge.") || key.starts_with(modelspec::PREFIX)
}

/// Adds the dropped names to the metadata. What the user has there is not overwritten, but then the
/// name would be lost.
pub(crate) fn record(metadata: &mut Metadata, aliases: BTreeMap<String, String>) -> Result<()> {
    for (name, kept) in aliases {
        if is_reserved(&name) {
            return Err(Error::from(ErrorKind::TieReserved { kept }).in_tensor(&name));
        }
        match metadata.get(&name) {
            Some(found) if *found != kept => {
                let kind = ErrorKind::TieNotRecorded { kept, found: found.clone() };
                return Err(Error::from(kind).in_tensor(&name));
            }
            Some(_) => {}
            None => {
                metadata.insert(name, kept);
            }
        }
    }
    Ok(())
}
