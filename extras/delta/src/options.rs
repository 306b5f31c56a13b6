//! [`Options`]: versions, encoding, checksums, permission to replace files.

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
    reader: Option<DeltaReader>,
    pub(crate) overwrite: bool,
    pub(crate) durable: bool,
    pub(crate) metadata: Option<Metadata>,
    /// Allows storing a tensor entirely although only bytes differ.
    pub(crate) whole: bool,
    progress: Option<Callback>,
    /// 0 for the default.
    pub(crate) threads: usize,
}

#[derive(Clone)]
struct Callback(Arc<dyn Fn(u64) + Send + Sync>);

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

#[derive(Clone, Copy, Debug)]
enum DeltaReader {
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
    /// Returns the defaults: version 000000 to 000001, XOR, BLAKE3, durable, nothing is replaced.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the versions that a new delta leads from and to. slime and miles count from 000000.
    #[must_use]
    pub fn versions(mut self, base: impl Into<String>, version: impl Into<String>) -> Self {
        (self.base_version, self.version) = (base.into(), version.into());
        self
    }

    /// Sets the encoding of a new delta. XOR compresses spread changes better; overwritten bytes
    /// can be applied twice.
    #[must_use]
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.encoding = encoding;
        self
    }

    /// Sets the checksums of a new delta.
    #[must_use]
    pub fn checksums(mut self, format: ChecksumFormat) -> Self {
        self.checksums = format;
        self
    }

    /// Makes deltas that slime and miles apply, with XXH3-128 unless
    /// [checksums](Options::checksums) are set afterwards. Versions that are not decimal, other
    /// tensors and other [metadata](Options::metadata) are errors.
    #[must_use]
    pub fn for_slime(self) -> Self {
        Self { checksums: ChecksumFormat::Xxh3, reader: Some(DeltaReader::Slime), ..self }
    }

    /// Makes deltas that ModelExpress applies, with XOR and Adler-32. Anything else is an error.
    #[must_use]
    pub fn for_modelexpress(self) -> Self {
        let checksums = ChecksumFormat::Adler32;
        let reader = Some(DeltaReader::ModelExpress);
        Self { checksums, reader, ..self }
    }

    /// Sets the newer checkpoint's metadata. If it differs, except in recorded
    /// [digests](safetensors_core::digest), the new delta has it, and only this crate applies that
    /// delta. By default the base's metadata stays.
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

    /// Replaces an older delta, or by the result of deltas a checkpoint and the files that belong
    /// to it. Other files always stay. Off by default.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Puts files in place only after all have reached the disk, so that a power cut loses nothing.
    /// On by default.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Sets a callback that gets the bytes of the base just finished, from several threads.
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

    pub(crate) fn check_extra(
        &self,
        mismatches: Vec<Mismatch>,
        metadata: Option<&Metadata>,
    ) -> Result<()> {
        let reader = match self.reader {
            Some(DeltaReader::Slime) => "slime",
            Some(DeltaReader::ModelExpress) => "ModelExpress",
            None => return Ok(()),
        };
        Mismatch::refuse(mismatches)?;
        let Some(metadata) = metadata else { return Ok(()) };
        let found = format!("{metadata:?}");
        Err(ErrorKind::NotForReader { reader, expected: "the metadata of the base", found }.into())
    }

    pub(crate) fn check_reader(&self) -> Result<()> {
        let refused = |reader, expected, found: &str| {
            Err(ErrorKind::NotForReader { reader, expected, found: found.into() }.into())
        };
        match self.reader {
            Some(DeltaReader::Slime) => {
                let other =
                    [&self.base_version, &self.version].into_iter().find(|it| !is_decimal(it));
                other.map_or(Ok(()), |found| refused("slime", "decimal versions", found))
            }
            Some(DeltaReader::ModelExpress) if self.encoding != Encoding::Xor => {
                refused("ModelExpress", "the encoding xor", self.encoding.name())
            }
            Some(DeltaReader::ModelExpress) if self.checksums != ChecksumFormat::Adler32 => {
                refused("ModelExpress", "checksums of adler32", self.checksums.name())
            }
            Some(DeltaReader::ModelExpress) | None => Ok(()),
        }
    }
}
