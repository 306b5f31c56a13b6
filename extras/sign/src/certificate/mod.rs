//! Certificates: PEM and DER, and rules for their keys.

mod issuer;
mod path;

use safetensors_core::{Error, Result};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode as _, Document, Encode as _};
use x509_cert::ext::pkix::{ExtendedKeyUsage, KeyUsage};

pub(crate) use self::path::verify;
use crate::error::ErrorKind;
use crate::key::PublicKey;
use crate::pem::blocks;

/// Extended key usages that allow signing: code signing, and any.
const CODE_SIGNING: [ObjectIdentifier; 2] = [
    ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.3"),
    ObjectIdentifier::new_unwrap("2.5.29.37.0"),
];

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    parsed: x509_cert::Certificate,
    der: Vec<u8>,
}

impl Certificate {
    pub(crate) fn from_der(der: &[u8]) -> Result<Self> {
        let parsed = x509_cert::Certificate::from_der(der);
        let parsed =
            parsed.map_err(|error| ErrorKind::BadCertificates { problem: error.to_string() })?;
        Ok(Self { parsed, der: der.to_vec() })
    }

    pub(crate) fn parse_all(pem: &str) -> Result<Vec<Self>> {
        let bad = |problem: String| Error::from(ErrorKind::BadCertificates { problem });
        let of_block = |text: &str| {
            let (_, der) = Document::from_pem(text).map_err(|error| bad(error.to_string()))?;
            Self::from_der(der.as_bytes())
        };
        let blocks = blocks(pem);
        let certificates = blocks.iter().filter(|block| block.label == "CERTIFICATE");
        let certificates: Vec<_> =
            certificates.map(|block| of_block(block.text)).collect::<Result<_>>()?;
        if certificates.is_empty() {
            return Err(bad("there are none".to_owned()));
        }
        Ok(certificates)
    }

    pub(crate) fn der(&self) -> &[u8] {
        &self.der
    }

    pub(crate) fn subject(&self) -> String {
        self.parsed.tbs_certificate().subject().to_string()
    }

    pub(crate) fn is_self_issued(&self) -> bool {
        let inner = self.parsed.tbs_certificate();
        inner.subject() == inner.issuer()
    }

    pub(crate) fn key(&self) -> Result<PublicKey> {
        let info = self.parsed.tbs_certificate().subject_public_key_info().to_der();
        let info = info.map_err(|error| self.error(error.to_string()))?;
        PublicKey::from_der(&info).map_err(|error| self.error(error.to_string()))
    }

    /// Key usage or extended key usage must be there, and each present one must allow signing.
    pub(crate) fn check_usage(&self) -> Result<()> {
        let usage = self.parsed.tbs_certificate().get_extension::<KeyUsage>();
        let usage = usage.map_err(|_| self.error("its key usage is malformed"))?;
        let allows = usage.map(|(_, usage)| usage.digital_signature());
        match (allows, self.signs_code().map_err(|problem| self.error(problem))?) {
            (Some(false), _) => {
                Err(self.error("its key usage is not digitalSignature, so it cannot sign a model"))
            }
            (None, None) => {
                Err(self.error("it does not say what its key is for, so it cannot sign a model"))
            }
            _ => Ok(()),
        }
    }

    /// `None`: there is no extended key usage.
    fn signs_code(&self) -> Result<Option<()>, &'static str> {
        match self.parsed.tbs_certificate().get_extension::<ExtendedKeyUsage>() {
            Ok(None) => Ok(None),
            Ok(Some((_, usage))) if usage.0.iter().any(|it| CODE_SIGNING.contains(it)) => {
                Ok(Some(()))
            }
            Ok(_) => Err("its extended key usage is not codeSigning, so it cannot sign a model"),
            Err(_) => Err("its extended key usage is malformed"),
        }
    }

    fn error(&self, problem: impl Into<String>) -> Error {
        ErrorKind::BadCertificate { subject: self.subject(), problem: problem.into() }.into()
    }
}
