//! [`Fit`]: the part of a weight that a module of an adapter changes.

use std::collections::HashMap;
use std::sync::Arc;

use super::kinds::{DORA_SCALE, Kind};
use super::matrix::len;
use super::merged::{Delta, Magnitude, Place};
use super::names::{Fused, Spelling};
use super::parts::{Change, Module};
use super::source::{at, located, mismatch, misshapen};
use super::transposed::Base;
use super::{Adapter, ExpertsInput};
use crate::file::io::ReadAt;
use crate::format::error::{AdapterProblem, Error, Result, Shape};
use crate::format::tensor::shape::memory_count;

/// Modules with a row for each token.
const VOCABULARY: &[&str] =
    &["embed_tokens", "lm_head", "wte", "word_embeddings", "embed_in", "embed_out"];

/// A change with a weight of the checkpoint that it means.
pub(super) struct Met<'n, 'a> {
    pub(super) module: &'n Module,
    pub(super) change: &'n Change,
    pub(super) weight: &'a str,
    pub(super) shape: &'a [usize],
    /// The rows of the weight; 0 for a scalar.
    pub(super) rows: usize,
    pub(super) spelling: Spelling,
    /// The rows of the matrix that belong to other weights before this one.
    pub(super) first: usize,
    /// Whether no other weight follows.
    pub(super) is_last: bool,
}

/// How the changes of an adapter fit the weights of a checkpoint.
pub(super) struct Fit<'f, 'a, S> {
    adapter: &'f Adapter,
    base: &'f Base<'a, S>,
    /// The dimension of stacked weights that `lora_A` multiplies. `None` if it is not known.
    input: Option<ExpertsInput>,
    /// The numbers of heads of queries and of keys, by the settings of the checkpoint.
    heads: Option<[usize; 2]>,
    /// The rows of queries and of keys or values in fused weights, as other modules show them.
    sizes: HashMap<&'a str, [usize; 2]>,
}

impl<'f, 'a, S: ReadAt> Fit<'f, 'a, S> {
    pub(super) fn new(
        adapter: &'f Adapter,
        base: &'f Base<'a, S>,
        all: &[Met<'_, 'a>],
    ) -> Result<Self> {
        let by_version = adapter.parts.is_before_0_19.then_some(ExpertsInput::Middle);
        let mut fit = Self { adapter, base, input: None, heads: None, sizes: HashMap::new() };
        for it in all {
            match (it.spelling, it.shape) {
                (Spelling::Fused(part, fused), _) if fused.has_heads => {
                    let sizes = fit.sizes.entry(it.weight).or_default();
                    sizes[part.min(1)] = it.change.shape.rows;
                }
                (_, [_, middle, last]) if it.module.has_experts && middle != last => {
                    let is_middle = it.change.shape.columns() == *middle;
                    let input = if is_middle { ExpertsInput::Middle } else { ExpertsInput::Last };
                    fit.input = fit.input.or(Some(input));
                }
                _ => {}
            }
        }
        fit.input = adapter.experts_input.or(fit.input).or(by_version);
        if !fit.sizes.is_empty() {
            fit.heads = base.heads()?;
        }
        Ok(fit)
    }

    /// Returns the sum that a change adds to its weight.
    pub(super) fn delta(&self, it: &Met<'_, 'a>) -> Result<Delta> {
        let place = match it.spelling {
            Spelling::Same => self.whole(it)?,
            Spelling::Fused(part, fused) => self.fused(it, part, fused)?,
            Spelling::Parts => {
                if it.is_last && it.first.saturating_add(it.rows) != it.change.shape.rows {
                    return Err(self.unfit(it));
                }
                self.rows(it, Place { first: it.first, ..Place::new(0..it.rows, 0) })?
            }
        };
        let scaling = (self.adapter.scale * it.change.scaling) as f32;
        if !scaling.is_finite() {
            let found = format!("{} times scale {}", it.change.scaling, self.adapter.scale);
            return Err(self.error(it, mismatch("a finite factor", found)));
        }
        Ok(Delta {
            adapter: Arc::clone(&self.adapter.source),
            matrix: it.change.matrix.clone(),
            magnitude: self.magnitude(it, &place)?,
            place,
            scaling,
            of_outputs: Default::default(),
        })
    }

