//! [`Renumbering`]: gives the entries of lists consecutive numbers.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The new numbers of the entries of each list, such as `fc` in `fc.2.weight`.
#[derive(Debug, Default)]
pub(crate) struct Renumbering(HashMap<String, BTreeMap<u64, usize>>);

impl Renumbering {
    /// Counts the entries of lists that `keep` does not match. Outer lists count by their old
    /// numbers: `blocks.4.layers`.
    pub(crate) fn count<'a>(
        names: impl IntoIterator<Item = &'a str>,
        keep: impl Fn(&str) -> bool,
    ) -> Self {
        let mut lists: HashMap<String, BTreeMap<u64, usize>> = HashMap::new();
        for name in names {
            for Number { list, value: number, .. } in numbers(name) {
                match lists.get_mut(list) {
                    Some(entries) => _ = entries.insert(number, 0),
                    None => _ = lists.insert(list.to_owned(), BTreeMap::from([(number, 0)])),
                }
            }
        }
        lists.retain(|list, _| !keep(list));
        for entries in lists.values_mut() {
            entries.values_mut().enumerate().for_each(|(position, new)| *new = position);
        }
        Self(lists)
    }

    pub(crate) fn apply(&self, name: &str) -> String {
        let mut new = String::with_capacity(name.len());
        let mut done = 0;
        for Number { list, place, value } in numbers(name) {
            let Some(position) = self.0.get(list).and_then(|entries| entries.get(&value)) else {
                continue;
            };
            new.push_str(&name[done..place.start]);
            new.push_str(&position.to_string());
            done = place.end;
        }
        new + &name[done..]
    }
}

struct Number<'a> {
    list: &'a str,
    place: Range<usize>,
    value: u64,
}

/// Returns at most 32 numbers of a name.
// The lists of more could take far more memory than the name.
fn numbers(name: &str) -> impl Iterator<Item = Number<'_>> {
    const MOST: usize = 32;
    let mut next = 0;
    let numbers = name.split('.').filter_map(move |part| {
        let start = next;
        next = start + part.len() + 1;
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let value = part.parse().ok().filter(|_| is_number)?;
        Some(Number {
            list: &name[..start.saturating_sub(1)],
            place: start..start + part.len(),
            value,
        })
    });
    numbers.take(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renumbered<const N: usize>(names: [&str; N], keep: fn(&str) -> bool) -> [String; N] {
        let numbers = Renumbering::count(names, keep);
        names.map(|name| numbers.apply(name))
    }

    #[test]
    fn gaps_are_closed_in_each_list_alone() {
        let names = ["fc.0.weight", "fc.2.weight", "fc.10.weight", "conv.3", "fc.2.bias", "bias"];
        let expected = ["fc.0.weight", "fc.1.weight", "fc.2.weight", "conv.0", "fc.1.bias", "bias"];
        assert_eq!(renumbered(names, |_| false), expected);
    }

    #[test]
    fn nested_lists_are_renumbered_by_their_old_numbers() {
        let names = ["l.0.b.0.w", "l.0.b.2.w", "l.2.b.5.w", "l.2.b.7.w", "l.4.w"];
        let expected = ["l.0.b.0.w", "l.0.b.1.w", "l.1.b.0.w", "l.1.b.1.w", "l.2.w"];
        assert_eq!(renumbered(names, |_| false), expected);
        let expected = ["l.0.b.0.w", "l.0.b.1.w", "l.2.b.0.w", "l.2.b.1.w", "l.4.w"];
        assert_eq!(renumbered(names, |list| list == "l"), expected);
    }

    #[test]
    fn a_name_of_very_many_numbers_is_no_load() {
        let name = vec!["7"; 100_000].join(".");
        let [renumbered] = renumbered([&name], |_| false);
        let expected = [vec!["0"; 32], vec!["7"; 100_000 - 32]].concat().join(".");
        assert!(renumbered == expected);
    }

    #[test]
    fn only_components_of_digits_alone_are_renumbered() {
        let names =
            ["a.+1.w", "a.2b", "3", ".7", "", ".", "a..4", "a.99999999999999999999", "a.b5"];
        let expected =
            ["a.+1.w", "a.2b", "0", ".1", "", ".", "a..0", "a.99999999999999999999", "a.b5"];
        assert_eq!(renumbered(names, |_| false), expected);
    }
}
