//! Text for people: names from files made safe to print, numbers made easy to read.
//!
//! A name may have terminal escapes, line breaks, or characters that reverse the direction of text.

mod escape;
mod natural;
mod numbers;

pub(crate) use escape::{
    escaped, is_printable, lossy, name, path, printable, short, some, value, value_within,
};
pub(crate) use natural::Natural;
pub(crate) use numbers::{bits_each, count, counted, number, percent, shape, size};
