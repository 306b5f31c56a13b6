//! [`Part`]: one of the tensors that store an arranged weight, and its [`Role`].

use std::collections::BTreeMap;

use crate::checkpoint::{Arranged, Join};
use crate::format::slice::{Index, Positions, TakenDim};
use crate::weights::Weight;

/// The end of a tensor's name, after the name of its weight or of its module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Such as `_scale` in `W_scale`.
    OfWeight(String),
    /// Such as `input_scale` in `X.input_scale`, of the weight `X.weight`.
    OfModule(String),
}

/// The codes, or a plain tensor.
impl Default for Role {
    fn default() -> Self {
        Self::OfWeight(String::new())
    }
}

/// The ends of the names of gpt-oss, and of the same tensors of the transposed weight.
const BLOCKS: [[&str; 2]; 2] = [["_blocks", ".blocks"], ["_scales", ".scales"]];

impl Role {
    /// Returns the role of a tensor of a weight. `None` if it does not have its name from the
    /// weight: a scale that a layer has once.
    fn find(weight: &str, tensor: &str) -> Option<Self> {
        if let Some(end) = tensor.strip_prefix(weight) {
            // Stacked experts of ModelOpt have `W_weight_scale`.
            let end = end.strip_prefix("_weight").unwrap_or(end);
            let of_activations = ["_input_", "_output_", "_activation_"];
            return Some(match of_activations.iter().any(|start| end.starts_with(start)) {
                true => Self::OfModule(end[1..].to_owned()),
                false => Self::OfWeight(end.to_owned()),
            });
        }
        let module = weight.strip_suffix("weight")?;
        tensor.strip_prefix(module).map(|end| Self::OfModule(end.to_owned()))
    }

    /// Returns the name of the tensor with this role for a weight.
    pub(super) fn name(&self, weight: &str) -> String {
        match self {
            Self::OfWeight(end) => format!("{weight}{end}"),
            Self::OfModule(end) => match weight.strip_suffix("weight") {
                Some(module) => format!("{module}{end}"),
                None => format!("{weight}_{end}"),
            },
        }
    }

    /// Returns whether this is a tensor of gpt-oss's blocks, which have a name for each of two
    /// orders of the dimensions.
    pub(super) fn is_of_blocks(&self) -> bool {
        matches!(self, Self::OfWeight(end) if BLOCKS.as_flattened().contains(&&**end))
    }

    /// Returns the role in the transposed weight.
    pub(super) fn transposed(self) -> Self {
        let Self::OfWeight(end) = &self else { return self };
        let pair = BLOCKS.into_iter().find(|pair| pair.contains(&&**end));
        let other = pair.and_then(|pair| pair.into_iter().find(|other| other != end));
        other.map_or(self.clone(), |other| Self::OfWeight(other.to_owned()))
    }
}

/// The positions of a weight's dimension in a tensor that stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    /// All share the same elements.
    Shared,
    /// Groups of this many neighbours are a position of the dimension `dim`.
    Groups { dim: usize, size: usize },
    /// They are in this way in the dimension `dim` that only all of them can be taken.
    Whole { dim: usize },
}

/// A tensor that stores an arranged weight.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) form: Arranged,
    /// One for each dimension of the weight.
    axes: Vec<Axis>,
}

/// Returns the tensors of a weight. `None` if one has a form that is not known.
pub(super) fn parts_of(weight: &Weight) -> Option<BTreeMap<Role, Part>> {
    if weight.scatters_rows() {
        return None;
    }
    let sizes = weight.group_sizes();
    let mut parts = BTreeMap::new();
    for tensor in &weight.tensors {
        let Some(role) = Role::find(&weight.name, &tensor.name) else { continue };
        let axes = match role.is_of_blocks() {
            true => axes_of_blocks(&role, tensor.shape.len(), weight.shape.len())?,
            false => axes(&weight.shape, &tensor.shape, sizes)?,
        };
        parts.insert(role, Part { form: Arranged::tensor(&*tensor.name), axes });
    }
    // The codes of other schemes have their own names, and their own order.
    parts.keys().any(|role| matches!(role, Role::OfWeight(_))).then_some(parts)
}

/// Returns the dimensions of gpt-oss's blocks: `[.., rows, groups, 16]` of groups of 32 columns, and
/// their scales. transformers' names mean the transposed weight.
fn axes_of_blocks(role: &Role, stored: usize, ndim: usize) -> Option<Vec<Axis>> {
    let lead = ndim.checked_sub(2)?;
    let mut axes: Vec<_> = (0..lead + 1).map(|dim| Axis::Groups { dim, size: 1 }).collect();
    axes.push(Axis::Groups { dim: lead + 1, size: 32 });
    if *role != role.clone().transposed() && BLOCKS.iter().any(|[end, _]| role.name("") == *end) {
        axes.swap(lead, lead + 1);
    }
    (stored == ndim || stored == ndim + 1).then_some(axes)
}