    /// Returns the place of a change in the entire weight.
    fn whole(&self, it: &Met<'_, 'a>) -> Result<Place> {
        let shape = &it.change.shape;
        let (first, rest) = match (shape.stack, it.shape) {
            (Some(_), &[experts, middle, last]) => return self.stack(it, [experts, middle, last]),
            (None | Some(1), [first, rest @ ..]) => (*first, rest),
            (_, []) => {
                let found = format!("{:?}, a scalar", it.weight);
                return Err(self.error(it, mismatch("a weight with dimensions", found)));
            }
            _ => return Err(self.unfit(it)),
        };
        let tensors = it.module.tensors.values();
        let tensors = tensors.filter_map(|&position| self.adapter.source.tensor_at(position));
        let stored = tensors.map(|tensor| tensor.element_count()).sum();
        let rows = if rest == shape.row { shape.rows } else { first };
        let rows = vocabulary(self.adapter, (it.weight, it.shape), rows, stored);
        let rows = rows.map_err(|problem| self.error(it, problem))?;
        let is_plain = rows == shape.rows && is_row(it.module.kind, rest, &shape.row);
        let is_crossed = shape.row == [first] && rest == [shape.rows];
        let is_transposed = match it.module.is_transposed.filter(|_| !it.change.is_bias()) {
            Some(setting) if is_plain && is_crossed => {
                let known = self.base.is_transposed(it.weight, setting);
                known.ok_or_else(|| self.square(it, setting))?
            }
            Some(_) => is_crossed,
            None => false,
        };
        if !is_transposed && !is_plain {
            return Err(self.unfit(it));
        }
        Ok(Place { is_transposed, ..Place::new(0..rows, len(rest)) })
    }

    /// Returns the place of a stack of matrices in a stack of weights with these dimensions.
    fn stack(&self, it: &Met<'_, 'a>, [experts, middle, last]: [usize; 3]) -> Result<Place> {
        let shape = &it.change.shape;
        let product = [shape.rows, shape.columns()];
        let is_plain = product == [middle, last];
        let is_crossed = it.module.has_experts && product == [last, middle];
        if shape.stack != Some(experts) || !is_plain && !is_crossed {
            return Err(self.unfit(it));
        }
        let is_transposed = match self.input {
            Some(input) if is_plain && is_crossed => input == ExpertsInput::Middle,
            None if is_plain && is_crossed => {
                let expected = "the dimension of the experts that lora_A multiplies";
                let found = format!(
                    "{:?} of the checkpoint, with equal lengths; PEFT before 0.19, and models with \
                     [experts, in, out], have the input in the middle, others last",
                    it.weight
                );
                return Err(self.error(it, mismatch(expected, found)));
            }
            _ => is_crossed,
        };
        Ok(Place { is_transposed, ..Place::new(0..experts * middle, last) })
    }

    /// Returns the place of a change in a part of a fused weight. The parts are equal, or there are
    /// the same number of heads of queries as of keys and values, or a multiple of it.
    fn fused(&self, it: &Met<'_, 'a>, part: usize, fused: &Fused) -> Result<Place> {
        let [first, other] = match (self.heads, self.sizes.get(it.weight)) {
            _ if !fused.has_heads => [1, 1],
            (Some(heads), _) => heads,
            (None, Some(sizes)) if !sizes.contains(&0) => *sizes,
            _ => {
                let expected = "num_attention_heads in config.json of the checkpoint, or modules \
                                of its queries and of its keys or values";
                let found = format!("one module for a part of {:?}", it.weight);
                return Err(self.error(it, mismatch(expected, found)));
            }
        };
        let all = other.checked_mul(fused.parts.len() - 1).and_then(|it| it.checked_add(first));
        let size = all.filter(|&all| all > 0 && it.rows.is_multiple_of(all));
        let size = size.map_or(0, |all| it.rows / all);
        let rows = if part == 0 { first } else { other } * size;
        if !first.is_multiple_of(other) || rows != it.change.shape.rows {
            return Err(self.unfit(it));
        }
        let start = if part == 0 { 0 } else { (first + (part - 1) * other) * size };
        self.rows(it, Place::new(start..start + rows, 0))
    }

    /// Returns a place with the columns of a weight, if the rows of a matrix fit.
    fn rows(&self, it: &Met<'_, 'a>, place: Place) -> Result<Place> {
        let shape = &it.change.shape;
        match it.shape.get(1..) {
            Some(rest) if shape.stack.is_none() && is_row(it.module.kind, rest, &shape.row) => {
                Ok(Place { columns: len(rest), ..place })
            }
            _ => Err(self.unfit(it)),
        }
    }

