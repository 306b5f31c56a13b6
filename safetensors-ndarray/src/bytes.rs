//! [`FileBytes`] and [`InMemory`]: the memory that views borrow.

use std::fmt;
use std::path::Path;

use safetensors_core::io::FileSource;
use safetensors_core::{Error, ErrorKind, ReadAt, Result};

/// Bytes in memory, from which a [`Reader`](crate::Reader) lends views: anything with a `&[u8]`.
#[diagnostic::on_unimplemented(
    message = "a reader of `{Self}` reads arrays on demand, and has none in memory to borrow",
    label = "cannot lend views",
    note = "open it by `Reader::open_in_memory`, or map it by `Checkpoint::mmap` and `Reader::new`"
)]
pub trait InMemory: AsRef<[u8]> + Send + Sync {}

#[diagnostic::do_not_recommend]
impl<B: AsRef<[u8]> + Send + Sync> InMemory for B {}

/// A file in memory, made by [`Reader::open_in_memory`](crate::Reader::open_in_memory). Its address
/// is a multiple of 8, so arrays that are aligned in the file can be borrowed.
pub struct FileBytes {
    words: Vec<u64>,
    len: usize,
}

impl FileBytes {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file = FileSource::open(path)?;
        let failed = |kind: ErrorKind| Error::from(kind).in_path(path);
        let mut bytes = Self::zeroed(file.byte_len()).map_err(failed)?;
        let read = file.read_exact_at(bytes.as_mut(), 0).and_then(|()| file.check_unchanged());
        read.map_err(|error| failed(ErrorKind::Io(error)))?;
        Ok(bytes)
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
