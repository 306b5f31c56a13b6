//! Converts errors between core and candle.

use std::io;

use candle_core::Device;
use safetensors_core::{Dtype, Error};

/// candle's [`Framework`](safetensors_core::framework::Framework). Its tensors are candle's
/// [`Tensor`](candle_core::Tensor)s on any device.
///
/// ```
/// use candle_core::Device;
/// use safetensors_candle::Candle;
/// use safetensors_core::framework::{Framework, Support};
/// use safetensors_core::{Dtype, SafeTensors, SaveOptions, TensorBuf, Widening, serialize};
///
/// let buf = TensorBuf::from_vec(vec![2], vec![true, false])?;
/// let tensor = Candle::from_buf(buf, &Device::Cpu, Widening::Lossless)?;
/// assert_eq!(tensor.to_vec1::<u8>()?, [1, 0]);
/// assert_eq!(Candle::support(Dtype::BOOL), Support::Widened(Dtype::U8));
///
/// // A single tensor as a source for any save function of core.
/// let file = serialize([("flags", Candle::source(&tensor)?)], &SaveOptions::new())?;
/// assert_eq!(SafeTensors::parse(&file)?.view("flags")?.data(), [1, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candle;

/// Turns candle's `Result`, or its error, into this library's, for `?` in functions that return
/// [`safetensors_core::Result`].
///
/// The result is an [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework) with candle's
/// error as its `source()`, or the original error if [`IntoCandle`] made candle's.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use safetensors_candle::{IntoCore, SaveOptions, save};
///
/// fn double(path: &std::path::Path) -> safetensors_candle::safetensors_core::Result<()> {
///     let tensors = safetensors_candle::load(path, &Device::Cpu)?;
///     let doubled = tensors["weight"].affine(2.0, 0.0).into_core()?;
///     save(path, [("weight", &doubled)], &SaveOptions::new())
/// }
///
/// let error = candle_core::Error::Msg("no such device".into()).into_core().in_tensor("weight");
/// assert_eq!(error.to_string(), r#"tensor "weight": candle: no such device"#);
/// ```
pub trait IntoCore {
    /// The value or error, with this library's error.
    type Core;

    /// Converts the error.
    fn into_core(self) -> Self::Core;
}

impl<T> IntoCore for candle_core::Result<T> {
    type Core = safetensors_core::Result<T>;

    fn into_core(self) -> Self::Core {
        self.map_err(from_candle_error)
    }
}

impl IntoCore for candle_core::Error {
    type Core = Error;

    fn into_core(self) -> Error {
        from_candle_error(self)
    }
}

/// Converts candle's error, or returns the one that [`into_candle_error`] converted.
pub(crate) fn from_candle_error(error: candle_core::Error) -> Error {
    use candle_core::Error::{Io, WithBacktrace};
    match error {
        Io(io) => io.downcast::<Error>().unwrap_or_else(|io| Error::framework::<Candle>(Io(io))),
        // Taken off only from an error of this library, which has the message of `inner`.
        WithBacktrace { inner, .. } if is_ours(&inner) => from_candle_error(*inner),
        other => Error::framework::<Candle>(other),
    }
}

fn is_ours(error: &candle_core::Error) -> bool {
    match error {
        candle_core::Error::Io(io) => io.get_ref().is_some_and(|inner| inner.is::<Error>()),
        _ => false,
    }
}

/// Uses candle's `Io` variant, which holds any error, because `Error::wrap` keeps only the message.
pub(crate) fn into_candle_error(error: Error) -> candle_core::Error {
    candle_core::Error::Io(io::Error::other(error)).bt()
}

/// Turns a [`safetensors_core::Result`] into candle's, for `?` in functions that return candle's.
///
/// The error has the same message and the same `source()`, and a backtrace if `RUST_BACKTRACE` is
/// set. [`IntoCore`] returns the original error.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use safetensors_candle::{Checkpoint, IntoCandle, IntoCore, ReadTensorExt};
///
/// fn embedding(path: &str) -> candle_core::Result<Tensor> {
///     let checkpoint = Checkpoint::open(path).into_candle()?;
///     checkpoint.tensor("wte.weight").into_candle()?.read_tensor(&Device::Cpu)
/// }
///
/// let error = embedding("missing.safetensors").unwrap_err();
/// assert!(error.to_string().contains("missing.safetensors"));
/// assert_eq!(error.into_core().file(), Some("missing.safetensors"));
/// ```
pub trait IntoCandle<T> {
    /// Converts the error.
    fn into_candle(self) -> candle_core::Result<T>;
}

impl<T> IntoCandle<T> for safetensors_core::Result<T> {
    fn into_candle(self) -> candle_core::Result<T> {
        self.map_err(into_candle_error)
    }
}

pub(crate) fn cannot_place(dtype: Dtype, device: &Device, error: candle_core::Error) -> Error {
    let place = match device {
        Device::Cpu => "the CPU",
        Device::Cuda(_) => "a CUDA device",
        Device::Metal(_) => "a Metal device",
    };
    from_candle_error(error.context(format!("cannot place {dtype} elements on {place}")))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use safetensors_core::ErrorKind;

    use super::*;

    #[derive(Debug)]
    struct Outer(std::fmt::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn an_error_passes_through_candle_with_its_message_its_place_and_its_source() {
        let error = Error::framework::<Candle>(Outer(std::fmt::Error));
        let ours = error.in_tensor("weight").in_file("a.safetensors");
        let message = ours.to_string();
        assert_eq!(message, r#"a.safetensors: tensor "weight": candle: outer"#);

        let theirs = into_candle_error(ours);
        assert!(theirs.to_string().starts_with(&message), "{theirs}");
        let bare = match theirs {
            candle_core::Error::WithBacktrace { inner, .. } => *inner,
            bare => bare,
        };
        assert_eq!(bare.to_string(), message);
        let source = bare.source().unwrap();
        assert!(source.is::<Outer>() && source.source().unwrap().is::<std::fmt::Error>());

        // With a backtrace, as with `RUST_BACKTRACE`, which a test cannot set for itself alone.
        let backtrace = Box::new(std::backtrace::Backtrace::force_capture());
        let theirs = candle_core::Error::WithBacktrace { inner: Box::new(bare), backtrace };
        let ours = from_candle_error(theirs);
        assert_eq!(ours.to_string(), message);
        assert_eq!((ours.tensor(), ours.file()), (Some("weight"), Some("a.safetensors")));
    }

    #[test]
    fn errors_of_the_system_stay_candles() {
        let error = from_candle_error(candle_core::Error::Io(io::ErrorKind::NotFound.into()));
        assert!(matches!(error.kind(), ErrorKind::Framework { .. }), "{error}");
        // Also with a backtrace, which they keep.
        let backtrace = Box::new(std::backtrace::Backtrace::force_capture());
        let inner = Box::new(candle_core::Error::Msg("no".into()));
        let error = from_candle_error(candle_core::Error::WithBacktrace { inner, backtrace });
        let message = error.to_string();
        assert!(message.contains("no\n") && message.contains("error::tests"), "{message}");
    }
}
