//! [`Error`]: the kind of an error, and its place.

mod adapter;
mod dtype;
mod experts;
mod found;
mod index;
mod json;
mod kind;
mod mismatch;
mod optimizer;
mod quantized;
mod ranks;
#[cfg(feature = "std")]
mod similar;
pub(crate) mod text;
mod tie;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

pub use adapter::AdapterProblem;
pub use experts::ExpertProblem;
pub use index::IndexProblem;
pub use json::JsonProblem;
pub use kind::ErrorKind;
pub use mismatch::Mismatch;
pub use optimizer::OptimizerProblem;
pub use quantized::QuantizationProblem;
pub use ranks::RankProblem;
#[cfg(feature = "std")]
pub use similar::similar_names;
pub(crate) use text::{Escaped, Quoted, Shape, excerpt};
use text::{NameList, debug_fields};
pub use tie::TieProblem;

use crate::format::other_format::OtherFormat;

/// A result with an [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error and its place.
///
/// Names come from files and may be hostile, so messages quote, shorten and escape them: a message
/// has at most 1,500 bytes. `{:?}` is the message too, for `expect` and `main`; `{:#?}` shows the
/// fields, in at most 4 KiB.
///
/// ```
/// use safetensors_core::{ErrorKind, SafeTensors};
///
/// let error = SafeTensors::parse(b"\x02\0\0\0").unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::TooShort { found: 4 }));
/// assert!(error.to_string().starts_with("too short for a safetensors file: "));
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    file: Option<String>,
    tensor: Option<String>,
    similar: Vec<String>,
    looks_like: Option<OtherFormat>,
    advice: Option<String>,
}

impl Error {
    /// Returns the kind of the error, with its numbers.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    #[doc(hidden)]
    pub fn into_kind(self) -> ErrorKind {
        self.0.kind
    }

    pub(crate) fn at_element(mut self, place: impl FnOnce(u64) -> u64) -> Self {
        if let Some(index) = self.0.kind.element_mut() {
            *index = place(*index);
        }
        self
    }

    #[doc(hidden)]
    pub fn is_other_format(&self) -> bool {
        self.0.looks_like.is_some()
    }

    /// Returns the file that the error is about.
    pub fn file(&self) -> Option<&str> {
        self.0.file.as_deref()
    }

    /// Returns the name of the tensor that the error is about. Quote it before printing: it is not
    /// escaped.
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// Returns at most three names that the caller may have meant. The message has them, too.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
    ///
    /// let weight = TensorView::from_slice(&[1], &[1_u8])?;
    /// let bytes = serialize([("model.embed_tokens", weight)], &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::from_source(bytes, "model.safetensors")?;
    /// let error = checkpoint.tensor("model.embed_token").unwrap_err();
    /// assert_eq!(error.similar(), ["model.embed_tokens"]);
    /// assert!(error.to_string().ends_with(r#"did you mean "model.embed_tokens"?"#));
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn similar(&self) -> &[String] {
        &self.0.similar
    }

