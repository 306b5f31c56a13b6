//! [`Variable`]: a variable with all of its names.

use std::collections::{BTreeMap, HashMap};

use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use safetensors_core::{Result, lock};

use super::values::TensorSlot;
use crate::error::from_candle_error;

#[derive(Clone, Debug)]
pub(super) struct Variable {
    /// The sorted names. A tied variable has several.
    pub(super) names: Vec<String>,
    pub(super) var: Var,
}

impl Variable {
    pub(super) fn slot(&self) -> TensorSlot {
        TensorSlot { names: self.names.clone(), tensor: self.var.as_tensor().clone() }
    }
}

/// Returns clones that share their values.
pub(super) fn named(var_map: &VarMap) -> BTreeMap<String, Var> {
    // The map is locked only here, so a progress callback may use it during a load. A thread that
    // panicked while it held the lock has left a map that is still a map.
    let variables = lock(var_map.data());
    variables.iter().map(|(name, var)| (name.clone(), var.clone())).collect()
}

/// Returns every variable once, sorted by its first name.
pub(super) fn distinct(named: BTreeMap<String, Var>) -> Vec<Variable> {
    let mut variables: Vec<Variable> = Vec::new();
    let mut positions = HashMap::new();
    for (name, var) in named {
        let position = *positions.entry(var.id()).or_insert(variables.len());
        match variables.get_mut(position) {
            Some(variable) => variable.names.push(name),
            None => variables.push(Variable { names: vec![name], var }),
        }
    }
    variables
}

/// Drops each value when it is copied.
pub(super) fn set(variables: &[Variable], values: Vec<Option<Tensor>>) -> Result<()> {
    for (variable, value) in variables.iter().zip(values) {
        let Some(value) = value else { continue };
        variable.var.set(&value).map_err(|error| {
            let error = from_candle_error(error);
            variable.names.iter().fold(error, |error, name| error.in_tensor(name))
        })?;
    }
    Ok(())
}
