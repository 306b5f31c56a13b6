//! Archives of arrays as [`TensorFile`]s.

use std::sync::Arc;

use safetensors_core::ReadAt;

use super::read::arrays;
use crate::Format;
use crate::budget::Budget;
use crate::error::Result;
use crate::npy::{header_of_member, tensor};
use crate::tensor_file::{Builder, Container, Scratch, TensorFile};
use crate::zipped::Zipped;

pub(crate) fn open_file<S: ReadAt>(
    zipped: Arc<Zipped<S>>,
    budget: &Budget,
) -> Result<TensorFile<S>> {
    zipped.count_list(budget)?;
    zipped.check_overlap()?;
    let mut builder = Builder::default();
    for (name, index) in arrays(&zipped)? {
        let array = || {
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
        let array = array().map_err(|error: crate::Error| error.in_tensor(&name))?;
        builder.tensors.push(array);
    }
    builder.build(Format::Npz, Container::Zip(zipped, Scratch::default()), budget)
}
