//! [`TensorDigests`]: the metadata entry that records the digests of a file's tensors.

use std::collections::BTreeMap;

use super::Digest;
use crate::error::{Error, ErrorKind, Escaped, Result, excerpt};
use crate::header::{DIGESTS_KEY, Metadata, SHA256_KEY, UniqueMap};

/// The metadata key for the digests of a file's tensors.
///
/// The value is one compact JSON object that maps tensor names to digests, sorted by name:
/// `{"bias":"99aa06d3014798d86001c324468d497f","weight":"..."}`.
pub const KEY: &str = DIGESTS_KEY;

/// The digests of a file's tensors by name, as recorded under [`KEY`].
///
/// ```
/// use safetensors_core::Metadata;
/// use safetensors_core::digest::{self, Digest, TensorDigests};
///
/// let digests: TensorDigests = [("weight", Digest::of(b""))].into_iter().collect();
/// let mut metadata = Metadata::new();
/// digests.insert_into(&mut metadata);
/// assert_eq!(
///     metadata[digest::KEY],
///     r#"{"weight":"99aa06d3014798d86001c324468d497f"}"#
/// );
/// assert_eq!(TensorDigests::from_metadata(&metadata)?, Some(digests));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorDigests(BTreeMap<String, Digest>);

impl TensorDigests {
    /// No digests yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the digests in a file's metadata; `None` if the metadata has no such entry. The
    /// digests are not compared with the file's tensors.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadDigestRecord`] if the entry is not a JSON object of strings, or has a
    /// duplicate name. [`ErrorKind::BadDigest`], which names the tensor, if a string is not a
    /// digest.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        metadata.get(KEY).map(|text| Self::parse(text)).transpose()
    }

    /// Placeholders for digests that are not computed yet. The entry's value already has its final
    /// length.
    pub(crate) fn unknown<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        names.map(|name| (name, Digest::from_bytes([0; 16]))).collect()
    }

    fn parse(text: &str) -> Result<Self> {
        let malformed = |error: serde_json::Error| ErrorKind::BadDigestRecord {
            key: KEY,
            problem: Escaped(&error.to_string()).to_string(),
        };
        let texts = UniqueMap::new("an object from tensor names to digests")
            .parse(text)
            .map_err(malformed)?;
        let digest = |(name, text): (String, String)| match Digest::parse(&text) {
            Some(digest) => Ok((name, digest)),
            None => Err(Error::from(ErrorKind::BadDigest {
                expected: Digest::DIGITS,
                found: excerpt(&text),
            })
            .in_tensor(&name)),
        };
        texts.into_iter().map(digest).collect::<Result<_>>().map(Self)
    }

    /// The value of the entry. Its length depends only on the names, not on the digests.
    pub fn to_text(&self) -> String {
        let mut text = String::from("{");
        for (i, (name, digest)) in self.0.iter().enumerate() {
            text.push_str(if i == 0 { "" } else { "," });
            // `Value` displays a string as valid JSON, with quotes and escapes.
            text.push_str(&serde_json::Value::from(name.as_str()).to_string());
            text.push_str(":\"");
            text.push_str(&digest.to_string());
            text.push('"');
        }
        text.push('}');
        text
    }

    /// Writes the entry into a file's metadata. Replaces an existing entry.
    pub fn insert_into(&self, metadata: &mut Metadata) {
        metadata.insert(KEY.into(), self.to_text());
    }

    /// The digest of the tensor of this name, if it is recorded.
    pub fn get(&self, name: &str) -> Option<Digest> {
        self.0.get(name).copied()
    }

    /// Records a digest, and returns the previous one of this name.
    pub fn insert(&mut self, name: impl Into<String>, digest: Digest) -> Option<Digest> {
        self.0.insert(name.into(), digest)
    }

    /// Names and digests, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Digest)> {
        self.0.iter().map(|(name, digest)| (name.as_str(), *digest))
    }

    /// The number of digests.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no digest.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<String>> FromIterator<(N, Digest)> for TensorDigests {
    fn from_iter<I: IntoIterator<Item = (N, Digest)>>(digests: I) -> Self {
        Self(digests.into_iter().map(|(name, digest)| (name.into(), digest)).collect())
    }
}

/// Removes both kinds of digests from a file's metadata. A program that changes the data and keeps
/// the metadata should call this.
///
/// Returns whether any digest was removed.
///
/// ```
/// use safetensors_core::Metadata;
/// use safetensors_core::digest::{self, TensorDigests};
///
/// let mut metadata = Metadata::from([("format".into(), "pt".into())]);
/// TensorDigests::new().insert_into(&mut metadata);
/// assert!(digest::forget(&mut metadata));
/// assert_eq!(metadata.len(), 1);
/// ```
pub fn forget(metadata: &mut Metadata) -> bool {
    let tensors = metadata.remove(KEY).is_some();
    let data = metadata.remove(SHA256_KEY).is_some();
    tensors || data
}
