//! Names of dimensions, as the attribute `dimensions`: a JSON array such as `["t", "y", "x"]`.
//!
//! A tensor with one dimension and that dimension's name is its coordinate, a label for each
//! position, as in NetCDF and xarray.

use super::{Metadata, attribute_key};
use crate::format::error::{Error, ErrorKind, Result};

pub(crate) const DIMENSIONS: &str = "dimensions";

/// Returns the names of a tensor's `ndim` dimensions, if the attribute `dimensions` has them.
///
/// ```
/// use safetensors_core::Metadata;
/// use safetensors_core::header::dimensions;
///
/// let metadata = Metadata::from([("attribute:u#dimensions".into(), r#"["t", "x"]"#.into())]);
/// assert_eq!(dimensions(&metadata, "u", 2)?, Some(vec!["t".to_owned(), "x".to_owned()]));
/// assert_eq!(dimensions(&metadata, "v", 2)?, None);
/// assert!(dimensions(&metadata, "u", 3).is_err());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::BadAttribute`] if it is not a JSON array of `ndim` different names.
pub fn dimensions(metadata: &Metadata, tensor: &str, ndim: usize) -> Result<Option<Vec<String>>> {
    let Some(text) = metadata.get(&attribute_key(tensor, DIMENSIONS)?) else { return Ok(None) };
    let names = serde_json::from_str::<Vec<String>>(text).ok();
    match names.filter(|names| are_for(names, ndim)) {
        Some(names) => Ok(Some(names)),
        None => Err(bad(text, ndim).in_tensor(tensor)),
    }
}

pub(crate) fn dimensions_text(names: &[&str], ndim: usize) -> Result<String> {
    let text = serde_json::Value::from(names).to_string();
    if are_for(names, ndim) { Ok(text) } else { Err(bad(&text, ndim)) }
}

fn are_for(names: &[impl AsRef<str>], ndim: usize) -> bool {
    let is_new = |(i, name): (usize, &_)| {
        let name = AsRef::<str>::as_ref(name);
        names[..i].iter().all(|other| other.as_ref() != name)
    };
    names.len() == ndim && names.iter().enumerate().all(is_new)
}

fn bad(found: &str, ndim: usize) -> Error {
    let expected = format!("a JSON array of {ndim} different names");
    ErrorKind::BadAttribute { name: DIMENSIONS, expected, found: found.into() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_for_each_dimension_and_different() {
        let read = |text: &str, ndim| {
            let key = attribute_key("u", DIMENSIONS).unwrap();
            dimensions(&Metadata::from([(key, text.to_owned())]), "u", ndim)
        };
        for names in [&["t", "y"][..], &[], &["", "\"]\\"], &["µ\n", "t/#"]] {
            let text = dimensions_text(names, names.len()).unwrap();
            assert_eq!(read(&text, names.len()).unwrap().unwrap(), names);
            dimensions_text(names, names.len() + 1).unwrap_err();
        }
        for text in ["", "t", "[\"t\"", "{}", "[1]", "[\"t\",\"t\"]", "[\"t\"]", "null"] {
            let error = read(text, 2).unwrap_err();
            assert_eq!(error.tensor(), Some("u"));
            let expected =
                "the attribute \"dimensions\" should be a JSON array of 2 different names";
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(dimensions_text(&["t", "t"], 2).is_err());
    }
}
