//! Saves tensors that share storage once.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::SaveOptions;
use crate::format::error::Result;
use crate::format::tensor::Named;
use crate::format::tied::{drop_copies, nothing_is_shared, record};

/// Removes tied tensors, and returns options that record their names, if the options ask for it.
pub(super) fn apply<'a>(
    tensors: &mut Vec<Named<'_>>,
    options: &'a SaveOptions,
) -> Result<Cow<'a, SaveOptions>> {
    let Some(tied) = &options.tied else { return Ok(Cow::Borrowed(options)) };
    // The header of the file checks the names of all tensors that are kept.
    if nothing_is_shared(tensors) {
        return Ok(Cow::Borrowed(options));
    }
    let aliases = drop_copies(tensors, tied)?;
    let mut options = options.clone();
    record(&mut options.metadata, aliases)?;
    Ok(Cow::Owned(options))
}
