//! The derive macro `SafeTensors` of `safetensors-ndarray`: a struct of ndarray arrays is saved to
//! a safetensors file, and loaded from one.
//!
//! Use it as `safetensors_ndarray::SafeTensors`, with the feature `derive` of that crate. The trait
//! `safetensors_ndarray::NamedArrays`, which it implements, has the methods and the rules.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod attributes;
mod bounds;
mod expand;
mod structure;

use proc_macro::TokenStream;

/// Implements `NamedArrays` for a struct: it can be saved to a file and loaded from one.
///
/// ```
/// use ndarray::{Array1, Array2, array};
/// use safetensors_ndarray::{NamedArrays, SafeTensors};
///
/// #[derive(SafeTensors)]
/// struct State {
///     time: f64,
///     temperature: Array2<f64>,
///     #[safetensors(rename = "grid.x")]
///     x: Array1<f32>,
///     #[safetensors(skip)]
///     steps_since_save: u32,
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("state.safetensors");
/// let state = State {
///     time: 0.1,
///     temperature: array![[1.0, 2.0]],
///     x: array![0.0, 0.5],
///     steps_since_save: 7,
/// };
/// state.save_to(&path)?;
/// let loaded = State::load_from(&path)?;
/// assert_eq!((loaded.time, loaded.x, loaded.steps_since_save), (0.1, state.x, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Attributes
///
/// | of a field | meaning |
/// |---|---|
/// | `rename = "NAME"` | the name in the file; the default is the name of the field |
/// | `skip` | not saved; `Default::default()` after `load_from`, unchanged by `load_into` |
/// | `default` | `Default::default()` if the file does not have the field |
///
/// | of the struct | meaning |
/// |---|---|
/// | `crate = "PATH"` | the path of `safetensors-ndarray`, for example `safetensors_bridge::ndarray` |
///
/// # Compile errors
///
/// Each is at the field that it is about. A tuple struct, an enum or a union is refused, as its
/// parts have no names:
///
/// ```compile_fail
/// #[derive(safetensors_ndarray::SafeTensors)]
/// struct Pair(ndarray::Array1<f32>, ndarray::Array1<f32>);
/// ```
///
/// So are two fields of the same name, unknown attributes, and types that cannot be stored:
///
/// ```compile_fail,E0277
/// #[derive(safetensors_ndarray::SafeTensors)]
/// struct Table {
///     columns: std::collections::HashMap<String, ndarray::Array1<f32>>,
/// }
/// ```
///
/// A `Vec` has structs, arrays or texts. Numbers belong into an `Array1`:
///
/// ```compile_fail,E0277
/// #[derive(safetensors_ndarray::SafeTensors)]
/// struct Table {
///     column: Vec<f64>,
/// }
/// ```
///
/// An `Option` in an `Option` would be ambiguous in the file:
///
/// ```compile_fail,E0277
/// #[derive(safetensors_ndarray::SafeTensors)]
/// struct Table {
///     column: Option<Option<ndarray::Array1<f64>>>,
/// }
/// ```
///
/// A struct that borrows arrays cannot be loaded from a path, only viewed in memory:
///
/// ```compile_fail
/// use safetensors_ndarray::NamedArrays;
///
/// #[derive(safetensors_ndarray::SafeTensors)]
/// struct Table<'a> {
///     column: ndarray::ArrayView1<'a, f64>,
/// }
/// let table = Table::load_from("table.safetensors");
/// ```
#[proc_macro_derive(SafeTensors, attributes(safetensors))]
pub fn derive_safetensors(input: TokenStream) -> TokenStream {
    let expanded = syn::parse(input).and_then(|input| expand::expand(&input));
    expanded.unwrap_or_else(|error| error.into_compile_error()).into()
}

/// Tests the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
