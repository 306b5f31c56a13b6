//! [`Fit`]: the part of a weight that a module of an adapter changes.

use std::collections::HashMap;

use super::fit::Found;
use super::kinds::{DORA_SCALE, Family, Kind};
use super::matrix::{Matrix, ProductShape};
use super::merged::{Axis, Magnitude, Merged, Place};
use super::parts::{Change, Module};
use super::source::{located, mismatch};
use super::transposed::Base;
use super::{Adapter, ExpertsInput};
use crate::format::error::{AdapterProblem, Error, Result, Shape};

/// A change with the tensors of the checkpoint that it means.
pub(super) type Met<'a> = ((&'a Module, &'a Change), Found<'a>);

/// How the changes of an adapter fit the weights of a checkpoint.
pub(super) struct Fit<'f, 'a, S> {
    pub(super) adapter: &'f Adapter,
    base: &'f Base<'a, S>,
    /// The dimension of stacked weights that `lora_A` multiplies. `None` if it is not known.
    input: Option<ExpertsInput>,
    /// The rows of the last part of each fused tensor.
    last_parts: HashMap<String, usize>,
}

impl<'f, 'a, S> Fit<'f, 'a, S> {
    pub(super) fn new(adapter: &'f Adapter, base: &'f Base<'a, S>, all: &[Met<'_>]) -> Self {
        let mut shown = all.iter().filter_map(|((module, change), found)| {
            module.experts?;
            let Found::At(names, _) = found else { return None };
            let [_, middle, last] = *base.checkpoint.get(names[0])?.shape() else { return None };
            let [_, down] = change.matrix.ends();
            let inputs = *adapter.source.tensor_at(down)?.shape().get(1)?;
            let input = if inputs == middle { ExpertsInput::Middle } else { ExpertsInput::Last };
            (middle != last).then_some(input)
        });
        let by_version = adapter.parts.is_before_0_19.then_some(ExpertsInput::Middle);
        let input = adapter.experts_input.or_else(|| shown.next()).or(by_version);
        Self { adapter, base, input, last_parts: HashMap::new() }
    }

    /// Returns the place of a change in the entire tensor. The matrix of experts becomes a stack.
    pub(super) fn whole(
        &self,
        (module, change): (&Module, &Change),
        matrix: &mut Matrix,
        merged: &mut Merged,
    ) -> Result<Place> {
        let source = &self.adapter.source;
        if let (Some(experts), [_, middle, last]) = (module.experts, &*merged.shape) {
            *matrix = matrix.of_experts(experts);
            return self.stack(change, &matrix.shape(source)?, [*middle, *last], merged);
        }
        let shape = change.matrix.shape(source)?;
        if module.experts.is_some_and(|experts| experts != 1) {
            return Err(self.unfit(change, &shape, merged));
        }
        self.grow((module, change), &shape, merged)?;
        let [first, rest @ ..] = &*merged.shape else {
            let found = format!("{:?}, a scalar", merged.name);
            return Err(self.error(change, mismatch("a weight with dimensions", found)));
        };
        if shape.stack.is_some() && shape.dims() == merged.shape {
            return Ok(Place::new(0..first * shape.rows, shape.columns()));
        }
        let is_plain = *first == shape.rows && is_row(module.kind, rest, &shape.row);
        let is_crossed = shape.row == [*first] && rest == [shape.rows];
        let is_transposed = match module.is_transposed {
            _ if module.is_embedding() => is_crossed,
            _ if change.is_bias() => false,
            Some(setting) if is_plain && is_crossed => {
                let known = self.base.is_transposed(&merged.name, setting);
                known.ok_or_else(|| self.square(change, &merged.name, setting))?
            }
            Some(_) => is_crossed,
            None => false,
        };
        if shape.stack.is_some() || !is_transposed && (module.is_embedding() || !is_plain) {
            return Err(self.unfit(change, &shape, merged));
        }
        Ok(Place { is_transposed, ..Place::new(0..*first, rest.iter().product()) })
    }

    /// Returns the place of matrices of experts in a stack of weights with these dimensions.
    fn stack(
        &self,
        change: &Change,
        shape: &ProductShape,
        [middle, last]: [usize; 2],
        merged: &Merged,
    ) -> Result<Place> {
        let product = [shape.rows, shape.columns()];
        let is_plain = product == [middle, last];
        let is_crossed = product == [last, middle];
        if shape.stack != Some(merged.shape[0]) || !is_plain && !is_crossed {
            return Err(self.unfit(change, shape, merged));
        }
        let is_transposed = match self.input {
            Some(input) if is_plain && is_crossed => input == ExpertsInput::Middle,
            None if is_plain && is_crossed => {
                let found = format!(
                    "{:?} of the checkpoint, with equal lengths; PEFT before 0.19, and models with \
                     [experts, in, out], have the input in the middle, others last",
                    merged.name
                );
                let expected = "the dimension of the experts that lora_A multiplies";
                return Err(self.error(change, mismatch(expected, found)));
            }
            _ => is_crossed,
        };
        Ok(Place { is_transposed, ..Place::new(0..merged.shape[0] * middle, last) })
    }

    /// Returns the place of a change in a tensor that has the wanted one as one of some parts: two
    /// halves, or queries that keys and values of equal size follow.
    pub(super) fn in_fused(
        &mut self,
        (module, change): (&Module, &Change),
        (part, parts): (usize, usize),
        merged: &Merged,
    ) -> Result<Place> {
        let shape = change.matrix.shape(&self.adapter.source)?;
        let (rows, all) = (shape.rows, merged.shape.first().copied().unwrap_or_default());
        let last = if part == 0 { all.saturating_sub(rows) / (parts - 1) } else { rows };
        let head = all.saturating_sub(last.saturating_mul(parts - 1));
        let known = *self.last_parts.entry(merged.name.clone()).or_insert(last);
        let is_size = if part == 0 { head == rows } else { head >= rows };
        let is_half = parts > 2 || head == last;
        if !is_size || !is_half || known != last || last == 0 {
            return Err(self.unfit(change, &shape, merged));
        }
        let first = if part == 0 { 0 } else { head + (part - 1) * last };
        self.rows((module, change), &shape, merged, Place::new(first..first + rows, 0))
    }

    /// Returns the place of a change in one of the tensors that its rows are divided among. The
    /// rows before `first` belong to other tensors.
    pub(super) fn in_part(
        &self,
        (module, change): (&Module, &Change),
        (first, is_last): (usize, bool),
        merged: &Merged,
    ) -> Result<Place> {
        let shape = change.matrix.shape(&self.adapter.source)?;
        let rows = merged.shape.first().copied().unwrap_or_default();
        if if is_last { first + rows != shape.rows } else { first + rows >= shape.rows } {
            return Err(self.unfit(change, &shape, merged));
        }
        self.rows((module, change), &shape, merged, Place { first, ..Place::new(0..rows, 0) })
    }

    /// Returns a place with the columns of a weight, if its rows are those of a matrix.
    fn rows(
        &self,
        (module, change): (&Module, &Change),
        shape: &ProductShape,
        merged: &Merged,
        place: Place,
    ) -> Result<Place> {
        match merged.shape.get(1..) {
            Some(rest) if is_row(module.kind, rest, &shape.row) => {
                Ok(Place { columns: rest.iter().product(), ..place })
            }
            _ => Err(self.unfit(change, shape, merged)),
        }
    }

    /// Returns the magnitude of a module for a part of a weight.
    pub(super) fn magnitude(
        &self,
        (module, change): (&Module, &Change),
        place: &Place,
        merged: &Merged,
    ) -> Result<Option<Magnitude>> {
        let Some(position) = module.magnitude.filter(|_| !change.is_bias()) else {
            return Ok(None);
        };
        let Some(tensor) = self.adapter.source.tensor_at(position) else { return Ok(None) };
        let shape = change.matrix.shape(&self.adapter.source)?;
        if module.experts.is_some() || shape.stack.is_some() {
            let problem = mismatch("no magnitude of stacked experts", "one".to_owned());
            return Err(located(&tensor, problem));
        }
        let (mut count, mut axis) = (shape.rows, Axis::Row);
        if place.is_transposed && module.family == Family::Mlx {
            count = shape.columns();
        } else if place.is_transposed {
            axis = Axis::Columns(1);
        } else if let ([1, inputs, ..], [_, columns, kernel @ ..]) =
            (tensor.shape(), &*merged.shape)
            && tensor.name().ends_with(DORA_SCALE)
            && inputs == columns
            && place.rows.len() == shape.rows
        {
            // LyCORIS without `wd_on_out`.
            (count, axis) = (*inputs, Axis::Columns(kernel.iter().product()));
        }
        let is_vector = tensor.shape().iter().all(|&dim| dim == 1 || dim == count);
        if !is_vector || tensor.element_count() != count as u64 {
            let found = format!("shape {}", Shape(tensor.shape()));
            return Err(located(&tensor, mismatch(format!("{count} numbers"), found)));
        }
        let epsilon = if tensor.name().ends_with(DORA_SCALE) { f32::EPSILON } else { 0.0 };
        Ok(Some(Magnitude { position, axis, epsilon }))
    }

    /// Adds rows to the weight of a vocabulary, if the adapter was trained with more of them.
    fn grow(
        &self,
        (module, change): (&Module, &Change),
        shape: &ProductShape,
        merged: &mut Merged,
    ) -> Result<()> {
        let Some(rest) = merged.shape.get(1..) else { return Ok(()) };
        let rows = match rest {
            rest if module.is_embedding() && rest == [shape.rows] => shape.columns(),
            rest if rest == shape.row => shape.rows,
            _ => return Ok(()),
        };
        self.adapter.grow(rows, merged).map_err(|problem| self.error(change, problem))
    }

    fn unfit(&self, change: &Change, shape: &ProductShape, merged: &Merged) -> Error {
        let expected = format!("a product of shape {}", Shape(&merged.shape));
        let found = format!("{} for {:?} of the checkpoint", Shape(&shape.dims()), merged.name);
        self.error(change, mismatch(expected, found))
    }

    fn square(&self, change: &Change, name: &str, setting: bool) -> Error {
        let class = if setting { "a linear layer" } else { "a Conv1D" };
        let found = format!(
            "{name:?} of the checkpoint, a square; if it is {class}, set fan_in_fan_out to {} in \
             adapter_config.json",
            !setting
        );
        self.error(change, mismatch("a layer that shows whether it is transposed", found))
    }

    fn error(&self, change: &Change, problem: AdapterProblem) -> Error {
        match self.adapter.source.tensor_at(change.position) {
            Some(tensor) => located(&tensor, problem),
            None => problem.into(),
        }
    }
}

/// Returns `true` if a row of a matrix has the dimensions of a row of a weight. Some kinds have
/// convolutions as rows of numbers, and all may have kernels of size 1 more or less.
fn is_row(kind: Kind, weight: &[usize], matrix: &[usize]) -> bool {
    let is_flat = matches!(kind, Kind::Loha | Kind::Lokr) && matrix.len() == 1;
    without_ones(weight) == without_ones(matrix)
        || is_flat && weight.iter().product::<usize>() == matrix[0]
}

fn without_ones(dims: &[usize]) -> &[usize] {
    let kept = dims.iter().rposition(|&dim| dim != 1).map_or(0, |last| last + 1);
    &dims[..kept]
}
