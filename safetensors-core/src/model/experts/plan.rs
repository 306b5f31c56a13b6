//! [`ExpertPlan`]: the tensors that replace experts in another layout.

use std::collections::{BTreeSet, HashSet};

use super::find::{Key, Module, Shapes};
use super::table::{ROWS, Row, UNKNOWN};
use crate::checkpoint::{Arranged, Checkpoint};
use crate::file::io::ReadAt;
use crate::file::load::ExpertLayout::{self, Split, Stacked};
use crate::file::load::{ExpertOptions, GateUp};
use crate::format::error::{Error, ExpertProblem, Result};
use crate::format::python_json;
use crate::format::slice::Index;
use crate::model::quantized::QuantizedWeight;
use crate::weights::{MOST_SETTINGS, model_types};

/// The most experts of a module.
const MOST_EXPERTS: usize = 1 << 16;

/// The most matrices and biases of all experts, many times those of the largest models.
const MOST_MATRICES: usize = 1 << 18;

/// The tensors that replace experts in another layout.
#[derive(Debug)]
#[doc(hidden)]
pub struct ExpertPlan {
    /// The new tensors. None if the experts have the layout already.
    pub(super) tensors: Vec<(String, Arranged)>,
    /// The last part of the modules' names, before and after.
    pub(super) module: [&'static str; 2],
}

impl ExpertPlan {
    pub(super) fn new<S: ReadAt>(
        checkpoint: &Checkpoint<S>,
        layout: ExpertLayout,
        options: &ExpertOptions,
    ) -> Result<Self> {
        let weights = checkpoint.quantized_weights()?;
        let shapes = shapes(checkpoint, &weights);
        let (rows, unknown) = rows(checkpoint, options)?;
        let other = if layout == Split { Stacked } else { Split };
        let mut is_done = false;
        for row in &rows {
            let modules = row.find(other, &shapes);
            if modules.is_empty() {
                is_done |= !row.find(layout, &shapes).is_empty();
                continue;
            }
            if let Some(reason) = unknown {
                return Err(ExpertProblem::UnknownModel { reason }.into());
            }
            let module = [other, layout].map(|it| row.module[it as usize]);
            let mut plan = Self { tensors: Vec::new(), module };
            for (root, module) in &modules {
                match layout {
                    Split => plan.split(row, root, module)?,
                    Stacked => plan.stack(row, root, module)?,
                }
                plan.tensors.extend(row.renamed([other, layout], root, &shapes));
            }
            return Ok(plan);
        }
        if is_done {
            return Ok(Self { tensors: Vec::new(), module: ["", ""] });
        }
        let expected = |layout| rows[0].name(layout, "model.layers.0.", Key::default());
        Err(ExpertProblem::None { split: expected(Split), stacked: expected(Stacked) }.into())
    }

    /// Adds the stacks of a module's experts.
    fn stack(&mut self, row: &Row, root: &str, module: &Module<'_>) -> Result<()> {
        let numbers: BTreeSet<_> = module.keys().map(|key| key.expert).collect();
        let count = numbers.len();
        let mut stacks: BTreeSet<_> = module.keys().map(|key| (key.stack, key.is_bias)).collect();
        // Weights are always needed.
        stacks.extend([(0, false), (1, false)]);
        for (stack, is_bias) in stacks {
            let stacked = row.name(Stacked, root, Key { stack, is_bias, ..Key::default() });
            let mut experts = Vec::new();
            for expert in 0..=numbers.last().copied().unwrap_or_default() {
                let mut matrices = Vec::new();
                for part in 0..row.stacks[stack].1.len() {
                    let key = Key { stack, is_bias, expert, part };
                    let expected = || row.name(Split, root, key);
                    let (name, _) = module.get(&key).ok_or_else(|| missing(expected(), count))?;
                    matrices.push(Arranged::tensor(*name));
                }
                let expert = row.joined(matrices);
                let is_transposed = row.is_transposed && !is_bias;
                experts.push(if is_transposed { expert.transposed() } else { expert });
            }
            self.tensors.push((stacked, Arranged::stack(experts)));
        }
        Ok(())
    }

    /// Adds the matrices of a module's experts.
    fn split(&mut self, row: &Row, root: &str, module: &Module<'_>) -> Result<()> {
        let (count, is_transposed, outputs) = row.dimensions(root, module)?;
        for (&key, &(stacked, shape)) in module {
            let outputs = outputs[key.stack];
            if key.is_bias && shape != [count, outputs] {
                return Err(wrong(stacked, format!("[{count}, {outputs}]"), shape));
            }
            let parts = row.stacks[key.stack].1.len();
            if self.tensors.len() + count * parts > MOST_MATRICES {
                let expected = format!("{MOST_MATRICES} matrices or fewer of all layers");
                return Err(wrong(stacked, expected, shape));
            }
            for number in 0..count {
                let expert = Arranged::tensor(stacked).slice(0, number);
                let is_transposed = is_transposed && !key.is_bias;
                let expert = if is_transposed { expert.transposed() } else { expert };
                let key = Key { expert: number, ..key };
                self.tensors.extend(row.divide(root, key, &expert, outputs));
            }
        }
        Ok(())
    }
}

/// Returns the shapes of quantised weights and of other tensors, also by aliases.
pub(super) fn shapes<'a, S>(
    checkpoint: &'a Checkpoint<S>,
    weights: &'a [QuantizedWeight],
) -> Shapes<'a> {
    let members = weights.iter().flat_map(|weight| &weight.tensors);
    let members: HashSet<_> = members.map(String::as_str).collect();
    let names = checkpoint.tensors().map(|it| (it.name(), it)).chain(checkpoint.aliases());
    let plain = names.filter(|(_, tensor)| !members.contains(tensor.name()));
    let plain = plain.map(|(name, it)| (name, it.shape()));
    plain.chain(weights.iter().map(|it| (&*it.name, &*it.shape))).collect()
}

