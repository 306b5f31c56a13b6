//! The rows. Each group of rows has a file.

mod array_orders;
mod array_writes;
mod arrays;
mod builder;
mod burn;
mod convert;
mod experts;
mod first_load;
mod gguf;
mod limits;
mod load;
mod quantised;
mod save;
mod scaling;
mod views;

use anyhow::Result;

use harness::data::Data;
use harness::sample::Row;

/// A row before it is measured: its name, and how to make it and its test data.
pub(crate) struct Spec {
    pub(crate) name: String,
    build: Box<Build>,
}

type Build = dyn Fn(&Data) -> Result<Row>;

impl Spec {
    fn new(name: impl Into<String>, build: impl Fn(&Data) -> Result<Row> + 'static) -> Self {
        Self { name: name.into(), build: Box::new(build) }
    }

    /// Makes the row, and its test data unless they exist.
    pub(crate) fn build(&self, data: &Data) -> Result<Row> {
        (self.build)(data)
    }
}

/// Returns all rows, in the table's order.
pub(crate) fn all() -> Vec<Spec> {
    let groups = [
        load::rows(),
        first_load::rows(),
        builder::rows(),
        experts::rows(),
        gguf::rows(),
        burn::rows(),
        views::rows(),
        arrays::rows(),
        array_writes::rows(),
        array_orders::rows(),
        save::rows(),
        convert::rows(),
        quantised::rows(),
        scaling::rows(),
    ];
    groups.into_iter().flatten().collect()
}
