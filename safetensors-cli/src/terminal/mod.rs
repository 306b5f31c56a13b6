//! The terminal: text, tables, colours, messages, the pager, signals.

pub(crate) mod colour;
pub(crate) mod json;
pub(crate) mod pager;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod screen;
pub(crate) mod signals;
pub(crate) mod stdout;
pub(crate) mod table;
pub(crate) mod text;
