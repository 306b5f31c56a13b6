//! Hashes many files at once: [`HashAlgorithm`].

use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use safetensors_core::framework::in_parallel;
use safetensors_core::io::FileSource;
use safetensors_core::{Error, ErrorKind as CoreKind, ReadAt, Result};
use sha2::{Digest as _, Sha256};

use crate::error::ErrorKind;
use crate::files::File;

/// The hash of a file's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashAlgorithm {
    /// SHA-256, which every verifier supports.
    #[default]
    Sha256,
    /// BLAKE3, faster without instructions for SHA-256.
    Blake3,
}

impl HashAlgorithm {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }

    pub(crate) fn from_name(name: &str) -> Result<Self> {
        [Self::Sha256, Self::Blake3].into_iter().find(|it| it.name() == name).ok_or_else(|| {
            let expected = "\"sha256\" or \"blake3\"";
            let found = name.to_owned();
            ErrorKind::Unsupported { what: "the hash of files", expected, found }.into()
        })
    }
}

const BUFFER: usize = 1 << 20;

/// Gets the bytes done and all bytes.
pub(crate) type Callback = Arc<dyn Fn(u64, u64) -> ControlFlow<()> + Send + Sync>;

/// Hashes the largest files first, so that none begins last. Digests are in the order of the files.
pub(crate) fn hash_files(
    files: &[&File],
    algorithm: HashAlgorithm,
    progress: Option<&Callback>,
) -> Result<Vec<[u8; 32]>> {
    let total = files.iter().map(|file| file.len).sum();
    let done = AtomicU64::new(0);
    let count = |bytes: u64| {
        let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match progress.map(|progress| progress(done, total)) {
            Some(ControlFlow::Break(())) => Err(CoreKind::Cancelled.into()),
            _ => Ok(()),
        }
    };
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(files[i].len));
    let hashed = in_parallel(&order, 0, |&i, buffer: &mut Vec<u8>| {
        let path = &files[i].path;
        match algorithm {
            HashAlgorithm::Sha256 => {
                let mut hasher = Sha256::new();
                read(path, buffer, |bytes| hasher.update(bytes), &count)?;
                Ok(hasher.finalize().into())
            }
            HashAlgorithm::Blake3 => {
                let mut hasher = blake3::Hasher::new();
                read(path, buffer, |bytes| _ = hasher.update(bytes), &count)?;
                Ok(*hasher.finalize().as_bytes())
            }
        }
    })?;
    let mut digests = vec![[0; 32]; files.len()];
    order.into_iter().zip(hashed).for_each(|(i, digest)| digests[i] = digest);
    Ok(digests)
}

fn read(
    path: &Path,
    buffer: &mut Vec<u8>,
    mut update: impl FnMut(&[u8]),
    count: &impl Fn(u64) -> Result<()>,
) -> Result<()> {
    buffer.resize(BUFFER, 0);
    let file = FileSource::open(path)?;
    // A file that grows while it is read is another one, and ends all the same.
    let mut bytes = file.file().take(file.byte_len().saturating_add(1));
    loop {
        match bytes.read(buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => {
                update(&buffer[..len]);
                count(len as u64)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(error, path)),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Opening a FIFO would wait for a writer.
    #[test]
    fn a_file_that_has_become_a_special_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for path in [&*fifo, Path::new("/dev/zero")] {
            let error = read(path, &mut Vec::new(), |_| {}, &|_| Ok(())).unwrap_err();
            assert!(matches!(error.kind(), CoreKind::NotAFile { .. }), "{error}");
        }
    }
}
