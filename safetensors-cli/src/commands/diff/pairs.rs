//! [`Pair`]: the tensors of two checkpoints that are compared with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use crate::input::other::{self, DisplayedTensor, Kind};
use crate::input::renames::Renames;
use crate::input::{Checkpoint, Tensor};
use crate::model::order;
use crate::terminal::text;

/// A name, and the tensors that the sides have under it.
pub(super) struct Pair<'a> {
    pub(super) name: String,
    /// The aliases of both sides' tensors, except for names that are pairs of their own.
    aliases: BTreeSet<String>,
    pub(super) a: Option<Tensor<'a>>,
    pub(super) b: Option<Tensor<'a>>,
}

impl<'a> Pair<'a> {
    fn new(name: String, a: Option<Tensor<'a>>, b: Option<Tensor<'a>>) -> (String, Self) {
        (name.clone(), Self { name, aliases: BTreeSet::new(), a, b })
    }

    /// Its name, and the aliases.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }

    /// Both sides, if their values can be compared.
    pub(super) fn comparable(&self) -> Option<(Tensor<'a>, Tensor<'a>)> {
        let (a, b) = self.a.zip(self.b)?;
        let is_read = [&a, &b].iter().all(|tensor| !DisplayedTensor::new(tensor).is_unread());
        (shape(&a) == shape(&b) && is_read).then_some((a, b))
    }

    /// Returns the reason why the values of a side cannot be read, if they cannot.
    pub(super) fn why_unread(&self) -> Option<String> {
        [self.a, self.b].iter().flatten().find_map(other::why_unread)
    }

    /// Returns `true` if both sides have a tensor of the same shape and, unless `any_dtype`, dtype.
    pub(super) fn has_equal_headers(&self, any_dtype: bool) -> bool {
        self.a
            .zip(self.b)
            .is_some_and(|(a, b)| shape(&a) == shape(&b) && (any_dtype || kind(&a) == kind(&b)))
    }
}

/// Finds the tensor of B for each tensor of A, by its new name, also where one side has it under
/// the name of an alias. Sorted by name, with numbers by their value.
pub(super) fn pairs<'a>(
    a: &'a Checkpoint,
    b: &'a Checkpoint,
    renames: &Renames<'_>,
) -> anyhow::Result<Vec<Pair<'a>>> {
    let mut left = BTreeMap::new();
    for tensor in a.tensors() {
        let name = renames.apply(tensor.name());
        if let Some(other) = left.insert(name.clone(), tensor) {
            let both = text::some([other.name(), tensor.name()]);
            anyhow::bail!("--rename: {both} of A get the same name: {}", text::name(&name));
        }
    }
    let right = b.tensors().map(|tensor| (tensor.name().to_owned(), tensor));
    let mut right: BTreeMap<String, Tensor<'a>> = right.collect();
    let mut pairs = BTreeMap::new();
    for (name, a) in left {
        let b = right.remove(&name).or_else(|| b.get(&name));
        pairs.extend([Pair::new(name, Some(a), b)]);
    }
    let aliases = a.aliases().map(|(alias, tensor)| (renames.apply(alias), tensor));
    let mut aliases: BTreeMap<_, _> = aliases.collect();
    for (name, b) in right {
        let a = aliases.remove(&name);
        pairs.extend([Pair::new(name, a, Some(b))]);
    }
    let ours = aliases.into_iter().map(|(alias, it)| (alias, renames.apply(it.name())));
    let theirs = b.aliases().map(|(alias, it)| (alias.to_owned(), it.name().to_owned()));
    for (alias, name) in ours.chain(theirs) {
        if !pairs.contains_key(&alias)
            && let Some(pair) = pairs.get_mut(&name)
        {
            pair.aliases.insert(alias);
        }
    }
    let mut pairs: Vec<_> = pairs.into_values().collect();
    order::by_name(&mut pairs, |pair| &pair.name);
    Ok(pairs)
}

pub(super) fn shape<'a>(tensor: &Tensor<'a>) -> &'a [usize] {
    DisplayedTensor::new(tensor).shape()
}

pub(super) fn kind<'a>(tensor: &Tensor<'a>) -> Kind<'a> {
    DisplayedTensor::new(tensor).kind()
}
