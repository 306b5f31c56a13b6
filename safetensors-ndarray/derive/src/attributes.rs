//! The attributes `#[safetensors(…)]` of a struct and of its fields.

use quote::ToTokens;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, Error, LitStr, Path, Result};

#[derive(Default)]
pub(crate) struct FieldAttributes {
    pub(crate) rename: Option<LitStr>,
    /// The field is neither saved nor loaded.
    pub(crate) skip: bool,
    /// A field that the file lacks gets its default value.
    pub(crate) default: bool,
    pub(crate) dimensions: Option<Vec<LitStr>>,
    pub(crate) units: Option<LitStr>,
}

impl FieldAttributes {
    /// Parses the attributes of a field. Errors show its name.
    pub(crate) fn parse(attributes: &[Attribute], field: &str) -> Result<Self> {
        let mut found = Self::default();
        for_each(attributes, |meta| {
            let twice = if meta.path.is_ident("rename") {
                found.rename.replace(name(&meta, field)?).is_some()
            } else if meta.path.is_ident("skip") {
                std::mem::replace(&mut found.skip, true)
            } else if meta.path.is_ident("default") {
                std::mem::replace(&mut found.default, true)
            } else if meta.path.is_ident("dimensions") {
                found.dimensions.replace(dimensions(&meta, field)?).is_some()
            } else if meta.path.is_ident("units") {
                found.units.replace(meta.value()?.parse()?).is_some()
            } else {
                return Err(meta.error(format!(
                    "field `{field}`: unknown attribute `{}`; a field can have rename, skip, \
                     default, dimensions and units",
                    text(&meta.path)
                )));
            };
            if twice {
                let path = text(&meta.path);
                return Err(meta.error(format!("field `{field}`: duplicate attribute `{path}`")));
            }
            let others = found.default
                || found.rename.is_some()
                || found.dimensions.is_some()
                || found.units.is_some();
            if found.skip && others {
                return Err(meta.error(format!(
                    "field `{field}`: a skipped field can have no other attribute"
                )));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

fn name(meta: &ParseNestedMeta<'_>, field: &str) -> Result<LitStr> {
    let name: LitStr = meta.value()?.parse()?;
    match name.value().as_str() {
        "" => Err(Error::new(name.span(), format!("field `{field}`: the name is empty"))),
        "__metadata__" => Err(Error::new(
            name.span(),
            format!("field `{field}`: the name __metadata__ is reserved by the format"),
        )),
        _ => Ok(name),
    }
}

fn dimensions(meta: &ParseNestedMeta<'_>, field: &str) -> Result<Vec<LitStr>> {
    let content;
    syn::parenthesized!(content in meta.input);
    let names = content.parse_terminated(<LitStr as syn::parse::Parse>::parse, syn::Token![,])?;
    let names: Vec<_> = names.into_iter().collect();
    for (i, name) in names.iter().enumerate() {
        if names[..i].iter().any(|other| other.value() == name.value()) {
            let message = format!("field `{field}`: two dimensions have the same name");
            return Err(Error::new(name.span(), message));
        }
    }
    Ok(names)
}

#[derive(Default)]
pub(crate) struct StructAttributes {
    pub(crate) crate_path: Option<Path>,
    /// Arrays that no field has are ignored.
    pub(crate) ignore_others: bool,
}

impl StructAttributes {
    pub(crate) fn parse(attributes: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        for_each(attributes, |meta| {
            let twice = if meta.path.is_ident("crate") {
                found.crate_path.replace(meta.value()?.parse::<LitStr>()?.parse()?).is_some()
            } else if meta.path.is_ident("ignore_others") {
                std::mem::replace(&mut found.ignore_others, true)
            } else {
                return Err(meta.error(format!(
                    "unknown attribute `{}`; a struct can have crate and ignore_others",
                    text(&meta.path)
                )));
            };
            if twice {
                return Err(meta.error(format!("duplicate attribute `{}`", text(&meta.path))));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

fn for_each(
    attributes: &[Attribute],
    mut parse: impl FnMut(ParseNestedMeta<'_>) -> Result<()>,
) -> Result<()> {
    for attribute in attributes {
        if attribute.path().is_ident("safetensors") {
            attribute.parse_nested_meta(&mut parse)?;
        }
    }
    Ok(())
}

fn text(path: &Path) -> String {
    path.to_token_stream().to_string().replace(' ', "")
}
