//! [`Sort`]: the order of tensors and modules.

use std::cmp::Ordering;

use safetensors_core::LazyTensor;

use crate::terminal::text::Natural;

/// The rest of a longer, hostile name is one part.
pub(crate) const MAX_PARTS: usize = 24;

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

impl Sort {
    // Sorts in place, because there may be a million tensors.
    pub(crate) fn apply<S>(self, tensors: &mut [LazyTensor<'_, S>]) {
        if self == Self::Offset {
            return;
        }
        let separator = separator(tensors.iter().map(LazyTensor::name));
        tensors.sort_unstable_by(|a, b| {
            let order = match self {
                Self::Name | Self::Offset => Ordering::Equal,
                Self::Size => b.byte_len().cmp(&a.byte_len()),
                Self::Dtype => a.dtype().cmp(&b.dtype()),
            };
            order.then_with(|| compare_names(a.name(), b.name(), separator))
        });
    }
}

/// Sorts items by name, part by part. Returns the separator of the parts.
pub(crate) fn by_name<T>(items: &mut [T], name: impl Fn(&T) -> &str) -> char {
    let separator = separator(items.iter().map(&name));
    items.sort_unstable_by(|a, b| compare_names(name(a), name(b), separator));
    separator
}

/// Returns the separator of most names: dots, as in PyTorch, or slashes, as in JAX and TensorFlow.
fn separator<'a>(names: impl Iterator<Item = &'a str>) -> char {
    let (mut dots, mut slashes) = (0_usize, 0_usize);
    for name in names {
        dots += usize::from(name.contains('.'));
        slashes += usize::from(name.contains('/'));
    }
    if slashes > dots { '/' } else { '.' }
}

/// A prefix comes before the longer name.
fn compare_names(a: &str, b: &str, separator: char) -> Ordering {
    let parts = |name| str::splitn(name, MAX_PARTS, separator).map(|part| Natural(part.into()));
    parts(a).cmp(parts(b))
}

/// Returns `None` with a leading zero: `007` and `7` are different names.
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
    fn names_go_part_by_part_and_numbers_by_value() {
        assert_eq!(compare_names("a", "a.b", '.'), Ordering::Less);
        assert_eq!(compare_names("a.10", "a.9.b", '.'), Ordering::Greater);
        assert_eq!(compare_names("h10.w", "h9.w", '.'), Ordering::Greater);
        assert_eq!(compare_names("a-b.w", "a.w", '.'), Ordering::Greater);
    }

    #[test]
    fn names_are_split_where_most_of_them_are() {
        assert_eq!(separator(["a.b", "a/b.c", "x/y", "z/y"].into_iter()), '/');
        assert_eq!(separator(["a.b", "a/b"].into_iter()), '.');
        assert_eq!(separator(std::iter::empty()), '.');
    }
}
