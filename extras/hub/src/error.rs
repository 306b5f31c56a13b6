//! [`ErrorKind`]: failures of this crate, as kinds of the library's errors.

use std::io;
use std::path::PathBuf;
#[cfg(feature = "download")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use safetensors_core::framework::{Escaped, NameList, Quoted};
pub use safetensors_core::{Error, Result};

use crate::text::Bytes;

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::from_other(kind)
    }
}

pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(feature = "download")]
pub(crate) fn is_wrong(error: &Error) -> bool {
    matches!(error.other(), Some(ErrorKind::WrongSize { .. } | ErrorKind::WrongDigest { .. }))
}

#[cfg(feature = "download")]
pub(crate) fn cancelled() -> Error {
    safetensors_core::ErrorKind::Cancelled.into()
}

#[cfg(feature = "download")]
pub(crate) fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(cancelled()) } else { Ok(()) }
}

#[cfg(feature = "download")]
pub(crate) fn to_io(error: Error) -> io::Error {
    let kind = match (error.kind(), error.other()) {
        (safetensors_core::ErrorKind::Cancelled, _) => io::ErrorKind::Interrupted,
        (_, Some(kind)) => ErrorKind::of_system(kind),
        (safetensors_core::ErrorKind::Io(error), _) => error.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// A failure of the Hub, a download or the cache, as
/// [`ErrorKind::Other`](safetensors_core::ErrorKind::Other) of an [`Error`]. Its
/// [`file`](Error::file) is `owner/name`, `owner/name: file`, or a path.
///
/// Sizes are in bytes. Messages shorten text from outside, fields do not. No error shows a token,
/// or the query of a signed address.
///
/// ```
/// use safetensors_hub::{ErrorKind, RepoId};
///
/// let error = "owner/../name".parse::<RepoId>().unwrap_err();
/// assert!(matches!(error.other(), Some(ErrorKind::BadRepoId { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ErrorKind {
    // From the caller or the environment.
    /// A text that is not the name of a repository.
    #[error("{} is no repository; expected owner/name", Quoted(.found))]
    BadRepoId { found: String },
    /// A text that is not a branch, tag or commit.
    #[error("{} is no revision; expected a branch, a tag or a commit", Quoted(.found))]
    BadRevision { found: String },
    /// A text that is not like `hf://owner/name[@revision][/file]`.
    #[error(
        "{} is no address; expected hf://owner/name[@revision][/file], for other kinds with \
         datasets/, spaces/, kernels/ or buckets/ before the owner; buckets have no revisions",
        Quoted(.found)
    )]
    BadAddress { found: String },
    /// A file name that leads out of its repository, or is not a plain path.
    #[error("the file name {} is not a plain relative path; it is refused", Quoted(.found))]
    UnsafeName { found: String },
    /// An unusable pattern of file names.
    #[error("{} is no pattern of file names: {problem}", Quoted(.pattern))]
    BadPattern { pattern: String, problem: String },
    /// An endpoint that is not the address of a server.
    #[error("{} is no endpoint: {problem}", Quoted(.found))]
    BadEndpoint { found: String, problem: &'static str },
    /// An unusable setting, such as a token. Its value is not shown.
    #[error("{setting}: {problem}")]
    BadSetting { setting: &'static str, problem: String },
    /// An unknown place of the cache.
    #[error("there is no home directory; set HF_HOME, or name a cache directory")]
    NoHome,

    // From the Hub.
    /// A repository that does not exist, or is private.
    #[error(
        "there is no such repository, or it is private; check the name{}",
        if *has_token { " and what the token may read" } else { ", and set HF_TOKEN" }
    )]
    RepoNotFound { has_token: bool },
    /// A repository without this branch, tag or commit.
    #[error("the repository has no revision {}; check the branch or commit", Quoted(.revision))]
    RevisionNotFound { revision: String },
    /// A revision without this file.
    #[error("the repository has no such file in this revision")]
    FileNotFound,
    /// A repository to which the owners must allow access.
    #[error(
        "access is restricted; accept the conditions at {page}{}",
        if *has_token { " with the account of the token" } else { ", and then set HF_TOKEN" }
    )]
    Gated { page: String, has_token: bool },
    /// A refusal with the status 401 or 403.
    #[error(
        "the Hub refuses the request with status {status}; {}",
        if *has_token { "the token is not valid for it" } else { "set HF_TOKEN" }
    )]
    Refused { status: u16, has_token: bool },
    /// A renamed repository. [`ClientOptions::follow_renames`] follows.
    ///
    /// [`ClientOptions::follow_renames`]: crate::client::ClientOptions::follow_renames
    #[error("the repository was renamed to {to}; use that name")]
    Renamed { to: String },
    /// Too many requests: the Hub asks for a longer pause than allowed.
    #[error(
        "too many requests; {}{}",
        .wait.map_or("try again later".into(), |wait| format!("try again in {} s", wait.as_secs())),
        if *has_token { "" } else { ", or set HF_TOKEN for a higher limit" }
    )]
    RateLimited { wait: Option<Duration>, has_token: bool },
    /// An unexpected status, repeatedly.
    #[error("{host} answers with status {status}{}", Detail(.detail))]
    Status { host: String, status: u16, detail: String },
    /// A server that cannot be reached, or a broken connection, repeatedly.
    #[error("{host}: {}", Escaped(.problem))]
    Network { host: String, problem: String },
    /// An answer that breaks a rule of HTTP or of the Hub.
    #[error("{host}: {}", Escaped(.problem))]
    BadAnswer { host: String, problem: String },
    /// A file that changed on the Hub while it was read.
    #[error("it changed on the Hub: its {what} was {}, and is {}", Escaped(.before), Escaped(.now))]
    Changed { what: &'static str, before: String, now: String },

    // About the data that arrived.
    /// A size that differs from the Hub's.
    #[error("expected {expected} bytes, found {found}")]
    WrongSize { expected: u64, found: u64 },
    /// A digest that differs from the Hub's.
    #[error("expected the {algorithm} {expected}, found {found}")]
    WrongDigest { algorithm: &'static str, expected: String, found: String },
    /// Too little space for the download.
    #[error("the download needs {}, but the disk has only {} free", Bytes(*.needed), Bytes(*.free))]
    NoSpace { needed: u64, free: u64 },

    /// A full disk. The next attempt continues.
    #[error("{error}; {} were written and are kept, {} are free", Bytes(*.written), Bytes(*.free))]
    DiskFull { written: u64, free: u64, error: io::Error },

    // The cache, and directories of the user.
    /// Files in the directory that are not from an earlier download.
    /// [`DownloadOptions::overwrite`] replaces them.
    ///
    /// [`DownloadOptions::overwrite`]: crate::DownloadOptions::overwrite
    #[error("files that were changed or not downloaded would be lost: {}", NameList(.files))]
    LocalChanges { files: Vec<String> },
    /// A file that is not in the cache or directory, without permission for requests.
    #[error("{} is not in {}, and {reason}", Quoted(.what), Escaped(&.cache.to_string_lossy()))]
    NotInCache { what: String, cache: PathBuf, reason: &'static str },
    /// A bucket, which cannot be downloaded into the cache.
    #[error(
        "a bucket has no commits, and is not downloaded into the cache; read it by its address, \
         hf://{bucket}"
    )]
    Bucket { bucket: String },
    /// A pattern that matches no file.
    #[error("no file matches {}; the repository has {}", Quoted(.pattern), NameList(.found))]
    NoMatch { pattern: String, found: Vec<String> },
    /// A shard of the index that the repository lacks.
    #[error("the index names {}, which the repository does not have", Quoted(.shard))]
    ShardNotFound { shard: String },
}

