//! [`ReadAt`]: where the bytes of a file come from, and [`FileSource`], the usual place.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{Error, ErrorKind, Result};

/// Bytes that can be read at any position, from several threads at once.
///
/// Implemented for [`FileSource`] and for everything that lends its bytes (`&[u8]`, `Vec<u8>`,
/// `Mmap`, `bytes::Bytes`). Whatever implements it can be opened as a file
/// ([`SafeTensors::read_header`](crate::SafeTensors::read_header)) or as the files of a checkpoint
/// ([`Checkpoint::open_by`](crate::Checkpoint::open_by)):
///
/// ```
/// use safetensors_core::{Limits, ReadAt, SafeTensors, SaveOptions, TensorView, serialize};
/// use std::io;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// /// An object in a store that is paid for by the byte.
/// struct Metered {
///     object: Vec<u8>,
///     fetched: AtomicU64,
/// }
///
/// impl ReadAt for Metered {
///     fn byte_len(&self) -> u64 {
///         self.object.len() as u64
///     }
///
///     fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
///         self.fetched.fetch_add(buf.len() as u64, Ordering::Relaxed);
///         self.object.read_exact_at(buf, offset)
///     }
/// }
///
/// let (small, large) = (vec![1_u8; 8], vec![2_u8; 1 << 20]);
/// let tensors = [("small", &small), ("large", &large)];
/// let shapes = tensors.map(|(_, values)| [values.len()]);
/// let views = [0, 1]
///     .map(|i| (tensors[i].0, TensorView::from_slice(&shapes[i], tensors[i].1).unwrap()));
/// let object = serialize(views, &SaveOptions::new())?;
///
/// let file = SafeTensors::read_header(
///     Metered { object, fetched: AtomicU64::new(0) },
///     &Limits::default(),
/// )?;
/// assert_eq!(file.tensor("small")?.read()?.into_vec::<u8>()?, small);
/// assert!(file.bytes().fetched.load(Ordering::Relaxed) < 1000);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub trait ReadAt: Send + Sync {
    /// The number of bytes, as it was when the source was opened.
    fn byte_len(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// Those of the source; [`io::ErrorKind::UnexpectedEof`] if it ends before `buf` is full.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills several buffers in one call. A source for which a request costs much, such as a
    /// network, can do better than one after the other, which is the default.
    ///
    /// # Errors
    ///
    /// Those of [`read_exact_at`](ReadAt::read_exact_at). What the buffers hold then is not said.
    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        ranges.iter_mut().try_for_each(|range| self.read_exact_at(range.bytes, range.offset))
    }

    /// Checks that the source is still what it was when it was opened, as far as it can tell;
    /// called after reading. The default sees nothing.
    ///
    /// # Errors
    ///
    /// One that says what has changed.
    fn check_unchanged(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A buffer, and the place whose bytes are to be read into it.
#[derive(Debug)]
pub struct ReadRange<'a> {
    /// Where the bytes lie, counted from the start of the source.
    pub offset: u64,
    /// What they are read into, whole.
    pub bytes: &'a mut [u8],
}

impl<B: AsRef<[u8]> + Send + Sync> ReadAt for B {
    fn byte_len(&self) -> u64 {
        self.as_ref().len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset).ok().and_then(|start| {
            let end = start.checked_add(buf.len())?;
            self.as_ref().get(start..end)
        });
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A regular file, opened once and read at positions. [`Checkpoint::open`](crate::Checkpoint::open)
/// opens its files as these.
///
/// ```
/// use safetensors_core::{
///     Checkpoint, FileSource, Limits, ReadAt, SafeTensors, SaveOptions, TensorView, save,
/// };
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(
///     &path,
///     [("bias", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)],
///     &SaveOptions::new(),
/// )?;
///
/// // A part of the file is read, only its header, or all of it.
/// let file = FileSource::open(&path)?;
/// let mut length = [0; 8];
/// file.read_exact_at(&mut length, 0)?;
/// assert_eq!(8 + u64::from_le_bytes(length) + 8, file.byte_len());
/// let archive = SafeTensors::read_header(file, &Limits::default())?;
/// let in_memory = SafeTensors::parse(archive.bytes().read_to_vec()?)?;
/// assert_eq!(in_memory.view("bias")?.as_slice::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    len: u64,
    /// When the file was last written to, if the file system says.
    modified: Option<SystemTime>,
}

impl FileSource {
    /// Opens a regular file for reading. Links are followed; a FIFO or a device is refused without
    /// waiting for it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`]; [`ErrorKind::NotAFile`] if the path leads to something else than a
    /// regular file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path.as_ref(), OpenOptions::new().read(true))
    }

