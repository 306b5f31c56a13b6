//! [`Sort`]: the order of tensors and modules, and how names are split for it.

use std::cmp::{Ordering, Reverse};

use safetensors_core::header::TensorInfo;
use safetensors_core::{Dtype, LazyTensor};

/// The most parts of a name. The rest of a longer, hostile name is a single part.
const MAX_PARTS: usize = 24;

/// The order of modules and tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sort {
    /// By name; numbers in it by value
    Name,
    /// The largest first
    Size,
    /// By position in the files
    Offset,
    /// By dtype, then by name
    Dtype,
}

/// An item that can be sorted.
pub(crate) trait Sortable {
    /// The size in bytes.
    fn bytes(&self) -> u128;

    /// The dtype of the item, or of the first tensor in it.
    fn dtype(&self) -> Option<Dtype>;

    /// The position in the checkpoint of the item, or of the first tensor in it.
    fn position(&self) -> usize;
}

impl Sort {
    /// Sorts items that are in the order of names. Items that compare equal stay in that order.
    pub(crate) fn apply<T: Sortable>(self, items: &mut [T]) {
        match self {
            Self::Name => {}
            Self::Size => items.sort_by_key(|item| Reverse(item.bytes())),
            Self::Offset => items.sort_by_key(T::position),
            Self::Dtype => items.sort_by_key(T::dtype),
        }
    }

    /// Sorts tensors that are in the checkpoint's order.
    pub(crate) fn tensors<'a, S>(self, tensors: Vec<LazyTensor<'a, S>>) -> Vec<LazyTensor<'a, S>> {
        if self == Self::Offset {
            return tensors;
        }
        let (mut entries, _) = by_name(&tensors);
        self.apply(&mut entries);
        entries.iter().map(|entry| tensors[entry.position]).collect()
    }
}

/// A tensor with its name split into parts.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) parts: Vec<&'a str>,
    pub(crate) info: TensorInfo<'a>,
    /// Its position among the given tensors.
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

/// Sorts tensors by name, part by part. Also returns the separator of the parts.
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

/// The separator that more names have: dots, as in PyTorch, or slashes, as in JAX and TensorFlow.
fn separator<'a>(names: impl Iterator<Item = &'a str>) -> char {
    let (mut dots, mut slashes) = (0_usize, 0_usize);
    for name in names {
        dots += usize::from(name.contains('.'));
        slashes += usize::from(name.contains('/'));
    }
    if slashes > dots { '/' } else { '.' }
}

/// Compares names part by part. A prefix comes before the longer name.
fn compare_parts(a: &[&str], b: &[&str]) -> Ordering {
    let differing = a.iter().zip(b).map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
    differing.unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// Compares two parts of names: two numbers by value, anything else as text.
fn compare(a: &str, b: &str) -> Ordering {
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        // All numbers come before all text, so that the order is total.
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// A part of a name as a number. `None` with a leading zero: `007` and `7` are different names.
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
