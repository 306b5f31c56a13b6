//! [`Sha256`]: the SHA-256 of a file's data.

use alloc::{format, string::String};
use core::fmt;
use core::str::FromStr;

use crate::file::hash::hex;
use crate::format::error::ErrorKind;
use crate::format::error::{Error, Result};
use crate::format::header::{Metadata, SHA256_KEY};

const SHA256_FORM: &str = "0x and 64 lower-case hex digits";

/// A SHA-256 digest, displayed as 64 lower-case hex digits.
///
/// ```
/// use safetensors_core::digest::Sha256;
///
/// let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// let digest: Sha256 = text.parse()?;
/// assert_eq!(digest.to_string(), text);
/// assert_eq!(<[u8; 32]>::from(digest)[..2], [0xe3, 0xb0]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(hidden)]
pub struct Sha256([u8; 32]);

pub(crate) fn recorded_sha256(metadata: &Metadata) -> Result<Option<Sha256>> {
    let Some(text) = metadata.get(SHA256_KEY) else { return Ok(None) };
    match text.strip_prefix("0x").map(str::parse) {
        Some(Ok(hash)) => Ok(Some(hash)),
        Some(Err(_)) | None => {
            let found = text.clone();
            Err(ErrorKind::BadModelSpec { key: SHA256_KEY, expected: SHA256_FORM, found }.into())
        }
    }
}

pub(crate) fn sha256_entry(hash: Sha256) -> (&'static str, String) {
    (SHA256_KEY, format!("0x{hash}"))
}

impl FromStr for Sha256 {
    type Err = Error;

    /// # Errors
    ///
    /// [`ErrorKind::BadDigest`](crate::ErrorKind::BadDigest), except for 64 lower-case hex digits.
    fn from_str(text: &str) -> Result<Self> {
        hex::decode(text).map(Self)
    }
}

impl From<[u8; 32]> for Sha256 {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl From<Sha256> for [u8; 32] {
    fn from(digest: Sha256) -> Self {
        digest.0
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}
