//! Archives of arrays as [`TensorFile`]s.

use std::sync::Arc;

use super::read::arrays;
use crate::Format;
use crate::budget::Budget;
use crate::error::{ErrorKind, Result};
use crate::npy::{header_of_member, tensor};
use crate::tensor_file::{Builder, Container, Reason, Scratch, Tensor, TensorFile};
use crate::zipped::Zipped;

/// Lists members that are no array of numbers, too; reading one is an error.
pub(crate) fn open_file(zipped: Arc<Zipped<'static>>, budget: &Budget) -> Result<TensorFile> {
    zipped.count_list(budget)?;
    zipped.check_overlap()?;
    let mut builder = Builder::default();
    for (name, index) in arrays(&zipped)? {
        let array = || -> Result<Tensor> {
            zipped.check_size(index)?;
            let (header, header_len) = zipped.member(index, |member| {
                let size = member.size();
                header_of_member(member, size, budget.limits())
            })?;
            // A deflated header may be a thousand times as long as its member.
            budget.work(usize::try_from(header_len).unwrap_or(usize::MAX))?;
            budget.keep_all::<[u64; 4]>(header.shape.len())?;
            tensor(name.clone(), &header, zipped.place(index)?.after(header_len))
        };
        let array = array().or_else(|error| {
            let Some(kind) = error.other().and_then(other_kind) else {
                return Err(error.in_tensor(&name));
            };
            let problem = error.into_kind().to_string();
            budget.keep(2 * (kind.len() + problem.len()))?;
            Ok(Tensor::unread(name.clone(), kind, Reason::NotRead(problem.into())))
        });
        builder.tensors.push(array?);
    }
    builder.build(Format::Npz, Container::Zip(zipped, Scratch::default()), budget)
}

/// Returns the type of a member that is no array of plain numbers. The other members can be read.
/// `None` if the problem is another one.
fn other_kind(problem: &ErrorKind) -> Option<String> {
    match problem {
        ErrorKind::UnsupportedType { descr, .. } => Some(descr.clone()),
        ErrorKind::Fields => Some("an array with fields".into()),
        ErrorKind::NotNpy { .. } => Some("no array".into()),
        _ => None,
    }
}
