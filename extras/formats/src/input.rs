//! [`Input`]: an open file with its name. [`Cursor`] reads it in order.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use safetensors_core::ReadAt;
use safetensors_core::checkpoint::store::Store;
use safetensors_core::io::FileSource;

use crate::error::{Error, Result};

/// Where the files of a directory are.
pub(crate) type AnyStore = Arc<dyn Store<File = Box<dyn ReadAt>>>;

/// Only a file whose format is asked for is borrowed.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) source: Arc<dyn ReadAt + 'a>,
    pub(crate) file: String,
    allowance: AtomicU64,
}

impl Input<'static> {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let source = FileSource::open(path).map_err(|error| error.in_path(path))?;
        Ok(Self::new(Arc::new(source), path))
    }
}

impl<'a> Input<'a> {
    pub(crate) fn new(source: Arc<dyn ReadAt + 'a>, path: &Path) -> Self {
        Self { source, file: path.display().to_string(), allowance: AtomicU64::new(u64::MAX) }
    }

    pub(crate) fn allow(&self, bytes: u64) {
        self.allowance.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.allowance.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.source.check_unchanged().map_err(|error| Error::from(error).in_file(&self.file))
    }
}

/// Copies share the input, and move independently.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    pub(crate) input: Arc<Input<'a>>,
    pub(crate) at: u64,
}

impl Cursor<'_> {
    pub(crate) fn left(&self) -> u64 {
        self.input.source.byte_len().saturating_sub(self.at)
    }
}

impl Read for Cursor<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.left().min(buf.len() as u64);
        let allowed = self.input.allowance.load(Ordering::Relaxed);
        if allowed < u64::MAX {
            let rest = allowed.saturating_sub(len);
            self.input.allowance.store(rest, Ordering::Relaxed);
            if rest == 0 {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
        }
        self.input.source.read_exact_at(&mut buf[..len as usize], self.at)?;
        self.at += len;
        Ok(len as usize)
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = sought(to, self.at, self.input.source.byte_len())?;
        Ok(self.at)
    }
}

/// `at`: this position; `end`: of the file.
pub(crate) fn sought(to: SeekFrom, at: u64, end: u64) -> io::Result<u64> {
    let sought = match to {
        SeekFrom::Start(at) => Some(at),
        SeekFrom::End(by) => end.checked_add_signed(by),
        SeekFrom::Current(by) => at.checked_add_signed(by),
    };
    Ok(sought.ok_or(io::ErrorKind::InvalidInput)?)
}

pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
