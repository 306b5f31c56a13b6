//! Adapters of stacked experts that become adapters of each expert.

use super::formats::AdapterFormat;
use super::{Adapter, Item, at, cannot};
use crate::checkpoint::{Arranged, Checkpoint};
use crate::file::io::ReadAt;
use crate::format::error::Result;
use crate::format::slice::Index;
use crate::model::experts::Stack;
use crate::model::lora::kinds::Role;
use crate::model::lora::matrix::ProductShape;
use crate::model::lora::parts::{Change, Module};
use crate::model::lora::source::{Source, mismatch};

/// Divides the matrices of stacked experts.
pub(super) fn experts<'a, B: ReadAt>(
    adapter: &'a Adapter,
    module: &'a Module,
    format: AdapterFormat,
    base: Option<&Checkpoint<B>>,
) -> Result<Vec<Item<'a>>> {
    let source = &adapter.source;
    let [change, ..] = &*module.changes else { return Ok(Vec::new()) };
    if format == AdapterFormat::Mlx || module.magnitude.is_some() || module.changes.len() > 1 {
        let found = "stacked experts, or DoRA or biases of them".to_owned();
        return Err(at(source, change.position, cannot(format, found)));
    }
    let (stack, is_turned) = stack(adapter, (module, change), format, base)?;
    let shape = change.matrix.shape(source)?;
    let experts = module.experts.unwrap_or(1).max(1);
    let rank = shape.rank.unwrap_or_default() / experts;
    let rows = if is_turned { shape.columns() } else { shape.rows };
    let [up, down] = change.matrix.ends().map(|position| {
        Arranged::tensor(source.tensor_at(position).map_or("", |tensor| tensor.name()))
    });
    let mut items = Vec::new();
    for expert in 0..experts {
        let mut up = up.clone().slice(1, Index::from(expert..).step(experts));
        let mut down = down.clone().slice(0, expert * rank..(expert + 1) * rank);
        if is_turned {
            (up, down) = (down.transposed(), up.transposed());
        }
        for (name, up) in stack.divide(expert, up, rows) {
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
    let refuse = |problem| Err(at(&adapter.source, change.position, problem));
    let name = format!("{}.{}", module.name, change.end);
    let Some(base) = base else {
        let found = format!("the stacked experts {name:?} without the config.json of the base");
        return refuse(cannot(format, found));
    };
    let Some(stack) = Stack::find(base, &name)? else {
        return refuse(mismatch("a stack of experts of the base's architecture", name));
    };
    let mut others = adapter.parts.modules.iter().flat_map(Module::changes);
    let other = stack.other();
    let other = others.find(|(it, change)| format!("{}.{}", it.name, change.end) == other);
    let shape = change.matrix.shape(&adapter.source)?;
    match is_turned(&stack, &shape, other.map(|it| it.1), &adapter.source)? {
        Some(is_turned) => Ok((stack, is_turned)),
        None => {
            let expected = "matrices of both stacks of the experts, which show inputs and outputs";
            refuse(mismatch(expected, format!("{:?} for {name:?}", shape.dims())))
        }
    }
}

/// Returns `true` if `lora_A` is multiplied with the outputs of experts, as PEFT before 0.19 did.
/// The inputs of each stack are the outputs of the other.
fn is_turned(
    stack: &Stack,
    shape: &ProductShape,
    other: Option<&Change>,
    source: &Source,
) -> Result<Option<bool>> {
    let Some(other) = other else { return Ok(None) };
    let other = other.matrix.shape(source)?;
    let (first, last) = if stack.is_first() { (shape, &other) } else { (&other, shape) };
    let (first, last) = ([first.rows, first.columns()], [last.rows, last.columns()]);
    let fits = |[rows, columns]: [usize; 2], [last_rows, last_columns]: [usize; 2]| {
        columns == last_rows && Some(rows) == last_columns.checked_mul(stack.first_parts())
    };
    let is_plain = fits(first, last);
    let is_crossed = fits([first[1], first[0]], [last[1], last[0]]);
    Ok((is_plain != is_crossed).then_some(is_crossed))
}