impl Row {
    /// Joins the matrices of an expert that share a stack.
    fn joined(&self, mut matrices: Vec<Arranged>) -> Arranged {
        match self.gate_up {
            GateUp::First => {}
            GateUp::Last => matrices.reverse(),
            GateUp::Interleaved => return Arranged::interleaved(0, matrices),
        }
        Arranged::concat(0, matrices)
    }

    /// Divides an expert's part of a stack, with this many outputs as rows, into the matrices of
    /// the expert, with their names.
    pub(super) fn divide(
        &self,
        root: &str,
        key: Key,
        expert: &Arranged,
        outputs: usize,
    ) -> Vec<(String, Arranged)> {
        let parts = self.stacks[key.stack].1.len();
        let outputs = outputs / parts;
        let matrix = |part: usize| {
            let rows = match self.gate_up {
                GateUp::First => Index::from(part * outputs..(part + 1) * outputs),
                GateUp::Last => Index::from((parts - 1 - part) * outputs..(parts - part) * outputs),
                GateUp::Interleaved => Index::from(part..).step(parts),
            };
            (self.name(Split, root, Key { part, ..key }), expert.clone().slice(0, rows))
        };
        (0..parts).map(matrix).collect()
    }

    /// Returns the number of experts, whether outputs are columns of the stacks of a module, and the
    /// outputs of an expert in each stack. The inputs of each are the outputs of the other, so their
    /// shapes show which are columns.
    fn dimensions(&self, root: &str, module: &Module<'_>) -> Result<(usize, bool, [usize; 2])> {
        let mut stacks = [[0; 3]; 2];
        for (stack, dims) in stacks.iter_mut().enumerate() {
            let key = Key { stack, ..Key::default() };
            let expected = || self.name(Stacked, root, key);
            let found = module.get(&key).ok_or_else(|| missing(expected(), module.len()));
            let (name, shape) = *found?;
            let is_right = !shape.contains(&0) && shape.first() <= Some(&MOST_EXPERTS);
            let found = <[usize; 3]>::try_from(shape).ok().filter(|_| is_right);
            *dims = found.ok_or_else(|| wrong(name, "[experts, outputs, inputs]".into(), shape))?;
        }
        let [[count, rows, columns], down] = stacks;
        let parts = self.stacks[0].1.len();
        let is_normal = rows.is_multiple_of(parts) && down == [count, columns, rows / parts];
        let is_other = columns.is_multiple_of(parts) && down == [count, columns / parts, rows];
        let is_transposed = match (is_normal, is_other) {
            (true, true) => self.is_transposed,
            (false, false) => {
                let name = self.name(Stacked, root, Key { stack: 1, ..Key::default() });
                let expected = format!("[{count}, {columns}, {}]", rows / parts);
                return Err(wrong(&name, expected, &down));
            }
            (_, is_transposed) => is_transposed,
        };
        let outputs = if is_transposed { [columns, down[2]] } else { [rows, down[1]] };
        Ok((count, is_transposed, outputs))
    }
}

fn missing(expected: String, count: usize) -> Error {
    ExpertProblem::Missing { expected, count }.into()
}

fn wrong(name: &str, expected: String, found: &[usize]) -> Error {
    Error::from(ExpertProblem::Shape { expected, found: found.to_vec() }).in_tensor(name)
}

/// Returns the rows that may hold for a checkpoint, and the reason why the order of gate and up is
/// not known, if it is not.
pub(super) fn rows<S: ReadAt>(
    checkpoint: &Checkpoint<S>,
    options: &ExpertOptions,
) -> Result<(Vec<Row>, Option<String>)> {
    let config = checkpoint.read_beside("config.json", MOST_SETTINGS)?;
    let json = config.map(|(_, text)| python_json::read(&text));
    let (models, reason) = match json {
        Some(Ok(json)) => {
            let models = model_types(&json);
            let names = models.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            (models, format!("config.json has the model_type {names:?}"))
        }
        Some(Err(error)) => (BTreeSet::new(), format!("config.json is not JSON: {error}")),
        None => (BTreeSet::new(), "there is no config.json".into()),
    };
    let models: Vec<_> = models.iter().map(|it| it.strip_suffix("_text").unwrap_or(it)).collect();
    let known = ROWS.iter().filter(|row| row.models.iter().any(|model| models.contains(model)));
    let mut rows: Vec<Row> = known.copied().collect();
    let unknown = Some(reason).filter(|_| rows.is_empty() && options.gate_up.is_none());
    if rows.is_empty() {
        rows = UNKNOWN.to_vec();
    }
    for row in &mut rows {
        row.gate_up = options.gate_up.unwrap_or(row.gate_up);
        row.is_transposed |= options.transposed;
    }
    Ok((rows, unknown))
}
