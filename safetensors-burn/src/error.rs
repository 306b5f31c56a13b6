//! What can go wrong with a module, beyond what core knows of.

use std::error::Error as StdError;
use std::fmt;

use safetensors_core::{Error, ErrorKind, Framework};

use crate::Burn;

/// Why a [`CheckpointStore`](crate::CheckpointStore) could not load or save a module: the source of an
/// [`ErrorKind::Framework`].
///
/// A tensor of the wrong shape or kind is an [`ApplyError`](crate::ApplyError) there instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The checkpoint lacks parameters that the module has, and partial loading is not allowed.
    #[error("the checkpoint lacks {}: allow_partial(true) loads the rest", Names(.names))]
    Missing {
        /// The parameters, by their path in the module.
        names: Vec<String>,
    },
    /// A pattern is not a regular expression.
    #[error("{0}")]
    Pattern(#[source] regex::Error),
    /// The destination is an index, which a save would replace with tensors.
    #[error("a module is saved to a file or in a directory, not to an index (*.json)")]
    IndexDestination,
    /// The backend panicked while it took over a tensor, for example because its device lacks the dtype.
    #[error("the backend panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
}

/// An error of burn itself, or of this crate's part in it.
pub(crate) fn framework(source: impl StdError + Send + Sync + 'static) -> Error {
    ErrorKind::Framework { framework: Burn::NAME, source: Box::new(source) }.into()
}

/// Names for a message: all of a few, the first of many.
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (i, name) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{name:?}", if i == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