/// Returns where the dimensions of a weight of this shape are in a tensor. `sizes` are the rows and
/// columns that share a scale.
fn axes(weight: &[usize], stored: &[usize], sizes: [usize; 2]) -> Option<Vec<Axis>> {
    let (lead, &[rows, columns]) = weight.split_last_chunk::<2>()?;
    let Some(rest) = stored.strip_prefix(lead) else {
        let is_one = stored.iter().all(|&len| len == 1);
        return is_one.then(|| vec![Axis::Shared; weight.len()]);
    };
    let dim = lead.len();
    let each = |dim| Axis::Groups { dim, size: 1 };
    let [of_rows, of_columns] = match *rest {
        [] | [1] | [1, 1] => [Axis::Shared; 2],
        [count] | [count, 1] if count == rows => [each(dim), Axis::Shared],
        [1, count] if count == columns && dim > 0 => [Axis::Shared, each(dim + 1)],
        [a, b] => [groups(dim, [rows, a, sizes[0]]), groups(dim + 1, [columns, b, sizes[1]])],
        _ => return None,
    };
    Some((0..dim).map(each).chain([of_rows, of_columns]).collect())
}

/// Returns the groups of `len` positions that have `count` elements. `size` is the size of groups
/// with a scale.
fn groups(dim: usize, [len, count, size]: [usize; 3]) -> Axis {
    match count {
        0 => Axis::Whole { dim },
        _ if size > 1 && len.div_ceil(size) == count => Axis::Groups { dim, size },
        _ if len.is_multiple_of(count) => Axis::Groups { dim, size: len / count },
        _ => Axis::Whole { dim },
    }
}

impl Part {
    /// A plain tensor.
    pub(super) fn plain(name: &str, ndim: usize) -> Self {
        let axes = (0..ndim).map(|dim| Axis::Groups { dim, size: 1 }).collect();
        Self { form: Arranged::tensor(name), axes }
    }

    /// Takes positions of a dimension of the weight, which has this length. Returns whether there is
    /// such a part.
    pub(super) fn slice(&mut self, of: usize, len: usize, taken: TakenDim) -> bool {
        let Positions { start, count, step } = taken.positions;
        let is_whole = taken.keeps_dim && count == len;
        let end = start + count;
        let (dim, index) = match self.axes[of] {
            _ if is_whole => return true,
            Axis::Groups { dim, size: 1 } if !taken.keeps_dim => (dim, Index::from(start)),
            Axis::Groups { dim, size: 1 } => {
                let end = start + count.saturating_sub(1) * step + count.min(1);
                (dim, Index::from(start..end).step(step))
            }
            Axis::Groups { dim, size }
                if taken.keeps_dim
                    && (step == 1 || count < 2)
                    && start.is_multiple_of(size)
                    && (end == len || end.is_multiple_of(size)) =>
            {
                (dim, Index::from(start / size..end.div_ceil(size)))
            }
            Axis::Shared => {
                if !taken.keeps_dim {
                    self.axes.remove(of);
                }
                return true;
            }
            _ => return false,
        };
        self.form = self.form.clone().slice(dim, index);
        if !taken.keeps_dim {
            self.axes.remove(of);
            self.axes.iter_mut().for_each(|axis| axis.shift(dim, -1));
        }
        true
    }

    /// Exchanges this dimension of the weight and the next. Returns whether there is such a part.
    pub(super) fn transpose(&mut self, dim: usize, is_of_blocks: bool) -> bool {
        match [self.axes[dim], self.axes[dim + 1]] {
            _ if is_of_blocks => self.axes.swap(dim, dim + 1),
            [Axis::Shared, Axis::Shared] => {}
            [Axis::Groups { size, .. }, Axis::Groups { size: other, .. }] if size == other => {
                self.form = self.form.clone().transposed();
            }
            _ => return false,
        }
        true
    }

    /// Joins parts with the same role of weights, each with the length of its weight in the
    /// dimension. `None` if there is no such part.
    pub(super) fn joined(join: Join, dim: usize, members: &[(&Self, usize)]) -> Option<Self> {
        let (first, _) = *members.first()?;
        let forms = || members.iter().map(|(member, _)| member.form.clone());
        if members.iter().any(|(member, _)| member.axes != first.axes) {
            return None;
        }
        if join == Join::Stacked {
            let mut axes = first.axes.clone();
            axes.iter_mut().for_each(|axis| axis.shift(0, 1));
            axes.insert(0, Axis::Groups { dim: 0, size: 1 });
            return Some(Self { form: Arranged::stack(forms()), axes });
        }
        let (_, before) = members.split_last()?;
        match first.axes.get(dim)? {
            _ if members.len() == 1 => Some(first.clone()),
            Axis::Shared if forms().all(|form| form == first.form) => Some(first.clone()),
            Axis::Groups { dim, size }
                if before.iter().all(|(_, len)| len.is_multiple_of(*size))
                    && (join == Join::OneAfterAnother || *size == 1) =>
            {
                let form = Arranged::joined(join, *dim, forms());
                Some(Self { form, axes: first.axes.clone() })
            }
            _ => None,
        }
    }
}

impl Axis {
    /// Moves all dimensions from this one on.
    fn shift(&mut self, from: usize, by: isize) {
        if let Self::Groups { dim, .. } | Self::Whole { dim } = self
            && *dim >= from
        {
            *dim = dim.saturating_add_signed(by);
        }
    }
}
