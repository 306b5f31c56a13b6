//! [`Pair`]: the tensors of two checkpoints that are compared with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use safetensors_core::load::Piece;

use crate::input::other::{self, Kind, Shown};
use crate::input::renames::Renames;
use crate::input::{Checkpoint, Source, Tensor};
use crate::model::order;
use crate::terminal::text;

/// A name, and the tensors that the sides have under it.
pub(super) struct Pair<'a> {
    pub(super) name: String,
    /// The aliases of both sides' tensors, except for names that are pairs of their own.
    aliases: BTreeSet<String>,
    pub(super) a: Option<Part<'a>>,
    pub(super) b: Option<Part<'a>>,
}

/// A tensor, or one of several equal parts: an expert of a stack, a half of fused projections.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    tensor: Tensor<'a>,
    pub(super) shape: &'a [usize],
    /// The number of this part, and of all parts.
    part: u64,
    parts: u64,
}

/// The name and the number of dimensions of each expert.
type Experts = BTreeMap<usize, (String, usize)>;

type Parts<'a> = BTreeMap<String, Part<'a>>;

impl<'a> Part<'a> {
    fn whole(tensor: Tensor<'a>) -> Self {
        Self { tensor, shape: Shown::of(&tensor).shape(), part: 0, parts: 1 }
    }

    /// Returns one of `parts` equal parts of this.
    fn nth(self, part: usize, parts: usize, shape: &'a [usize]) -> Self {
        let part = self.part * parts as u64 + part as u64;
        Self { shape, part, parts: self.parts * parts as u64, ..self }
    }

    /// Returns `true` if the first dimension counts these experts, which have all other dimensions.
    fn stacks(&self, experts: &Experts) -> bool {
        let Some((ndim, count)) = experts.get(&0).map(|(_, ndim)| (ndim, experts.len())) else {
            return false;
        };
        self.shape.len() == ndim + 1
            && self.shape[0] == count
            && experts.keys().copied().eq(0..count)
            && self.has_parts(count)
    }

    /// Returns `true` if this can be divided into equal parts of whole bytes.
    fn has_parts(&self, parts: usize) -> bool {
        let is_divided = self.tensor.byte_len().is_multiple_of(self.parts * parts as u64);
        is_divided && Shown::of(&self.tensor).stored.is_none()
    }

    pub(super) fn kind(&self) -> Kind<'a> {
        Shown::of(&self.tensor).kind()
    }

    pub(super) fn byte_len(&self) -> u64 {
        self.pieces().map(|piece| piece.byte_len()).sum()
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece<'a, Source>> + use<'a> {
        let len = self.tensor.element_count() / self.parts;
        self.tensor.pieces_of(self.part * len..(self.part + 1) * len)
    }

    fn is_read(&self) -> bool {
        !Shown::of(&self.tensor).is_unread()
    }
}

impl<'a> Pair<'a> {
    fn new(name: String, a: Option<Part<'a>>, b: Option<Part<'a>>) -> (String, Self) {
        (name.clone(), Self { name, aliases: BTreeSet::new(), a, b })
    }

    /// Its name, and the aliases.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }

    /// Both sides, if their values can be compared.
    pub(super) fn comparable(&self) -> Option<(Part<'a>, Part<'a>)> {
        let (a, b) = self.a.zip(self.b)?;
        (a.shape == b.shape && a.is_read() && b.is_read()).then_some((a, b))
    }

    /// Returns the reason why the values of a side cannot be read, if they cannot.
    pub(super) fn why_unread(&self) -> Option<String> {
        [self.a, self.b].iter().flatten().find_map(|part| other::why_unread(&part.tensor))
    }

    /// Returns `true` if both sides have a tensor of the same shape and, unless `any_dtype`, dtype.
    pub(super) fn has_equal_headers(&self, any_dtype: bool) -> bool {
        self.a
            .zip(self.b)
            .is_some_and(|(a, b)| a.shape == b.shape && (any_dtype || a.kind() == b.kind()))
    }
}

