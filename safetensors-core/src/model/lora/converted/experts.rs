//! Adapters of stacked experts that become adapters of each expert.

use super::formats::AdapterFormat;
use super::{Adapter, Item, cannot};
use crate::checkpoint::{Arranged, Checkpoint};
use crate::file::io::ReadAt;
use crate::format::error::Result;
use crate::format::slice::Index;
use crate::model::experts::Stack;
use crate::model::lora::kinds::Role;
use crate::model::lora::parts::{Change, Module};
use crate::model::lora::source::{at, mismatch};

/// Divides the matrices of stacked experts.
pub(super) fn experts<'a, B: ReadAt>(
    adapter: &'a Adapter,
    module: &'a Module,
    format: AdapterFormat,
    base: Option<&Checkpoint<B>>,
) -> Result<Vec<Item<'a>>> {
    let [change, ..] = &*module.changes else { return Ok(Vec::new()) };
    if format == AdapterFormat::Mlx || module.magnitude().is_some() || module.changes.len() > 1 {
        let found = "stacked experts, or DoRA or biases of them".to_owned();
        return Err(at(&adapter.source, change.position(), cannot(format, found)));
    }
    let (stack, is_turned) = stack(adapter, (module, change), format, base)?;
    let (experts, rank) = (change.shape.stack.unwrap_or(1), change.shape.rank.unwrap_or(1));
    let rows = if is_turned { change.shape.columns() } else { change.shape.rows };
    let [up, down] = change.matrix.ends().map(|position| {
        Arranged::tensor(adapter.source.tensor_at(position).map_or("", |tensor| tensor.name()))
    });
    let mut items = Vec::new();
    for expert in 0..experts {
        let mut up = up.clone().slice(1, Index::from(expert..).step(experts));
        let mut down = down.clone().slice(0, expert * rank..(expert + 1) * rank);
        if is_turned {
            (up, down) = (down.transposed(), up.transposed());
        }
        for (name, up) in stack.divide(expert, &up, rows) {
            items.push(Item {
                module,
                model: None,
                name: name.trim_end_matches(".weight").to_owned(),
                tensors: vec![(Role::Down, down.clone()), (Role::Up, up)],
                rank: Some(rank),
                scaling: change.scaling,
            });
        }
    }
    Ok(items)
}

/// Returns the stack that a module changes, and whether its matrices are exchanged.
fn stack<B: ReadAt>(
    adapter: &Adapter,
    (module, change): (&Module, &Change),
    format: AdapterFormat,
    base: Option<&Checkpoint<B>>,
) -> Result<(Stack, bool)> {
    let name = |(module, change): (&Module, &Change)| format!("{}.{}", module.name, change.end);
    let own = name((module, change));
    let problem = match base.map(|base| Stack::find(base, &own)).transpose()? {
        Some(Some(stack)) => {
            let other = stack.other();
            let mut changes = adapter.parts.modules.iter().flat_map(Module::changes);
            let other = changes.find(|change| name(*change) == other);
            let dims = |it: &Change| [it.shape.rows, it.shape.columns()];
            let is_turned = other.and_then(|it| stack.is_turned(dims(change), dims(it.1)));
            if let Some(is_turned) = is_turned {
                return Ok((stack, is_turned));
            }
            let expected = "matrices of both stacks of the experts, which show inputs and outputs";
            mismatch(expected, format!("{:?} for {own:?}", change.shape.dims()))
        }
        Some(None) => mismatch("a stack of experts of the base's architecture", own),
        None => {
            let found = format!("the stacked experts {own:?} without the config.json of the base");
            cannot(format, found)
        }
    };
    Err(at(&adapter.source, change.position(), problem))
}
