//! [`TensorDigests`]: the metadata entry of a file's digests.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use super::Digest;
use crate::format::error::{Error, ErrorKind, Escaped, Result};
use crate::format::header::{DIGESTS_KEY, Metadata, UniqueMap};

/// The metadata key of digests: a compact JSON object, sorted by name, such as
/// `{"bias":"99aa06d3014798d86001c324468d497f","weight":"..."}`.
pub const KEY: &str = DIGESTS_KEY;

/// The digests of a file's tensors by name, as recorded under [`KEY`]. Displays as that entry's
/// value.
///
/// ```
/// use safetensors_core::Metadata;
/// use safetensors_core::digest::{self, Digest, TensorDigests};
///
/// let digests: TensorDigests = [("weight", Digest::compute(b""))].into_iter().collect();
/// let mut metadata = Metadata::new();
/// metadata.insert(digest::KEY.into(), digests.to_string());
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
    /// Reads the digests in a file's metadata, if it has any, without comparing them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadDigestRecord`] if the entry is not a JSON object of strings, or has a
    /// duplicate name; [`ErrorKind::BadDigest`].
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        metadata.get(KEY).map(|text| Self::parse(text)).transpose()
    }

    // Placeholders give the entry its final length.
    pub(crate) fn unknown<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        names.map(|name| (name, Digest::from([0_u8; 16]))).collect()
    }

    fn parse(text: &str) -> Result<Self> {
        let malformed = |error: serde_json::Error| ErrorKind::BadDigestRecord {
            key: KEY,
            problem: Escaped(&error.to_string()).to_string(),
        };
        let texts = UniqueMap::new("an object from tensor names to digests")
            .parse(text)
            .map_err(malformed)?;
        let digest = |(name, text): (String, String)| match text.parse() {
            Ok(digest) => Ok((name, digest)),
            Err(error) => Err(Error::in_tensor(error, &name)),
        };
        texts.into_iter().map(digest).collect::<Result<_>>().map(Self)
    }

    pub(crate) fn insert_into(&self, metadata: &mut Metadata) {
        metadata.insert(KEY.into(), self.to_string());
    }
}

impl Deref for TensorDigests {
    type Target = BTreeMap<String, Digest>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for TensorDigests {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// The value of the entry. Its length depends only on the names.
impl fmt::Display for TensorDigests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: BTreeMap<_, _> =
            self.0.iter().map(|(name, digest)| (name, digest.to_string())).collect();
        f.write_str(&serde_json::to_string(&texts).map_err(|_| fmt::Error)?)
    }
}

impl<N: Into<String>> FromIterator<(N, Digest)> for TensorDigests {
    fn from_iter<I: IntoIterator<Item = (N, Digest)>>(digests: I) -> Self {
        Self(digests.into_iter().map(|(name, digest)| (name.into(), digest)).collect())
    }
}
