//! The files of DeepSpeed: their content, and the places of its numbers.

use std::collections::HashMap;
use std::sync::Arc;

use safetensors_core::Dtype;
use serde_json::Value as Json;

use super::item::{self, Archive};
use super::{bad, left_out, number};
use crate::Options;
use crate::error::{Error, Result};
use crate::pytorch::names::GROUPS;
use crate::pytorch::values::{Node, Value, Values};
use crate::tensor_file::{Builder, Data, Place, Tensor};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateFile {
    /// `true`: a part of the optimizer, with the numbers of ZeRO. `false`: the model.
    pub(super) is_optimizer: bool,
    /// Among ranks with the same model. `None`: the file of all ranks.
    pub(super) rank: Option<usize>,
    /// Among ranks that each hold a part of the model.
    pub(super) model_rank: usize,
}

impl StateFile {
    pub(super) fn is_name(name: &str) -> bool {
        name.ends_with("optim_states.pt") || name.ends_with("model_states.pt")
    }

    /// Parses a name such as `bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt`. `None` for files of
    /// experts and of pipeline stages.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (is_optimizer, stem) = match name.strip_suffix("_optim_states.pt") {
            Some(stem) => (true, stem),
            None => (false, name.strip_suffix("_model_states.pt")?),
        };
        let stem = ["bf16_", "fp16_"].iter().find_map(|it| stem.strip_prefix(it)).unwrap_or(stem);
        let (rank, model_rank) = match stem.strip_prefix("zero_pp_rank_") {
            Some(rest) => {
                let (rank, model_rank) = rest.split_once("_mp_rank_")?;
                (Some(number(rank)?), model_rank)
            }
            None => (None, stem.strip_prefix("mp_rank_")?),
        };
        Some(Self { is_optimizer, rank, model_rank: number(model_rank)? })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flat {
    pub(super) start: u64,
    pub(super) len: usize,
}

pub(super) type Shapes = Vec<(Arc<str>, Vec<usize>)>;

#[derive(Debug, Default)]
pub(super) struct ModelState {
    /// Of the optimizer, with parameters by number. `None` without ZeRO.
    pub(super) groups: Option<Vec<Shapes>>,
    /// Untrained parameters, and their numbers or a rank's.
    pub(super) frozen: Shapes,
    pub(super) fragments: Builder,
    /// Other names, with the name that has the numbers.
    pub(super) shared: Vec<(Arc<str>, Arc<str>)>,
    pub(super) buffers: Vec<Arc<str>>,
    pub(super) module: Builder,
    /// Ranks with a part of the model each.
    pub(super) model_ranks: i64,
    pub(super) step: Option<i64>,
}

#[derive(Debug)]
pub(super) struct Partition {
    pub(super) stage: i64,
    pub(super) count: usize,
    pub(super) groups: Vec<Flat>,
    /// Numbers after each parameter that belong to none, by group.
    pub(super) paddings: Option<Vec<Vec<usize>>>,
    pub(super) step: Option<Vec<u8>>,
    /// Numbers for each parameter number, such as `exp_avg`, by group.
    pub(super) moments: Vec<(Arc<str>, Vec<Flat>)>,
    pub(super) settings: Option<Json>,
}

const READ: [&str; 8] = [
    "module",
    "param_shapes",
    "shared_params",
    "frozen_param_shapes",
    "frozen_param_fragments",
    "buffer_names",
    "mp_world_size",
    "global_steps",
];

struct RankFileReader<'a> {
    archive: &'a Archive,
    options: &'a Options,
}

pub(super) fn model(archive: &Archive, options: &Options) -> Result<ModelState> {
    let reader = RankFileReader { archive, options };
    let values = &archive.values;
    let text = |text: &str| values.budget.text(text);
    let get = |key: &str| values.get(archive.object, key).filter(|it| *it != Value::None);
    let int = |key: &str| match get(key) {
        Some(Value::Int(number)) => Some(number),
        _ => None,
    };
    let module = get("module").ok_or_else(|| bad("it has no module"))?;
    let groups = match get("param_shapes") {
        None => None,
        Some(groups) => {
            let groups = values.items(groups).ok_or_else(|| bad("param_shapes is no list"))?;
            Some(groups.iter().map(|&group| shapes(values, group)).collect::<Result<_>>()?)
        }
    };
    let shared = get("shared_params").and_then(|shared| values.dict(shared)).unwrap_or_default();
    let shared =
        shared.iter().filter_map(|&(alias, kept)| Some((values.text(alias)?, values.text(kept)?)));
    let shared = shared.map(|(alias, kept)| Ok((text(alias)?, text(kept)?)));
    let buffers = get("buffer_names").and_then(|names| values.items(names)).unwrap_or_default();
    let buffers = buffers.iter().filter_map(|&name| values.text(name));
    let fragments = match get("frozen_param_fragments") {
        Some(fragments) => reader.tensors(fragments)?,
        None => Builder::default(),
    };
    let keys = values.dict(archive.object).unwrap_or_default().iter();
    let others = keys.filter(|(_, value)| *value != Value::None);
    let others = others.filter_map(|(key, _)| values.text(*key)).filter(|key| !READ.contains(key));
    let mut module = reader.tensors(module)?;
    module.notes.extend(left_out(&others.collect::<Vec<_>>(), ["value", "values"]));
    Ok(ModelState {
        groups,
        frozen: get("frozen_param_shapes").map_or(Ok(Shapes::new()), |it| shapes(values, it))?,
        fragments,
        shared: shared.collect::<Result<_>>()?,
        buffers: buffers.map(text).collect::<Result<_>>()?,
        module,
        model_ranks: int("mp_world_size").unwrap_or(1),
        step: int("global_steps"),
    })
}

