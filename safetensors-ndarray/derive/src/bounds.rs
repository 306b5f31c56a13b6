//! The bounds that the implementations for a generic struct need.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{GenericArgument, Generics, Ident, PathArguments, Type, WherePredicate, parse_quote};

use crate::structure::{Field, depends_on, names};

/// The types of ndarray without the end of their names: a number of dimensions, or `D`.
const ARRAYS: [&str; 4] = ["Array", "ArcArray", "ArrayView", "CowArray"];

/// Adds the bounds by which all fields can be saved or loaded: `field` is the trait of a field.
// An array needs the bounds of its elements and its dimension: the compiler finds two bounds of the
// array that differ only in their lifetimes ambiguous.
pub(crate) fn of_fields(
    generics: &mut Generics,
    structure: &Ident,
    fields: &[Field<'_>],
    field: &TokenStream,
) {
    let parameters = generics.clone();
    for Field { ty, .. } in fields.iter().filter(|field| field.generic && field.stored.is_some()) {
        match array_arguments(ty).as_deref() {
            Some([elements]) => {
                add(generics, &parameters, elements, &quote!(__fields::ArrayElement))
            }
            Some([elements, dimension]) => {
                add(generics, &parameters, elements, &quote!(__fields::ArrayElement));
                add(generics, &parameters, dimension, &quote!(__fields::Dimension));
            }
            // The struct itself as an item: the bounds of its other fields are enough, and one that
            // needs itself has no end.
            _ if names(ty, |ident| ident == structure || ident == "Self") => {}
            _ => add(generics, &parameters, ty, field),
        }
    }
}

/// Adds the bounds by which fields that the file lacks get their default values.
pub(crate) fn of_defaults(generics: &mut Generics, fields: &[Field<'_>]) {
    let parameters = generics.clone();
    for Field { ty, stored, .. } in fields {
        if stored.as_ref().is_none_or(|stored| stored.default) {
            add(generics, &parameters, ty, &quote!(::core::default::Default));
        }
    }
}

/// Adds a bound for a type that depends on a parameter.
// Other types have better errors without.
fn add(generics: &mut Generics, parameters: &Generics, ty: &Type, bound: &TokenStream) {
    if depends_on(ty, parameters) {
        let predicate: WherePredicate = parse_quote!(#ty: #bound);
        generics.make_where_clause().predicates.push(predicate);
    }
}

/// Returns the type arguments of an array of ndarray, also in an `Option` or a `Vec`.
fn array_arguments(ty: &Type) -> Option<Vec<&Type>> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    let name = last.ident.to_string();
    let types: Vec<_> = types.collect();
    match (name.as_str(), types.as_slice()) {
        ("Option" | "Vec", [item]) => array_arguments(item),
        (name, [_] | [_, _])
            if ARRAYS
                .contains(&name.trim_end_matches(|c: char| c == 'D' || c.is_ascii_digit())) =>
        {
            Some(types)
        }
        _ => None,
    }
}
