//! Drops duplicates, and records their names.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Resolved, Tied, resolve};
use crate::format::error::{Error, Result, TieProblem};
use crate::format::header::{Metadata, is_reserved};
use crate::format::tensor::Named;

/// Returns the dropped names with the kept ones.
pub(crate) fn drop_copies(
    tensors: &mut Vec<Named<'_>>,
    tied: &Tied,
) -> Result<BTreeMap<String, String>> {
    let Resolved { keep, aliases } = resolve(tensors, tied)?;
    let mut keep = keep.into_iter().peekable();
    let mut positions = 0..tensors.len();
    tensors
        .retain(|_| positions.next().is_some_and(|position| keep.next_if_eq(&position).is_some()));
    Ok(aliases)
}

/// Fails if the metadata has another entry under a dropped name: neither may be lost.
pub(crate) fn record(metadata: &mut Metadata, aliases: BTreeMap<String, String>) -> Result<()> {
    for (name, kept) in aliases {
        if is_reserved(&name) {
            return Err(Error::from(TieProblem::Reserved { kept }).in_tensor(&name));
        }
        match metadata.get(&name) {
            Some(found) if *found != kept => {
                let problem = TieProblem::NotRecorded { kept, found: found.clone() };
                return Err(Error::from(problem).in_tensor(&name));
            }
            Some(_) => {}
            None => {
                metadata.insert(name, kept);
            }
        }
    }
    Ok(())
}