pub(super) fn partition(archive: &Archive, options: &Options) -> Result<Partition> {
    let reader = RankFileReader { archive, options };
    let values = &archive.values;
    let state = values.get(archive.object, "optimizer_state_dict");
    let state = state.ok_or_else(|| bad("it has no optimizer_state_dict"))?;
    let stage = values.get(state, "zero_stage").and_then(|stage| whole_number(values, stage));
    let stage = stage.ok_or_else(|| bad("it has no zero_stage; it is no checkpoint of ZeRO"))?;
    let count = values.get(state, "partition_count").ok_or_else(|| bad("no partition_count"))?;
    let counts = values.items(count).unwrap_or(std::slice::from_ref(&count));
    let counts = counts.iter().filter_map(|&count| whole_number(values, count));
    let count = counts.max().and_then(|count| usize::try_from(count).ok());
    let key = match stage {
        1 | 2 => "single_partition_of_fp32_groups",
        3 => "fp32_flat_groups",
        _ => return Err(bad(format!("the stage of ZeRO should be 1, 2 or 3, found {stage}"))),
    };
    let groups = values.get(state, key).ok_or_else(|| bad(format!("it has no {key}")))?;
    let paddings = values.get(state, "param_alignment_paddings");
    let of_groups = reader.states_of_groups(state, stage)?;
    let step = of_groups.first().and_then(|&group| values.get(group, "step"));
    let step = step.map(|step| archive.number(step)).transpose()?.flatten();
    let mut moments = Vec::new();
    let mut settings = None;
    if options.optimizer_state {
        moments = reader.moments(&of_groups)?;
        let groups = reader.optimizer(state, stage).and_then(|it| values.get(it, GROUPS));
        if let Some(groups) = groups {
            settings = item::json(archive, groups)?;
        }
    }
    Ok(Partition {
        stage,
        count: count.ok_or_else(|| bad("partition_count is no number"))?,
        groups: reader.flats(groups, key)?,
        paddings: paddings.map(|it| numbers_of_groups(values, it)).transpose()?.flatten(),
        step,
        moments,
        settings,
    })
}

