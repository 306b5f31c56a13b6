//! [`ModelOrder`]: the order in which a model is expected to ask for its tensors.

use std::ops::Range;

/// The expected order of a model's requests.
// Files often have layer 10 after layer 1, and a model asks for the parts of a layer in any order.
// So names with the same text up to their first number, such as `model.layers.7.`, or names of the
// same module are a group. The groups are in natural order: 2 before 10.
#[derive(Debug)]
pub(super) struct ModelOrder {
    /// Positions in the checkpoint, in natural order of the names.
    positions: Vec<usize>,
    /// The rank of each position.
    ranks: Vec<usize>,
    /// The first rank of each group.
    starts: Vec<usize>,
}

impl ModelOrder {
    /// Takes names in the order of their positions.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let shared = shared_prefix(names.clone());
        let mut keys: Vec<(Key, usize)> =
            names.enumerate().map(|(position, name)| (Key::new(name, shared), position)).collect();
        keys.sort_unstable_by(|(a, i), (b, j)| (&a.text, i).cmp(&(&b.text, j)));
        let mut starts = Vec::new();
        let mut ranks = vec![0; keys.len()];
        let mut before: Option<&[u8]> = None;
        for (rank, (key, position)) in keys.iter().enumerate() {
            ranks[*position] = rank;
            if before != Some(key.group()) {
                before = Some(key.group());
                starts.push(rank);
            }
        }
        let positions = keys.into_iter().map(|(_, position)| position).collect();
        Self { positions, ranks, starts }
    }

    pub(super) fn groups(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn group(&self, position: usize) -> usize {
        self.starts.partition_point(|&start| start <= self.ranks[position]) - 1
    }

    /// Returns the later tensors of the group, then the earlier ones, then the next groups.
    pub(super) fn after(&self, position: usize) -> impl Iterator<Item = usize> {
        let rank = self.ranks[position];
        let group = self.ranks_of(self.group(position));
        let ranks = (rank + 1..group.end).chain(group.start..rank);
        ranks.chain(group.end..self.positions.len()).map(|rank| self.positions[rank])
    }

    fn ranks_of(&self, group: usize) -> Range<usize> {
        let end = self.starts.get(group + 1).copied();
        self.starts[group]..end.unwrap_or(self.positions.len())
    }
}

/// A name with bytes that sort in natural order.
struct Key {
    text: Vec<u8>,
    /// The bytes that the names of the group share.
    group_len: usize,
}

impl Key {
    /// Ignores numbers in the `shared` bytes that all names begin with.
    fn new(name: &str, shared: usize) -> Self {
        let name = name.as_bytes();
        let mut text = Vec::with_capacity(name.len() + 8);
        let (mut group_len, mut module_len) = (None, 0);
        let mut rest = name;
        while let [byte, tail @ ..] = rest {
            if !byte.is_ascii_digit() {
                text.push(*byte);
                if *byte == b'.' {
                    module_len = text.len();
                }
                rest = tail;
                continue;
            }
            let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (digits, tail) = rest.split_at(len);
            // A longer number without leading zeros is a larger one. So its length comes first, as
            // a digit, so that numbers keep their place among other characters.
            let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
            let digits = &digits[zeros.min(len - 1)..];
            text.push(b'0' + digits.len().min(9) as u8);
            text.extend(digits);
            if name.len() - tail.len() > shared {
                group_len.get_or_insert(text.len());
            }
            rest = tail;
        }
        Self { text, group_len: group_len.unwrap_or(module_len) }
    }

    fn group(&self) -> &[u8] {
        &self.text[..self.group_len]
    }
}

/// Counts the bytes of the components that all names begin with.
fn shared_prefix<'a>(mut names: impl Iterator<Item = &'a str>) -> usize {
    let Some(first) = names.next() else { return 0 };
    let first = first.as_bytes();
    let shared = names.fold(first, |shared, name| {
        let same = shared.iter().zip(name.as_bytes()).take_while(|(a, b)| a == b).count();
        &shared[..same]
    });
    shared.iter().rposition(|&byte| byte == b'.').map_or(0, |dot| dot + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(names: &[&str]) -> ModelOrder {
        ModelOrder::new(names.iter().copied())
    }

    fn groups<'a>(names: &[&'a str]) -> Vec<Vec<&'a str>> {
        let order = order(names);
        let groups = (0..order.groups()).map(|group| &order.positions[order.ranks_of(group)]);
        groups.map(|group| group.iter().map(|&position| names[position]).collect()).collect()
    }

    #[test]
    fn layers_are_groups_in_the_order_of_their_numbers() {
        let names = [
            "lm_head.weight",
            "model.layers.0.mlp.weight",
            "model.layers.0.self_attn.q.weight",
            "model.layers.1.self_attn.q.weight",
            "model.layers.10.mlp.experts.10.w1",
            "model.layers.10.mlp.experts.2.w1",
            "model.layers.2.mlp.weight",
            "model.norm.bias",
            "model.norm.weight",
        ];
        let expected: [&[&str]; 6] = [
            &names[..1],
            &names[1..3],
            &names[3..4],
            &names[6..7],
            &[names[5], names[4]],
            &names[7..],
        ];
        assert_eq!(groups(&names), expected);
        // Numbers in a prefix that all names have do not distinguish names.
        let prefixed = names.map(|name| format!("0.auto_model.{name}"));
        let prefixed: Vec<_> = prefixed.iter().map(String::as_str).collect();
        assert_eq!(groups(&prefixed).len(), expected.len());
    }

    #[test]
    fn after_a_tensor_comes_the_rest_of_its_group_and_then_the_next_group() {
        let names = ["h.0.a", "h.0.b", "h.0.c", "h.10.a", "h.2.b", "h.2.a"];
        let order = order(&names);
        let after = |position| order.after(position).map(|i| names[i]).collect::<Vec<_>>();
        assert_eq!(after(1), ["h.0.c", "h.0.a", "h.2.a", "h.2.b", "h.10.a"]);
        assert_eq!(after(4), ["h.2.a", "h.10.a"]);
        assert!(after(3).is_empty());
        assert_eq!((order.group(5), order.group(3)), (1, 2));
    }

    #[test]
    fn odd_names() {
        assert_eq!(order(&[]).groups(), 0);
        assert_eq!(groups(&[""]), [[""]]);
        assert_eq!(groups(&["5"]), [["5"]]);
        assert_eq!(groups(&["a", "b"]), [["a", "b"]]);
        assert_eq!(groups(&["x.007", "x.7", "x.08"]), [vec!["x.007", "x.7"], vec!["x.08"]]);
        // Numbers without end keep some order, and nothing overflows.
        let long = ["9".repeat(40), "1".to_string(), "8".repeat(40), "1".repeat(300)];
        let names: Vec<_> = long.iter().map(String::as_str).collect();
        assert_eq!(groups(&names)[0], ["1"]);
        assert_eq!(groups(&names).concat().len(), 4);
        let zeros = "0".repeat(50);
        assert_eq!(groups(&["a.0", &format!("a.{zeros}")]).len(), 1);
        // The common prefix ends with a component, not within a number or a character.
        assert_eq!(groups(&["h.10.w", "h.11.w", "h.12.w"]).len(), 3);
        assert_eq!(groups(&["é.1", "è.1"]).len(), 2);
    }
}
