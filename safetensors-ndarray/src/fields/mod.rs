//! Structs of arrays, by `#[derive(NamedArrays)]`, and the types that their fields can have.
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
//! The key is the name of the field: `epoch`, or `optimizer.step`. The value has the form of
//! [`MetadataValue`](crate::MetadataValue), so every float comes back with the same bits. A decimal
//! of another program is rounded once; one that is too large is refused.
//!
//! An item of a `Vec`, or a value in an `Option`, that writes nothing is an entry with an empty
//! value. So a `Vec` keeps its length, and `Some` stays `Some`. A `Vec` that the file lacks is
//! empty. Other entries are ignored.

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
