//! Outputs: new files, files that are changed, NumPy's files.

pub(crate) mod edit;
pub(crate) mod existing;
pub(crate) mod file;
pub(crate) mod numpy;
pub(crate) mod writing;
