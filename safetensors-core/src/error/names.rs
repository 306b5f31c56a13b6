//! [`NameList`]: some names in a message.

use alloc::string::String;
use core::fmt;

use super::Quoted;

/// Names for a message: all of a few, the first of many; quoted, escaped, and shortened where they
/// are too long for a message.
///
/// ```
/// use safetensors_core::framework::NameList;
///
/// let names: Vec<String> = (0..10).map(|i| format!("layer.{i}")).collect();
/// assert_eq!(NameList(&names[..2]).to_string(), r#""layer.0", "layer.1""#);
/// assert!(NameList(&names).to_string().ends_with(r#""layer.7" and 2 more"#));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NameList<'a>(pub &'a [String]);

impl fmt::Display for NameList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, name) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, Quoted(name))?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
