//! [`Numbers`]: the ranks or alphas of modules, by patterns of their names.

use std::collections::{BTreeMap, HashMap};

use regex_automata::meta::Regex;

use crate::format::patterns::{Expressions, LONGEST};

/// Numbers by patterns of PEFT. A pattern matches an entire name, or the part after a dot in it.
/// The first match in the order of the file counts.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    /// By the position of the pattern.
    numbers: Vec<f64>,
    /// The patterns that are names, as most are: an adapter may have a hundred thousand.
    names: BTreeMap<Shape, HashMap<Vec<char>, usize>>,
    expressions: Vec<(usize, Regex)>,
}

/// The common properties of names that are looked up together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    /// The number of characters.
    len: usize,
    /// Whether a name is no part of a longer one.
    is_whole: bool,
    /// The positions of dots that match any character.
    any: Vec<usize>,
}

/// The most shapes of names; each is looked up. A model has dozens.
const MOST_SHAPES: usize = 1000;

impl Numbers {
    /// Makes them of patterns in the order of the file.
    pub(super) fn new(
        patterns: Vec<(String, f64)>,
        expressions: &mut Expressions,
    ) -> Result<Self, String> {
        let mut found =
            Self { numbers: Vec::new(), names: BTreeMap::new(), expressions: Vec::new() };
        for (position, (pattern, number)) in patterns.into_iter().enumerate() {
            found.numbers.push(number);
            if let Some((shape, name)) = plain(&pattern)
                && (found.names.len() < MOST_SHAPES || found.names.contains_key(&shape))
            {
                found.names.entry(shape).or_default().entry(name).or_insert(position);
                continue;
            }
            let in_expression = |pattern: &str| format!(r"^(?:.*\.)?(?:{pattern})$");
            found.expressions.push((position, expressions.compile(&pattern, in_expression)?));
        }
        Ok(found)
    }

    pub(super) fn get(&self, module: &str) -> Option<f64> {
        let name = self.position_of_name(module);
        let is_before = |(at, _): &&(usize, Regex)| name.is_none_or(|name| *at < name);
        let mut before = self.expressions.iter().take_while(is_before);
        let expression = before.find(|(_, regex)| regex.is_match(module)).map(|(at, _)| *at);
        self.numbers.get(expression.or(name)?).copied()
    }

    /// Returns the position of the first pattern that is this name or the part after a dot in it.
    fn position_of_name(&self, module: &str) -> Option<usize> {
        let chars: Vec<char> = module.chars().collect();
        // In an expression, `.` is not the end of a line.
        let line = chars.iter().position(|c| *c == '\n').unwrap_or(chars.len());
        let dots = (0..line).filter(|at| chars[*at] == '.');
        let mut found = None;
        let mut name = Vec::new();
        for start in [0].into_iter().chain(dots.map(|dot| dot + 1)) {
            let end = &chars[start..];
            let shape = |len| Shape { len, is_whole: false, any: Vec::new() };
            let shapes = self.names.range(shape(end.len())..shape(end.len() + 1));
            for (shape, names) in shapes.filter(|(shape, _)| start == 0 || !shape.is_whole) {
                name.clear();
                name.extend_from_slice(end);
                for &at in shape.any.iter().filter(|at| end[**at] != '\n') {
                    name[at] = '.';
                }
                found = names.get(&name).copied().into_iter().chain(found).min();
            }
        }
        found
    }
}

/// Returns the name that a pattern matches, with dots for any characters. `None` for another
/// regular expression.
fn plain(pattern: &str) -> Option<(Shape, Vec<char>)> {
    if pattern.len() > LONGEST {
        return None;
    }
    let (start, is_whole) = pattern.strip_prefix('^').map_or((pattern, false), |it| (it, true));
    let mut rest = start.strip_suffix('$').unwrap_or(start).chars();
    let mut name = Vec::new();
    let mut any = Vec::new();
    while let Some(c) = rest.next() {
        name.push(match c {
            '.' => {
                any.push(name.len());
                c
            }
            // As `re.escape` writes them.
            '\\' => rest.next().filter(char::is_ascii_punctuation)?,
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '/' => c,
            _ => return None,
        });
    }
    Some((Shape { len: name.len(), is_whole, any }, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(patterns: impl IntoIterator<Item = String>) -> Numbers {
        let patterns = patterns.into_iter().enumerate().map(|(i, pattern)| (pattern, i as f64));
        Numbers::new(patterns.collect(), &mut Expressions::default()).unwrap()
    }

    #[test]
    fn a_name_matches_as_the_expression_of_peft_does() {
        let modules = [
            "q", "a.q", "aq", "a.b.q", "a-b.q", "a.b.q\n", "\n.b.q", "é.q", "b.q", "", ".", "aéq",
            "a\nq", "b.a.q", "bXq", "a+q",
        ];
        for pattern in [
            "q",
            "b.q",
            r"b\.q",
            "^b.q",
            "^a.b.q",
            "b.q$",
            "",
            "^",
            ".",
            "..q",
            "a.q",
            "^a-b.q$",
            r"a\-b\.q",
            r"a\+q",
            "é",
            r"\w.q",
            r"a\.\w+\.\w+\.\w+\.\w+",
        ] {
            let found = numbers([pattern.to_owned()]);
            let is_name = !pattern.contains('é') && !pattern.contains('w');
            assert_eq!(!found.names.is_empty(), is_name, "{pattern}");
            let oracle = regex::Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).unwrap();
            for module in modules {
                let expected = oracle.is_match(module);
                assert_eq!(found.get(module).is_some(), expected, "{pattern:?} in {module:?}");
            }
        }
    }

    #[test]
    fn the_first_of_names_and_expressions_counts() {
        let patterns = ["x.q", "[a]", "a.q", "a", r"a\.q", "[ab].q", "b.q", "^c", "c"];
        let found = numbers(patterns.map(str::to_owned));
        for (module, expected) in
            [("x.q", 0), ("b.a", 1), ("a.q", 2), ("aXq", 2), ("b.q", 5), ("c", 7), ("a.c", 8)]
        {
            assert_eq!(found.get(module), Some(f64::from(expected)), "{module}");
        }
        assert_eq!(found.get("x.d"), None);
    }

    #[test]
    fn each_expert_has_a_number_by_its_name() {
        let names: Vec<_> = (0..61 * 384 * 3)
            .map(|i| format!("model.layers.{}.mlp.experts.{}.{}", i / 1152, i / 3 % 384, i % 3))
            .collect();
        let found = numbers(names.clone());
        assert!(names.iter().enumerate().all(|(i, name)| found.get(name) == Some(i as f64)));
        assert!(found.names.len() < 10 && found.expressions.is_empty());
    }

    #[test]
    fn names_of_many_shapes_are_expressions() {
        let shape = |i: usize| (0..10).map(move |bit| if i >> bit & 1 == 1 { '.' } else { 'a' });
        let found = numbers((0..1024).map(|i| shape(i).collect()).chain(["aaaab".to_owned()]));
        assert_eq!((found.names.len(), found.expressions.len()), (1000, 25));
        assert_eq!((found.get("bbbbbbbbbb"), found.get("aaaab")), (Some(1023.0), Some(1024.0)));
    }
}
