//! Text for people: names from files made safe to print, numbers made easy to read.
//!
//! A name may hold anything: terminal escapes, line breaks, characters that reverse the direction
//! of the text. All text from files goes through this module before it is printed.

mod escape;
mod natural;
mod numbers;

pub(crate) use escape::{
    escaped, is_printable, lossy, name, path, printable, short, some, value, value_within,
};
pub(crate) use natural::Natural;
pub(crate) use numbers::{bits_each, count, counted, number, percent, shape, size};
