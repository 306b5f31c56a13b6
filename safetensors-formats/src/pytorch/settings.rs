//! The settings of optimizers: plain values of a pickle, as JSON.

use serde_json::{Map, Number, Value as Json};

use super::names::Search;
use super::values::{Node, Value};
use crate::error::Result;

/// The deepest nesting of settings. What is deeper is left out.
const DEEPEST: usize = 16;

impl Search<'_> {
    /// A value at this depth of the settings as JSON; `None` if JSON cannot hold it, such as a
    /// tensor. A pickle of few bytes can use one value in many places, so what is written is
    /// counted.
    pub(super) fn json(&mut self, value: Value, depth: usize) -> Result<Option<Json>> {
        let values = self.values;
        let node = values.node(value);
        values.step(&mut self.steps, node.map_or(0, Node::len))?;
        self.keep_text(8)?;
        let Some(node) = node else { return Ok(plain(value)) };
        Ok(match node {
            _ if depth >= DEEPEST => None,
            Node::Text(text) => {
                self.keep_text(text.len() as u64)?;
                Some(Json::from(&**text))
            }
            Node::Tuple(items) | Node::List(items) => {
                let items = items.iter();
                let items = items.map(|&item| Ok(self.json(item, depth + 1)?.unwrap_or_default()));
                Some(Json::Array(items.collect::<Result<_>>()?))
            }
            Node::Dict { items, .. } => {
                let mut map = Map::new();
                for &(key, value) in items {
                    let Some(key) = values.key(key) else { continue };
                    self.keep_text(key.len() as u64)?;
                    if let Some(value) = self.json(value, depth + 1)? {
                        map.insert(key.into_owned(), value);
                    }
                }
                Some(Json::Object(map))
            }
            _ => None,
        })
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
