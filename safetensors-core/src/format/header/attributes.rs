//! Attributes of tensors, such as units and long names.
//!
//! An attribute is a metadata entry with the key `attribute:TENSOR#NAME`, such as
//! `attribute:u#units`. The last `#` ends the tensor's name. Programs without this convention
//! ignore the entries.

use alloc::format;
use alloc::string::String;
use core::ops::Bound;

use super::Metadata;
use super::keys::ATTRIBUTE_PREFIX;
#[cfg(feature = "std")]
use super::keys::{PARAM_IDS_KEY, SCALARS_KEY};
use crate::format::error::{ErrorKind, Result};

#[cfg(feature = "std")]
type ByName = alloc::collections::BTreeMap<String, serde_json::Value>;

/// Returns the metadata key of an attribute: `attribute:TENSOR#NAME`.
///
/// ```
/// use safetensors_core::header::attribute_key;
///
/// assert_eq!(attribute_key("u", "units")?, "attribute:u#units");
/// assert!(attribute_key("u", "units#2").is_err());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::BadAttributeName`] if `name` has a `#`.
pub fn attribute_key(tensor: &str, name: &str) -> Result<String> {
    if name.contains('#') {
        return Err(ErrorKind::BadAttributeName { found: name.into() }.into());
    }
    Ok(format!("{ATTRIBUTE_PREFIX}{tensor}#{name}"))
}

/// Returns the names and values of a tensor's attributes, sorted by name.
///
/// ```
/// use safetensors_core::header::{Metadata, attributes};
///
/// let metadata =
///     Metadata::from([("title", "wind"), ("attribute:u#units", "m/s"), ("attribute:v#units", "K")]
///         .map(|(key, value)| (key.to_owned(), value.to_owned())));
/// assert!(attributes(&metadata, "u").eq([("units", "m/s")]));
/// ```
pub fn attributes<'m>(
    metadata: &'m Metadata,
    tensor: &str,
) -> impl Iterator<Item = (&'m str, &'m str)> + use<'m> {
    let prefix = format!("{ATTRIBUTE_PREFIX}{tensor}#");
    let range = (Bound::Included(prefix.as_str()), Bound::Unbounded);
    metadata
        .range::<str, _>(range)
        .map_while(move |(key, value)| Some((key.strip_prefix(prefix.as_str())?, value.as_str())))
        // These belong to a tensor with a name that begins with `u#`, if `tensor` is `u`.
        .filter(|(name, _)| !name.contains('#'))
}

fn described_tensor(key: &str) -> Option<&str> {
    Some(key.strip_prefix(ATTRIBUTE_PREFIX)?.rsplit_once('#')?.0)
}

/// Moves attributes and ids to the new names, all at once, or removes them for `None`.
#[cfg(feature = "std")]
pub(crate) fn rename_attributes(
    metadata: &mut Metadata,
    new_name: &mut dyn FnMut(&str) -> Option<String>,
) {
    let described: Metadata =
        metadata.extract_if(.., |key, _| described_tensor(key).is_some()).collect();
    let mut moved = Metadata::new();
    for (key, value) in described {
        let Some(tensor) = described_tensor(&key) else { continue };
        let Some(new) = new_name(tensor) else { continue };
        if new == tensor {
            metadata.insert(key, value);
        } else {
            let name = &key[ATTRIBUTE_PREFIX.len() + tensor.len()..];
            moved.insert(format!("{ATTRIBUTE_PREFIX}{new}{name}"), value);
        }
    }
    metadata.extend(moved);
    // Another text is kept unchanged: its readers refuse it.
    let ids = metadata.get(PARAM_IDS_KEY);
    if let Some(Ok(ids)) = ids.map(|text| serde_json::from_str::<ByName>(text)) {
        let renamed = ids.into_iter().filter_map(|(name, id)| Some((new_name(&name)?, id)));
        let renamed: ByName = renamed.collect();
        match serde_json::to_string(&renamed) {
            Ok(text) if !renamed.is_empty() => _ = metadata.insert(PARAM_IDS_KEY.into(), text),
            _ => _ = metadata.remove(PARAM_IDS_KEY),
        }
    }
}

