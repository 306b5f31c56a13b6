//! Signs the files of a model, and verifies such signatures, in the format of OpenSSF Model Signing
//! (OMS) 1.0. Nothing here uses a network.
//!
//! A signature is a separate file, such as `model.sig`. It lists the digest of every file of a
//! directory, and signs the list. The Python package `model-signing` writes and reads the same
//! files.
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
//! | certificates | X.509 that leads to a root which the user gives; issuers with these curves, or RSA from 2048 bits (PKCS#1 v1.5), with SHA-256, SHA-384 or SHA-512 |
//! | files | hashed completely, with SHA-256 or BLAKE3 |
//! | refused, with the reason | keyless signatures (Sigstore), files hashed in pieces (`shards`), BLAKE2, signatures of model-signing 0.2.0 |
//!
//! # Meaning of a signature
//!
//! - The holder of the key has signed these files. With certificates, this can be anyone with
//!   a certificate below the root: look at [`Report::signer`].
//! - It proves no date. So an older version of a model has a right signature for ever. Certificates
//!   must be valid now, unless [`allow_expired_certificates`](Verifier::allow_expired_certificates)
//!   is set. Revoked certificates are not recognised.
//! - The digests belong to the bytes on the disk at that time. A later load reads them again.
//! - In a directory with a delta, or with some shards, the signature covers the files, not the
//!   model made from them.
//!
//! # Differences from the specification and the reference
//!
//! - Certificates must be valid now, as in the specification. The reference asks whether they were
//!   when the first became valid.
//! - If a certificate restricts its key, by its key usage, its extended key usage or both, each
//!   must allow to sign (`digitalSignature`, `codeSigning`); issuers must allow `codeSigning`, too.
//!   For the reference one of the two is enough, and it does not ask issuers.
//! - A certificate with a critical extension that restricts names or policies is refused. The
//!   reference obeys these.
//! - The user decides whether links are followed, not the signature, as in the reference. A link to
//!   a directory is an error, because the reference does not look into it.
//! - A single file has the name `.` in its signature, as in the reference. Its own name is read,
//!   too.
//! - Resources may be in any order, because the reference does not sort them as specified.
//! - Duplicate keys and names, names that lead elsewhere, base64 that is not strict, and lists with
//!   a wrong digest are errors.
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

/// Returns the names in a signature file, which nobody has verified, for the fuzz targets.
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

/// The README: its example is tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
