//! Keys of three curves: [`PrivateKey`] signs, [`PublicKey`] verifies.

use std::fmt;

use data_encoding::HEXLOWER;
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::signature::hazmat::PrehashVerifier as _;
use p256::pkcs8::{
    DecodePrivateKey as _, DecodePublicKey as _, EncodePublicKey as _, LineEnding,
    ObjectIdentifier, PrivateKeyInfoRef, SubjectPublicKeyInfoRef,
};
use safetensors_core::Result;
use sec1::EcPrivateKey;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode as _, Document, SecretDocument};

use crate::error::ErrorKind;
use crate::pem::blocks;

const EC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureHash {
    Sha256,
    Sha384,
    Sha512,
}

impl SignatureHash {
    pub(crate) fn digest(self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(message).to_vec(),
            Self::Sha384 => Sha384::digest(message).to_vec(),
            Self::Sha512 => Sha512::digest(message).to_vec(),
        }
    }
}

// `ring` has neither P-521 nor keys of SEC1, and needs a C compiler.
macro_rules! curves {
    ($($name:ident: $curve:ident, $oid:literal, $hash:ident;)*) => {
        /// Clears its memory on drop. The text it was parsed from belongs to the caller.
        pub(crate) enum PrivateKey {
            $($name($curve::ecdsa::SigningKey),)*
        }

        #[derive(Clone, PartialEq, Eq)]
        pub(crate) enum PublicKey {
            $($name($curve::PublicKey),)*
        }

        impl PrivateKey {
            fn from_pkcs8(der: &[u8], curve: ObjectIdentifier) -> Result<Self> {
                $(if curve == ObjectIdentifier::new_unwrap($oid) {
                    let key = $curve::SecretKey::from_pkcs8_der(der).map_err(|_| malformed())?;
                    return Ok(Self::$name(key.into()));
                })*
                Err(other_curve(curve))
            }

            fn from_sec1(der: &[u8], curve: ObjectIdentifier) -> Result<Self> {
                $(if curve == ObjectIdentifier::new_unwrap($oid) {
                    let key = $curve::SecretKey::from_sec1_der(der).map_err(|_| malformed())?;
                    return Ok(Self::$name(key.into()));
                })*
                Err(other_curve(curve))
            }

            pub(crate) fn public_key(&self) -> PublicKey {
                match self {
                    $(Self::$name(key) => PublicKey::$name(key.verifying_key().into()),)*
                }
            }

            /// Deterministic (RFC 6979), in DER.
            pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
                match self {
                    $(Self::$name(key) => {
                        let signed = key.try_sign(message);
                        let signature: $curve::ecdsa::Signature =
                            signed.map_err(|_| bad_key("it cannot sign"))?;
                        Ok(signature.to_der().as_bytes().to_vec())
                    })*
                }
            }
        }

        impl PublicKey {
            pub(crate) fn from_der(der: &[u8]) -> Result<Self> {
                let info = SubjectPublicKeyInfoRef::try_from(der).map_err(|_| malformed())?;
                let curve = curve_of(info.algorithm.oid, info.algorithm.parameters)?;
                $(if curve == ObjectIdentifier::new_unwrap($oid) {
                    let key = $curve::PublicKey::from_public_key_der(der);
                    return key.map(Self::$name).map_err(|_| malformed());
                })*
                Err(other_curve(curve))
            }

            fn to_pem(&self) -> Result<String> {
                let pem = match self {
                    $(Self::$name(key) => key.to_public_key_pem(LineEnding::LF),)*
                };
                pem.map_err(|_| malformed())
            }

            pub(crate) fn hash(&self) -> SignatureHash {
                match self {
                    $(Self::$name(_) => SignatureHash::$hash,)*
                }
            }

            pub(crate) fn is_signed(
                &self,
                message: &[u8],
                hash: SignatureHash,
                signature: &[u8],
            ) -> bool {
                let mut digest = hash.digest(message);
                // A number of less than half the bytes of the curve is refused, but an issuer with
                // P-521 may have signed with SHA-256. Zeros before it do not change the number.
                if matches!(self, Self::P521(_)) && digest.len() == 32 {
                    digest.insert(0, 0);
                }
                match self {
                    $(Self::$name(key) => {
                        let Ok(signature) = $curve::ecdsa::Signature::from_der(signature) else {
                            return false;
                        };
                        let key = $curve::ecdsa::VerifyingKey::from(key);
                        key.verify_prehash(&digest, &signature).is_ok()
                    })*
                }
            }
        }

        impl fmt::Debug for PublicKey {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name(_) => stringify!($name),)*
                })
            }
        }
    };
}

