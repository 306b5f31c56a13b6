//! Untrained parameters of DeepSpeed. Each rank has a fragment of each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use safetensors_core::Dtype;

use super::bad;
use super::states::{Shapes, count};
use crate::error::Result;
use crate::tensor_file::{Builder, Data, Directory, Region, WholeTensor};

type Fragment = (usize, Data, Vec<usize>, Dtype);

/// From the fragments in each file, except for parameters that are `elsewhere`.
pub(super) fn add_frozen(
    parameters: &Shapes,
    mut files: Vec<Builder>,
    elsewhere: &HashSet<&str>,
    directory: &mut Directory,
) -> Result<()> {
    let aliases = files.first_mut().map(|first| std::mem::take(&mut first.aliases));
    let tied: HashMap<_, _> = aliases.unwrap_or_default().into_iter().collect();
    let mut fragments: HashMap<String, Vec<Fragment>> = HashMap::new();
    for (file, builder) in files.into_iter().enumerate() {
        for tensor in builder.tensors {
            let entry = fragments.entry(tensor.name).or_default();
            entry.push((file, tensor.data, tensor.shape, tensor.dtype));
        }
    }
    let shapes: HashMap<_, _> = parameters.iter().map(|(name, shape)| (&**name, shape)).collect();
    for (name, shape) in parameters {
        if let Some(kept) = tied.get(&**name) {
            let is_same =
                shapes.get(kept.as_ref()) == Some(&shape) && !fragments.contains_key(&**name);
            if !is_same {
                let problem = format!("the ranks do not all have it as another name of {kept:?}");
                return Err(bad(problem).in_tensor(name));
            }
            directory.aliases.push((name.to_string(), Arc::clone(kept)));
            continue;
        }
        match fragments.remove(&**name) {
            Some(of_ranks) => directory
                .tensors
                .push(frozen(name, shape, of_ranks).map_err(|error| error.in_tensor(name))?),
            None if elsewhere.contains(&**name) => {}
            None => {
                let problem = "it is not trained, and no file has its numbers";
                return Err(bad(problem).in_tensor(name));
            }
        }
    }
    Ok(())
}

/// Complete on rank 0, or in equally long ranges.
fn frozen(name: &str, shape: &[usize], ranks: Vec<Fragment>) -> Result<WholeTensor> {
    let len = count(shape)?;
    let Some(&(_, _, _, dtype)) = ranks.first() else { return Err(bad("no rank has it")) };
    let range = len.div_ceil(ranks.len());
    let mut pieces = Vec::new();
    let is_whole = ranks.len() == 1 && ranks[0].2 == shape;
    for (rank, (file, data, found, of_rank)) in ranks.into_iter().enumerate() {
        if of_rank != dtype || !is_whole && found != [range] {
            return Err(bad(format!(
                "rank {rank} has {of_rank} of shape {found:?} of it, expected {dtype} of shape \
                 [{range}]"
            )));
        }
        let first = range.saturating_mul(rank).min(len);
        pieces.push((file, Region::Flat { first, len: range.min(len - first) }, data));
    }
    if is_whole {
        pieces[0].1 = Region::whole(shape);
    }
    let name = name.to_owned();
    let shape = shape.to_vec();
    Ok(WholeTensor { name, dtype, shape, stored: None, pieces })
}
