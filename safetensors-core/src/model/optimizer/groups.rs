//! [`Groups`]: the parameter groups of a PyTorch optimizer.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::checkpoint::Checkpoint;
use crate::format::error::{Error, OptimizerProblem, Result};
use crate::format::header::UniqueMap;

type Group = BTreeMap<String, Value>;

/// None if a program has flattened the checkpoint in Python, for example.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    key: String,
    groups: Vec<Group>,
    /// `None` without groups, or if these have names.
    count: Option<usize>,
    names: Option<Vec<String>>,
}

impl Groups {
    pub(super) fn read<S>(checkpoint: &Checkpoint<S>, key: &str) -> Result<Self> {
        let none = Self { key: key.into(), groups: Vec::new(), count: None, names: None };
        // A learning rate that is a tensor, which the settings do not show.
        let below = format!("{key}.");
        if checkpoint.tensors().any(|tensor| tensor.name().starts_with(&below)) {
            return Err(none.bad("settings that are no tensors: make these numbers before saving"));
        }
        let Some(text) = checkpoint.metadata().get(key) else { return Ok(none) };
        let parse =
            |group: Box<RawValue>| UniqueMap::new("the settings of a group").parse(group.get());
        let groups: Result<Vec<Group>, _> = serde_json::from_str::<Vec<Box<RawValue>>>(text)
            .and_then(|groups| groups.into_iter().map(parse).collect());
        match groups {
            Ok(groups) => Self { groups, ..none }.numbered(),
            Err(_) => Err(none.bad("a JSON list of objects, each with the settings of a group")),
        }
    }

    fn numbered(mut self) -> Result<Self> {
        let lists = |field: &str| -> Option<Vec<Value>> {
            let lists = self.groups.iter().map(|group| group.get(field)?.as_array());
            Some(lists.collect::<Option<Vec<_>>>()?.into_iter().flatten().cloned().collect())
        };
        let Some(params) = lists("params") else {
            return Err(self.bad("a list of groups, each with its params"));
        };
        if params.iter().all(Value::is_string) {
            return Ok(self);
        }
        // PyTorch numbers the parameters in this order when it makes a state.
        let is_in_order =
            |(position, number): (usize, &Value)| number.as_u64() == Some(position as u64);
        if !params.iter().enumerate().all(is_in_order) {
            return Err(self.bad("a list of groups whose params count from 0"));
        }
        let names = lists("param_names").map(|names| {
            names.iter().filter_map(Value::as_str).map(String::from).collect::<Vec<_>>()
        });
        if names.as_ref().is_some_and(|names| names.len() != params.len()) {
            return Err(self.bad("a list of groups with as many param_names as params"));
        }
        (self.count, self.names) = (Some(params.len()), names);
        Ok(self)
    }

    pub(super) fn count(&self) -> Option<usize> {
        self.count
    }

    pub(super) fn names(&self) -> Option<&[String]> {
        self.names.as_deref()
    }

    /// Fails if the groups differ; `None` if no group has it.
    pub(super) fn setting<T: DeserializeOwned>(&self, setting: &'static str) -> Result<Option<T>> {
        let Some((first, others)) = self.groups.split_first() else { return Ok(None) };
        let of = |group| Group::get(group, setting).filter(|value| !value.is_null());
        let value = of(first);
        if let Some(other) = others.iter().find(|other| of(other) != value) {
            let text = |value: Option<&Value>| value.map_or("none".into(), Value::to_string);
            let one = text(value);
            let other = text(of(other));
            return Err(OptimizerProblem::GroupsDiffer { setting, one, other }.into());
        }
        let Some(value) = value else { return Ok(None) };
        match T::deserialize(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.bad("a list of groups with settings of PyTorch's types")),
        }
    }

    pub(super) fn complete(&mut self, setting: &str, value: Value) {
        for group in &mut self.groups {
            let found = group.entry(setting.into()).or_default();
            if found.is_null() {
                *found = value.clone();
            }
        }
    }

    pub(super) fn bad(&self, expected: &'static str) -> Error {
        OptimizerProblem::BadGroups { key: self.key.clone(), expected }.into()
    }
}
