//! [`FileBytes`]: a file in memory, at an aligned address.

use std::fmt;
use std::path::Path;

use safetensors_core::io::FileSource;
use safetensors_core::{Error, ErrorKind, ReadAt, Result};

/// A whole file in memory. Its address is a multiple of 8, so arrays that are aligned in the file
/// can be borrowed as views.
///
/// ```
/// use ndarray::{Ix1, array};
/// use safetensors_ndarray::{FileBytes, Reader, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("grid.safetensors");
/// # let w = Writer::create(&path)?;
/// # w.add("x", &array![0.5, 1.5])?;
/// # w.finish()?;
/// let bytes = FileBytes::read(&path)?;
/// let r = Reader::from_bytes(&bytes)?;
/// assert_eq!(r.view::<f64, Ix1>("x")?, array![0.5, 1.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FileBytes {
    words: Vec<u64>,
    len: usize,
}

impl FileBytes {
    /// Reads a file whole.
    ///
    /// # Errors
    ///
    /// The errors of [`FileSource::open`]; [`ErrorKind::Io`]; [`ErrorKind::TooLargeForMemory`].
    /// Each names the file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = FileSource::open(path)?;
        let failed = |kind: ErrorKind| Error::from(kind).in_path(path);
        let mut bytes = Self::zeroed(file.byte_len()).map_err(failed)?;
        let read = file.read_exact_at(bytes.as_mut(), 0).and_then(|()| file.check_unchanged());
        read.map_err(|error| failed(ErrorKind::Io(error)))?;
        Ok(bytes)
    }

    /// Copies bytes to an aligned address.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooLargeForMemory`].
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        let mut copy = Self::zeroed(bytes.len() as u64)?;
        copy.as_mut().copy_from_slice(bytes);
        Ok(copy)
    }

    fn zeroed(bytes: u64) -> Result<Self, ErrorKind> {
        let too_large = || ErrorKind::TooLargeForMemory { bytes };
        let len = usize::try_from(bytes).map_err(|_| too_large())?;
        let words = len.div_ceil(size_of::<u64>());
        let words = bytemuck::allocation::try_zeroed_vec(words).map_err(|()| too_large())?;
        Ok(Self { words, len })
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBytes").field("len", &self.len).finish_non_exhaustive()
    }
}
