//! The picture of a model: a treemap of its modules, drawn as SVG or PNG.

mod picture;
mod png;
mod svg;
mod treemap;

pub(crate) use picture::Picture;
