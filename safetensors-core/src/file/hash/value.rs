//! [`Digest`]: the XXH3-128 of a tensor.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::str::FromStr;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use crate::file::hash::hex;
use crate::format::error::{Error, Result};
use crate::format::header::{LENGTH_BYTES, Limits};

/// The XXH3-128, without seed or secret, of a tensor's bytes in the file.
///
/// Displayed as 32 lower-case hex digits, high half first, as `xxhsum -H128` prints it.
///
/// ```
/// use safetensors_core::digest::Digest;
///
/// assert_eq!(Digest::compute(b"").to_string(), "99aa06d3014798d86001c324468d497f");
/// assert_eq!("99aa06d3014798d86001c324468d497f".parse::<Digest>()?, Digest::compute(b""));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(u128);

impl Digest {
    /// Returns the digest of these bytes.
    pub fn compute(bytes: &[u8]) -> Self {
        Self(xxh3_128(bytes))
    }

    /// Returns the digest of a file's header and the length before it, even of another format.
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof) for less than 8 bytes.
    #[doc(hidden)]
    pub fn of_header(mut file: impl Read) -> io::Result<Self> {
        let mut length = [0; LENGTH_BYTES];
        file.read_exact(&mut length)?;
        // A wrong length gives a wrong digest. The text of an index begins like a length beyond all
        // limits.
        let most = Limits::default().header_bytes;
        let mut text = BufReader::new(file.take(u64::from_le_bytes(length).min(most)));
        let mut hasher = Hasher::default();
        hasher.update(&length);
        loop {
            let bytes = text.fill_buf()?;
            if bytes.is_empty() {
                return Ok(hasher.finish());
            }
            hasher.update(bytes);
            let len = bytes.len();
            text.consume(len);
        }
    }
}

impl FromStr for Digest {
    type Err = Error;

    /// # Errors
    ///
    /// [`ErrorKind::BadDigest`](crate::ErrorKind::BadDigest), except for 32 lower-case hex digits.
    fn from_str(text: &str) -> Result<Self> {
        hex::decode(text).map(<[u8; 16]>::into)
    }
}

/// Reads the bytes as big-endian, the canonical order.
impl From<[u8; 16]> for Digest {
    fn from(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

/// Returns the bytes as big-endian, the canonical order.
impl From<Digest> for [u8; 16] {
    fn from(digest: Digest) -> Self {
        digest.0.to_be_bytes()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Computes a [`Digest`] of bytes given in pieces.
///
/// ```
/// use safetensors_core::digest::{Digest, Hasher};
///
/// let mut hasher = Hasher::default();
/// hasher.update(b"in ");
/// hasher.update(b"pieces");
/// assert_eq!(hasher.finish(), Digest::compute(b"in pieces"));
/// ```
#[derive(Clone, Default)]
pub struct Hasher(Xxh3Default);

impl Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of the bytes so far. More may follow.
    pub fn finish(&self) -> Digest {
        Digest(self.0.digest128())
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hasher").field(&self.finish()).finish()
    }
}
