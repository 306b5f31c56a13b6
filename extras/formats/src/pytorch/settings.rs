//! Settings of optimizers: plain values of a pickle, as JSON.

use serde_json::{Map, Number, Value as Json};

use super::names::Search;
use super::values::{Node, Value};
use crate::budget::{ENTRY, escaped};
use crate::error::Result;

// A map allocates eleven entries at once.
type MapNode = [(String, Json); 11];

impl Search<'_> {
    /// `None` if JSON cannot hold it, such as a tensor. Counts results: a small pickle can repeat a
    /// value.
    pub(super) fn json(&mut self, value: Value) -> Result<Option<Json>> {
        let values = self.values;
        values.budget.keep_all::<Json>(1)?;
        let Some(node) = values.node(value) else { return Ok(plain(value)) };
        values.step(node.len())?;
        Ok(match node {
            Node::Text(text) => {
                values.budget.keep(escaped(text))?;
                Some(Json::from(&**text))
            }
            Node::Tuple(items) | Node::List(items) => {
                let items = items.iter();
                let items = items.map(|&item| Ok(self.json_below(item)?.unwrap_or_default()));
                Some(Json::Array(items.collect::<Result<_>>()?))
            }
            Node::Dict { items, .. } => {
                values.budget.keep_all::<MapNode>(items.len().min(1))?;
                let mut map = Map::new();
                for &(key, value) in items {
                    let Some(key) = values.key(key) else { continue };
                    values.budget.keep(escaped(&key) + ENTRY)?;
                    if let Some(value) = self.json_below(value)? {
                        map.insert(key.into_owned(), value);
                    }
                }
                Some(Json::Object(map))
            }
            _ => None,
        })
    }

    fn json_below(&mut self, value: Value) -> Result<Option<Json>> {
        let before = self.depth;
        self.depth = before.deeper()?;
        let json = self.json(value)?;
        self.depth = before;
        Ok(json)
    }
}

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
