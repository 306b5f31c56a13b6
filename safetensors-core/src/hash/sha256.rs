//! [`Sha256`]: the SHA-256 of a file's data.

use core::fmt;
use core::str::FromStr;

use crate::error::{Error, Result};
use crate::hash::hex;

/// A SHA-256 digest. `Display` prints 64 lower-case hex digits, as `sha256sum` does.
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
pub struct Sha256([u8; 32]);

/// Exactly 64 lower-case hex digits.
impl FromStr for Sha256 {
    type Err = Error;

    /// # Errors
    ///
    /// [`ErrorKind::BadDigest`](crate::ErrorKind::BadDigest).
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
