//! [`Arranged`]: a tensor that is made of others, and checkpoints with such tensors.
//!
//! `value.rs` finds the elements, and `plan.rs` the names that are used up.

mod plan;
#[cfg(test)]
mod tests;
mod value;

use plan::ArrangedPlan;
use value::Value;

use crate::checkpoint::{Checkpoint, Computed, NewTensor, Replacement};
use crate::file::io::ReadAt;
#[cfg(doc)]
use crate::format::error::ErrorKind;
use crate::format::error::Result;
use crate::format::slice::Index;

/// A tensor that is made of tensors of a checkpoint: of slices, transposes, stacks.
///
/// [`Checkpoint::arranged`] checks it.
///
/// ```
/// use safetensors_core::checkpoint::Arranged;
/// use safetensors_core::slice::Index;
///
/// // The up projection of expert 3, from a stack of fused and transposed ones.
/// let fused = Arranged::tensor("experts.gate_up_proj").slice(0, 3);
/// let up = fused.slice(1, Index::from(1..).step(2)).transposed();
/// // The reverse, for one layer.
/// let name = |expert: usize, part| format!("experts.{expert}.{part}_proj.weight");
/// let fused = |expert| {
///     let parts = ["gate", "up"].map(|part| Arranged::tensor(name(expert, part)));
///     Arranged::interleaved(0, parts).transposed()
/// };
/// let stack = Arranged::stack((0..8).map(fused));
/// # _ = (up, stack);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arranged(pub(crate) Form);

/// The form of an [`Arranged`] tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Tensor(String),
    Slice(Box<Form>, usize, Index),
    Transposed(Box<Form>),
    Joined(Join, usize, Vec<Form>),
}

/// How the members of a tensor follow each other in a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    OneAfterAnother,
    Interleaved,
    /// The dimension is new.
    Stacked,
}

impl Arranged {
    /// The whole tensor of this name or alias.
    pub fn tensor(name: impl Into<String>) -> Self {
        Self(Form::Tensor(name.into()))
    }

    /// Takes positions of a dimension: a range, which may have a [step](Index::step), or a single
    /// one, which removes the dimension.
    #[must_use]
    pub fn slice(self, dim: usize, positions: impl Into<Index>) -> Self {
        Self(Form::Slice(Box::new(self.0), dim, positions.into()))
    }

    /// Exchanges the last two dimensions.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self(Form::Transposed(Box::new(self.0)))
    }

    /// Puts members one after another in a dimension. All other dimensions are equal.
    pub fn concat(dim: usize, members: impl IntoIterator<Item = Self>) -> Self {
        Self::joined(Join::OneAfterAnother, dim, members)
    }

    /// Puts members of equal shapes into a dimension by turns: position `i` of member `k` of `n` is
    /// at `i * n + k`.
    pub fn interleaved(dim: usize, members: impl IntoIterator<Item = Self>) -> Self {
        Self::joined(Join::Interleaved, dim, members)
    }

    /// Stacks members of equal shapes in a new first dimension.
    pub fn stack(members: impl IntoIterator<Item = Self>) -> Self {
        Self::joined(Join::Stacked, 0, members)
    }

    pub(crate) fn joined(join: Join, dim: usize, members: impl IntoIterator<Item = Self>) -> Self {
        Self(Form::Joined(join, dim, members.into_iter().map(|member| member.0).collect()))
    }
}

impl Form {
    /// Returns the names of the tensors.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Self::Tensor(name) => vec![name],
            Self::Slice(form, ..) | Self::Transposed(form) => form.names(),
            Self::Joined(.., forms) => forms.iter().flat_map(Self::names).collect(),
        }
    }

    /// Finds the elements.
    fn value<'a, S: ReadAt>(&self, checkpoint: &'a Checkpoint<S>) -> Result<Value<'a, S>> {
        match self {
            Self::Tensor(name) => Ok(Value::new(checkpoint.tensor(name)?)),
            Self::Slice(form, dim, index) => form.value(checkpoint)?.slice(*dim, *index),
            Self::Transposed(form) => form.value(checkpoint)?.transposed(),
            Self::Joined(join, dim, forms) => {
                let members = forms.iter().map(|form| form.value(checkpoint));
                Value::join(*join, *dim, members.collect::<Result<_>>()?)
            }
        }
    }
}

impl<S: ReadAt> Checkpoint<S> {
    /// Makes tensors of others, by name. Their bytes are those of the stored tensors, in another
    /// order, for every dtype. Reading a part of one reads the bytes of that part, and small gaps
    /// between them. Nothing is read yet.
    ///
    /// A name that an arrangement uses is gone, unless it is the name of an arranged tensor. All
    /// other names stay, also another [name](Checkpoint::aliases) of the same tensor. An arranged
    /// tensor is in the file of its first source, in the place of that.
    ///
    /// ```
    /// use safetensors_core::checkpoint::Arranged;
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
    ///
    /// let values: Vec<i32> = (0..12).collect();
    /// let experts = TensorView::from_slice(&[2, 2, 3], &values)?;
    /// let bytes = serialize([("experts", experts)], &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?;
    /// let expert = |number: usize| Arranged::tensor("experts").slice(0, number).transposed();
    /// let split = checkpoint.arranged([("experts.0", expert(0)), ("experts.1", expert(1))])?;
    /// assert!(split.get("experts").is_none());
    /// let last = split.tensor("experts.1")?;
    /// assert_eq!(last.shape(), [3, 2]);
    /// assert_eq!(last.slice((1..,))?.read()?.as_slice::<i32>()?, [7, 10, 8, 11]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TensorNotFound`]; [`ErrorKind::IndexOutOfBounds`], [`ErrorKind::ZeroStep`] and
    ///   [`ErrorKind::NoSuchDim`]; [`ErrorKind::WrongShape`] and [`ErrorKind::WrongDtype`] for
    ///   members that differ, [`ErrorKind::NoMembers`] if there are none.
    /// - [`ErrorKind::SliceInsideByte`] and [`ErrorKind::PartialByte`] for elements of a sub-byte
    ///   dtype that do not fill bytes; [`ErrorKind::ShapeOverflow`].
    /// - [`ErrorKind::DuplicateTensor`] for a name that is given twice, or that stays;
    ///   [`ErrorKind::ReservedName`].
    pub fn arranged<N: Into<String>>(
        self,
        tensors: impl IntoIterator<Item = (N, Arranged)>,
    ) -> Result<Checkpoint<Computed<S>>> {
        let mut plan = ArrangedPlan::default();
        for (name, arranged) in tensors {
            plan.add(&name.into(), arranged.0.value(&self)?, arranged.0.names())?;
        }
        let aliases = plan.finish(&self)?;
        self.computed(Replacement {
            tensors: plan.tensors.into_iter().map(NewTensor::Strided).collect(),
            instead: plan.instead.iter().map(|(name, it)| (&**name, it.clone())).collect(),
            added: Vec::new(),
            others: Vec::new(),
            metadata: &|metadata| {
                let mut changed = metadata.clone();
                for (alias, name) in &aliases {
                    if changed.remove(alias).is_some() {
                        changed.extend(name.clone().map(|name| (alias.clone(), name)));
                    }
                }
                changed
            },
        })
    }
}