#[cfg(feature = "download")]
impl ErrorKind {
    fn of_system(&self) -> io::ErrorKind {
        match self {
            Self::RepoNotFound { .. }
            | Self::RevisionNotFound { .. }
            | Self::FileNotFound
            | Self::NotInCache { .. }
            | Self::Renamed { .. } => io::ErrorKind::NotFound,
            Self::Gated { .. } | Self::Refused { .. } => io::ErrorKind::PermissionDenied,
            Self::NoSpace { .. } | Self::DiskFull { .. } => io::ErrorKind::StorageFull,
            Self::WrongSize { .. } | Self::WrongDigest { .. } => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::Other,
        }
    }
}

struct Detail<'a>(&'a str);

impl std::fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.trim() {
            "" => Ok(()),
            text => write!(f, ": {}", Escaped(text)),
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
            let error = Error::from(kind).in_file(format_args!("owner/name: {long}"));
            let message = error.to_string();
            assert!(message.len() < 2000 && message.starts_with("owner/name: "), "{message}");
            assert!(format!("{error:?}").len() <= 4096 + 3);
            assert!(format!("{error:#?}").len() <= 4096 + 3);
        }
    }

    #[cfg(feature = "download")]
    #[test]
    fn errors_become_io_errors_of_the_matching_kind() {
        let io = |error: Error| to_io(error.in_file("o/n"));
        let missing = io(ErrorKind::FileNotFound.into());
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let gated = ErrorKind::Gated { page: "p".into(), has_token: false };
        assert_eq!(io(gated.into()).kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(io(cancelled()).kind(), io::ErrorKind::Interrupted);
        let denied =
            io(safetensors_core::ErrorKind::Io(io::ErrorKind::PermissionDenied.into()).into());
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);

        let core = Error::from(safetensors_core::ErrorKind::Io(missing));
        assert!(core.to_string().contains("o/n: the repository has no such file"), "{core}");
        assert!(matches!(core.other(), Some(ErrorKind::FileNotFound)));
    }
}
