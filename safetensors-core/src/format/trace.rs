//! [`Span`]: reports work to the crate `tracing`, with the feature `tracing`.

use core::fmt::Display;

/// A piece of work, from its creation to its drop.
///
/// | name | work | fields |
/// |---|---|---|
/// | `open` | opens a file of a `Checkpoint`, and reads its header | `path`, `bytes` of the header |
/// | `read` | reads several tensors; not `LazyTensor::read` | `tensors`, `bytes` in memory |
/// | `convert` | converts elements in one thread | `from`, `to`, `bytes` of the result |
/// | `write` | saves a file by `save`, `save_sharded` or a `StreamWriter`, until it is in place | `path`, `bytes` of the file |
/// | `request` | asks a server for bytes | `address`, `bytes` of the answer |
///
/// The target is `safetensors`, the level DEBUG. Conversions are children of their `read`, in any
/// thread.
#[derive(Debug)]
#[must_use]
#[doc(hidden)]
pub struct Span {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

#[must_use]
pub(crate) struct Entered<'s> {
    #[cfg(feature = "tracing")]
    _guard: tracing::span::Entered<'s>,
    #[cfg(not(feature = "tracing"))]
    _guard: core::marker::PhantomData<&'s ()>,
}

/// Makes a [`Span`]. Without the feature no field is computed.
macro_rules! span {
    ($name:literal, $($field:ident = $value:expr),*) => {
        Span {
            #[cfg(feature = "tracing")]
            span: tracing::debug_span!(target: "safetensors", $name, $($field = $value),*),
        }
    };
}

#[cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "there are no fields"))]
impl Span {
    #[inline]
    pub(crate) fn open(path: impl Display) -> Self {
        span!("open", path = tracing::field::display(path), bytes = tracing::field::Empty)
    }

    #[inline]
    pub(crate) fn read(tensors: usize, bytes: u64) -> Self {
        span!("read", tensors = tensors, bytes = bytes)
    }

    #[inline]
    pub(crate) fn convert(from: &str, to: &str, bytes: usize) -> Self {
        span!("convert", from = from, to = to, bytes = bytes)
    }

    #[inline]
    pub(crate) fn write(path: impl Display) -> Self {
        span!("write", path = tracing::field::display(path), bytes = tracing::field::Empty)
    }

    /// Starts a request. `address` names the host or object, and is called only with the feature.
    #[inline]
    #[doc(hidden)]
    pub fn request(address: impl FnOnce() -> String) -> Self {
        span!("request", address = address(), bytes = tracing::field::Empty)
    }

    /// Returns the thread's span, for threads that work for it.
    #[inline]
    pub(crate) fn current() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            span: tracing::Span::current(),
        }
    }

    /// Records the number of bytes, if it was not known at the start.
    #[inline]
    #[doc(hidden)]
    pub fn record_bytes(&self, bytes: u64) {
        #[cfg(feature = "tracing")]
        self.span.record("bytes", bytes);
    }

    /// Works for the span until the result is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Entered<'_> {
        Entered {
            #[cfg(feature = "tracing")]
            _guard: self.span.enter(),
            #[cfg(not(feature = "tracing"))]
            _guard: core::marker::PhantomData,
        }
    }
}
