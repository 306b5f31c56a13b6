//! [`alike`]: stacked experts and fused projections in the form that the other side has.

use safetensors_core::Result;
use safetensors_core::checkpoint::Arranged;
use safetensors_core::load::ExpertLayout::{Split, Stacked};
use safetensors_core::load::{ExpertOptions, GateUp};

use crate::input::Checkpoint;
use crate::input::other::DisplayedTensor;

/// Returns both sides with single experts, if one has them stacked and the other single, and with
/// single projections where the other side has these.
pub(super) fn alike(a: Checkpoint, b: Checkpoint) -> Result<[Checkpoint; 2]> {
    let any = |layout| a.stores_experts(layout) || b.stores_experts(layout);
    let [a, b] = match any(Split) && any(Stacked) {
        true => [split(a)?, split(b)?],
        false => [a, b],
    };
    let of_a = separated(&a, &b);
    let of_b = separated(&b, &a);
    Ok([arranged(a, of_a)?, arranged(b, of_b)?])
}

/// Returns a checkpoint with single experts. Of an unknown architecture, the gate comes first.
fn split(side: Checkpoint) -> Result<Checkpoint> {
    for options in [ExpertOptions::new(), ExpertOptions::new().gate_up(GateUp::First)] {
        // Stacks that cannot be split are other tensors.
        if side.stores_experts(Stacked) && side.by_ref().experts(Split, &options).is_ok() {
            return Ok(side.experts(Split, &options)?.into_boxed());
        }
    }
    Ok(side)
}

/// Returns the rows of each fused `gate_up_proj` that are the `gate_proj` and the `up_proj` of the
/// other side.
fn separated(side: &Checkpoint, other: &Checkpoint) -> Vec<(String, Arranged)> {
    let mut found = Vec::new();
    for tensor in side.tensors().filter(|it| it.name().contains(".gate_up_proj")) {
        let names = ["gate", "up"].map(|half| tensor.name().replace("gate_up", half));
        if names.iter().any(|name| side.get(name).is_some()) {
            continue;
        }
        let [Some(gate), Some(up)] = names.each_ref().map(|name| other.get(name)) else { continue };
        let Some((rows, columns)) = gate.shape().split_first() else { continue };
        let both = [&[rows.saturating_mul(2)], columns].concat();
        let is_fused = tensor.shape() == both && DisplayedTensor::new(&tensor).stored.is_none();
        if is_fused && gate.shape() == up.shape() {
            for (half, name) in names.into_iter().enumerate() {
                let rows = half * rows..(half + 1) * rows;
                found.push((name, Arranged::tensor(tensor.name()).slice(0, rows)));
            }
        }
    }
    found
}

fn arranged(side: Checkpoint, tensors: Vec<(String, Arranged)>) -> Result<Checkpoint> {
    match tensors.is_empty() {
        true => Ok(side),
        false => Ok(side.arranged(tensors)?.into_boxed()),
    }
}
