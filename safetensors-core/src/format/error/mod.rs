//! The one error type: the kind of error, the file, the tensor, the expected value and the found
//! one.

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

/// The result of operations that can fail with an [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error and its place.
///
/// [`kind`](Error::kind) returns the kind, with the numbers. [`file`](Error::file) and
/// [`tensor`](Error::tensor) return the place, if it is known. The message has all of it.
///
/// Names come from files and may be hostile. The message quotes and shortens them, and escapes
/// control and bidirectional characters. So a message has at most 1,500 bytes for any file. `{:?}`
/// is the message too, because `expect` and a `main` that returns an error print it.
/// `{:#?}` shows the fields, in at most 4 KiB.
///
/// ```
/// use safetensors_core::{ErrorKind, SafeTensors};
///
/// let error = SafeTensors::parse(b"\x02\0\0\0").unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::TooShort { found: 4 }));
/// assert_eq!(error.to_string(), "expected at least 8 bytes for the header length, found 4");
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    file: Option<String>,
    tensor: Option<String>,
    /// Names that the caller may have meant.
    similar: Vec<String>,
    /// The other format of the file, or of the bytes after its tensors.
    looks_like: Option<OtherFormat>,
    /// Advice at the end of the message.
    advice: Option<String>,
}

impl Error {
    /// Returns the kind of the error, with its numbers.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Returns the kind of the error, without the place.
    #[doc(hidden)]
    pub fn into_kind(self) -> ErrorKind {
        self.0.kind
    }

    /// Moves the error to another element.
    pub(crate) fn at_element(mut self, place: impl FnOnce(u64) -> u64) -> Self {
        if let Some(index) = self.0.kind.element_mut() {
            *index = place(*index);
        }
        self
    }

    /// Returns `true` if the file has another format.
    #[doc(hidden)]
    pub fn is_other_format(&self) -> bool {
        self.0.looks_like.is_some()
    }

    /// Returns the path of the file that the error is about, if it is about a file.
    pub fn file(&self) -> Option<&str> {
        self.0.file.as_deref()
    }

    /// Returns the name of the tensor that the error is about, if it is about one. It is not
    /// escaped, so quote it before printing.
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// For a tensor that is not there: at most three names of tensors that the caller may have
    /// meant. The message has them, too.
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

    /// Returns an error for a name without a tensor, with the names in `names` that are similar to
    /// it.
    #[cfg(feature = "std")]
    pub(crate) fn not_found<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        Self::from(ErrorKind::TensorNotFound).in_tensor(name).with_similar(name, names)
    }

    /// Adds which of `names` are similar to a name that is not there.
    #[cfg(feature = "std")]
    #[doc(hidden)]
    pub fn with_similar<'a>(self, name: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.with_names(similar_names(name, names))
    }

    /// Adds names that the caller may have meant.
    #[cfg(feature = "std")]
    pub(crate) fn with_names(mut self, similar: Vec<String>) -> Self {
        self.0.similar = similar;
        self
    }

    /// The error of a kind that only another crate of this library knows, as
    /// [`ErrorKind::Other`].
    pub fn from_other(kind: impl core::error::Error + Send + Sync + 'static) -> Self {
        ErrorKind::Other(Box::new(kind)).into()
    }

    /// Returns the kind of another crate of this library, if this is an error of that crate. An
    /// error that went through [`std::io::Error`] on its way is found too.
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

    /// Adds the name of the tensor that the error is about. An error that names a tensor already is
    /// returned unchanged.
    #[must_use]
    pub fn in_tensor(mut self, name: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| name.into());
        self
    }

    /// Adds the file that the error is about. An error that names a file already is returned
    /// unchanged.
    #[must_use]
    #[doc(hidden)]
    pub fn in_file(mut self, file: impl fmt::Display) -> Self {
        self.0.file.get_or_insert_with(|| alloc::format!("{file}"));
        self
    }

    /// Adds the file that the error is about. An error that names a file already is returned
    /// unchanged.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn in_path(self, path: impl AsRef<std::path::Path>) -> Self {
        self.in_file(path.as_ref().display())
    }

    /// Adds advice to the end of the message. Text from a file must be
    /// [quoted](crate::framework::Quoted).
    #[must_use]
    #[doc(hidden)]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// Adds the other format of the file, or of the bytes after its tensors.
    #[must_use]
    pub(crate) fn looking_like(mut self, format: OtherFormat) -> Self {
        self.0.looks_like = Some(format);
        self
    }

    /// Replaces the temporary file `from` in the error by its destination `to`, which is the name
    /// that the user knows. An error about any other file is returned unchanged.
    ///
    /// [`ErrorKind::NotDurable`] becomes [`ErrorKind::Io`], because the new file is not in its
    /// place yet.
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

    /// [`moved`](Self::moved), for a file below the directory `from`, which will be at `to`.
    #[cfg(feature = "std")]
    pub(crate) fn moved_below(self, from: &std::path::Path, to: &std::path::Path) -> Self {
        let Some(file) = self.file().map(std::path::PathBuf::from) else { return self };
        match file.strip_prefix(from) {
            Ok(name) => self.moved(&file, &to.join(name)),
            Err(_) => self,
        }
    }

    /// The error after the new file is in its place: [`ErrorKind::Io`] becomes
    /// [`ErrorKind::NotDurable`], because `Io` says that nothing has changed.
    #[cfg(feature = "std")]
    pub(crate) fn in_place(self) -> Self {
        self.if_io(ErrorKind::NotDurable)
    }

    /// The error of removing an old file when the new one is in its place: [`ErrorKind::Io`]
    /// becomes [`ErrorKind::LeftBehind`].
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

    /// Returns the error on its way through [`std::io::Error`], from which [`From`] takes it again:
    /// of a file that another source is read from.
    #[cfg(feature = "std")]
    pub(crate) fn through_io(self) -> std::io::Error {
        let kind = match self.kind() {
            ErrorKind::Io(error) => error.kind(),
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, ThroughIo(self))
    }

    /// An input or output error of `path`.
    #[cfg(feature = "std")]
    #[doc(hidden)]
    pub fn io(error: std::io::Error, path: &std::path::Path) -> Self {
        Self::from(ErrorKind::Io(error)).in_path(path)
    }
}

impl Mismatch {
    /// Returns the error with all differences, if there is one.
    #[doc(hidden)]
    pub fn refuse(mismatches: Vec<Self>) -> Result<()> {
        if mismatches.is_empty() {
            return Ok(());
        }
        Err(ErrorKind::Mismatches { mismatches }.into())
    }
}

/// The error that [`Error::through_io`] makes.
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
    /// Returns the error of the framework, with its own type or its adapter's. For other kinds,
    /// returns the source of the system's error or of another package's: that error itself is in
    /// the message, and [`kind`](Error::kind) and [`other`](Error::other) return it.
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        let source = core::error::Error::source(&self.0.kind)?;
        match self.0.kind {
            ErrorKind::Framework { .. } => Some(source),
            _ => source.source(),
        }
    }
}