/// Finds the tensor of B for each tensor of A, by its new name, also where one side has it under
/// the name of an alias. Sorted by name, with numbers by their value.
pub(super) fn pairs<'a>(
    a: &'a Checkpoint,
    b: &'a Checkpoint,
    renames: &Renames<'_>,
) -> anyhow::Result<Vec<Pair<'a>>> {
    let mut left = Parts::new();
    for tensor in a.tensors() {
        let name = renames.apply(tensor.name());
        if let Some(other) = left.insert(name.clone(), Part::whole(tensor)) {
            let both = text::some([other.tensor.name(), tensor.name()]);
            anyhow::bail!("--rename: {both} of A get the same name: {}", text::name(&name));
        }
    }
    let mut right: Parts<'a> =
        b.tensors().map(|it| (it.name().to_owned(), Part::whole(it))).collect();
    divide(&mut left, &right);
    divide(&mut right, &left);
    let mut pairs = BTreeMap::new();
    for (name, a) in left {
        let b = right.remove(&name).or_else(|| b.get(&name).map(Part::whole));
        pairs.extend([Pair::new(name, Some(a), b)]);
    }
    let aliases = a.aliases().map(|(alias, tensor)| (renames.apply(alias), tensor));
    let mut aliases: BTreeMap<_, _> = aliases.collect();
    for (name, b) in right {
        let a = aliases.remove(&name).map(Part::whole);
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

/// Divides tensors into the ones that the other side has: a stack of experts, `experts.w`, into
/// `experts.0.w`, `experts.1.w` and so on; `gate_up_proj` into its first half `gate_proj`, and
/// `up_proj`. A stack may have fused projections.
fn divide<'a>(parts: &mut Parts<'a>, other: &Parts<'a>) {
    let mut stacks: BTreeMap<String, Experts> = BTreeMap::new();
    for (name, part) in other {
        for name in BTreeSet::from([name.clone(), name.replace(".gate_proj", ".gate_up_proj")]) {
            for (dot, _) in name.match_indices('.').filter(|_| !parts.contains_key(&name)) {
                let Some((number, rest)) = name[dot + 1..].split_once('.') else { continue };
                if let Ok(number) = number.parse() {
                    let experts = stacks.entry(format!("{}.{rest}", &name[..dot])).or_default();
                    experts.insert(number, (name.clone(), part.shape.len()));
                }
            }
        }
    }
    for (name, experts) in stacks {
        let count = experts.len();
        let Some(&stack) = parts.get(&name).filter(|it| it.stacks(&experts)) else { continue };
        parts.remove(&name);
        for (expert, (name, _)) in experts {
            parts.insert(name, stack.nth(expert, count, &stack.shape[1..]));
        }
    }
    split_gate_up(parts, other);
}

/// Divides fused projections into their rows of `gate_proj`, which come first, and of `up_proj`.
fn split_gate_up<'a>(parts: &mut Parts<'a>, other: &Parts<'a>) {
    let fused: Vec<_> = parts.keys().filter(|it| it.contains(".gate_up_proj")).cloned().collect();
    for name in fused {
        let halves = ["gate", "up"].map(|half| name.replace("gate_up", half));
        let [Some(gate), Some(up)] = halves.each_ref().map(|half| other.get(half)) else {
            continue;
        };
        let Some((rows, columns)) = gate.shape.split_first() else { continue };
        let both = Some((&rows.saturating_mul(2), columns));
        let is_fused = |it: &&Part<'_>| it.shape.split_first() == both && it.has_parts(2);
        let Some(&part) = parts.get(&name).filter(is_fused).filter(|_| gate.shape == up.shape)
        else {
            continue;
        };
        parts.remove(&name);
        for (half, name) in halves.into_iter().enumerate() {
            parts.insert(name, part.nth(half, 2, gate.shape));
        }
    }
}
