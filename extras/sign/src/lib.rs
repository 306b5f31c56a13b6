//! Signs the files of a model and verifies the signatures, offline.
//!
//! The format is OpenSSF Model Signing (OMS) 1.0.
//!
//! A signature is a separate file, such as `model.sig`, with the signed digests of all files. The
//! Python package `model-signing` writes and reads the same files.
//!
//! ```
//! use safetensors_sign::{Signer, Verifier};
//! # const PRIVATE: &str = include_str!("../tests/fixtures/p256.pem");
//! # const PUBLIC: &str = include_str!("../tests/fixtures/p256.pub");
//!
//! let dir = tempfile::tempdir()?;
//! let model = dir.path();
//! std::fs::write(model.join("config.json"), "{}")?;
//!
//! // Keys in PEM, as `openssl ecparam -genkey` and `openssl ec -pubout` write them.
//! Signer::parse(PRIVATE)?.sign(model, model.join("model.sig"))?;
//!
//! let verifier = Verifier::with_key(PUBLIC)?;
//! assert_eq!(verifier.verify(model, model.join("model.sig"))?.files, 1);
//!
//! std::fs::write(model.join("config.json"), "[]")?;
//! let error = verifier.verify(model, model.join("model.sig")).unwrap_err();
//! assert!(error.to_string().ends_with(r#"changed: "config.json""#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Supported
//!
//! | | |
//! |---|---|
//! | keys | ECDSA with P-256, P-384 and P-521; private ones in PKCS#8 or SEC1, not encrypted |
//! | certificates | X.509 up to a root that the user gives; issuers with these curves, or RSA from 2048 bits (PKCS#1 v1.5), with SHA-256, SHA-384 or SHA-512 |
//! | files | hashed completely, with SHA-256 or BLAKE3 |
//! | refused, with the reason | keyless signatures (Sigstore), files hashed in pieces (`shards`), BLAKE2, signatures of model-signing 0.2.0 |
//!
//! # Meaning of a signature
//!
//! - The holder of the key signed these files. With certificates, this can be anyone below the
//!   root: check [`Report::signer`].
//! - It proves no date: the signature of an older model stays valid. Certificates must be valid
//!   now, unless [allowed](Verifier::allow_expired_certificates). Revocation is not checked.
//! - It covers the bytes on disk when it is verified; a later load reads the files again. A delta,
//!   or some shards, are covered as files, not as the model made from them.
//!
//! # Differences from the specification and the reference
//!
//! - Certificates must be valid now, as specified. The reference takes the time at which the first
//!   became valid.
//! - Key usage and extended key usage must each, if present, allow signing (`digitalSignature`,
//!   `codeSigning`); issuers must allow `codeSigning`, too. The reference needs only one of the
//!   two, and checks no issuers.
//! - A critical extension that restricts names or policies is refused. The reference obeys it.
//! - The user decides whether links are followed, not the signature. A link to a directory, which
//!   the reference skips, is an error.
//! - A single file is signed as `.`, as in the reference. A signature of its name is read, too.
//! - Resources may be in any order: the reference does not sort them.
//! - Duplicate keys, duplicate or unsafe names, lax base64 and a wrong digest of the list are
//!   errors.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
#![forbid(unsafe_code)]

mod bundle;
mod certificate;
mod error;
mod files;
mod hash;
mod json;
mod key;
mod names;
mod pem;
mod report;
mod signer;
mod statement;
#[cfg(test)]
mod tests;
mod verifier;

pub use error::{Error, ErrorKind, Result};
pub use hash::HashAlgorithm;
pub use report::Report;
pub use signer::Signer;
pub use verifier::Verifier;

/// Returns the names in a signature file, unverified, for fuzzing.
#[cfg(feature = "__unverified")]
#[doc(hidden)]
pub fn parse_unverified(file: &[u8]) -> Result<Vec<String>> {
    let bundle = bundle::Bundle::parse(file)?;
    if let bundle::Material::Certificates { leaf, issuers } = &bundle.material {
        let chain = [leaf].into_iter().chain(issuers);
        let chain = chain.map(|der| certificate::Certificate::from_der(der));
        let chain = chain.collect::<Result<Vec<_>>>()?;
        // Each may be a root, so that all paths are looked for.
        certificate::verify(&chain[0], &chain, &chain, chain[0].not_before())?;
    }
    Ok(statement::Manifest::parse(&bundle.payload)?.files.into_keys().collect())
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
