//! [`Support`] and [`Widening`]: whether a framework takes a dtype, and as what.

use crate::dtype::Dtype;
use crate::error::ErrorKind;

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

/// Whether a tensor may change its dtype on its way into a framework that lacks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Widening {
    /// It becomes the wider dtype that the adapter documents, which holds every value exactly.
    #[default]
    Lossless,
    /// It is an error.
    Refuse,
}

/// The dtypes that a framework holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DtypeTable {
    /// The framework's name, for errors.
    pub(crate) framework: &'static str,
    pub(crate) support: fn(Dtype) -> Support,
}

impl DtypeTable {
    /// The dtype that elements of `dtype` get in the framework.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedDtype`] if there is none; [`ErrorKind::WouldWiden`] if it is another
    /// and `widening` forbids that.
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
