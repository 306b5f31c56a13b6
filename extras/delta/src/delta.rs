//! [`Delta`]: an open delta.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry};
use safetensors_core::checkpoint::{CheckpointPath, FilePattern};
use safetensors_core::framework::{in_parallel, is_temporary_name};
use safetensors_core::io::FileSource;
use safetensors_core::{Checkpoint, Dtype, LazyTensor, Limits, Metadata, ReadAt};

use crate::error::{Error, ErrorKind, Result};
use crate::extra::{Change, Extra, Form};
use crate::format::{
    BASE_DIGEST, BASE_VERSION, COMPRESSION, ChecksumFormat, Encoding, RESULT_DIGEST, VERSION, ZSTD,
    digest, is_hex, text, word,
};
use crate::frame::pour;
use crate::patch::Patch;
use crate::sums::Sums;

/// The difference between a checkpoint, the base, and a newer version of it.
///
/// Opening reads and checks the index and the headers of the files. Differences are decompressed
/// when a [`Chain`](crate::Chain) applies the delta, or by [`verify`](Delta::verify).
///
/// ```
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
/// use safetensors_delta::{Delta, Options, make};
///
/// # let dir = tempfile::tempdir()?;
/// # let (old, new) = (dir.path().join("old.safetensors"), dir.path().join("new.safetensors"));
/// # let write = |path, values: [f32; 2]| {
/// #     save(path, [("w", TensorView::from_slice(&[2], &values)?)], &SaveOptions::new())
/// # };
/// # write(&old, [1.0, 2.0])?;
/// # write(&new, [1.0, 2.5])?;
/// # let path = dir.path().join("delta");
/// let (old, new) = (Checkpoint::open(&old)?, Checkpoint::open(&new)?);
/// make(&old, new.tensors().map(|w| (w.name(), w)), &path, &Options::new())?;
/// let delta = Delta::open(&path)?;
/// assert_eq!((delta.base_version(), delta.version()), ("000000", "000001"));
/// assert_eq!(delta.tensors().map(|w| w.name()).collect::<Vec<_>>(), ["w"]);
/// // Loading refuses it.
/// assert!(Checkpoint::open(&path).unwrap_err().to_string().contains("this is a delta of"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Delta<S = FileSource> {
    files: Checkpoint<S>,
    version: String,
    base_version: String,
    encoding: Encoding,
    checksum_format: ChecksumFormat,
    base_digest: Option<blake3::Hash>,
    result_digest: Option<blake3::Hash>,
    extra: Extra,
}

impl Delta {
    /// Opens the delta in a directory, or at the path of its index.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotADelta`](safetensors_core::ErrorKind::NotADelta) for a checkpoint; the
    /// [kinds](ErrorKind) of this crate if index and files do not agree, or for an unknown encoding
    /// or checksum; errors of opening the files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(LocalStore, path, &Limits::default())
    }
}

impl<S: ReadAt> Delta<S> {
    /// Opens a delta like [`open`](Delta::open), from any store.
    pub fn open_in(
        store: impl Store<File = S> + 'static,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<Self> {
        let store = Arc::new(store);
        let (files, index) = Checkpoint::open_foreign_in(Arc::clone(&store), path, limits)?;
        let path = files.index_path().unwrap_or(Path::new("")).to_owned();
        let delta = Self::read(files, &index, limits).map_err(|error| error.in_path(path))?;
        let home = delta.path().parent().unwrap_or(Path::new(""));
        delta.refuse_others(&store.list(home).map_err(|error| error.in_path(home))?)?;
        delta.files.tensors().try_for_each(|tensor| {
            delta.check_tensor(&tensor).map_err(|kind| tensor.locate(kind.into()))
        })?;
        let names: BTreeSet<_> = delta.files.tensors().map(|tensor| tensor.name()).collect();
        delta.extra.check_names(&names).map_err(|error| error.in_path(delta.path()))?;
        Ok(delta)
    }

    fn read(files: Checkpoint<S>, index: &Metadata, limits: &Limits) -> Result<Self> {
        word(index, COMPRESSION, ZSTD, &[ZSTD], |word| word)?;
        let (encoding, has_extra) = Encoding::read(index)?;
        Ok(Self {
            files,
            version: text(index, VERSION, "a version")?,
            base_version: text(index, BASE_VERSION, "a version")?,
            encoding,
            checksum_format: ChecksumFormat::read(index)?,
            base_digest: digest(index, BASE_DIGEST)?,
            result_digest: digest(index, RESULT_DIGEST)?,
            extra: Extra::read(index, has_extra, limits)?,
        })
    }

    /// Readers that take all files would apply other tensors.
    fn refuse_others(&self, beside: &[StoreEntry]) -> Result<()> {
        if let Some((file, tensor)) = self.files.unindexed().next() {
            let error = Error::from(ErrorKind::Unindexed).in_tensor(tensor.name());
            return Err(error.in_path(file.path()));
        }
        let is_own = |path: &Path| self.files.files().iter().any(|file| file.path() == path);
        // While files take their places, and after that was interrupted, only the index names the
        // files that count. Then there is a hidden directory, or a file has a second name.
        let pattern = FilePattern::default();
        let is_changing = beside.iter().any(|entry| {
            is_temporary_name(entry.name.as_ref())
                || entry.name.contains(".replaced-") && pattern.matches(&entry.name)
        });
        for entry in beside.iter().filter(|entry| entry.kind == FileKind::File) {
            let path = self.path().with_file_name(&entry.name);
            let is_tensors =
                matches!(CheckpointPath::from_name(&path), Some(CheckpointPath::File(_)));
            let is_of_commit = is_changing && pattern.matches(&entry.name);
            if is_tensors && !is_of_commit && !is_own(&path) {
                return Err(Error::from(ErrorKind::StrayFile).in_path(path));
            }
        }
        Ok(())
    }

