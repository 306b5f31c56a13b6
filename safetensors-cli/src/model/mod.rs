//! Knowledge about a model: modules, totals, values, settings, ModelSpec, and division among ranks.

pub(crate) mod config;
pub(crate) mod epochs;
pub(crate) mod modelspec;
pub(crate) mod order;
pub(crate) mod ranks;
pub(crate) mod totals;
pub(crate) mod tree;
pub(crate) mod values;
pub(crate) mod vectors;
