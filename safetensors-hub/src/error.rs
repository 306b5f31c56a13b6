//! The one error type: what went wrong, in which repository, for which of its files.

use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use safetensors_core as core;
use safetensors_core::framework::{NameList, Quoted, debug_error};

use crate::text::{Bytes, Plain};

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and where.
///
/// [`kind`](Error::kind) says what, with the numbers. [`repo`](Error::repo) and
/// [`file`](Error::file) say where, as far as it is known. The message has all of it.
///
/// No error has a token, or the query of a signed address. A message has at most 2,000 bytes and
/// `Debug` shows at most 4 KiB, whatever a server answers.
///
/// ```
/// use safetensors_hub::{ErrorKind, RepoId};
///
/// let error = RepoId::parse("owner/../name").unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::BadRepoId { .. }));
/// ```
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    repo: Option<String>,
    file: Option<String>,
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// What went wrong, without the place.
    pub fn into_kind(self) -> ErrorKind {
        self.0.kind
    }

    /// The repository that the error is about, such as `owner/name`.
    pub fn repo(&self) -> Option<&str> {
        self.0.repo.as_deref()
    }

    /// The file that the error is about: a name in the repository, or a path on the disk.
    /// Unescaped: quote it before printing.
    pub fn file(&self) -> Option<&str> {
        self.0.file.as_deref()
    }

    /// Says which repository the error is about, unless it says so already.
    #[cfg(any(feature = "download", test))]
    #[must_use]
    pub(crate) fn in_repo(mut self, repo: impl fmt::Display) -> Self {
        self.0.repo.get_or_insert_with(|| repo.to_string());
        self
    }

    /// Says which file the error is about, unless it says so already.
    #[must_use]
    pub(crate) fn in_file(mut self, file: impl fmt::Display) -> Self {
        self.0.file.get_or_insert_with(|| file.to_string());
        self
    }

    /// The error of the system about a path on the disk.
    pub(crate) fn io(error: io::Error, path: &std::path::Path) -> Self {
        Self::from(ErrorKind::Io(error)).in_file(path.display())
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(Inner { kind, repo: None, file: None }))
    }
}

impl From<core::Error> for Error {
    fn from(error: core::Error) -> Self {
        ErrorKind::Core(error).into()
    }
}

/// As an error of core, for files that core reads through this crate. What only this crate knows
/// of becomes an [`io::Error`] with this error inside.
impl From<Error> for core::Error {
    fn from(error: Error) -> Self {
        match *error.0 {
            Inner { kind: ErrorKind::Core(error), .. } => error,
            Inner { kind: ErrorKind::Cancelled, .. } => core::ErrorKind::Cancelled.into(),
            inner => core::ErrorKind::Io(Error(Box::new(inner)).into()).into(),
        }
    }
}

/// As an error of the system: not found, permission denied, timed out, or the like.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Io(error) => error.kind(),
            ErrorKind::RepoNotFound { .. }
            | ErrorKind::RevisionNotFound { .. }
            | ErrorKind::FileNotFound
            | ErrorKind::NotInCache { .. }
            | ErrorKind::Renamed { .. } => io::ErrorKind::NotFound,
            ErrorKind::Gated { .. } | ErrorKind::Refused { .. } => io::ErrorKind::PermissionDenied,
            ErrorKind::NoSpace { .. } | ErrorKind::DiskFull { .. } => io::ErrorKind::StorageFull,
            ErrorKind::WrongSize { .. } | ErrorKind::WrongDigest { .. } => {
                io::ErrorKind::InvalidData
            }
            ErrorKind::Cancelled => io::ErrorKind::Interrupted,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, repo, file } = &*self.0;
        // An error of core may name a path that begins with the repository.
        let is_named = |repo: &&String| match kind {
            ErrorKind::Core(error) => !error.file().is_some_and(|file| file.starts_with(*repo)),
            _ => true,
        };
        if let Some(repo) = repo.as_ref().filter(is_named) {
            write!(f, "{}: ", Plain(repo))?;
        }
        if let Some(file) = file {
            write!(f, "{}: ", Plain(file))?;
        }
        kind.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_error(&self.0, f)
    }
}

