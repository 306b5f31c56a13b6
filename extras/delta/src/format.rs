//! Names of files, keys, encodings and checksums of the format.

use std::fmt;

use safetensors_core::Metadata;

use crate::error::{ErrorKind, Result};

pub(crate) const INDEX: &str = "model.safetensors.index.json";

pub(crate) const FILE: &str = "model.safetensors";

pub(crate) const VERSION: &str = "version";
pub(crate) const BASE_VERSION: &str = "base_version";
pub(crate) const ENCODING: &str = "delta_encoding";
pub(crate) const COMPRESSION: &str = "compression_format";
pub(crate) const CHECKSUM: &str = "checksum_format";

/// Digests that only this library writes and reads.
pub(crate) const BASE_DIGEST: &str = "safetensors_bridge.base_blake3";
pub(crate) const RESULT_DIGEST: &str = "safetensors_bridge.result_blake3";

pub(crate) const ADDED: &str = "safetensors_bridge.added";
pub(crate) const REPLACED: &str = "safetensors_bridge.replaced";
pub(crate) const REMOVED: &str = "safetensors_bridge.removed";
pub(crate) const METADATA: &str = "safetensors_bridge.metadata";

pub(crate) const ZSTD: &str = "zstd";

/// The encoding of the changed bytes of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Each byte of the tensor is the new XOR the old one.
    #[default]
    // The default: its runs of zeros compress better than positions of 32 bits, unless very few
    // bytes differ, and it has no limit of 4 GiB.
    Xor,
    /// The number of differing bytes, their positions and the new bytes: little-endian u32, u32
    /// each, u8 each. For tensors below 4 GiB.
    Overwrite,
}

impl Encoding {
    const ALL: [Self; 2] = [Self::Xor, Self::Overwrite];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::Overwrite => "overwrite",
        }
    }

    /// Other readers refuse the word for a delta with [`Extra`](crate::extra::Extra).
    pub(crate) fn word(self, has_extra: bool) -> &'static str {
        match (self, has_extra) {
            (_, false) => self.name(),
            (Self::Xor, true) => "xor-or-whole",
            (Self::Overwrite, true) => "overwrite-or-whole",
        }
    }

    pub(crate) fn read(index: &Metadata) -> Result<(Self, bool)> {
        let all = [false, true].map(|has_extra| Self::ALL.map(|encoding| (encoding, has_extra)));
        let expected = "xor, overwrite, xor-or-whole or overwrite-or-whole";
        word(index, ENCODING, expected, all.as_flattened(), |(encoding, has_extra)| {
            encoding.word(has_extra)
        })
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(crate) fn is_decimal(version: &str) -> bool {
    !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit())
}

/// The algorithm of the checksums: one for each changed tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChecksumFormat {
    /// BLAKE3: 64 hex digits, cryptographic.
    #[default]
    // The default: slime and miles read it, and the digest of the checkpoint needs it anyway.
    // Adler-32 is the only one that ModelExpress reads.
    Blake3,
    /// XXH3-128: 32 hex digits.
    Xxh3,
    /// Adler-32: 8 hex digits. Weak for short tensors.
    Adler32,
}

impl ChecksumFormat {
    const ALL: [Self; 3] = [Self::Blake3, Self::Xxh3, Self::Adler32];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Xxh3 => "xxh3-128",
            Self::Adler32 => "adler32",
        }
    }

    pub(crate) fn digits(self) -> usize {
        match self {
            Self::Blake3 => 64,
            Self::Xxh3 => 32,
            Self::Adler32 => 8,
        }
    }

    pub(crate) fn read(index: &Metadata) -> Result<Self> {
        word(index, CHECKSUM, "blake3, xxh3-128 or adler32", &Self::ALL, Self::name)
    }
}

impl fmt::Display for ChecksumFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(crate) fn text(index: &Metadata, key: &'static str, expected: &'static str) -> Result<String> {
    let missing = || ErrorKind::BadField { key, expected, found: None }.into();
    index.get(key).cloned().ok_or_else(missing)
}

pub(crate) fn word<T: Copy>(
    index: &Metadata,
    key: &'static str,
    expected: &'static str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T> {
    let found = text(index, key, expected)?;
    let known = all.iter().copied().find(|&one| name(one) == found);
    known.ok_or_else(|| ErrorKind::BadField { key, expected, found: Some(found) }.into())
}

pub(crate) fn digest(index: &Metadata, key: &'static str) -> Result<Option<blake3::Hash>> {
    let Some(found) = index.get(key) else { return Ok(None) };
    let is_plain = is_hex(found, ChecksumFormat::Blake3.digits());
    let digest = is_plain.then(|| blake3::Hash::from_hex(found).ok()).flatten();
    let expected = "64 lower-case hex digits";
    let wrong = || ErrorKind::BadField { key, expected, found: Some(found.clone()) }.into();
    digest.map(Some).ok_or_else(wrong)
}

/// Lower-case only.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
