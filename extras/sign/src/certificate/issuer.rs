//! Checks whether one certificate has issued another: names, rights and signature.

use rsa::pkcs1v15::Pkcs1v15Sign;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::traits::PublicKeyParts as _;
use sha2::{Sha256, Sha384, Sha512};
use x509_cert::der::Encode as _;
use x509_cert::der::oid::{AssociatedOid as _, ObjectIdentifier};
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, CertificatePolicies, ExtendedKeyUsage, KeyUsage,
    SubjectAltName, SubjectKeyIdentifier,
};

use super::Certificate;
use crate::key::{PublicKey, SignatureHash};

/// Extensions that may be critical, because they are obeyed or restrict nothing here.
const KNOWN: [ObjectIdentifier; 7] = [
    BasicConstraints::OID,
    KeyUsage::OID,
    ExtendedKeyUsage::OID,
    SubjectKeyIdentifier::OID,
    AuthorityKeyIdentifier::OID,
    SubjectAltName::OID,
    CertificatePolicies::OID,
];

const RSA_BITS: u32 = 2048;

const ECDSA: [(&str, SignatureHash); 3] = [
    ("1.2.840.10045.4.3.2", SignatureHash::Sha256),
    ("1.2.840.10045.4.3.3", SignatureHash::Sha384),
    ("1.2.840.10045.4.3.4", SignatureHash::Sha512),
];

// The roots of many companies have RSA keys. The advisory RUSTSEC-2023-0071 about the crate `rsa`
// concerns private keys, and here are none.
const RSA: [(&str, SignatureHash); 3] = [
    ("1.2.840.113549.1.1.11", SignatureHash::Sha256),
    ("1.2.840.113549.1.1.12", SignatureHash::Sha384),
    ("1.2.840.113549.1.1.13", SignatureHash::Sha512),
];

impl Certificate {
    pub(super) fn names_issuer(&self, issuer: &Self) -> bool {
        self.parsed.tbs_certificate().issuer() == issuer.parsed.tbs_certificate().subject()
    }

    /// `below`: the number of issuers below it.
    pub(super) fn why_no_issuer(&self, below: usize) -> Option<&'static str> {
        let inner = self.parsed.tbs_certificate();
        match inner.get_extension::<BasicConstraints>() {
            Ok(Some((_, constraints))) if constraints.ca => {
                if constraints.path_len_constraint.is_some_and(|most| usize::from(most) < below) {
                    return Some("it allows fewer issuers below it");
                }
            }
            Ok(_) => return Some("it is not an issuer's certificate"),
            Err(_) => return Some("its basic constraints are malformed"),
        }
        match inner.get_extension::<KeyUsage>() {
            Ok(None) => {}
            Ok(Some((_, usage))) if usage.key_cert_sign() => {}
            _ => return Some("its key may not sign certificates"),
        }
        // Certificates below an issuer have no right that it lacks.
        self.signs_code().err()
    }

    /// Such as name constraints.
    pub(super) fn unknown_extension(&self) -> Option<ObjectIdentifier> {
        let extensions = self.parsed.tbs_certificate().extensions()?;
        let unknown = extensions.iter().find(|it| it.critical && !KNOWN.contains(&it.extn_id));
        unknown.map(|it| it.extn_id)
    }

    pub(super) fn check_signed_by(&self, issuer: &Self) -> Result<(), String> {
        let algorithm = self.parsed.signature_algorithm();
        if algorithm != self.parsed.tbs_certificate().signature() {
            return Err("it names two algorithms of its signature".to_owned());
        }
        let named = |list: [(&str, SignatureHash); 3]| {
            let is_named = |(oid, _): &(&str, _)| ObjectIdentifier::new(oid) == Ok(algorithm.oid);
            list.into_iter().find(is_named).map(|(_, hash)| hash)
        };
        let wrong = || "its issuer did not sign it".to_owned();
        let message = self.parsed.tbs_certificate().to_der().map_err(|_| wrong())?;
        let signature = self.parsed.signature().as_bytes().ok_or_else(wrong)?;
        let key = issuer.parsed.tbs_certificate().subject_public_key_info().to_der();
        let key = key.map_err(|_| wrong())?;
        let is_right = match (named(ECDSA), named(RSA)) {
            (Some(hash), _) => {
                PublicKey::from_der(&key).is_ok_and(|key| key.is_signed(&message, hash, signature))
            }
            (_, Some(hash)) => {
                let key = rsa::PublicKey::from_public_key_der(&key).map_err(|_| wrong())?;
                if key.n().bit_width() < RSA_BITS {
                    return Err(format!(
                        "the RSA key of its issuer has fewer than {RSA_BITS} bits"
                    ));
                }
                let scheme = match hash {
                    SignatureHash::Sha256 => Pkcs1v15Sign::new::<Sha256>(),
                    SignatureHash::Sha384 => Pkcs1v15Sign::new::<Sha384>(),
                    SignatureHash::Sha512 => Pkcs1v15Sign::new::<Sha512>(),
                };
                key.verify(scheme, &hash.digest(&message), signature).is_ok()
            }
            (None, None) => {
                return Err(format!(
                    "it is signed by the algorithm {}, which is not supported",
                    algorithm.oid
                ));
            }
        };
        if is_right { Ok(()) } else { Err(wrong()) }
    }
}