    fn check_tensor(&self, tensor: &LazyTensor<'_, S>) -> Result<(), ErrorKind> {
        let dtype = tensor.dtype();
        let ndim = tensor.shape().len();
        if dtype != Dtype::U8 || ndim != 1 {
            return Err(ErrorKind::NotBytes { dtype, ndim });
        }
        let checksum = self.stored_checksum(tensor).ok_or(ErrorKind::NoChecksum)?;
        let expected = self.checksum_format.digits();
        if !is_hex(checksum, expected) {
            return Err(ErrorKind::BadChecksum { expected, found: checksum.into() });
        }
        Ok(())
    }

    /// Decompresses all differences, without the base. Finds damaged frames and wrong whole
    /// tensors; [`Chain::verify`](crate::Chain::verify) finds wrong differences, too.
    pub fn verify(&self) -> Result<()> {
        let tensors: Vec<_> = self.files.tensors().collect();
        in_parallel(tensors, 0, |tensor, _: &mut ()| {
            match self.change_of(tensor.name()).whole() {
                Some(form) => self.verify_whole(&tensor, form),
                None => Patch::verify(self.encoding, tensor),
            }
        })?;
        self.files.check_unchanged()
    }

    fn verify_whole(&self, tensor: &LazyTensor<'_, S>, form: Form<'_>) -> Result<()> {
        let mut sums = Sums::new(Some(self.checksum_format), false);
        pour(*tensor, form, &mut |piece| {
            sums.update(piece);
            Ok(())
        })?;
        self.check_sums(tensor, &sums)
    }
}

impl<S> Delta<S> {
    /// Returns the version that the delta leads to.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the version that the delta changes.
    pub fn base_version(&self) -> &str {
        &self.base_version
    }

    /// Returns the encoding of the differences.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the algorithm of the checksums of the changed tensors.
    pub fn checksum_format(&self) -> ChecksumFormat {
        self.checksum_format
    }

    /// Returns the [`digest()`](crate::digest()) of the base, if the delta has it.
    pub fn base_digest(&self) -> Option<String> {
        self.base_digest.map(|digest| digest.to_hex().to_string())
    }

    /// Returns the [`digest()`](crate::digest()) of the result, if the delta has it.
    pub fn result_digest(&self) -> Option<String> {
        self.result_digest.map(|digest| digest.to_hex().to_string())
    }

    /// Returns the changed tensors, in no order. Deltas of other programs only have
    /// [`Change::Changed`].
    pub fn changes(&self) -> impl Iterator<Item = (&str, Change<'_>)> {
        let removed = self.extra.removed.iter().map(|name| (name.as_str(), Change::Removed));
        let changes = self.files.tensors().map(|tensor| {
            let name = tensor.name();
            (name, self.change_of(name))
        });
        changes.chain(removed)
    }

    /// Returns the metadata of the result, if it differs from the base's.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.extra.metadata.as_ref()
    }

    /// Returns the compressed differences and tensors, with the names of the tensors they change.
    pub fn tensors(&self) -> impl Iterator<Item = LazyTensor<'_, S>> + Clone {
        self.files.tensors()
    }

    /// Returns [`tensors`](Delta::tensors), each with its checksum after the change, in lower-case
    /// hex.
    pub fn checksums(&self) -> impl Iterator<Item = (LazyTensor<'_, S>, &str)> {
        let checksum = |tensor| (tensor, self.stored_checksum(&tensor).unwrap_or_default());
        self.files.tensors().map(checksum)
    }

    /// Returns the path of the index.
    pub fn path(&self) -> &Path {
        self.files.index_path().unwrap_or(Path::new(""))
    }

    /// Opening made sure that there is one.
    pub(crate) fn stored_checksum(&self, tensor: &LazyTensor<'_, S>) -> Option<&str> {
        let file = self.files.files().get(tensor.file_index())?;
        file.safetensors().metadata().get(tensor.name()).map(String::as_str)
    }

    pub(crate) fn bytes_of(&self, name: &str) -> Option<LazyTensor<'_, S>> {
        // A checksum that is the name of a tensor looks as if its key were an alias.
        self.files.get(name).filter(|tensor| tensor.name() == name)
    }

    pub(crate) fn change_of(&self, name: &str) -> Change<'_> {
        self.extra.change(name)
    }

    pub(crate) fn check_sums(&self, bytes: &LazyTensor<'_, S>, sums: &Sums) -> Result<()> {
        let expected = self.stored_checksum(bytes).unwrap_or_default();
        let found = sums.checksum();
        if expected == found {
            return Ok(());
        }
        let kind = ErrorKind::WrongTensor {
            version: self.version.clone(),
            algorithm: self.checksum_format.name(),
            expected: expected.into(),
            found,
        };
        Err(bytes.locate(kind.into()))
    }

    pub(crate) fn digests(&self) -> [Option<blake3::Hash>; 2] {
        [self.base_digest, self.result_digest]
    }

    pub(crate) fn extra(&self) -> &Extra {
        &self.extra
    }

    pub(crate) fn files(&self) -> &Checkpoint<S> {
        &self.files
    }
}
