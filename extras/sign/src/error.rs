//! [`ErrorKind`]: failures of this crate alone, and their place in the library's errors.

use safetensors_core::framework::Quoted;
pub use safetensors_core::{Error, Result};

use crate::report::Report;

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::from_other(kind)
    }
}

/// Failures of a key, a certificate, a signature or the signed files.
///
/// An [`Error`] has it as [`ErrorKind::Other`](safetensors_core::ErrorKind::Other), and names the
/// file. Failures that other crates share have a kind of the core: `Io` for I/O errors,
/// `FileExists` for a signature that must not be replaced, `InHubCache`, and `Cancelled` if a
/// progress callback stopped the work.
///
/// Messages shorten text from outside, fields do not. No error has any part of a private key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum ErrorKind {
    // Keys and certificates.
    /// A text is not a key that can be used.
    #[error("not a usable key: {problem}")]
    BadKey { problem: String },
    /// A private key is encrypted with a password.
    #[error(
        "the private key is encrypted, which is not supported; decrypt it first, for example with \
         `openssl pkey`"
    )]
    EncryptedKey,
    /// A certificate cannot be used, or does not lead to a root that is trusted.
    #[error("the certificate {}: {problem}", Quoted(.subject))]
    BadCertificate { subject: String, problem: String },
    /// A text holds no certificates, or certificates that cannot be parsed.
    #[error("not PEM certificates: {problem}")]
    BadCertificates { problem: String },

    // The signature.
    /// The file is too large for a signature, or would be: it was neither parsed nor written.
    #[error("the signature file has more than the limit of {limit} bytes")]
    TooLarge { limit: u64 },
    /// The text is not a signature in the OpenSSF Model Signing format.
    #[error("not a signature of a model: {problem}")]
    BadBundle { problem: String },
    /// A part of the signature has a kind that is not supported.
    #[error("{what} is {}; expected {expected}", Quoted(.found))]
    Unsupported { what: &'static str, expected: &'static str, found: String },
    /// There is more than one signature, or none.
    #[error("expected 1 signature, found {found}")]
    SignatureCount { found: usize },
    /// The signature was made without a lasting key, through Sigstore's services.
    #[error(
        "the signature is keyless (Sigstore): to verify it takes the roots of Fulcio and a proof \
         of Rekor, which are not here; sign with a key or a certificate, or verify it with the Python \
         package model-signing"
    )]
    Keyless,
    /// The signature was made by model-signing 0.2.0, which signed other bytes.
    #[error(
        "the signature is of model-signing 0.2.0, which signed a form that was never specified; \
         sign the model again"
    )]
    OldFormat,
    /// The signature was made with a key, and certificates were given, or the other way round.
    #[error("the signature was made with {found}, and is to be verified with {given}")]
    OtherMethod { given: &'static str, found: &'static str },
    /// The signature names another key. Both are the SHA-256 of a public key in PEM.
    #[error("the signature was made with another key: expected {expected}, found {found}")]
    OtherKey { expected: String, found: String },
    /// The signature does not belong to the content and the key.
    #[error("the signature is wrong: it was made with another key or over other content")]
    WrongSignature,

    /// The file to be replaced by a signature is not one, or is a link.
    #[error(
        "exists, and is not a signature that a key or certificates have made, or is a link; it is \
         not replaced"
    )]
    NotASignature,

    // The signed content.
    /// The digest of the list does not match its parts.
    #[error("the digest of the signed list should be {expected}, found {found}")]
    WrongListDigest { expected: String, found: String },
    /// A signed name is not a plain path below the model.
    #[error("the signed name {} is not a plain relative path", Quoted(.found))]
    UnsafeName { found: String },
    /// A name is signed twice.
    #[error("the name {} is signed twice", Quoted(.found))]
    DuplicateName { found: String },
    /// There is no file to sign, or none is signed.
    #[error("there are no files")]
    NoFiles,

    // The files.
    /// The files differ from the signed ones.
    #[error("{report}")]
    FilesDiffer { report: Box<Report> },
    /// A symbolic link, which was not allowed.
    #[error("a symbolic link; it is followed only if links are allowed")]
    Link,
    /// A symbolic link to a directory. The reference does not look into it, so its content would
    /// not be signed.
    #[error("a symbolic link to a directory, which cannot be signed")]
    LinkToDirectory,
    /// Neither a file nor a directory, such as a FIFO or a device.
    #[error("neither a file nor a directory")]
    SpecialFile,
    /// A file name that is not UTF-8 cannot be in a signature.
    #[error("the file name is not UTF-8, so it cannot be in a signature")]
    NameNotUtf8,
    /// A temporary file of a save that is under way, or that was killed.
    #[error("a temporary file: a save goes on, or was killed; sign when it is complete")]
    Unfinished,
    /// A file was changed, added or removed while the model was signed.
    #[error("changed while the model was signed; nothing was written")]
    ChangedMeanwhile,
}
