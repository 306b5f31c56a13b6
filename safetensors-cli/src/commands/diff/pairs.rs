//! [`Pair`]: the tensors of two checkpoints that are compared with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use safetensors_core::load::Piece;

use crate::input::other::{self, Kind};
use crate::input::renames::Renames;
use crate::input::{Checkpoint, Source, Tensor};
use crate::terminal::text;

/// A name, and the tensors that the sides have under it.
pub(super) struct Pair<'a> {
    pub(super) name: String,
    /// The aliases of both sides' tensors, except for names that are pairs of their own.
    aliases: BTreeSet<String>,
    pub(super) a: Option<Part<'a>>,
    pub(super) b: Option<Part<'a>>,
}

/// A tensor, or one expert of a tensor that stacks several.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) tensor: Tensor<'a>,
    expert: Option<usize>,
}

type Parts<'a> = BTreeMap<String, Part<'a>>;

impl<'a> Part<'a> {
    pub(super) fn kind(&self) -> Kind<'a> {
        other::kind(&self.tensor)
    }

    pub(super) fn shape(&self) -> &'a [usize] {
        let shape = other::shape(self.tensor.info(), other::stored(&self.tensor));
        &shape[usize::from(self.expert.is_some())..]
    }

    pub(super) fn byte_len(&self) -> u64 {
        self.pieces().map(|piece| piece.byte_len()).sum()
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece<'a, Source>> + use<'a> {
        let all = self.tensor.element_count();
        let range = match self.expert {
            Some(expert) => {
                let len = all / self.tensor.shape()[0] as u64;
                expert as u64 * len..(expert as u64 + 1) * len
            }
            None => 0..all,
        };
        self.tensor.pieces_of(range)
    }

    fn is_read(&self) -> bool {
        !other::stored(&self.tensor).is_some_and(other::is_unread)
    }
}

impl<'a> Pair<'a> {
    fn new(name: String, a: Option<Part<'a>>, b: Option<Part<'a>>) -> Self {
        Self { name, aliases: BTreeSet::new(), a, b }
    }

    /// Its name, and the aliases.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }

    /// Both sides, if their values can be compared.
    pub(super) fn comparable(&self) -> Option<(Part<'a>, Part<'a>)> {
        let (a, b) = self.a.zip(self.b)?;
        (a.shape() == b.shape() && a.is_read() && b.is_read()).then_some((a, b))
    }

    /// Returns the reason why the values of a side cannot be read, if they cannot.
    pub(super) fn why_unread(&self) -> Option<String> {
        [self.a, self.b].iter().flatten().find_map(|part| other::why_unread(&part.tensor))
    }

    /// Returns `true` if both sides have a tensor of the same shape and, unless `any_dtype`, dtype.
    pub(super) fn has_equal_headers(&self, any_dtype: bool) -> bool {
        let same = |(a, b): (Part<'_>, Part<'_>)| {
            a.shape() == b.shape() && (any_dtype || a.kind() == b.kind())
        };
        self.a.zip(self.b).is_some_and(same)
    }
}

/// Finds the tensor of B for each tensor of A, by its new name, also where one side has it under
/// the name of an alias. Sorted by name.
pub(super) fn pairs<'a>(
    a: &'a Checkpoint,
    b: &'a Checkpoint,
    renames: &Renames<'_>,
) -> anyhow::Result<Vec<Pair<'a>>> {
    let part = |tensor| Part { tensor, expert: None };
    let mut left = Parts::new();
    for tensor in a.tensors() {
        let name = renames.apply(tensor.name());
        if let Some(other) = left.insert(name.clone(), part(tensor)) {
            let both = text::some([other.tensor.name(), tensor.name()]);
            anyhow::bail!("--rename: {both} of A get the same name: {}", text::name(&name));
        }
    }
    let mut right: Parts<'a> = b.tensors().map(|it| (it.name().to_owned(), part(it))).collect();
    unstack(&mut left, &right);
    unstack(&mut right, &left);
    let mut pairs = Vec::with_capacity(left.len());
    for (name, a) in left {
        let b = right.remove(&name).or_else(|| b.get(&name).map(part));
        pairs.push(Pair::new(name, Some(a), b));
    }
    let aliases = a.aliases().map(|(alias, tensor)| (renames.apply(alias), part(tensor)));
    let mut aliases: Parts<'a> = aliases.collect();
    for (name, b) in right {
        let a = aliases.remove(&name);
        pairs.push(Pair::new(name, a, Some(b)));
    }
    pairs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let ours = aliases.into_iter().map(|(alias, it)| (alias, renames.apply(it.tensor.name())));
    let theirs = b.aliases().map(|(alias, it)| (alias.to_owned(), it.name().to_owned()));
    let position = |pairs: &[Pair<'_>], name: &str| {
        pairs.binary_search_by(|pair| pair.name.as_str().cmp(name))
    };
    for (alias, name) in ours.chain(theirs) {
        if position(&pairs, &alias).is_err()
            && let Ok(position) = position(&pairs, &name)
        {
            pairs[position].aliases.insert(alias);
        }
    }
    Ok(pairs)
}

/// Divides tensors that stack the experts which the other side has one by one: `experts.w` becomes
/// `experts.0.w`, `experts.1.w` and so on.
fn unstack(parts: &mut Parts<'_>, other: &Parts<'_>) {
    let mut experts: BTreeMap<String, BTreeMap<usize, &str>> = BTreeMap::new();
    for name in other.keys().filter(|name| !parts.contains_key(*name)) {
        for (dot, _) in name.match_indices('.') {
            let Some((number, rest)) = name[dot + 1..].split_once('.') else { continue };
            if let Ok(number) = number.parse() {
                let stacked = format!("{}.{rest}", &name[..dot]);
                experts.entry(stacked).or_default().insert(number, name);
            }
        }
    }
    for (name, experts) in experts {
        let Some(&part) = parts.get(&name).filter(|it| it.stacks(&experts, other)) else {
            continue;
        };
        parts.remove(&name);
        for (expert, name) in experts {
            parts.insert(name.to_owned(), Part { expert: Some(expert), ..part });
        }
    }
}

impl Part<'_> {
    /// Returns `true` if the first dimension counts these experts.
    fn stacks(&self, experts: &BTreeMap<usize, &str>, other: &Parts<'_>) -> bool {
        let Some((&last, name)) = experts.last_key_value() else { return false };
        let ndim = other.get(*name).map_or(0, |expert| expert.shape().len());
        self.shape().len() == ndim + 1
            && self.shape()[0] == last + 1
            && experts.len() == last + 1
            && self.tensor.byte_len().is_multiple_of(last as u64 + 1)
            && other::stored(&self.tensor).is_none()
    }
}
