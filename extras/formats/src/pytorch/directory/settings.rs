//! Settings of optimizers in directories. In distributed checkpoints each is a separate value.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value as Json};

use super::MOST_FIELDS;
use super::states::Shapes;
use crate::pytorch::names::GROUPS;
use crate::pytorch::values::{Value, Values};

/// DeepSpeed's, for tensors `optimizer.state.NAME.exp_avg`.
pub(super) const OPTIMIZER: &str = "optimizer.param_groups";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    groups: String,
    owner: Owner,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Group(u64),
    /// `flatten_optimizer_state_dict` gives each parameter its group's settings.
    Parameter(String),
}

impl Setting {
    /// Returns the setting at the end of a value's path: keys of dictionaries and positions in
    /// lists. `None` for other values.
    pub(super) fn find(values: &Values, name: &str, path: Value) -> Option<Self> {
        let path = values.items(path).filter(|path| path.len() <= MOST_FIELDS)?;
        let lens = path.iter().filter_map(|&key| values.text(key)).map(str::len);
        if lens.fold(0, usize::saturating_add) > name.len() {
            return None;
        }
        let (before, owner, name) = match path {
            [before @ .., groups, Value::Int(group), name]
                if values.text(*groups) == Some(GROUPS) =>
            {
                (before, Owner::Group(u64::try_from(*group).ok()?), values.text(*name)?)
            }
            [before @ .., last] => {
                let below = values.text(*last)?.strip_prefix(GROUPS)?.strip_prefix('.')?;
                let (parameter, name) = below.rsplit_once('.')?;
                (before, Owner::Parameter(parameter.to_owned()), name)
            }
            [] => return None,
        };
        let before = before.iter().map(|&key| values.text(key)).collect::<Option<Vec<_>>>()?;
        let groups = before.into_iter().chain([GROUPS]).collect::<Vec<_>>().join(".");
        Some(Self { groups, owner, name: name.to_owned() })
    }
}

/// Returns the groups of each optimizer as metadata, like a file's. Parameters with equal settings
/// become one group.
pub(super) fn entries<'a>(
    found: impl Iterator<Item = (&'a Setting, Json)>,
) -> Vec<(String, String)> {
    let mut optimizers: BTreeMap<&str, BTreeMap<&Owner, Map<String, Json>>> = BTreeMap::new();
    for (Setting { groups, owner, name }, value) in found {
        let owners = optimizers.entry(groups).or_default();
        owners.entry(owner).or_default().insert(name.clone(), value);
    }
    let entry = |(name, owners): (&str, BTreeMap<&Owner, Map<String, Json>>)| {
        let mut groups = Vec::<Map<String, Json>>::new();
        let mut of_settings = HashMap::new();
        for (owner, settings) in owners {
            let Owner::Parameter(parameter) = owner else {
                groups.push(settings);
                continue;
            };
            let text = serde_json::to_string(&settings).unwrap_or_default();
            let number = *of_settings.entry(text).or_insert(groups.len());
            if number == groups.len() {
                groups.push(settings);
            }
            let params = groups[number].entry("params").or_insert_with(|| Json::Array(Vec::new()));
            if let Json::Array(params) = params {
                params.push(parameter.as_str().into());
            }
        }
        (name.to_owned(), Json::from_iter(groups).to_string())
    };
    optimizers.into_iter().map(entry).collect()
}

/// Returns a DeepSpeed optimizer's groups as metadata, with the names of their parameters, which
/// are one row in the file. `None` if groups and parameters do not match.
pub(super) fn of_groups(settings: &Json, parameters: &[Shapes]) -> Option<String> {
    let mut groups = settings.as_array()?.clone();
    let names =
        |shapes: &Shapes| shapes.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
    // Stage 3 may divide a group of parameters into several.
    let of_groups = match groups.len() {
        1 => vec![parameters.iter().flat_map(names).collect()],
        count if count == parameters.len() => parameters.iter().map(names).collect(),
        _ => return None,
    };
    for (group, names) in groups.iter_mut().zip(of_groups) {
        group.as_object_mut()?.insert("params".into(), names.into());
    }
    Some(Json::Array(groups).to_string())
}
