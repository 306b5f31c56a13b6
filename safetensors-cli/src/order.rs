//! [`Sort`]: the order of tensors and modules; and how names are taken apart for it.

use std::cmp::{Ordering, Reverse};

use safetensors_core::{Dtype, LazyTensor, TensorInfo};

/// Names are split so many times at most: what is left of a hostile one is a single part.
const MAX_PARTS: usize = 24;

/// The order of modules and tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By name, numbers by their value
    Name,
    /// The largest first
    Size,
    /// As they lie in the files
    Offset,
    /// By dtype, then by name
    Dtype,
}

/// What can be put in order.
pub(crate) trait Sortable {
    /// How large it is.
    fn bytes(&self) -> u128;

    /// The dtype of it, or of the first tensor in it.
    fn dtype(&self) -> Option<Dtype>;

    /// Where it, or the first tensor in it, stands in the checkpoint.
    fn position(&self) -> usize;
}

impl Sort {
    /// Puts what is in the order of names into this one. What is alike in it stays in the order of
    /// names.
    pub(crate) fn apply<T: Sortable>(self, items: &mut [T]) {
        match self {
            Self::Name => {}
            Self::Size => items.sort_by_key(|item| Reverse(item.bytes())),
            Self::Offset => items.sort_by_key(T::position),
            Self::Dtype => items.sort_by_key(T::dtype),
        }
    }

    /// The tensors in this order; they are given in that of the checkpoint.
    pub(crate) fn tensors<'a, S>(self, tensors: Vec<LazyTensor<'a, S>>) -> Vec<LazyTensor<'a, S>> {
        if self == Self::Offset {
            return tensors;
        }
        let (mut entries, _) = by_name(&tensors);
        self.apply(&mut entries);
        entries.iter().map(|entry| tensors[entry.position]).collect()
    }
}

/// A tensor among others, its name taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) parts: Vec<&'a str>,
    pub(crate) info: TensorInfo<'a>,
    /// Where it stands among the others.
    pub(crate) position: usize,
}

impl Sortable for Entry<'_> {
    fn bytes(&self) -> u128 {
        self.info.byte_len().into()
    }

    fn dtype(&self) -> Option<Dtype> {
        Some(self.info.dtype())
    }

    fn position(&self) -> usize {
        self.position
    }
}

/// Tensors in the order of their names, part by part, and what separates the parts.
pub(crate) fn by_name<'a, S>(tensors: &[LazyTensor<'a, S>]) -> (Vec<Entry<'a>>, char) {
    let separator = separator(tensors.iter().map(LazyTensor::name));
    let entry = |(position, tensor): (usize, &LazyTensor<'a, S>)| {
        let parts = tensor.name().splitn(MAX_PARTS, separator).collect();
        Entry { parts, info: tensor.info(), position }
    };
    let mut entries: Vec<_> = tensors.iter().enumerate().map(entry).collect();
    entries.sort_by(|a, b| compare_parts(&a.parts, &b.parts));
    (entries, separator)
}

/// Names are paths, with dots as PyTorch writes them or slashes as JAX and TensorFlow do.
fn separator<'a>(names: impl Iterator<Item = &'a str>) -> char {
    let (mut dots, mut slashes) = (0_usize, 0_usize);
    for name in names {
        dots += usize::from(name.contains('.'));
        slashes += usize::from(name.contains('/'));
    }
    if slashes > dots { '/' } else { '.' }
}

/// Names part by part; a name before those that it is the start of.
fn compare_parts(a: &[&str], b: &[&str]) -> Ordering {
    let differing = a.iter().zip(b).map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
    differing.unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// Two parts of names: both numbers by value, else as text.
fn compare(a: &str, b: &str) -> Ordering {
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        // Numbers stand together, so that the order is one.
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// The number that a part of a name is. With a leading zero it is none: it would not be the same
/// name any more.
pub(crate) fn number(part: &str) -> Option<u64> {
    let is_plain = (1..=15).contains(&part.len()) && (part.len() == 1 || !part.starts_with('0'));
    if is_plain && part.bytes().all(|byte| byte.is_ascii_digit()) {
        part.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_by_value_and_before_words() {
        let mut parts = ["b", "10", "9", "", "a", "007", "1234567890123456"];
        parts.sort_by(|a, b| compare(a, b));
        assert_eq!(parts, ["9", "10", "", "007", "1234567890123456", "a", "b"]);
        assert_eq!(compare_parts(&["a"], &["a", "b"]), Ordering::Less);
    }

    #[test]
    fn names_are_split_where_most_of_them_are() {
        assert_eq!(separator(["a.b", "a/b.c", "x/y", "z/y"].into_iter()), '/');
        assert_eq!(separator(["a.b", "a/b"].into_iter()), '.');
        assert_eq!(separator(std::iter::empty()), '.');
    }
}