impl RankFileReader<'_> {
    fn tensors(&self, value: Value) -> Result<Builder> {
        item::tensors(self.archive, value, "", 0, self.options)
    }

    fn flats(&self, list: Value, what: &str) -> Result<Vec<Flat>> {
        let list = self.archive.values.items(list);
        let list = list.ok_or_else(|| bad(format!("{what} is no list")))?;
        self.archive.values.copy(list.len())?;
        list.iter().map(|&item| self.flat(item, what)).collect()
    }

    fn flat(&self, value: Value, what: &str) -> Result<Flat> {
        let found = item::tensors(self.archive, value, what, 0, self.options)?.tensors;
        match found.as_slice() {
            [Tensor { dtype: Dtype::F32, shape, data: Data::Plain(Place::At(start)), .. }]
                if shape.len() == 1 =>
            {
                Ok(Flat { start: *start, len: shape[0] })
            }
            _ => Err(bad(format!("{what} should have tensors of F32 of one dimension"))),
        }
    }

    fn optimizer(&self, state: Value, stage: i64) -> Option<Value> {
        let key = if stage == 3 { "optimizer_state_dict" } else { "base_optimizer_state" };
        self.archive.values.get(state, key)
    }

    fn states_of_groups(&self, state: Value, stage: i64) -> Result<Vec<Value>> {
        let values = &self.archive.values;
        let Some(base) = self.optimizer(state, stage) else { return Ok(Vec::new()) };
        if let Some(groups) = values.items(base) {
            values.copy(groups.len())?;
            return Ok(groups.to_vec());
        }
        let groups = values.get(base, "state").and_then(|state| values.dict(state));
        let groups = groups.unwrap_or_default();
        values.copy(2 * groups.len())?;
        let mut groups = groups.to_vec();
        groups.sort_by_key(|(key, _)| whole_number(values, *key));
        Ok(groups.into_iter().map(|(_, state)| state).collect())
    }

    /// Returns the numbers for each parameter number: one-dimensional tensors of the state, by
    /// group.
    fn moments(&self, of_groups: &[Value]) -> Result<Vec<(Arc<str>, Vec<Flat>)>> {
        let values = &self.archive.values;
        let mut positions = HashMap::new();
        if of_groups.is_empty() {
            return Err(bad("it has no state of the optimizer"));
        }
        let mut moments: Vec<(Arc<str>, Vec<Flat>)> = Vec::new();
        for (group, state) in of_groups.iter().enumerate() {
            let state = values.dict(*state).unwrap_or_default();
            values.step(state.len())?;
            for &(key, value) in state {
                let (Some(name), Some(Node::Tensor(tensor))) =
                    (values.text(key), values.node(value))
                else {
                    continue;
                };
                // The step, for example, is one number.
                if values.tensors[*tensor as usize].shape.len() != 1 {
                    continue;
                }
                let flat = self.flat(value, name)?;
                values.budget.work_on(name)?;
                values.budget.keep_all::<Flat>(1)?;
                let position = *positions.entry(name).or_insert(moments.len());
                match moments.get_mut(position) {
                    Some((_, flats)) if flats.len() == group => flats.push(flat),
                    None if group == 0 => moments.push((values.budget.text(name)?, vec![flat])),
                    _ => return Err(bad(format!("not every group has {name}"))),
                }
            }
        }
        Ok(moments)
    }
}

fn shapes(values: &Values, dict: Value) -> Result<Shapes> {
    let items = values.dict(dict).ok_or_else(|| bad("a list of shapes is no dictionary"))?;
    let mut shapes = Vec::new();
    for &(name, shape) in items {
        let (name, dims) = values.text(name).zip(values.items(shape)).ok_or_else(no_shape)?;
        values.copy(dims.len())?;
        let dims = dims.iter().map(|&dim| usize::try_from(whole_number(values, dim)?).ok());
        let dims = dims.collect::<Option<_>>().ok_or_else(no_shape)?;
        shapes.push((values.budget.text(name)?, dims));
    }
    Ok(shapes)
}

fn no_shape() -> Error {
    bad("a shape is no list of numbers")
}

pub(super) fn count(shape: &[usize]) -> Result<usize> {
    let count = shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim));
    count.ok_or_else(|| bad("a shape of a parameter is too large"))
}

fn numbers_of_groups(values: &Values, groups: Value) -> Result<Option<Vec<Vec<usize>>>> {
    let Some(groups) = values.items(groups) else { return Ok(None) };
    for &group in groups {
        values.copy(2 + values.items(group).map_or(0, <[_]>::len))?;
    }
    let number = |&it: &Value| whole_number(values, it).and_then(|it| usize::try_from(it).ok());
    let group = |&group: &Value| values.items(group)?.iter().map(number).collect();
    Ok(groups.iter().map(group).collect())
}

/// Takes a number, or an enumeration's item, which is called with its number.
fn whole_number(values: &Values, value: Value) -> Option<i64> {
    match (value, values.node(value)) {
        (Value::Int(number), _) => Some(number),
        (_, Some(Node::Object { parts, .. })) => match values.items(*parts.first()?)? {
            [Value::Int(number)] => Some(*number),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_the_kind_and_the_rank_of_a_file() {
        let file =
            |is_optimizer, rank, model_rank| Some(StateFile { is_optimizer, rank, model_rank });
        for (name, expected) in [
            ("mp_rank_00_model_states.pt", file(false, None, 0)),
            ("mp_rank_03_model_states.pt", file(false, None, 3)),
            ("zero_pp_rank_12_mp_rank_00_model_states.pt", file(false, Some(12), 0)),
            ("zero_pp_rank_1_mp_rank_00_optim_states.pt", file(true, Some(1), 0)),
            ("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", file(true, Some(1), 0)),
            ("layer_00-model_00-model_states.pt", None),
            ("layer_0_expert_1_mp_rank_00_model_states.pt", None),
            ("expp_rank_0_mp_rank_00_optim_states.pt", None),
            ("zero_pp_rank_x_mp_rank_00_optim_states.pt", None),
            ("zero_pp_rank__mp_rank__optim_states.pt", None),
            ("model.pt", None),
        ] {
            assert_eq!(StateFile::parse(name), expected, "{name}");
        }
    }
}
