//! The implementations that the macro writes.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    DeriveInput, Error, GenericParam, Generics, Lifetime, LifetimeParam, LitStr, Result,
    WherePredicate, parse_quote,
};

use crate::structure::{Field, StoredField, Structure};
use crate::{bounds, crate_path};

pub(crate) fn expand(input: &DeriveInput, manifest: &str) -> Result<TokenStream> {
    let structure = Structure::parse(input)?;
    let path = match &structure.attributes.crate_path {
        Some(path) => quote!(#path),
        None => crate_path::find(manifest).ok_or_else(|| {
            let message = "Cargo.toml has neither safetensors-ndarray nor safetensors-bridge under \
                           its own name: give the struct the path of safetensors-ndarray, as in \
                           #[safetensors(crate = \"other::ndarray\")]";
            Error::new(input.ident.span(), message)
        })?,
    };
    let (save, load) = (save(&structure), load(&structure));
    // The constant keeps the name of the module out of the user's code.
    Ok(quote! {
        const _: () = {
            use #path::fields as __fields;
            #save
            #load
        };
    })
}

/// Generates the code that saves a struct, and allows it as a field, in a `Vec` and in an `Option`.
fn save(structure: &Structure<'_>) -> TokenStream {
    let ident = structure.ident;
    let mut generics = structure.generics.clone();
    bounds::of_fields(&mut generics, ident, &structure.fields, &quote!(__fields::SaveField));
    let (parameters, arguments, bounds) = generics.split_for_impl();
    let (plain_parameters, _, plain_bounds) = structure.generics.split_for_impl();
    let saved = stored(structure).map(|(field, stored)| {
        let (field, ty, name) = (field.ident, field.ty, &stored.name);
        let name = quote!(&__fields::join(name, #name));
        let dimensions =
            stored.dimensions.iter().map(|names| quote!(file.dimensions(#name, &[#(#names),*])?;));
        let units = stored.units.iter();
        quote! {
            <#ty as __fields::SaveField>::save_field(&self.#field, #name, file)?;
            #(#dimensions)*
            #(file.units(#name, #units)?;)*
        }
    });
    quote! {
        #[automatically_derived]
        #[allow(unused_variables)]
        impl #parameters __fields::SaveField for #ident #arguments #bounds {
            fn save_field(
                &self, name: &str, file: &mut __fields::Saving<'_>,
            ) -> __fields::Result<()> {
                #(#saved)*
                __fields::Result::Ok(())
            }
        }
        #[automatically_derived]
        impl #parameters __fields::NamedArrays for #ident #arguments #bounds {}
        #[automatically_derived]
        impl #plain_parameters __fields::InVec for #ident #arguments #plain_bounds {}
        #[automatically_derived]
        impl #plain_parameters __fields::InOption for #ident #arguments #plain_bounds {}
    }
}

/// Returns the generics of the implementation that loads a struct from a file of this lifetime.
fn load_generics(structure: &Structure<'_>, file: &Lifetime) -> Generics {
    let mut generics = structure.generics.clone();
    // Everything that the struct borrows, it borrows from the file.
    let borrowed: Vec<_> = generics.lifetimes().map(|lifetime| lifetime.lifetime.clone()).collect();
    generics.params.insert(0, GenericParam::Lifetime(LifetimeParam::new(file.clone())));
    let outlives =
        borrowed.iter().map(|lifetime| -> WherePredicate { parse_quote!(#file: #lifetime) });
    generics.make_where_clause().predicates.extend(outlives);
    bounds::of_fields(
        &mut generics,
        structure.ident,
        &structure.fields,
        &quote!(__fields::LoadField<#file>),
    );
    bounds::of_defaults(&mut generics, &structure.fields);
    generics
}

/// Generates the code that compares a field with a file.
fn check(field: &Field<'_>, stored: &StoredField, file: &Lifetime) -> TokenStream {
    let (field, ty, name) = (field.ident, field.ty, &stored.name);
    let current = quote!(current.map(|current| &current.#field));
    let name = quote!(&__fields::join(name, #name));
    let check = if stored.default {
        quote!(file.check_or_default::<#ty>(#current, #name);)
    } else {
        quote!(<#ty as __fields::LoadField<#file>>::check(#current, #name, file);)
    };
    let dimensions = stored.dimensions.iter().map(|names| {
        let expected = names.iter().map(LitStr::value).collect::<Vec<_>>().join(", ");
        let expected = format!("the names {expected}");
        quote!(file.check_dimensions(#name, &[#(#names),*], #expected);)
    });
    let units = stored.units.iter();
    quote! {
        #check
        #(#dimensions)*
        #(file.check_units(#name, #units);)*
    }
}

fn value(field: &Field<'_>, file: &Lifetime) -> TokenStream {
    let ty = field.ty;
    match &field.stored {
        Some(StoredField { name, default: true, .. }) => {
            quote!(file.load_or_default::<#ty>(&__fields::join(name, #name))?)
        }
        Some(StoredField { name, .. }) => {
            let name = quote!(&__fields::join(name, #name));
            quote!(<#ty as __fields::LoadField<#file>>::load(#name, file)?)
        }
        None => quote!(<#ty as ::core::default::Default>::default()),
    }
}

fn load(structure: &Structure<'_>) -> TokenStream {
    let ident = structure.ident;
    let (_, arguments, _) = structure.generics.split_for_impl();
    let file: Lifetime = parse_quote!('__file);
    let generics = load_generics(structure, &file);
    let (parameters, _, bounds) = generics.split_for_impl();

    let checks = stored(structure).map(|(field, stored)| check(field, stored, &file));
    let names = stored(structure).map(|(_, stored)| &stored.name);
    let others = structure
        .attributes
        .ignore_others
        .then(|| quote!(file.ignore_others(name, &[#(#names),*]);));
    let loads = structure.fields.iter().map(|field| {
        let (ident, value) = (field.ident, value(field, &file));
        quote!(#ident: #value,)
    });
    let exchanges = stored(structure).map(|(field, _)| {
        let (field, ty) = (field.ident, field.ty);
        quote! {
            <#ty as __fields::LoadField<#file>>::exchange(&mut self.#field, &mut loaded.#field);
        }
    });
    quote! {
        #[automatically_derived]
        #[allow(unused_variables)]
        impl #parameters __fields::LoadField<#file> for #ident #arguments #bounds {
            fn is_in(name: &str, names: &__fields::Names<#file>) -> bool {
                names.has_struct(name)
            }

            fn check(
                current: ::core::option::Option<&Self>,
                name: &str,
                file: &mut __fields::Checking<#file>,
            ) {
                #others
                #(#checks)*
            }

            fn load(name: &str, file: &mut __fields::Loading<#file>) -> __fields::Result<Self> {
                __fields::Result::Ok(Self { #(#loads)* })
            }

            fn exchange(&mut self, loaded: &mut Self) {
                #(#exchanges)*
            }
        }
    }
}

fn stored<'a>(
    structure: &'a Structure<'_>,
) -> impl Iterator<Item = (&'a Field<'a>, &'a StoredField)> + Clone {
    structure.fields.iter().filter_map(|field| Some((field, field.stored.as_ref()?)))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
