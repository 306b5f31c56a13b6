//! [`Options`]: versions, encoding, checksums, and permission to replace files.

use std::fmt;
use std::sync::Arc;

use safetensors_core::Metadata;
use safetensors_core::digest::remove_record;
use safetensors_core::error::Mismatch;

use crate::error::{ErrorKind, Result};
use crate::format::{ChecksumFormat, Encoding, is_decimal};

/// How deltas are made and applied.
///
/// ```
/// use safetensors_delta::{ChecksumFormat, Encoding, Options};
///
/// let options = Options::new()
///     .versions("000041", "000042")
///     .encoding(Encoding::Overwrite)
///     .checksums(ChecksumFormat::Xxh3);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) base_version: String,
    pub(crate) version: String,
    pub(crate) encoding: Encoding,
    pub(crate) checksums: ChecksumFormat,
    reader: Option<Reader>,
    pub(crate) overwrite: bool,
    pub(crate) durable: bool,
    /// The metadata of the newer checkpoint, if it is to be compared.
    pub(crate) metadata: Option<Metadata>,
    /// Whether a tensor may be whole in a new delta although only its bytes differ.
    pub(crate) whole: bool,
    progress: Option<Callback>,
    /// The most tensors that are worked on at a time; 0 for the default.
    pub(crate) threads: usize,
}

#[derive(Clone)]
struct Callback(Arc<dyn Fn(u64) + Send + Sync>);

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// A program that a delta is made for.
#[derive(Clone, Copy, Debug)]
enum Reader {
    Slime,
    ModelExpress,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            base_version: "000000".into(),
            version: "000001".into(),
            encoding: Encoding::default(),
            checksums: ChecksumFormat::default(),
            reader: None,
            overwrite: false,
            durable: true,
            metadata: None,
            whole: false,
            progress: None,
            threads: 0,
        }
    }
}

impl Options {
    /// Returns the default options: from version 000000 to 000001, XOR, BLAKE3, durable, and
    /// nothing is replaced.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the versions that a new delta leads from and to. They order the deltas of a
    /// [`Chain`](crate::Chain). slime and miles number versions from 000000 on, with six digits.
    #[must_use]
    pub fn versions(mut self, base: impl Into<String>, version: impl Into<String>) -> Self {
        (self.base_version, self.version) = (base.into(), version.into());
        self
    }

    /// Sets the encoding of a new delta. XOR compresses better where the changes are spread over a
    /// tensor; a delta of overwritten bytes can be applied twice.
    #[must_use]
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// Sets the algorithm of the checksums in a new delta.
    #[must_use]
    pub fn checksums(mut self, format: ChecksumFormat) -> Self {
        self.checksums = format;
        self
    }

    /// Makes deltas that slime and miles apply: with XXH3-128, their default, unless the
    /// [checksums](Options::checksums) are set afterwards. Versions that are no decimal numbers are
    /// then an error, and so are other tensors and other [metadata](Options::metadata).
    #[must_use]
    pub fn for_slime(self) -> Self {
        Self { checksums: ChecksumFormat::Xxh3, reader: Some(Reader::Slime), ..self }
    }

    /// Makes deltas that ModelExpress applies: with XOR and Adler-32. Anything else is then an
    /// error.
    #[must_use]
    pub fn for_modelexpress(self) -> Self {
        let checksums = ChecksumFormat::Adler32;
        let reader = Some(Reader::ModelExpress);
        Self { checksums, reader, ..self }
    }

    /// Sets the metadata of the newer checkpoint. If it differs from the older one's, a new delta
    /// has it, and only this crate applies that delta. Recorded [digests](safetensors_core::digest)
    /// do not count. By default nothing is compared, and the metadata of the base stays.
    #[must_use]
    pub fn metadata<K: Into<String>, V: Into<String>>(
        mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let mut metadata: Metadata =
            entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        remove_record(&mut metadata);
        self.metadata = Some(metadata);
        self
    }

    /// Allows replacing files: an older delta by a new one, and a checkpoint, with the files next
    /// to it, by the result of deltas. Only the files of the older one are replaced or removed.
    /// Other files in the directory always stay. Off by default.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Sets whether files take their places only after all of them have reached the disk, so that a
    /// power cut loses nothing. On by default.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Calls a function with the number of bytes of the base that have just been worked on. Several
    /// threads call it.
    #[must_use]
    pub fn progress(mut self, callback: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Callback(Arc::new(callback)));
        self
    }

    pub(crate) fn advance(&self, bytes: usize) {
        if let Some(Callback(progress)) = &self.progress {
            progress(bytes as u64);
        }
    }

    /// Checks that the reader of the delta can read these differences between two checkpoints:
    /// other tensors, and other metadata.
    pub(crate) fn check_extra(
        &self,
        mismatches: Vec<Mismatch>,
        metadata: Option<&Metadata>,
    ) -> Result<()> {
        let reader = match self.reader {
            Some(Reader::Slime) => "slime",
            Some(Reader::ModelExpress) => "ModelExpress",
            None => return Ok(()),
        };
        Mismatch::refuse(mismatches)?;
        let Some(metadata) = metadata else { return Ok(()) };
        let found = format!("{metadata:?}");
        Err(ErrorKind::NotForReader { reader, expected: "the metadata of the base", found }.into())
    }

    /// Checks that the reader of the delta accepts it.
    pub(crate) fn check_reader(&self) -> Result<()> {
        let refused = |reader, expected, found: &str| {
            Err(ErrorKind::NotForReader { reader, expected, found: found.into() }.into())
        };
        match self.reader {
            Some(Reader::Slime) => {
                let other =
                    [&self.base_version, &self.version].into_iter().find(|it| !is_decimal(it));
                other.map_or(Ok(()), |found| refused("slime", "decimal versions", found))
            }
            Some(Reader::ModelExpress) if self.encoding != Encoding::Xor => {
                refused("ModelExpress", "the encoding xor", self.encoding.name())
            }
            Some(Reader::ModelExpress) if self.checksums != ChecksumFormat::Adler32 => {
                refused("ModelExpress", "checksums of adler32", self.checksums.name())
            }
            Some(Reader::ModelExpress) | None => Ok(()),
        }
    }
}
