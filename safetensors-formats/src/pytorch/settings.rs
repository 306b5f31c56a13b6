//! [`Settings`]: plain values of a pickle, as JSON.

use serde_json::{Map, Number, Value as Json};

use super::values::{Node, Value, Values};
use crate::error::{ErrorKind, Result};

/// The deepest nesting of settings. What is deeper is left out.
const DEEPEST: usize = 16;

/// Writes values as JSON. A pickle of few bytes can use one value in many places, so what is written
/// is counted.
pub(super) struct Settings<'a> {
    pub(super) values: &'a Values,
    /// The values that may still be visited.
    pub(super) steps: &'a mut usize,
    /// The bytes that texts may still have, of `limit`.
    pub(super) text_left: &'a mut u64,
    pub(super) limit: u64,
}

impl Settings<'_> {
    /// A value as JSON; `None` if JSON cannot hold it, such as a tensor.
    pub(super) fn json(&mut self, value: Value) -> Result<Option<Json>> {
        self.below(value, 0)
    }

    fn below(&mut self, value: Value, depth: usize) -> Result<Option<Json>> {
        let values = self.values;
        let node = values.node(value);
        values.step(self.steps, node.map_or(0, Node::len))?;
        self.count(8)?;
        let Some(node) = node else { return Ok(plain(value)) };
        Ok(match node {
            _ if depth >= DEEPEST => None,
            Node::Text(text) => {
                self.count(text.len())?;
                Some(Json::from(&**text))
            }
            Node::Tuple(items) | Node::List(items) => {
                let items = items.iter();
                let items = items.map(|&item| Ok(self.below(item, depth + 1)?.unwrap_or_default()));
                Some(Json::Array(items.collect::<Result<_>>()?))
            }
            Node::Dict { items, .. } => {
                let mut map = Map::new();
                for &(key, value) in items {
                    let Some(key) = values.key(key) else { continue };
                    self.count(key.len())?;
                    if let Some(value) = self.below(value, depth + 1)? {
                        map.insert(key.into_owned(), value);
                    }
                }
                Some(Json::Object(map))
            }
            _ => None,
        })
    }

    /// Counts bytes of the text.
    fn count(&mut self, bytes: usize) -> Result<()> {
        let left = self.text_left.checked_sub(bytes as u64);
        *self.text_left = left.ok_or(ErrorKind::DirectoryTooLong { limit: self.limit })?;
        Ok(())
    }
}

/// A value without content of its own.
fn plain(value: Value) -> Option<Json> {
    Some(match value {
        Value::None => Json::Null,
        Value::Bool(flag) => flag.into(),
        Value::Int(number) => number.into(),
        // JSON has no infinity and no NaN. Python's `float` reads these texts.
        Value::Float(number) => match Number::from_f64(number) {
            Some(number) => Json::Number(number),
            None => number.to_string().into(),
        },
        Value::Node(_) => return None,
    })
}
