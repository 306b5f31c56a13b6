//! Structs of arrays: [`NamedArrays`], which `#[derive(NamedArrays)]` implements, and the types
//! that the fields of such a struct can have.
//!
//! # What fields become
//!
//! | type of the field | in the file |
//! |---|---|
//! | `Array<A, D>`, `ArcArray<A, D>`, of any [`ArrayElement`] and dimension | a tensor with the name of the field |
//! | `ArrayView<'a, A, D>`, `CowArray<'a, A, D>` | the same; loaded by [`view_from`](NamedArrays::view_from) |
//! | a struct that derives `NamedArrays` | its fields, below the name of the field: `encoder.weight` |
//! | `Vec<T>` of structs, arrays, texts or such `Vec`s | its items, below the name of the field: `layers.0.weight` |
//! | `Option<T>` | `T`, or nothing |
//! | `bool`, integers, `f32`, `f64`, `String`, `&'a str` | an entry in the metadata |
//!
//! # Entries in the metadata
//!
//! The key is the name of the field, as for a tensor: `epoch`, or `optimizer.step`. The value is a
//! text in the form of [`MetadataValue`](crate::MetadataValue). Every float, NaN too, comes back
//! with the same bits. A decimal from another program is rounded once; one that is too large is
//! refused.
//!
//! A struct with only `None` in its `Option`s writes nothing. If it is an item of a `Vec` or in an
//! `Option`, an entry of its name with an empty value represents it. So a `Vec` keeps its length,
//! and `Some` stays `Some`. An empty `Vec` as a field writes nothing, and a `Vec` that the file
//! does not have is empty. Inside a `Vec` or `Option` it is an entry with an empty value.
//!
//! Other entries in the metadata are ignored.

mod arrays;
mod checking;
mod collections;
mod field;
mod loading;
mod named;
mod names;
mod saving;
mod scalars;

#[doc(hidden)]
pub use checking::Checking;
#[doc(hidden)]
pub use field::{InOption, InVec};
pub use field::{LoadField, SaveField};
#[doc(hidden)]
pub use loading::Loading;
pub use named::NamedArrays;
#[doc(hidden)]
pub use names::{Names, join};
#[doc(hidden)]
pub use ndarray::Dimension;
pub use safetensors_core::Result;
#[doc(hidden)]
pub use saving::Saving;

#[doc(hidden)]
pub use crate::ArrayElement;
