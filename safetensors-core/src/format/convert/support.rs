//! [`Support`] and [`Widening`]: whether a framework holds a dtype, and as which dtype.

use crate::format::dtype::Dtype;
use crate::format::error::ErrorKind;

/// How a framework holds the elements of a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// As they are in the file.
    Exact,
    /// As this wider dtype, which holds each value exactly (see [`widen`](super::widen())).
    Widened(Dtype),
    /// Not at all.
    Unsupported,
}

/// Whether a load may change the dtype of a tensor for a framework that lacks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Widening {
    /// The tensor gets the wider dtype that the adapter documents, which holds each of its values
    /// exactly.
    #[default]
    Lossless,
    /// A tensor of a dtype that the framework lacks is an error, [`ErrorKind::WouldWiden`].
    Refuse,
}

/// Which dtypes a framework holds, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DtypeTable {
    /// The framework's name, for errors.
    pub(crate) framework: &'static str,
    pub(crate) support: fn(Dtype) -> Support,
}

impl DtypeTable {
    /// Returns the dtype that a tensor of dtype `dtype` gets in the framework.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedDtype`] if the framework cannot hold the values;
    /// [`ErrorKind::WouldWiden`] if it holds them only as a wider dtype, and `widening` refuses
    /// that.
    pub(crate) fn accept(self, dtype: Dtype, widening: Widening) -> Result<Dtype, ErrorKind> {
        let framework = self.framework;
        match ((self.support)(dtype), widening) {
            (Support::Exact, _) => Ok(dtype),
            (Support::Widened(to), Widening::Lossless) => Ok(to),
            (Support::Widened(to), Widening::Refuse) => {
                Err(ErrorKind::WouldWiden { framework, dtype, to })
            }
            (Support::Unsupported, _) => Err(ErrorKind::UnsupportedDtype { framework, dtype }),
        }
    }
}