curves! {
    P256: p256, "1.2.840.10045.3.1.7", Sha256;
    P384: p384, "1.3.132.0.34", Sha384;
    P521: p521, "1.3.132.0.35", Sha512;
}

impl PrivateKey {
    /// Parses PEM: PKCS#8 or SEC1, not encrypted.
    pub(crate) fn parse(pem: &str) -> Result<Self> {
        let all = blocks(pem);
        // `openssl ecparam -genkey` writes the name of the curve before the key.
        let mut keys = all.iter().filter(|block| block.label != "EC PARAMETERS");
        let Some(block) = keys.next() else {
            return Err(bad_key("expected a private key in PEM"));
        };
        if keys.next().is_some() {
            return Err(bad_key("expected one private key, found more than one block of PEM"));
        }
        if block.label == "ENCRYPTED PRIVATE KEY" || block.has_encryption_header() {
            return Err(ErrorKind::EncryptedKey.into());
        }
        let is_pkcs8 = block.label == "PRIVATE KEY";
        if !is_pkcs8 && block.label != "EC PRIVATE KEY" {
            let label: String = block.label.escape_debug().take(40).collect();
            return Err(bad_key(format!("expected a private key of a curve, found {label:?}")));
        }
        let (_, der) = SecretDocument::from_pem(block.text).map_err(|_| malformed())?;
        if is_pkcs8 {
            let info = PrivateKeyInfoRef::from_der(der.as_bytes()).map_err(|_| malformed())?;
            let curve = curve_of(info.algorithm.oid, info.algorithm.parameters)?;
            return Self::from_pkcs8(der.as_bytes(), curve);
        }
        let key = EcPrivateKey::from_der(der.as_bytes()).map_err(|_| malformed())?;
        let named = key.parameters.and_then(|parameters| parameters.named_curve());
        let curve = named.ok_or_else(|| bad_key("it does not name its curve"))?;
        Self::from_sec1(der.as_bytes(), curve)
    }
}

impl PublicKey {
    pub(crate) fn parse(pem: &str) -> Result<Self> {
        let [block] = &blocks(pem)[..] else {
            return Err(bad_key("expected one public key in PEM"));
        };
        match block.label {
            "PUBLIC KEY" => {
                let (_, der) = Document::from_pem(block.text).map_err(|_| malformed())?;
                Self::from_der(der.as_bytes())
            }
            "CERTIFICATE" => Err(bad_key(
                "it is a certificate; a signature with certificates is verified with their root",
            )),
            label if label.ends_with("PRIVATE KEY") => {
                Err(bad_key("it is a private key; a signature is verified with the public one"))
            }
            _ => Err(bad_key("expected a public key in PEM")),
        }
    }

    /// The key's name in a signature: the SHA-256 of its PEM, in hexadecimal.
    pub(crate) fn hint(&self) -> Result<String> {
        Ok(hint_of(self.to_pem()?.as_bytes()))
    }
}

pub(crate) fn hint_of(pem: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(pem))
}

fn curve_of(
    algorithm: ObjectIdentifier,
    parameters: Option<AnyRef<'_>>,
) -> Result<ObjectIdentifier> {
    if algorithm != EC_KEY {
        return Err(bad_key(format!(
            "expected a key of the curve P-256, P-384 or P-521, found the algorithm {algorithm}"
        )));
    }
    let named = parameters.and_then(|parameters| parameters.decode_as().ok());
    named.ok_or_else(|| bad_key("it does not name its curve"))
}

fn other_curve(curve: ObjectIdentifier) -> safetensors_core::Error {
    bad_key(format!("expected the curve P-256, P-384 or P-521, found {curve}"))
}

fn malformed() -> safetensors_core::Error {
    bad_key("it is malformed")
}

fn bad_key(problem: impl Into<String>) -> safetensors_core::Error {
    ErrorKind::BadKey { problem: problem.into() }.into()
}
