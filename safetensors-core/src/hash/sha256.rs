//! [`Sha256`]: the SHA-256 of a file's data.

use core::fmt;

use crate::hash::hex;

/// A SHA-256 digest. `Display` prints 64 lower-case hex digits, as `sha256sum` does.
///
/// ```
/// use safetensors_core::digest::Sha256;
///
/// let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// let digest = Sha256::parse(text).unwrap();
/// assert_eq!(digest.to_string(), text);
/// assert_eq!(digest.to_bytes()[..2], [0xe3, 0xb0]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// Parses exactly 64 lower-case hex digits; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        hex::decode(text).map(Self)
    }

    /// The digest with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn to_bytes(self) -> [u8; 32] {
        self.0
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
