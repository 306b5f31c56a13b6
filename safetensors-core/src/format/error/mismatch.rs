//! [`Mismatch`]: a difference between a checkpoint and a model.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::text::NameList;
use super::{Quoted, Shape};
use crate::format::dtype::Dtype;

/// How many other differences a message shows, and its most bytes before another.
const SHOWN: (usize, usize) = (8, 480);

/// A difference between a checkpoint and the tensors that it is loaded into.
/// [`ErrorKind::Mismatches`](crate::ErrorKind::Mismatches) has all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum Mismatch {
    /// The checkpoint lacks a tensor.
    Missing { name: String },
    /// The model does not need the tensor.
    Extra { name: String },
    /// The shapes differ.
    Shape { name: String, expected: Vec<usize>, found: Vec<usize> },
    /// The numbers of dimensions differ. `found` is the shape.
    Ndim { name: String, expected: usize, found: Vec<usize> },
    /// The dtypes differ. `found` is the file's.
    Dtype { name: String, expected: Dtype, found: Dtype },
    /// Two names of a tensor in memory have different values.
    Tied { name: String, other: String },
    /// A metadata entry is missing or malformed.
    Metadata { key: String, expected: &'static str, found: Option<String> },
}

impl Mismatch {
    #[doc(hidden)]
    pub fn of_shapes(name: &str, expected: &[usize], found: &[usize]) -> Option<Self> {
        (expected != found).then(|| Self::Shape {
            name: name.into(),
            expected: expected.into(),
            found: found.into(),
        })
    }

    #[doc(hidden)]
    pub fn of_dtypes(name: &str, expected: Dtype, found: Dtype) -> Option<Self> {
        (expected != found).then(|| Self::Dtype { name: name.into(), expected, found })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name } => write!(f, "{} is missing", Quoted(name)),
            Self::Extra { name } => write!(f, "{} is not needed", Quoted(name)),
            Self::Shape { name, expected, found } => {
                let expected = Shape(expected);
                let found = Shape(found);
                write!(f, "{} should have shape {expected}, found {found}", Quoted(name))
            }
            Self::Ndim { name, expected, found } => {
                let name = Quoted(name);
                let found = Shape(found);
                let s = plural(*expected);
                write!(f, "{name} should have {expected} dimension{s}, found shape {found}")
            }
            Self::Dtype { name, expected, found } => {
                write!(f, "{} should have dtype {expected}, found {found}", Quoted(name))
            }
            Self::Tied { name, other } => {
                let name = Quoted(name);
                let other = Quoted(other);
                write!(f, "{name} and {other} are one tensor in memory, but have different values")
            }
            Self::Metadata { key, expected, found: Some(found) } => {
                let key = Quoted(key);
                let found = Quoted(found);
                write!(f, "{key} in the metadata should be {expected}, found {found}")
            }
            Self::Metadata { key, expected, found: None } => {
                write!(f, "{} is missing in the metadata; it should be {expected}", Quoted(key))
            }
        }
    }
}

fn plural(number: usize) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// On one line of bounded length: missing tensors, extra ones, then the others.
pub(super) struct MismatchList<'a>(pub(super) &'a [Mismatch]);

impl fmt::Display for MismatchList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut missing = Vec::new();
        let mut extra = Vec::new();
        let mut others = Vec::new();
        for mismatch in self.0 {
            match mismatch {
                Mismatch::Missing { name } => missing.push(name.clone()),
                Mismatch::Extra { name } => extra.push(name.clone()),
                other => others.push(other),
            }
        }
        let mut separator = "";
        for (word, names) in [("missing", missing), ("not needed", extra)] {
            if !names.is_empty() {
                write!(f, "{separator}{word}: {}", NameList(&names))?;
                separator = "; ";
            }
        }
        let mut shown = 0;
        let mut bytes = 0;
        for other in &others {
            if shown == SHOWN.0 || bytes > SHOWN.1 {
                break;
            }
            let other = other.to_string();
            write!(f, "{separator}{other}")?;
            separator = "; ";
            bytes += other.len();
            shown += 1;
        }
        match others.len() - shown {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::format;

    use super::*;
    use crate::format::error::{Error, ErrorKind};

    fn message(mismatches: Vec<Mismatch>) -> String {
        Error::from(ErrorKind::Mismatches { mismatches }).to_string()
    }

    #[test]
    fn a_message_lists_every_kind_of_difference() {
        let name = || "w".to_owned();
        let found = message(Vec::from([
            Mismatch::Shape { name: name(), expected: [2, 3].into(), found: [3, 2].into() },
            Mismatch::Missing { name: "a".into() },
            Mismatch::Dtype { name: name(), expected: Dtype::F32, found: Dtype::BF16 },
            Mismatch::Ndim { name: name(), expected: 1, found: [].into() },
            Mismatch::Ndim { name: name(), expected: 0, found: [2, 3].into() },
            Mismatch::Extra { name: "x\n".into() },
            Mismatch::Tied { name: name(), other: "v".into() },
            Mismatch::Missing { name: "b".into() },
            Mismatch::Metadata { key: "k".into(), expected: "a number", found: Some("?".into()) },
            Mismatch::Metadata { key: "l".into(), expected: "a number", found: None },
        ]));
        assert_eq!(
            found,
            "the checkpoint does not match: missing: \"a\", \"b\"; not needed: \"x\\n\"; \
             \"w\" should have shape [2, 3], found [3, 2]; \
             \"w\" should have dtype F32, found BF16; \
             \"w\" should have 1 dimension, found shape []; \
             \"w\" should have 0 dimensions, found shape [2, 3]; \
             \"w\" and \"v\" are one tensor in memory, but have different values; \
             \"k\" in the metadata should be a number, found \"?\"; \
             \"l\" is missing in the metadata; it should be a number"
        );
    }

    #[test]
    fn a_message_is_bounded_and_counts_omitted_differences() {
        let shape = |i| Mismatch::Shape {
            name: format!("{}{i}", "n".repeat(10_000)),
            expected: Vec::from([usize::MAX; 100]),
            found: Vec::from([usize::MAX; 100]),
        };
        let long = message((0..1000).map(shape).collect());
        let more = if usize::BITS == 64 { 999 } else { 998 };
        assert!(long.len() < 1500 && long.ends_with(&format!("; and {more} more")), "{long}");
        let dtype =
            |i| Mismatch::Dtype { name: format!("{i}"), expected: Dtype::F32, found: Dtype::F16 };
        assert!(message((0..9).map(dtype).collect()).ends_with("; and 1 more"));
        assert!(!message((0..8).map(dtype).collect()).contains("more"));
        let missing = |i| Mismatch::Missing { name: format!("layer.{i}") };
        let many = message((0..100_000).map(missing).collect());
        assert!(many.ends_with("\"layer.7\" and 99992 more"), "{many}");
    }
}