/// Merges two entries with values by name. Earlier values stay.
#[cfg(feature = "std")]
pub(crate) fn join_entry(key: &str, earlier: &mut String, later: &str) {
    if ![PARAM_IDS_KEY, SCALARS_KEY].contains(&key) || earlier == later {
        return;
    }
    let by_name = |text| serde_json::from_str::<ByName>(text);
    if let (Ok(first), Ok(mut joined)) = (by_name(earlier), by_name(later)) {
        joined.extend(first);
        *earlier = serde_json::to_string(&joined).unwrap_or_else(|_| earlier.clone());
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn attributes_follow_the_names_of_tensors() {
        let keys = ["attribute:u#units", "attribute:v#units", "attribute:u#x#units"];
        let keys = keys.into_iter().chain(["attribute:gone#", "attribute:w", "u", "title"]);
        let mut metadata: Metadata = keys.map(|key| (key.into(), key.into())).collect();
        rename_attributes(&mut metadata, &mut |name| match name {
            "u" => Some("v".into()),
            "v" => Some("u".into()),
            "gone" => None,
            other => Some(other.into()),
        });
        let expected = [
            ("attribute:u#units", "attribute:v#units"),
            ("attribute:u#x#units", "attribute:u#x#units"),
            ("attribute:v#units", "attribute:u#units"),
            ("attribute:w", "attribute:w"),
            ("title", "title"),
            ("u", "u"),
        ];
        assert!(metadata.iter().map(|(key, value)| (&**key, &**value)).eq(expected));
    }

    #[test]
    fn ids_follow_the_names_of_tensors() {
        let mut metadata = Metadata::from([(
            PARAM_IDS_KEY.into(),
            r#"{"u":18446744073709551615,"v":2,"gone":3,"a.path":4}"#.into(),
        )]);
        let mut rename = |name: &str| match name {
            "u" => Some("v".into()),
            "v" => Some("u".into()),
            "gone" => None,
            other => Some(other.into()),
        };
        rename_attributes(&mut metadata, &mut rename);
        let ids = metadata.get_mut(PARAM_IDS_KEY).unwrap();
        assert_eq!(ids, r#"{"a.path":4,"u":2,"v":18446744073709551615}"#);
        join_entry(PARAM_IDS_KEY, ids, r#"{"u":9,"w":9}"#);
        assert_eq!(ids, r#"{"a.path":4,"u":2,"v":18446744073709551615,"w":9}"#);
        for stays in ["no JSON", r#"["u"]"#] {
            join_entry(PARAM_IDS_KEY, ids, stays);
            assert!(ids.ends_with(r#""w":9}"#));
            let mut metadata = Metadata::from([(PARAM_IDS_KEY.into(), stays.into())]);
            rename_attributes(&mut metadata, &mut rename);
            assert_eq!(metadata[PARAM_IDS_KEY], stays);
        }
        let mut title = "a".into();
        join_entry("title", &mut title, "b");
        assert_eq!(title, "a");
        rename_attributes(&mut metadata, &mut |_| None);
        assert!(metadata.is_empty());
    }

    #[test]
    fn attributes_of_similar_names_are_distinguished() {
        let keys = [
            ("u", "units"),
            ("u", ""),
            ("u#x", "units"),
            ("u2", "units"),
            ("", "units"),
            ("attribute:u", "units"),
        ];
        let metadata: Metadata = keys
            .iter()
            .map(|(tensor, name)| (attribute_key(tensor, name).unwrap(), (*tensor).into()))
            .chain([("attribute:u".into(), "no attribute".into())])
            .collect();
        for (tensor, names) in [
            ("u", &["", "units"][..]),
            ("u#x", &["units"]),
            ("u2", &["units"]),
            ("", &["units"]),
            ("attribute:u", &["units"]),
            ("w", &[]),
        ] {
            let found = attributes(&metadata, tensor);
            assert!(found.eq(names.iter().map(|&name| (name, tensor))), "{tensor}");
        }
        for (tensor, name) in keys {
            assert_eq!(described_tensor(&attribute_key(tensor, name).unwrap()), Some(tensor));
        }
        assert_eq!(described_tensor("attribute:u"), None);
        assert_eq!(described_tensor("u#units"), None);
    }
}
