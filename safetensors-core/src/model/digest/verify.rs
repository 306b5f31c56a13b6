//! Compares files with the digests that they record.

use std::path::Path;

use crate::checkpoint::{Checkpoint, CheckpointFile};
use crate::file::hash::{
    Digest, DigestOptions, Sha256, TensorDigests, of_data, of_tensor, recorded_sha256,
};
use crate::file::io::{ReadAt, SafeTensors};
use crate::file::load::LazyTensor;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::parallel::Meter;

/// The result for one file. Names are in file order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedFile<'a> {
    /// The path.
    pub file: &'a Path,
    /// The tensors that agree with their recorded digest.
    pub checked: Vec<&'a str>,
    /// The tensors for which the file records no digest.
    pub unrecorded: Vec<&'a str>,
    /// The SHA-256 of all data, if the file records one and it was checked.
    pub sha256: Option<Sha256>,
}

/// Compares each file of a checkpoint with the digests in the file itself. Returns one entry for
/// each file, in the order of [`files`](Checkpoint::files).
///
/// All tensors of a file are checked, even those that the index places in another file. A tensor
/// without a recorded digest is listed in [`VerifiedFile::unrecorded`]; it is an error only with
/// [`require_digests`](DigestOptions::require_digests). Several tensors are read at a time, each
/// front to back in pieces of 1 MiB.
///
/// ```
/// use safetensors_core::digest::{self, DigestOptions};
/// use safetensors_core::{Checkpoint, ErrorKind, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(
///     &path,
///     [("w", TensorView::from_slice(&[2], &[1_u8, 2])?)],
///     &SaveOptions::new().digests(true),
/// )?;
/// assert_eq!(
///     digest::verify(&Checkpoint::open(&path)?, &DigestOptions::new())?[0].checked,
///     ["w"]
/// );
///
/// let mut bytes = std::fs::read(&path)?;
/// *bytes.last_mut().unwrap() ^= 1;
/// std::fs::write(&path, bytes)?;
/// let error = digest::verify(&Checkpoint::open(&path)?, &DigestOptions::new()).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::DigestMismatch { .. }));
/// assert_eq!(error.tensor(), Some("w"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::DigestMismatch`] if data has changed. It names the file, and the first tensor that
/// has changed, unless only the digest of all data differs.
///
/// Before any data is read: [`ErrorKind::BadDigestRecord`], [`ErrorKind::BadDigest`] and
/// [`ErrorKind::BadModelSpec`] for malformed records; [`ErrorKind::DigestWithoutTensor`];
/// [`ErrorKind::NoDigest`]; also as for [`stored_files`](Checkpoint::stored_files).
///
/// [`ErrorKind::FeatureNeeded`] if a file records a SHA-256 and this crate was built without its
/// feature `sha256`, unless [`DigestOptions::sha256`] turns the check off.
///
/// [`ErrorKind::Io`] if a file cannot be read, or has changed since it was opened;
/// [`ErrorKind::Cancelled`] if the progress callback stops the work.
pub fn verify<'a, S: ReadAt>(
    checkpoint: &'a Checkpoint<S>,
    options: &DigestOptions,
) -> Result<Vec<VerifiedFile<'a>>> {
    let files = checkpoint.stored_files()?.iter().map(|file| Recorded::read(file, options));
    run(&files.collect::<Result<Vec<_>>>()?, options)
}

/// One file, and the digests that it records.
struct Recorded<'a, S> {
    archive: &'a SafeTensors<S>,
    file: &'a Path,
    tensors: Vec<(LazyTensor<'a, S>, Digest)>,
    unrecorded: Vec<&'a str>,
    sha256: Option<Sha256>,
}

impl<'a, S: ReadAt> Recorded<'a, S> {
    fn read(file: &'a CheckpointFile<S>, options: &DigestOptions) -> Result<Self> {
        let archive = file.safetensors();
        let file = file.path();
        let mut recorded =
            Self { archive, file, tensors: Vec::new(), unrecorded: Vec::new(), sha256: None };
        recorded.fill(options).map_err(|error| error.in_path(file))?;
        Ok(recorded)
    }