    /// [`open`](FileSource::open), for writing as well.
    pub(crate) fn open_to_edit(path: &Path) -> Result<Self> {
        Self::open_with(path, OpenOptions::new().read(true).write(true))
    }

    fn open_with(path: &Path, options: &mut OpenOptions) -> Result<Self> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // Opening a FIFO would wait for a writer otherwise. On a regular file the flag does
            // nothing.
            options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
        }
        let file = options.open(path).map_err(|error| Error::io(error, path))?;
        let metadata = file.metadata().map_err(|error| Error::io(error, path))?;
        if !metadata.is_file() {
            let found = if metadata.is_dir() { "a directory" } else { "a special file" };
            return Err(Error::from(ErrorKind::NotAFile { found }).in_path(path));
        }
        Ok(Self {
            file,
            path: path.into(),
            len: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }

    /// A regular file that is open already.
    pub(crate) fn of(file: File, path: &Path) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            file,
            path: path.into(),
            len: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole file into memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], also if the file has become shorter; [`ErrorKind::TooLargeForMemory`].
    pub fn read_to_vec(&self) -> Result<Vec<u8>> {
        let too_large =
            || Error::from(ErrorKind::TooLargeForMemory { bytes: self.len }).in_path(&self.path);
        let mut bytes = Vec::new();
        let len = usize::try_from(self.len).map_err(|_| too_large())?;
        bytes.try_reserve_exact(len).map_err(|_| too_large())?;
        bytes.resize(len, 0);
        self.read_exact_at(&mut bytes, 0).map_err(|error| Error::io(error, &self.path))?;
        Ok(bytes)
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl ReadAt for FileSource {
    fn byte_len(&self) -> u64 {
        self.len
    }

    #[cfg(unix)]
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buf, offset)
    }

    /// Neighbours are read by one system call.
    #[cfg(unix)]
    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        // As many as one call takes, on every system.
        const MOST: usize = 1024;
        let neighbours = |a: &ReadRange<'_>, b: &ReadRange<'_>| {
            a.offset.checked_add(a.bytes.len() as u64) == Some(b.offset)
        };
        ranges
            .chunk_by_mut(neighbours)
            .flat_map(|run| run.chunks_mut(MOST))
            .try_for_each(|run| self.read_run(run))
    }

    /// Compares the length and the time of the last write with those at opening.
    fn check_unchanged(&self) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.len() != self.len || metadata.modified().ok() != self.modified {
            return Err(io::Error::other("the file has changed since it was opened"));
        }
        Ok(())
    }

    #[cfg(windows)]
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(&self.file, buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buf = &mut buf[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(unix)]
impl FileSource {
    /// Fills buffers whose places in the file follow one another.
    fn read_run(&self, run: &mut [ReadRange<'_>]) -> io::Result<()> {
        let Some(offset) = run.first().map(|range| range.offset) else { return Ok(()) };
        let mut buffers: Vec<_> =
            run.iter_mut().map(|range| io::IoSliceMut::new(range.bytes)).collect();
        let read =
            rustix::io::retry_on_intr(|| rustix::io::preadv(&self.file, &mut buffers, offset));
        // A call may read less than was asked for, or be one that the system does not have: the
        // rest one by one, which also shows what really fails.
        let mut done = read.unwrap_or(0);
        for range in run {
            let here = done.min(range.bytes.len());
            done -= here;
            self.read_exact_at(&mut range.bytes[here..], range.offset + here as u64)?;
        }
        Ok(())
    }
}
