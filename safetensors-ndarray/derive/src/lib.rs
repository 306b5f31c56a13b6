//! The derive macro `NamedArrays` of `safetensors-ndarray`, for structs of ndarray arrays.
//!
//! Use it as `safetensors_ndarray::NamedArrays`, with the feature `derive` of that crate. The trait
//! of the same name has the methods and the rules.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod attributes;
mod bounds;
mod crate_path;
mod expand;
mod structure;

use proc_macro::TokenStream;

// The doctests of `safetensors-ndarray` run the examples. If this crate depended on that one for its
// tests, that one and the core would be built a second time, for the compiler itself.
#[cfg_attr(not(doctest), doc = include_str!("derive.md"))]
#[proc_macro_derive(NamedArrays, attributes(safetensors))]
pub fn derive_named_arrays(input: TokenStream) -> TokenStream {
    let manifest = crate_path::manifest();
    let expanded = syn::parse(input).and_then(|input| expand::expand(&input, &manifest));
    expanded.unwrap_or_else(|error| error.into_compile_error()).into()
}