    /// Returns the magnitude of a module for a part of a weight.
    fn magnitude(&self, it: &Met<'_, 'a>, place: &Place) -> Result<Option<Magnitude>> {
        let position = it.module.magnitude().filter(|_| !it.change.is_bias());
        let tensor = |position| Some((position, self.adapter.source.tensor_at(position)?));
        let Some((position, tensor)) = position.and_then(tensor) else { return Ok(None) };
        let shape = &it.change.shape;
        let is_lycoris = tensor.name().ends_with(DORA_SCALE);
        if shape.stack.is_some() {
            let problem = mismatch("no magnitude of stacked experts", "one");
            return Err(located(&tensor, problem));
        }
        if is_lycoris && self.adapter.scale != 1.0 {
            // LyCORIS multiplies the difference from the base, not the product.
            let found = format!("a scale of {}", self.adapter.scale);
            return Err(located(&tensor, mismatch("a scale of 1 with dora_scale", found)));
        }
        let (mut count, mut columns) = (shape.rows, None);
        if it.module.kind == Kind::Mlx && place.is_transposed {
            count = shape.columns();
        } else if it.module.kind == Kind::Embedding || place.is_transposed {
            (count, columns) = (place.columns, Some(1));
        } else if let ([1, inputs, ..], [_, all, kernel @ ..]) = (tensor.shape(), it.shape)
            && is_lycoris
            && inputs == all
            && place.rows.len() == shape.rows
        {
            // LyCORIS without `wd_on_out`.
            (count, columns) = (*inputs, Some(len(kernel)));
        }
        let is_vector = tensor.shape().iter().all(|&dim| dim == 1 || dim == count);
        if !is_vector || tensor.element_count() != count as u64 {
            return Err(misshapen(&tensor, format!("{count} numbers")));
        }
        let epsilon = if is_lycoris { f32::EPSILON } else { 0.0 };
        Ok(Some(Magnitude { position, columns, epsilon }))
    }

    fn unfit(&self, it: &Met<'_, 'a>) -> Error {
        let expected = format!("a product of shape {}", Shape(it.shape));
        let dims = it.change.shape.dims();
        let found = format!("{} for {:?} of the checkpoint", Shape(&dims), it.weight);
        self.error(it, mismatch(expected, found))
    }

    fn square(&self, it: &Met<'_, 'a>, setting: bool) -> Error {
        let class = if setting { "a linear layer" } else { "a Conv1D" };
        let found = format!(
            "{:?} of the checkpoint, a square; if it is {class}, set fan_in_fan_out to {} in \
             adapter_config.json",
            it.weight, !setting
        );
        self.error(it, mismatch("a layer that shows whether it is transposed", found))
    }

    fn error(&self, it: &Met<'_, 'a>, problem: AdapterProblem) -> Error {
        at(&self.adapter.source, it.change.position(), problem)
    }
}

/// Returns the rows of a weight after a change with this many: more than before only for a
/// vocabulary, and at most the number of elements that the adapter stores for it.
pub(super) fn vocabulary(
    adapter: &Adapter,
    (weight, shape): (&str, &[usize]),
    rows: usize,
    stored: u64,
) -> Result<usize, AdapterProblem> {
    let [known, row @ ..] = shape else { return Ok(rows) };
    let module = weight.rsplit('.').nth(1).unwrap_or_default();
    if rows <= *known || !VOCABULARY.contains(&module) {
        return Ok(*known);
    }
    if rows as u64 > stored || memory_count(&[rows, len(row)]).is_err() {
        let expected = format!("at most {stored} rows of {weight:?}, by its stored numbers");
        return Err(mismatch(expected, rows.to_string()));
    }
    if !adapter.pads_vocabulary {
        let lacks = format!("the checkpoint lacks rows {known} to {}", rows - 1);
        let found = format!("{rows}: {lacks}; pad-vocab adds them");
        return Err(mismatch(format!("the {known} rows of {weight:?}"), found));
    }
    Ok(rows)
}

/// Returns `true` if a row of a matrix has the dimensions of a row of a weight. Some kinds have
/// convolutions as rows of numbers, and all may have kernels of size 1 more or less.
fn is_row(kind: Kind, weight: &[usize], matrix: &[usize]) -> bool {
    let is_flat = matches!(kind, Kind::Loha | Kind::Lokr) && matrix.len() == 1;
    without_ones(weight) == without_ones(matrix) || is_flat && len(weight) == len(matrix)
}

fn without_ones(dims: &[usize]) -> &[usize] {
    let kept = dims.iter().rposition(|&dim| dim != 1).map_or(0, |last| last + 1);
    &dims[..kept]
}
