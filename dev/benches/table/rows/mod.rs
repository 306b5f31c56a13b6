//! The rows. Each group of rows has a file.

mod arranged;
mod array_orders;
mod array_writes;
mod arrays;
mod builder;
mod burn;
mod convert;
mod experts;
mod gguf;
mod limits;
mod load;
mod quantised;
mod save;
mod scaling;
mod views;
#[cfg(target_os = "linux")]
mod waiting;

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
        builder::rows(),
        experts::rows(),
        arranged::rows(),
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
        #[cfg(target_os = "linux")]
        waiting::rows(),
    ];
    groups.into_iter().flatten().collect()
}
