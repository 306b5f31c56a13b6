//! [`ErrorKind`]: failures of this crate, as kinds of the library's errors.

use safetensors_core::framework::Quoted;
pub use safetensors_core::{Error, Result};

use crate::report::Report;

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::from_other(kind)
    }
}

/// A failure of a key, a certificate, a signature or the signed files, as
/// [`ErrorKind::Other`](safetensors_core::ErrorKind::Other) of an [`Error`] that names the file.
///
/// Messages shorten text from outside, fields do not. No error shows a private key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ErrorKind {
    // Keys and certificates.
    /// A text that is not a usable key.
    #[error("not a usable key: {problem}")]
    BadKey { problem: String },
    /// A private key with a password.
    #[error(
        "the private key is encrypted, which is not supported; decrypt it first, for example with \
         `openssl pkey`"
    )]
    EncryptedKey,
    /// A certificate that cannot be used, or leads to no trusted root.
    #[error("the certificate {}: {problem}", Quoted(.subject))]
    BadCertificate { subject: String, problem: String },
    /// A text without certificates, or with malformed ones.
    #[error("not PEM certificates: {problem}")]
    BadCertificates { problem: String },

    // The signature.
    /// A file that is too large for a signature, or would be.
    #[error("the signature file has more than the limit of {limit} bytes")]
    TooLarge { limit: u64 },
    /// A file that is not an OpenSSF Model Signing signature.
    #[error("not a signature of a model: {problem}")]
    BadBundle { problem: String },
    /// A part of a signature that is not supported.
    #[error("{what} is {}; expected {expected}", Quoted(.found))]
    Unsupported { what: &'static str, expected: &'static str, found: String },
    /// No signature, or several.
    #[error("expected 1 signature, found {found}")]
    SignatureCount { found: usize },
    /// A signature through Sigstore's services, without a lasting key.
    #[error(
        "the signature is keyless (Sigstore), which is not supported; verify it with the Python \
         package model-signing, or sign with a key or certificate"
    )]
    Keyless,
    /// A signature of model-signing 0.2.0.
    #[error(
        "the signature is of model-signing 0.2.0, which signed a form that was never specified; \
         sign the model again"
    )]
    OldFormat,
    /// Certificates for a signature by a key, or the reverse.
    #[error("the signature was made with {found}, but is to be verified with {given}")]
    OtherMethod { given: &'static str, found: &'static str },
    /// A different key. Both are SHA-256 of a public key in PEM.
    #[error("the signature was made with another key: expected {expected}, found {found}")]
    OtherKey { expected: String, found: String },
    /// A signature that does not match content and key.
    #[error("the signature is wrong: it was made with another key or over other content")]
    WrongSignature,

    /// A file to replace that is not a signature, or is a link.
    #[error("exists and is not replaced: it is a link, or not a signature by a key or certificate")]
    NotASignature,

    // The signed content.
    /// A digest of the signed list that does not match its parts.
    #[error("the digest of the signed list should be {expected}, found {found}")]
    WrongListDigest { expected: String, found: String },
    /// A signed name that is not a plain path below the model.
    #[error("the signed name {} is not a plain relative path", Quoted(.found))]
    UnsafeName { found: String },
    /// A name that is signed twice.
    #[error("the name {} is signed twice", Quoted(.found))]
    DuplicateName { found: String },
    /// No signed file.
    #[error("there are no files")]
    NoFiles,

    // The files.
    /// Files that differ from the signed ones.
    #[error("{report}")]
    FilesDiffer { report: Box<Report> },
    /// A symbolic link, without permission to follow it.
    #[error("a symbolic link; it is followed only if links are allowed")]
    Link,
    /// A symbolic link to a directory, with content that the reference would not sign.
    #[error("a symbolic link to a directory, which cannot be signed")]
    LinkToDirectory,
    /// A FIFO, a device or the like.
    #[error("neither a file nor a directory")]
    SpecialFile,
    /// A file name that is not UTF-8.
    #[error("the file name is not UTF-8, so it cannot be in a signature")]
    NameNotUtf8,
    /// A temporary file of a running or killed save.
    #[error("a temporary file: a save goes on, or was killed; sign when it is complete")]
    Unfinished,
    /// A file that was changed, added or removed during signing.
    #[error("changed while the model was signed; nothing was written")]
    ChangedMeanwhile,
}
