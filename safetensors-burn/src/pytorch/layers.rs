//! The layers that have other names or shapes in PyTorch than in burn.

use super::stored::StoredParameter;
use crate::location::Location;

struct Recurrent {
    layer: &'static str,
    /// The layer that has two of them, `forward` and `reverse`.
    bidirectional: &'static str,
    /// The gates in the order of PyTorch's tensors.
    gates: &'static [&'static str],
}

const RECURRENT: [Recurrent; 3] = [
    Recurrent {
        layer: "Struct:Lstm",
        bidirectional: "Struct:BiLstm",
        gates: &["input_gate", "forget_gate", "cell_gate", "output_gate"],
    },
    Recurrent {
        layer: "Struct:Gru",
        bidirectional: "Struct:BiGru",
        gates: &["reset_gate", "update_gate", "new_gate"],
    },
    Recurrent { layer: "Struct:Rnn", bidirectional: "Struct:BiRnn", gates: &["gate"] },
];

/// The projections in the order of PyTorch's tensors.
const PROJECTIONS: [&str; 3] = ["query", "key", "value"];

const ATTENTION: &str = "Struct:MultiHeadAttention";
const BATCH_NORM: &str = "Struct:BatchNorm";
const LINEAR: &str = "Struct:Linear";

/// A name on the way to a parameter, and the type that has it as a field.
type Step<'a> = (&'a str, &'a str);

/// Returns the ways in which a file of PyTorch may store a parameter. Saving uses the first,
/// loading the first that the file has.
pub(crate) fn stored_as(
    location: &Location,
    is_column: &dyn Fn() -> bool,
    fused: bool,
) -> Vec<StoredParameter> {
    let steps = location.steps();
    if let Some(stored) = gate(&steps) {
        return vec![stored];
    }
    let (own, parents) = match &steps[..] {
        [parents @ .., own] => (*own, parents),
        [] => (("", ""), &[][..]),
    };
    let same = StoredParameter::whole(location.path());
    match own {
        (LINEAR, parameter) => {
            let transposed = parameter == "weight" && !is_column();
            let own = same.transposed(transposed);
            let Some(stored) = projection(parents, parameter) else { return vec![own] };
            let stored = stored.transposed(transposed);
            if fused { vec![stored, own] } else { vec![own, stored] }
        }
        (
            BATCH_NORM
            | "Struct:LayerNorm"
            | "Struct:GroupNorm"
            | "Struct:InstanceNorm"
            | "Struct:RmsNorm",
            "gamma",
        ) => vec![StoredParameter::whole(location.sibling("weight")), same],
        (BATCH_NORM | "Struct:LayerNorm" | "Struct:GroupNorm" | "Struct:InstanceNorm", "beta") => {
            vec![StoredParameter::whole(location.sibling("bias")), same]
        }
        ("Struct:PRelu", "alpha") => vec![StoredParameter::whole(location.sibling("weight"))],
        _ => vec![same],
    }
}

/// Returns PyTorch's count of batches of a batch norm, which burn lacks.
pub(crate) fn without_parameter(location: &Location) -> Option<String> {
    let steps = location.steps();
    let is_counted = steps.last() == Some(&(BATCH_NORM, "running_mean"));
    is_counted.then(|| location.sibling("num_batches_tracked"))
}

fn gate(steps: &[Step<'_>]) -> Option<StoredParameter> {
    let [parents @ .., (layer, gate), ("Struct:GateController", of), (LINEAR, parameter)] = steps
    else {
        return None;
    };
    let recurrent = RECURRENT.iter().find(|recurrent| recurrent.layer == *layer)?;
    let number = recurrent.gates.iter().position(|name| name == gate)?;
    let of = match *of {
        "input_transform" => "ih",
        "hidden_transform" => "hh",
        _ => return None,
    };
    let (parents, suffix) = match parents {
        [parents @ .., (layer, "forward")] if *layer == recurrent.bidirectional => (parents, ""),
        [parents @ .., (layer, "reverse")] if *layer == recurrent.bidirectional => {
            (parents, "_reverse")
        }
        _ => (parents, ""),
    };
    let name = format!("{parameter}_{of}_l0{suffix}");
    let stored = StoredParameter::whole(joined(parents, &name)).part(number, recurrent.gates.len());
    Some(stored.transposed(*parameter == "weight"))
}

/// Returns the parameter of a projection. `steps` lead to its linear layer.
fn projection(steps: &[Step<'_>], parameter: &str) -> Option<StoredParameter> {
    let [parents @ .., (ATTENTION, projection)] = steps else { return None };
    if *projection == "output" {
        return Some(StoredParameter::whole(joined(parents, &format!("out_proj.{parameter}"))));
    }
    let number = PROJECTIONS.iter().position(|name| name == projection)?;
    let name = joined(parents, &format!("in_proj_{parameter}"));
    Some(StoredParameter::whole(name).part(number, PROJECTIONS.len()))
}

fn joined(steps: &[Step<'_>], name: &str) -> String {
    let names: Vec<_> = steps.iter().map(|(_, name)| *name).chain([name]).collect();
    names.join(".")
}
