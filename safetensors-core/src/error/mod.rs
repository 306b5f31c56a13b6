//! The one error type: what went wrong, in which file, for which tensor, what was expected and what
//! was found.

mod dtype;
#[cfg(feature = "std")]
mod index;
mod json;
mod kind;
mod mismatch;
pub(crate) mod text;

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt::{self, Write as _};

#[cfg(feature = "std")]
pub use index::IndexProblem;
pub use json::JsonProblem;
pub use kind::ErrorKind;
pub use mismatch::Mismatch;
use text::Capped;
pub(crate) use text::{Escaped, Quoted, Shape, excerpt};

/// The result of everything here that can fail.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// What went wrong, and where.
///
/// [`kind`](Error::kind) says what, with the numbers; [`file`](Error::file) and
/// [`tensor`](Error::tensor) say where, as far as it is known. The message has all of it. Names
/// come from files and may be hostile, so the message shows them quoted, with control and
/// bidirectional characters escaped, and shortened: whatever a file holds, a message about it has a
/// few hundred bytes. `Debug` shows at most 4 KiB.
///
/// ```
/// use safetensors_core::{ErrorKind, SafeTensors};
///
/// let error = SafeTensors::parse(b"\x02\0\0\0").unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::TooShort { found: 4 }));
/// assert_eq!(error.to_string(), "expected at least 8 bytes for the header length, found 4");
/// ```
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    file: Option<String>,
    tensor: Option<String>,
    /// What the file looks like instead.
    looks_like: Option<&'static str>,
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The path of the file that the error is about, if it is about a file.
    pub fn file(&self) -> Option<&str> {
        self.0.file.as_deref()
    }

    /// The name of the tensor that the error is about, if it is about one. Unescaped: quote it
    /// before printing.
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// Says which tensor the error is about, unless it says so already.
    #[must_use]
    pub fn in_tensor(mut self, name: &str) -> Self {
        self.0.tensor.get_or_insert_with(|| name.into());
        self
    }

    /// Says which file the error is about, unless it says so already.
    #[must_use]
    pub fn in_file(mut self, file: impl fmt::Display) -> Self {
        self.0.file.get_or_insert_with(|| alloc::format!("{file}"));
        self
    }

    /// Says which file the error is about, unless it says so already.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn in_path(self, path: impl AsRef<std::path::Path>) -> Self {
        self.in_file(path.as_ref().display())
    }

    /// Says what the file looks like that is no safetensors file.
    #[must_use]
    pub(crate) fn looking_like(mut self, format: &'static str) -> Self {
        self.0.looks_like = Some(format);
        self
    }

    /// Says that what the error says of the temporary file `from` is about `to`, which the user
    /// knows of, and which is not in its place yet. An error about any other file stays as it is.
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

    /// An input or output error of `path`.
    #[cfg(feature = "std")]
    pub(crate) fn io(error: std::io::Error, path: &std::path::Path) -> Self {
        Self::from(ErrorKind::Io(error)).in_path(path)
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(Inner { kind, file: None, tensor: None, looks_like: None }))
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
        self.0.kind.fmt(f)?;
        match self.0.looks_like {
            Some(format) => write!(f, "; it looks like {format}"),
            None => Ok(()),
        }
    }
}

/// What a `main` that returns the error prints, so it is bounded too.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 4096;
        let mut out = Capped { out: &mut *f, left: MOST };
        let is_alternate = out.out.alternate();
        let written = match is_alternate {
            true => write!(out, "Error({:#?})", self.0),
            false => write!(out, "Error({:?})", self.0),
        };
        match written {
            Err(_) if out.left == 0 => f.write_str("..."),
            written => written,
        }
    }
}

impl core::error::Error for Error {
    /// What lies behind the framework's or the system's error. That error itself is part of the
    /// message, and in [`kind`](Error::kind).
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        core::error::Error::source(&self.0.kind)?.source()
    }
}
