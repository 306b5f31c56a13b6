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

/// The ends of the names of gpt-oss's blocks of 32 columns, and of their scales. The first two mean
/// the transposed weight.
const BLOCKS: [&str; 4] = ["_blocks", "_scales", ".blocks", ".scales"];

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

    /// Returns the role of a tensor of blocks in the transposed weight. `None` for other tensors.
    fn of_transposed(&self) -> Option<Self> {
        let Self::OfWeight(end) = self else { return None };
        let at = BLOCKS.iter().position(|block| block == end)?;
        Some(Self::OfWeight(BLOCKS[(at + 2) % 4].to_owned()))
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
    pub(super) role: Role,
    pub(super) form: Arranged,
    /// The shape of the weight.
    pub(super) shape: Vec<usize>,
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
        let axes = match role.of_transposed() {
            Some(_) => axes_of_blocks(&role, tensor.shape.len(), weight.shape.len())?,
            None => axes(&weight.shape, &tensor.shape, sizes)?,
        };
        let (form, shape) = (Arranged::tensor(&*tensor.name), weight.shape.clone());
        parts.insert(role.clone(), Part { role, form, shape, axes });
    }
    // The codes of other schemes have their own names, and their own order.
    parts.keys().any(|role| matches!(role, Role::OfWeight(_))).then_some(parts)
}

/// Returns the dimensions of blocks, `[.., rows, groups, 16]`, or of their scales.
fn axes_of_blocks(role: &Role, stored: usize, ndim: usize) -> Option<Vec<Axis>> {
    let lead = ndim.checked_sub(2)?;
    let mut axes: Vec<_> = (0..lead + 1).map(|dim| Axis::Groups { dim, size: 1 }).collect();
    axes.push(Axis::Groups { dim: lead + 1, size: 32 });
    if role.name("").starts_with('_') {
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
    /// Takes positions of a dimension of the weight. `None` if there is no such part.
    pub(super) fn slice(mut self, of: usize, taken: TakenDim) -> Option<Self> {
        let Positions { start, count, step } = taken.positions;
        let len = *self.shape.get(of)?;
        let end = start + count;
        let index = match *self.axes.get(of)? {
            Axis::Shared => None,
            _ if taken.keeps_dim && count == len => None,
            Axis::Groups { dim, size: 1 } if !taken.keeps_dim => Some((dim, Index::from(start))),
            Axis::Groups { dim, size: 1 } => {
                let end = start + count.saturating_sub(1) * step + count.min(1);
                Some((dim, Index::from(start..end).step(step)))
            }
            Axis::Groups { dim, size }
                if taken.keeps_dim
                    && (step == 1 || count < 2)
                    && start.is_multiple_of(size)
                    && (end == len || end.is_multiple_of(size)) =>
            {
                Some((dim, Index::from(start / size..end.div_ceil(size))))
            }
            _ => return None,
        };
        self.shape[of] = count;
        if !taken.keeps_dim {
            self.shape.remove(of);
            self.axes.remove(of);
        }
        if let Some((dim, index)) = index {
            self.form = self.form.slice(dim, index);
            if !taken.keeps_dim {
                self.axes.iter_mut().for_each(|axis| axis.shift(dim, -1));
            }
        }
        Some(self)
    }

    /// Exchanges the last two dimensions of the weight. `None` if there is no such part.
    pub(super) fn transposed(mut self) -> Option<Self> {
        let dim = self.shape.len().checked_sub(2)?;
        self.shape.swap(dim, dim + 1);
        match (self.role.of_transposed(), self.axes[dim], self.axes[dim + 1]) {
            (Some(role), ..) => {
                self.role = role;
                self.axes.swap(dim, dim + 1);
            }
            (None, Axis::Shared, Axis::Shared) => {}
            (None, Axis::Groups { size, .. }, Axis::Groups { size: other, .. })
                if size == other =>
            {
                self.form = self.form.transposed();
            }
            _ => return None,
        }
        Some(self)
    }

    /// Joins parts of weights. `None` if there is no such part.
    pub(super) fn joined(join: Join, dim: usize, members: Vec<Self>) -> Option<Self> {
        let mut joined = members.first()?.clone();
        if members.iter().any(|it| it.axes != joined.axes || it.role != joined.role) {
            return None;
        }
        let forms = members.iter().map(|member| member.form.clone());
        if join == Join::Stacked {
            joined.form = Arranged::stack(forms);
            joined.shape.insert(0, members.len());
            joined.axes.iter_mut().for_each(|axis| axis.shift(0, 1));
            joined.axes.insert(0, Axis::Groups { dim: 0, size: 1 });
            return Some(joined);
        }
        let lens = members.iter().map(|member| member.shape.get(dim).copied());
        let lens: Vec<_> = lens.collect::<Option<_>>()?;
        joined.shape[dim] = lens.iter().fold(0, |sum: usize, len| sum.saturating_add(*len));
        match joined.axes[dim] {
            _ if members.len() == 1 => {}
            Axis::Shared if members.iter().all(|it| it.form == joined.form) => {}
            // All but the last end with a group.
            Axis::Groups { dim, size }
                if lens[..lens.len() - 1].iter().all(|len| len.is_multiple_of(size))
                    && (join == Join::OneAfterAnother || size == 1) =>
            {
                joined.form = Arranged::joined(join, dim, forms);
            }
            _ => return None,
        }
        Some(joined)
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
