//! [`Support`] and [`Widening`]: as which dtype a framework holds a tensor.

use crate::format::dtype::Dtype;
use crate::format::error::ErrorKind;

/// How a framework holds a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// As in the file.
    Exact,
    /// As this wider dtype, which has each value (see [`widen`](super::widen())).
    Widened(Dtype),
    /// Not at all.
    Unsupported,
}

/// Whether a load may widen a dtype that the framework lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Widening {
    /// To the wider dtype that the adapter documents, which has each value.
    #[default]
    Lossless,
    /// Such a tensor is [`ErrorKind::WouldWiden`].
    Refuse,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DtypeTable {
    pub(crate) framework: &'static str,
    pub(crate) support: fn(Dtype) -> Support,
}

impl DtypeTable {
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