    fn fill(&mut self, options: &DigestOptions) -> Result<()> {
        let digests = TensorDigests::from_metadata(self.archive.metadata())?.unwrap_or_default();
        let header = self.archive.header();
        if let Some((name, _)) = digests.iter().find(|(name, _)| header.get(name).is_none()) {
            return Err(Error::from(ErrorKind::DigestWithoutTensor).in_tensor(name));
        }
        for info in header.iter().filter(|_| options.tensors) {
            match digests.get(info.name()) {
                Some(&digest) => self
                    .tensors
                    .push((LazyTensor::new(info, self.archive, Some(self.file)), digest)),
                None if options.require => {
                    return Err(Error::from(ErrorKind::NoDigest).in_tensor(info.name()));
                }
                None => self.unrecorded.push(info.name()),
            }
        }
        if options.sha256.unwrap_or(true) {
            self.sha256 = recorded_sha256(self.archive.metadata())?;
        }
        Ok(())
    }

    fn check_tensor(&self, position: usize, buffer: &mut Vec<u8>, progress: &Meter) -> Result<()> {
        let (tensor, expected) = &self.tensors[position];
        let found = of_tensor(tensor, buffer, progress)?;
        if found == *expected {
            return Ok(());
        }
        let expected = expected.to_string();
        let found = found.to_string();
        Err(tensor
            .locate(ErrorKind::DigestMismatch { algorithm: "XXH3-128", expected, found }.into()))
    }

    fn check_data(&self, buffer: &mut Vec<u8>, progress: &Meter) -> Result<()> {
        let Some(expected) = self.sha256 else { return Ok(()) };
        let found =
            of_data(self.archive, buffer, progress).map_err(|error| error.in_path(self.file))?;
        if found == expected {
            return Ok(());
        }
        let expected = expected.to_string();
        let found = found.to_string();
        let mismatch = ErrorKind::DigestMismatch { algorithm: "SHA-256", expected, found };
        Err(Error::from(mismatch).in_path(self.file))
    }

    fn verified(&self) -> VerifiedFile<'a> {
        VerifiedFile {
            file: self.file,
            checked: self.tensors.iter().map(|(tensor, _)| tensor.name()).collect(),
            unrecorded: self.unrecorded.clone(),
            sha256: self.sha256,
        }
    }
}

/// One digest to be compared.
enum Job<'f, 'a, S> {
    Tensor(&'f Recorded<'a, S>, usize),
    Data(&'f Recorded<'a, S>),
}

/// Compares all recorded digests. The tensors of a file come before all its data, because they show
/// the place of the change.
fn run<'a, S: ReadAt>(
    files: &[Recorded<'a, S>],
    options: &DigestOptions,
) -> Result<Vec<VerifiedFile<'a>>> {
    let mut jobs = Vec::new();
    let mut total = 0;
    for file in files {
        total += file.tensors.iter().map(|(tensor, _)| tensor.byte_len()).sum::<u64>();
        jobs.extend((0..file.tensors.len()).map(|position| Job::Tensor(file, position)));
        if file.sha256.is_some() {
            total += file.archive.header().data_len();
            jobs.push(Job::Data(file));
        }
    }
    let progress = options.work.meter(total);
    options.work.each(jobs, |job, buffer| match job {
        Job::Tensor(file, position) => file.check_tensor(position, buffer, &progress),
        Job::Data(file) => file.check_data(buffer, &progress),
    })?;
    // This check comes last. If a file has changed, a digest mismatch is the better error, because
    // it names the tensor.
    for file in files {
        file.archive.source().check_unchanged().map_err(|error| Error::io(error, file.file))?;
    }
    Ok(files.iter().map(Recorded::verified).collect())
}
