//! The signature file: a Sigstore bundle, version 0.3, with a DSSE envelope.

use std::io::Read as _;
use std::path::Path;

use data_encoding::BASE64;
use safetensors_core::io::FileSource;
use safetensors_core::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ErrorKind;
use crate::json;
use crate::key::hint_of;

/// In bytes. One file of a model takes about 250.
const MAX_LEN: u64 = 64 << 20;

/// Certificates in a signature, and bytes of each.
const MAX_CERTIFICATES: (usize, usize) = (16, 64 << 10);

const MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

const OLD_PREDICATE: &[u8] = b"https://model_signing/Digests/v0.1";

/// A signature and its signed content. Nothing in it is verified.
pub(crate) struct Bundle {
    pub(crate) material: Material,
    /// Read it only after the signature is verified.
    pub(crate) payload: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

pub(crate) enum Material {
    Key(Option<String>),
    Certificates { leaf: Vec<u8>, issuers: Vec<Vec<u8>> },
}

impl Material {
    /// In DER, the key's first.
    pub(crate) fn certificates(mut der: Vec<Vec<u8>>) -> Result<Self> {
        let (most, longest) = MAX_CERTIFICATES;
        if der.is_empty() || der.len() > most {
            let found = der.len();
            return Err(bad(format!("expected 1 to {most} certificates, found {found}")));
        }
        if der.iter().any(|it| it.len() > longest) {
            return Err(bad(format!("a certificate has more than {longest} bytes")));
        }
        let leaf = der.remove(0);
        Ok(Self::Certificates { leaf, issuers: der })
    }
}

impl Bundle {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file = FileSource::open(path)?;
        let mut text = Vec::new();
        let read = file.file().take(MAX_LEN + 1).read_to_end(&mut text);
        read.map_err(|error| Error::io(error, path))?;
        Self::parse(&text)
    }

    pub(crate) fn parse(text: &[u8]) -> Result<Self> {
        if text.len() as u64 > MAX_LEN {
            return Err(ErrorKind::TooLarge { limit: MAX_LEN }.into());
        }
        let file: File = json::parse(text)?;
        expect("the media type", MEDIA_TYPE, &file.media_type)?;
        let material = file.verification_material.into_material()?;
        let envelope = file.dsse_envelope;
        expect("the type of the signed content", PAYLOAD_TYPE, &envelope.payload_type)?;
        let [signature] = &envelope.signatures[..] else {
            return Err(ErrorKind::SignatureCount { found: envelope.signatures.len() }.into());
        };
        Ok(Self {
            material,
            payload: base64("payload", &envelope.payload)?,
            signature: base64("sig", &signature.sig)?,
        })
    }

    /// Such a signature of model-signing 0.2.0 is always wrong: it signed Python's text.
    pub(crate) fn wrong_signature(&self) -> Error {
        let is_old = self.payload.windows(OLD_PREDICATE.len()).any(|part| part == OLD_PREDICATE);
        if is_old { ErrorKind::OldFormat.into() } else { ErrorKind::WrongSignature.into() }
    }

    pub(crate) fn to_json(&self) -> Result<String> {
        // The reference reads no file without this list.
        let tlog_entries = Some(Vec::new());
        let material = VerificationMaterial { tlog_entries, ..VerificationMaterial::default() };
        let verification_material = match &self.material {
            Material::Key(hint) => {
                let public_key = Some(KeyName { hint: hint.clone(), raw_bytes: None });
                VerificationMaterial { public_key, ..material }
            }
            Material::Certificates { leaf, issuers } => {
                let of = |der: &Vec<u8>| CertificateBytes { raw_bytes: BASE64.encode(der) };
                let certificates = [leaf].into_iter().chain(issuers).map(of).collect();
                let x509_certificate_chain = Some(Chain { certificates });
                VerificationMaterial { x509_certificate_chain, ..material }
            }
        };
        let file = File {
            media_type: MEDIA_TYPE.to_owned(),
            verification_material,
            dsse_envelope: Envelope {
                payload: BASE64.encode(&self.payload),
                payload_type: PAYLOAD_TYPE.to_owned(),
                signatures: vec![Signature {
                    sig: BASE64.encode(&self.signature),
                    keyid: Some(Value::from("")),
                }],
            },
        };
        serde_json::to_string(&file).map_err(|error| bad(error.to_string()))
    }
}

/// Returns the signed bytes: DSSE's pre-authentication encoding.
pub(crate) fn message(payload: &[u8]) -> Vec<u8> {
    let start = format!("DSSEv1 {} {PAYLOAD_TYPE} {} ", PAYLOAD_TYPE.len(), payload.len());
    [start.as_bytes(), payload].concat()
}

pub(crate) fn expect(what: &'static str, expected: &'static str, found: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(ErrorKind::Unsupported { what, expected, found: found.to_owned() }.into())
}

fn base64(what: &str, text: &str) -> Result<Vec<u8>> {
    let bytes = BASE64.decode(text.as_bytes());
    bytes.map_err(|error| bad(format!("{what} is not strict base64: {error}")))
}

fn bad(problem: impl Into<String>) -> Error {
    ErrorKind::BadBundle { problem: problem.into() }.into()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    media_type: String,
    verification_material: VerificationMaterial,
    dsse_envelope: Envelope,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VerificationMaterial {
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<KeyName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    x509_certificate_chain: Option<Chain>,
    #[serde(skip_serializing)]
    certificate: Option<Value>,
    #[serde(default)]
    tlog_entries: Option<Vec<Value>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyName {
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// The key in PEM, before model-signing 1.1.0.
    #[serde(skip_serializing)]
    raw_bytes: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Chain {
    certificates: Vec<CertificateBytes>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CertificateBytes {
    raw_bytes: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
struct Signature {
    sig: String,
    keyid: Option<Value>,
}

impl VerificationMaterial {
    fn into_material(self) -> Result<Material> {
        let Self { public_key, x509_certificate_chain, certificate, tlog_entries } = self;
        if certificate.is_some() || tlog_entries.is_some_and(|entries| !entries.is_empty()) {
            return Err(ErrorKind::Keyless.into());
        }
        match (public_key, x509_certificate_chain) {
            (Some(KeyName { hint, raw_bytes }), None) => {
                let hint = hint.filter(|hint| !hint.is_empty());
                let of_bytes = |text: String| base64("rawBytes", &text).map(|pem| hint_of(&pem));
                let old = raw_bytes.map(of_bytes).transpose()?;
                Ok(Material::Key(hint.or(old)))
            }
            (None, Some(Chain { certificates })) => {
                let der = certificates.iter().map(|it| base64("rawBytes", &it.raw_bytes));
                Material::certificates(der.collect::<Result<_>>()?)
            }
            (Some(_), Some(_)) => Err(bad("it has both a key and certificates")),
            (None, None) => Err(bad("it names neither a key nor certificates")),
        }
    }
}