    #[cfg(feature = "std")]
    pub(crate) fn not_found<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        Self::from(ErrorKind::TensorNotFound).in_tensor(name).with_similar(name, names)
    }

    #[cfg(feature = "std")]
    #[doc(hidden)]
    pub fn with_similar<'a>(self, name: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.with_names(similar_names(name, names))
    }

    #[cfg(feature = "std")]
    pub(crate) fn with_names(mut self, similar: Vec<String>) -> Self {
        self.0.similar = similar;
        self
    }

    /// Makes an [`ErrorKind::Other`] of another crate's error.
    pub fn from_other(kind: impl core::error::Error + Send + Sync + 'static) -> Self {
        ErrorKind::Other(Box::new(kind)).into()
    }

    /// Returns another crate's error of the type `K`, also after [`std::io::Error`].
    ///
    /// ```
    /// use std::fmt;
    ///
    /// use safetensors_core::Error;
    ///
    /// #[derive(Debug)]
    /// struct Gated;
    ///
    /// impl fmt::Display for Gated {
    ///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    ///         f.write_str("access is restricted")
    ///     }
    /// }
    ///
    /// impl std::error::Error for Gated {}
    ///
    /// let error = Error::from_other(Gated).in_file("owner/name");
    /// assert_eq!(error.to_string(), "owner/name: access is restricted");
    /// assert!(error.other::<Gated>().is_some());
    /// ```
    pub fn other<K: core::error::Error + 'static>(&self) -> Option<&K> {
        match self.kind() {
            ErrorKind::Other(kind) => kind.downcast_ref(),
            #[cfg(feature = "std")]
            ErrorKind::Io(error) | ErrorKind::NotDurable(error) => {
                let inner = error.get_ref()?;
                inner.downcast_ref().or_else(|| inner.downcast_ref::<Self>()?.other())
            }
            _ => None,
        }
    }

    /// Adds the name of the tensor, unless the error has one.
    #[must_use]
    pub fn in_tensor(mut self, name: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| name.into());
        self
    }

    /// Adds the file, unless the error has one.
    #[must_use]
    #[doc(hidden)]
    pub fn in_file(mut self, file: impl fmt::Display) -> Self {
        self.0.file.get_or_insert_with(|| alloc::format!("{file}"));
        self
    }

    /// Adds the file, unless the error has one.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn in_path(self, path: impl AsRef<std::path::Path>) -> Self {
        self.in_file(path.as_ref().display())
    }

    /// Adds advice to the end of the message. [Quote](crate::framework::Quoted) text from a file.
    #[must_use]
    #[doc(hidden)]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    #[must_use]
    pub(crate) fn looking_like(mut self, format: OtherFormat) -> Self {
        self.0.looks_like = Some(format);
        self
    }

    /// Replaces the temporary file `from`, and [`ErrorKind::NotDurable`] by [`ErrorKind::Io`],
    /// because the new file is not yet in place.
    #[cfg(feature = "std")]
    pub(crate) fn moved(mut self, from: &std::path::Path, to: &std::path::Path) -> Self {
        if self.0.file.as_ref().is_some_and(|file| *file == alloc::format!("{}", from.display())) {
            self.0.file = Some(alloc::format!("{}", to.display()));
            if let ErrorKind::NotDurable(error) = &mut self.0.kind {
                let error = core::mem::replace(error, std::io::ErrorKind::Other.into());
                self.0.kind = ErrorKind::Io(error);
            }
        }
        self
    }

    #[cfg(feature = "std")]
    pub(crate) fn moved_below(self, from: &std::path::Path, to: &std::path::Path) -> Self {
        let Some(file) = self.file().map(std::path::PathBuf::from) else { return self };
        match file.strip_prefix(from) {
            Ok(name) => self.moved(&file, &to.join(name)),
            Err(_) => self,
        }
    }

    // `Io` would mean that nothing has changed.
    #[cfg(feature = "std")]
    pub(crate) fn in_place(self) -> Self {
        self.if_io(ErrorKind::NotDurable)
    }

    #[cfg(feature = "std")]
    pub(crate) fn left_behind(self) -> Self {
        self.if_io(ErrorKind::LeftBehind)
    }

    #[cfg(feature = "std")]
    fn if_io(mut self, kind: impl FnOnce(std::io::Error) -> ErrorKind) -> Self {
        if let ErrorKind::Io(error) = &mut self.0.kind {
            self.0.kind = kind(core::mem::replace(error, std::io::ErrorKind::Other.into()));
        }
        self
    }

    /// Wraps the error, so that [`From`] gets it back from an [`std::io::Error`].
    #[cfg(feature = "std")]
    pub(crate) fn through_io(self) -> std::io::Error {
        let kind = match self.kind() {
            ErrorKind::Io(error) => error.kind(),
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, ThroughIo(self))
    }

    #[cfg(feature = "std")]
    #[doc(hidden)]
    pub fn io(error: std::io::Error, path: &std::path::Path) -> Self {
        Self::from(ErrorKind::Io(error)).in_path(path)
    }
}

impl Mismatch {
    #[doc(hidden)]
    pub fn refuse(mismatches: Vec<Self>) -> Result<()> {
        if mismatches.is_empty() {
            return Ok(());
        }
        Err(ErrorKind::Mismatches { mismatches }.into())
    }
}

#[cfg(feature = "std")]
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct ThroughIo(Error);

impl<K: Into<ErrorKind>> From<K> for Error {
    fn from(kind: K) -> Self {
        let kind = kind.into();
        #[cfg(feature = "std")]
        let kind = match kind {
            ErrorKind::Io(error) => match error.downcast() {
                Ok(ThroughIo(error)) => return error,
                Err(error) => ErrorKind::Io(error),
            },
            kind => kind,
        };
        let file = None;
        let tensor = None;
        let similar = Vec::new();
        let looks_like = None;
        let advice = None;
        Self(Box::new(Inner { kind, file, tensor, similar, looks_like, advice }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.0.file {
            write!(f, "{}: ", Escaped(file))?;
        }
        if let Some(tensor) = &self.0.tensor {
            write!(f, "tensor {}: ", Quoted(tensor))?;
        }
        match (&self.0.kind, self.0.looks_like) {
            (kind @ ErrorKind::TrailingData { .. }, Some(format)) => {
                write!(f, "{kind}; after them is {format}")?;
            }
            // Read as the length of a header, these bytes mean nothing.
            (_, Some(format)) => write!(f, "not a safetensors file: {format}")?,
            (kind, None) => kind.fmt(f)?,
        }
        if !self.0.similar.is_empty() {
            write!(f, "; did you mean {}?", NameList(&self.0.similar))?;
        }
        match &self.0.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { debug_fields(&self.0, f) } else { fmt::Display::fmt(self, f) }
    }
}

impl core::error::Error for Error {
    /// Returns the framework's or adapter's error. The system's and other packages' are part of the
    /// message and of [`kind`](Error::kind).
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        let source = core::error::Error::source(&self.0.kind)?;
        match self.0.kind {
            ErrorKind::Framework { .. } => Some(source),
            _ => source.source(),
        }
    }
}
