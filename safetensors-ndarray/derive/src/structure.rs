//! The struct that the macro is applied to, checked.

use std::collections::BTreeMap;

use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{Data, DeriveInput, Error, Fields, Generics, Ident, LitStr, Path, Result, Type};

use crate::attributes::{FieldAttributes, StructAttributes};

pub(crate) struct Structure<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) generics: &'a Generics,
    pub(crate) attributes: StructAttributes,
    pub(crate) fields: Vec<Field<'a>>,
}

pub(crate) struct Field<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) ty: &'a Type,
    /// The type depends on a parameter of the struct, so that only a bound determines its traits.
    pub(crate) generic: bool,
    /// `None` if the field is skipped.
    pub(crate) stored: Option<StoredField>,
}

pub(crate) struct StoredField {
    /// The name in the file, below the struct's.
    pub(crate) name: String,
    /// A field that the file lacks gets its default value.
    pub(crate) default: bool,
    pub(crate) dimensions: Option<Vec<LitStr>>,
    pub(crate) units: Option<LitStr>,
}

impl<'a> Structure<'a> {
    /// Checks a struct. The error has every problem of every field.
    pub(crate) fn parse(input: &'a DeriveInput) -> Result<Self> {
        let refuse = |found: &str| {
            let message = format!("NamedArrays needs a struct with named fields, found {found}");
            Err(Error::new(input.ident.span(), message))
        };
        let named = match &input.data {
            Data::Struct(data) => match &data.fields {
                Fields::Named(fields) => &fields.named,
                Fields::Unnamed(_) => return refuse("a tuple struct"),
                Fields::Unit => return refuse("a struct without fields"),
            },
            Data::Enum(_) => return refuse("an enum"),
            Data::Union(_) => return refuse("a union"),
        };
        let mut errors = Errors(None);
        let attributes = errors.note(StructAttributes::parse(&input.attrs)).unwrap_or_default();
        let mut names = BTreeMap::new();
        let mut fields = Vec::with_capacity(named.len());
        for field in named {
            let Some(ident) = &field.ident else { continue };
            let shown = ident.unraw().to_string();
            let Some(found) = errors.note(FieldAttributes::parse(&field.attrs, &shown)) else {
                continue;
            };
            let generic = depends_on(&field.ty, &input.generics);
            if found.skip {
                fields.push(Field { ident, ty: &field.ty, generic, stored: None });
                continue;
            }
            errors.note(check_type(&field.ty, &shown));
            let name = found.rename.as_ref().map_or_else(|| shown.clone(), |name| name.value());
            if let Some(first) = names.insert(name.clone(), shown.clone()) {
                let span = found.rename.as_ref().map_or_else(|| ident.span(), |name| name.span());
                let message = format!("fields `{first}` and `{shown}` have the same name {name:?}");
                errors.note::<()>(Err(Error::new(span, message)));
            }
            let FieldAttributes { default, dimensions, units, .. } = found;
            let stored = Some(StoredField { name, default, dimensions, units });
            fields.push(Field { ident, ty: &field.ty, generic, stored });
        }
        match errors.0 {
            Some(error) => Err(error),
            None => Ok(Self { ident: &input.ident, generics: &input.generics, attributes, fields }),
        }
    }
}

struct Errors(Option<Error>);

impl Errors {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        match &mut self.0 {
            Some(all) => all.combine(error),
            None => self.0 = Some(error),
        }
        None
    }
}

/// Refuses types that no implementation of a trait can make storable. The compiler checks types
/// behind a path.
fn check_type(ty: &Type, field: &str) -> Result<()> {
    let (found, instead) = match ty {
        Type::Paren(inner) => return check_type(&inner.elem, field),
        Type::Group(inner) => return check_type(&inner.elem, field),
        Type::Path(_) | Type::Macro(_) => return Ok(()),
        Type::Reference(reference) => match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => return Ok(()),
            _ => ("a reference", "an ArrayView"),
        },
        Type::Array(_) | Type::Slice(_) => ("a Rust array", "an Array of ndarray"),
        Type::Tuple(_) => ("a tuple", "a struct that derives NamedArrays"),
        Type::BareFn(_) => ("a function", "#[safetensors(skip)]"),
        Type::Ptr(_) => ("a pointer", "#[safetensors(skip)]"),
        Type::TraitObject(_) => ("a trait object", "#[safetensors(skip)]"),
        _ => ("this type", "#[safetensors(skip)]"),
    };
    let message = format!("field `{field}`: {found} cannot be stored; use {instead}");
    Err(Error::new_spanned(ty, message))
}

pub(crate) fn depends_on(ty: &Type, generics: &Generics) -> bool {
    names(ty, |ident| {
        generics.type_params().any(|parameter| parameter.ident == *ident)
            || generics.const_params().any(|parameter| parameter.ident == *ident)
    })
}

/// Returns `true` if a path in a type begins with such a name.
pub(crate) fn names(ty: &Type, is_such: impl Fn(&Ident) -> bool) -> bool {
    struct Finder<F>(F, bool);

    impl<F: Fn(&Ident) -> bool> Visit<'_> for Finder<F> {
        fn visit_path(&mut self, path: &Path) {
            self.1 |= path.segments.first().is_some_and(|first| (self.0)(&first.ident));
            visit::visit_path(self, path);
        }
    }

    let mut finder = Finder(is_such, false);
    finder.visit_type(ty);
    finder.1
}
