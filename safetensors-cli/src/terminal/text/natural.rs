//! [`Natural`]: texts ordered by the value of the numbers in them.

use std::borrow::Cow;
use std::cmp::Ordering;

/// A text that orders numbers by value: `layer9` comes before `layer10`. Only zeros before a number
/// make texts different, too.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Natural<'t>(pub(crate) Cow<'t, str>);

impl Ord for Natural<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let mut left = &*self.0;
        let mut right = &*other.0;
        while let (Some(a), Some(b)) = (left.chars().next(), right.chars().next()) {
            let order = if a.is_ascii_digit() && b.is_ascii_digit() {
                let a = take_number(&mut left);
                let b = take_number(&mut right);
                a.len().cmp(&b.len()).then_with(|| a.cmp(b))
            } else {
                left = &left[a.len_utf8()..];
                right = &right[b.len_utf8()..];
                a.cmp(&b)
            };
            if order.is_ne() {
                return order;
            }
        }
        left.len().cmp(&right.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Natural<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Takes the digits at the start of a text, and returns them without leading zeros.
fn take_number<'t>(text: &mut &'t str) -> &'t str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    digits.trim_start_matches('0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_by_value_and_every_text_has_its_place() {
        let sorted = [
            "",
            "7",
            "07",
            "007",
            "8",
            "10",
            "99999999999999999999",
            "a",
            "a-2",
            "a-10",
            "a-10b",
            "checkpoint-100",
            "checkpoint-200",
            "checkpoint-1000",
            "é9",
            "é10",
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                let order = Natural((*a).into()).cmp(&Natural((*b).into()));
                // Of equal numbers, the texts decide.
                let is_seven = |text: &str| text.ends_with('7');
                if is_seven(a) && is_seven(b) {
                    assert_eq!(order, a.cmp(b), "{a} {b}");
                } else {
                    assert_eq!(order, i.cmp(&j), "{a} {b}");
                }
            }
        }
    }
}
