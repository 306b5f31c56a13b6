//! Compares files with the digests that they record.

use std::collections::HashSet;
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

/// Compares each file of a checkpoint with its own digests. Returns one entry for each file, in the
/// order of [`files`](Checkpoint::files).
///
/// All tensors of a file are checked, even if the index places them in another. A tensor without a
/// recorded digest is an error only with [`require_digests`](DigestOptions::require_digests).
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
/// [`ErrorKind::DigestMismatch`] with the first tensor that has changed, unless only the digest of
/// all data differs.
///
/// Before any data is read: [`ErrorKind::BadDigestRecord`], [`ErrorKind::BadDigest`],
/// [`ErrorKind::BadModelSpec`], [`ErrorKind::DigestWithoutTensor`], [`ErrorKind::NoDigest`];
/// [`ErrorKind::FeatureNeeded`] for a SHA-256 without the feature `sha256`, unless
/// [`DigestOptions::sha256`] turns the check off.
pub fn verify<'a, S: ReadAt>(
    checkpoint: &'a Checkpoint<S>,
    options: &DigestOptions,
) -> Result<Vec<VerifiedFile<'a>>> {
    run(checkpoint.stored_files()?, options, Err).map(|(files, _)| files)
}

/// Like [`verify`], but continues after an error, and returns all of them in the order of the
/// files. [`VerifiedFile::checked`] has only the tensors that agree.
#[doc(hidden)]
pub fn verify_all<'a, S: ReadAt>(
    checkpoint: &'a Checkpoint<S>,
    options: &DigestOptions,
) -> Result<(Vec<VerifiedFile<'a>>, Vec<Error>)> {
    run(checkpoint.stored_files()?, options, |error| match error.kind() {
        ErrorKind::Cancelled => Err(error),
        _ => Ok(error),
    })
}

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
        compare("XXH3-128", expected, &found).map_err(|error| tensor.locate(error))
    }

    fn check_data(&self, buffer: &mut Vec<u8>, progress: &Meter) -> Result<()> {
        let Some(expected) = self.sha256 else { return Ok(()) };
        let found = of_data(self.archive, buffer, progress);
        let compared = found.and_then(|found| compare("SHA-256", &expected, &found));
        compared.map_err(|error| error.in_path(self.file))
    }

    fn verified(&self, faults: &[Error]) -> VerifiedFile<'a> {
        let file = self.file.display().to_string();
        let is_of_file = |it: &&Error| it.file() == Some(&file);
        let changed: HashSet<_> = faults.iter().filter(is_of_file).map(Error::tensor).collect();
        let names = self.tensors.iter().map(|(tensor, _)| tensor.name());
        VerifiedFile {
            file: self.file,
            checked: names.filter(|name| !changed.contains(&Some(name))).collect(),
            unrecorded: self.unrecorded.clone(),
            sha256: self.sha256.filter(|_| !changed.contains(&None)),
        }
    }
}

fn compare<D: PartialEq + ToString>(
    algorithm: &'static str,
    expected: &D,
    found: &D,
) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let expected = expected.to_string();
    let found = found.to_string();
    Err(ErrorKind::DigestMismatch { algorithm, expected, found }.into())
}

enum Job<'f, 'a, S> {
    Tensor(&'f Recorded<'a, S>, usize),
    Data(&'f Recorded<'a, S>),
}

/// Tensors come before the file's SHA-256, to show the place of a change. `keep` lists an error, or
/// ends the work.
fn run<'a, S: ReadAt>(
    files: &'a [CheckpointFile<S>],
    options: &DigestOptions,
    keep: impl Fn(Error) -> Result<Error> + Sync,
) -> Result<(Vec<VerifiedFile<'a>>, Vec<Error>)> {
    let mut recorded = Vec::new();
    let mut faults = Vec::new();
    for file in files {
        match Recorded::read(file, options) {
            Ok(file) => recorded.push(file),
            Err(error) => faults.push(keep(error)?),
        }
    }
    let mut jobs = Vec::new();
    let mut total = 0;
    for file in &recorded {
        total += file.tensors.iter().map(|(tensor, _)| tensor.byte_len()).sum::<u64>();
        jobs.extend((0..file.tensors.len()).map(|position| Job::Tensor(file, position)));
        if file.sha256.is_some() {
            total += file.archive.header().data_len();
            jobs.push(Job::Data(file));
        }
    }
    let progress = options.work.meter(total);
    let outcomes = options.work.each(jobs, |job, buffer| {
        let checked = match job {
            Job::Tensor(file, position) => file.check_tensor(position, buffer, &progress),
            Job::Data(file) => file.check_data(buffer, &progress),
        };
        checked.err().map(&keep).transpose()
    })?;
    faults.extend(outcomes.into_iter().flatten());
    // This check comes last. If a file has changed, a digest mismatch is the better error, because
    // it names the tensor.
    for file in &recorded {
        if let Err(error) = file.archive.source().check_unchanged() {
            faults.push(keep(Error::io(error, file.file))?);
        }
    }
    Ok((recorded.iter().map(|file| file.verified(&faults)).collect(), faults))
}