impl std::error::Error for Error {
    /// What lies behind the system's or core's error. That error itself is part of the message,
    /// and in [`kind`](Error::kind).
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0.kind)?.source()
    }
}

/// Every way in which a download can fail, with what was expected and what was found.
///
/// Sizes are in bytes. Messages shorten text from outside, fields do not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ErrorKind {
    // What the caller or the environment says.
    /// A text is not the name of a repository.
    #[error("{} is no repository; expected owner/name", Quoted(.found))]
    BadRepoId { found: String },
    /// A text cannot be a branch, a tag or a commit.
    #[error("{} is no revision; expected a branch, a tag or a commit", Quoted(.found))]
    BadRevision { found: String },
    /// A text is not an address `hf://owner/name[@revision][/file]`.
    #[error("{} is no address; expected hf://owner/name[@revision][/file]", Quoted(.found))]
    BadAddress { found: String },
    /// The name of a file leads out of its repository, or is not a plain path.
    #[error("the file name {} is not a plain relative path; it is refused", Quoted(.found))]
    UnsafeName { found: String },
    /// A pattern of file names cannot be used.
    #[error("{} is no pattern of file names: {problem}", Quoted(.pattern))]
    BadPattern { pattern: String, problem: String },
    /// The endpoint is not the address of a server.
    #[error("{} is no endpoint: {problem}", Quoted(.found))]
    BadEndpoint { found: String, problem: &'static str },
    /// A setting, such as the token or a certificate file, cannot be used. Its value may be secret
    /// and is not shown.
    #[error("{setting}: {problem}")]
    BadSetting { setting: &'static str, problem: String },
    /// Neither the options nor the environment say where the cache is.
    #[error("there is no home directory; set HF_HOME, or name a cache directory")]
    NoHome,

    // What the Hub says.
    /// The repository does not exist, or is private.
    #[error(
        "there is no such repository, or it is private; check the name{}",
        if *has_token { " and what the token may read" } else { ", and set HF_TOKEN" }
    )]
    RepoNotFound { has_token: bool },
    /// The repository has no such branch, tag or commit.
    #[error("the repository has no revision {}; check the branch or commit", Quoted(.revision))]
    RevisionNotFound { revision: String },
    /// The repository has no such file in this revision.
    #[error("the repository has no such file in this revision")]
    FileNotFound,
    /// Its owners must allow access to the repository.
    #[error(
        "access is restricted; accept the conditions at {page}{}",
        if *has_token { " with the account of the token" } else { ", and then set HF_TOKEN" }
    )]
    Gated { page: String, has_token: bool },
    /// The Hub refuses the request. `status` is 401 or 403.
    #[error(
        "the Hub refuses the request with status {status}; {}",
        if *has_token { "the token is not valid for it" } else { "set HF_TOKEN" }
    )]
    Refused { status: u16, has_token: bool },
    /// The repository has another name now. [`ClientOptions::follow_renames`] downloads from there.
    ///
    /// [`ClientOptions::follow_renames`]: crate::client::ClientOptions::follow_renames
    #[error(
        "the repository was renamed to {to}; use that name, or let a download follow: \
         `ClientOptions::follow_renames`, `safetensors download --follow-renames`"
    )]
    Renamed { to: String },
    /// Too many requests, and the Hub asks for a longer pause than the options allow.
    #[error(
        "too many requests; {}{}",
        .wait.map_or("try again later".into(), |wait| format!("try again in {} s", wait.as_secs())),
        if *has_token { "" } else { ", or set HF_TOKEN for a higher limit" }
    )]
    RateLimited { wait: Option<Duration>, has_token: bool },
    /// The server answers with an unexpected status, again and again.
    #[error("{host} answers with status {status}{}", Detail(.detail))]
    Status { host: String, status: u16, detail: String },
    /// The server cannot be reached, or the connection breaks, again and again.
    #[error("{host}: {}", Plain(.problem))]
    Network { host: String, problem: String },
    /// The server's answer breaks a rule of HTTP or of the Hub.
    #[error("{host}: {}", Plain(.problem))]
    BadAnswer { host: String, problem: String },
    /// A file changed on the Hub while it was read.
    #[error("it changed on the Hub: its {what} was {}, and is {}", Plain(.before), Plain(.now))]
    Changed { what: &'static str, before: String, now: String },

    // What arrived.
    /// The file does not have the size that the Hub says.
    #[error("expected {expected} bytes, found {found}")]
    WrongSize { expected: u64, found: u64 },
    /// The file does not have the digest that the Hub says.
    #[error("expected the {algorithm} {expected}, found {found}")]
    WrongDigest { algorithm: &'static str, expected: String, found: String },
    /// The disk has less room than the download needs.
    #[error("the download needs {}, but the disk has only {} free", Bytes(*.needed), Bytes(*.free))]
    NoSpace { needed: u64, free: u64 },

    /// The disk became full. What was written stays there, and the next attempt goes on with it.
    #[error("{error}; {} were written and are kept, {} are free", Bytes(*.written), Bytes(*.free))]
    DiskFull {
        written: u64,
        free: u64,
        #[source]
        error: io::Error,
    },

    // The cache.
    /// Without a network, the cache does not have what is asked for.
    #[error(
        "{} is not in the cache {}, and {reason}",
        Quoted(.what),
        Plain(&.cache.to_string_lossy())
    )]
    NotInCache { what: String, cache: PathBuf, reason: &'static str },
    /// No file of the repository matches the pattern.
    #[error("no file matches {}; the repository has {}", Quoted(.pattern), NameList(.found))]
    NoMatch { pattern: String, found: Vec<String> },
    /// The index of a checkpoint names a file that the repository does not have.
    #[error("the index names {}, which the repository does not have", Quoted(.shard))]
    ShardNotFound { shard: String },

    /// The progress callback stopped the download.
    #[error("cancelled")]
    Cancelled,
    /// An error of the core, such as a repository without a checkpoint, or a hostile index.
    #[error("{0}")]
    Core(#[source] core::Error),
    /// An error of the system.
    #[error("{0}")]
    Io(#[source] io::Error),
}

/// Displays the text of a server's answer after a colon, if there is any.
struct Detail<'a>(&'a str);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.trim() {
            "" => Ok(()),
            text => write!(f, ": {}", Plain(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_short_whatever_the_hub_has() {
        let long = "\u{202e}x".repeat(50_000);
        let kinds = [
            ErrorKind::NoMatch { pattern: long.clone(), found: vec![long.clone(); 1000] },
            ErrorKind::BadAnswer { host: "h".into(), problem: long.clone() },
            ErrorKind::ShardNotFound { shard: long.clone() },
        ];
        for kind in kinds {
            let error = Error::from(kind).in_repo("owner/name").in_file(&long);
            let message = error.to_string();
            assert!(message.len() < 2000 && message.starts_with("owner/name: "), "{message}");
            assert!(format!("{error:?}").len() <= 4096 + 3);
            assert!(format!("{error:#?}").len() <= 4096 + 3);
        }
    }

    #[test]
    fn errors_become_those_of_core_and_of_the_system() {
        let io = |kind: ErrorKind| io::Error::from(Error::from(kind).in_repo("o/n"));
        assert_eq!(io(ErrorKind::FileNotFound).kind(), io::ErrorKind::NotFound);
        let gated = ErrorKind::Gated { page: "p".into(), has_token: false };
        assert_eq!(io(gated).kind(), io::ErrorKind::PermissionDenied);
        let core = core::Error::from(Error::from(ErrorKind::FileNotFound).in_repo("o/n"));
        assert!(core.to_string().contains("o/n: the repository has no such file"), "{core}");
        let core = core::Error::from(Error::from(ErrorKind::Cancelled));
        assert!(matches!(core.kind(), core::ErrorKind::Cancelled));
    }
}
