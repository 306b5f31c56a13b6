//! [`ReadAt`]: a source of the bytes of a file.

use std::any::Any;
use std::ops::Range;
use std::{fmt, io};

use crate::format::error::{Error, ErrorKind, Result};
use crate::format::slice::read_range::ReadRange;

/// The bytes of a file, read at any position from several threads.
///
/// Implemented for [`FileSource`](super::FileSource) and for everything that lends its bytes
/// (`&[u8]`, `Vec<u8>`, `Mmap`, `bytes::Bytes`). Any implementation can be opened as a file
/// ([`SafeTensors::from_source`](crate::SafeTensors::from_source)) or as the files of a checkpoint
/// ([`Checkpoint::open_by`](crate::Checkpoint::open_by)):
///
/// ```
/// use safetensors_core::{ReadAt, SafeTensors, SaveOptions, TensorView, serialize};
/// use std::io;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// /// An object in a store that charges for every byte.
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
/// let file = SafeTensors::from_source(Metered { object, fetched: AtomicU64::new(0) })?;
/// assert_eq!(file.tensor("small")?.read()?.into_vec::<u8>()?, small);
/// assert!(file.source().fetched.load(Ordering::Relaxed) < 1000);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub trait ReadAt: Send + Sync {
    /// Returns the number of bytes when the source was opened.
    fn byte_len(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] if the source ends before `buf` is full.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills several buffers, one after the other by default. A source with expensive requests can
    /// join ranges, or send several requests at once.
    ///
    /// After an error the buffers are unspecified.
    fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
        match self.inner() {
            Some(inner) => inner.read_ranges_at(ranges),
            None => ranges.iter_mut().try_for_each(|it| self.read_exact_at(it.bytes, it.offset)),
        }
    }

    /// Announces the bytes that a load will read, for a source that reads them cheaper together.
    fn will_read(&self, ranges: &mut dyn Iterator<Item = Range<u64>>) {
        if let Some(inner) = self.inner() {
            inner.will_read(ranges);
        }
    }

    /// Announces the end of a load, also of a failed one, with a range that covers its call of
    /// [`will_read`](ReadAt::will_read).
    fn has_read(&self, range: Range<u64>) {
        if let Some(inner) = self.inner() {
            inner.has_read(range);
        }
    }

    /// Returns how loads divide their reads. `None`, the default, suits memory and local files: a
    /// thread a core, and only neighbours in one call.
    ///
    /// With `Some`, for calls that wait, a load makes more calls at once, and passes distant ranges
    /// to [`read_ranges_at`](ReadAt::read_ranges_at), which decides which to join.
    ///
    /// ```
    /// use safetensors_core::io::{ReadRange, Requests};
    /// use safetensors_core::{Checkpoint, LoadOptions, ReadAt, SaveOptions, TensorView, serialize};
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::{io, thread, time::Duration};
    ///
    /// /// Bytes that are far away.
    /// struct Far(Vec<u8>, AtomicU64);
    ///
    /// impl ReadAt for Far {
    ///     fn byte_len(&self) -> u64 {
    ///         self.0.byte_len()
    ///     }
    ///
    ///     fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
    ///         self.read_ranges_at(&mut [ReadRange { offset, bytes: buf }])
    ///     }
    ///
    ///     fn read_ranges_at(&self, ranges: &mut [ReadRange<'_>]) -> io::Result<()> {
    ///         thread::sleep(Duration::from_millis(5));
    ///         self.1.fetch_add(1, Ordering::Relaxed);
    ///         self.0.read_ranges_at(ranges)
    ///     }
    ///
    ///     fn requests(&self) -> Option<Requests> {
    ///         Some(Requests::new(8 << 20, 16))
    ///     }
    /// }
    ///
    /// let values = [1.0_f32; 100];
    /// let tensors = ["a", "b", "c", "d"].map(|name| {
    ///     (name, TensorView::from_slice(&[100], &values).unwrap())
    /// });
    /// let far = Far(serialize(tensors, &SaveOptions::new())?, AtomicU64::new(0));
    /// let checkpoint = Checkpoint::from_source(far, "far away")?;
    /// let calls = &checkpoint.files()[0].safetensors().source().1;
    /// let for_header = calls.load(Ordering::Relaxed);
    /// // Two of four tensors, with a gap between them: one call.
    /// checkpoint.read_named(["a", "c"], &LoadOptions::new())?;
    /// assert_eq!(calls.load(Ordering::Relaxed) - for_header, 1);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    fn requests(&self) -> Option<Requests> {
        self.inner()?.requests()
    }

    /// Fails if the source has changed since it was opened, as far as it can detect. Called after
    /// reading. The default checks nothing.
    fn check_unchanged(&self) -> io::Result<()> {
        self.inner().map_or(Ok(()), |inner| inner.check_unchanged())
    }

    /// Returns `true` if [`check_unchanged`](ReadAt::check_unchanged) may not see a change. Then a
    /// header is read twice and compared. `false` by default.
    fn may_change_unseen(&self) -> bool {
        self.inner().is_some_and(|inner| inner.may_change_unseen())
    }

    /// Returns `true` if the path of the source now leads to another file. A
    /// [`Rewrite`](crate::Rewrite) to the same path asks, because it would undo that change.
    /// `false` by default.
    fn is_replaced(&self) -> io::Result<bool> {
        self.inner().map_or(Ok(false), |inner| inner.is_replaced())
    }

    /// Lends bytes in memory, which need not be copied. `None` by default.
    fn lend(&self, range: Range<u64>) -> Option<&[u8]> {
        self.inner()?.lend(range)
    }

    /// Returns the source itself, to get its type back from
    /// [`Checkpoint::into_boxed`](crate::Checkpoint::into_boxed). `None` by default.
    fn as_any(&self) -> Option<&dyn Any> {
        self.inner()?.as_any()
    }

    /// Returns the wrapped source with the same bytes, which the defaults of other methods ask.
    /// `None` by default.
    fn inner(&self) -> Option<&dyn ReadAt> {
        None
    }
}

/// How loads divide reads that wait: see [`ReadAt::requests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requests {
    /// The most bytes for a call.
    pub byte_len: usize,
    /// The most calls at once.
    pub concurrency: usize,
    /// Whether one call for ranges with gaps between them is better than a call for each.
    pub(crate) joins_gaps: bool,
}

impl Requests {
    /// Makes calls of about `byte_len` bytes, rounded to multiples of 64 KiB, `concurrency` at
    /// once; both are at least one.
    ///
    /// Conversions hold the bytes of all calls in memory. An explicit [number of
    /// threads](crate::LoadOptions::threads) overrides `concurrency`.
    pub fn new(byte_len: usize, concurrency: usize) -> Self {
        const STEP: usize = 64 << 10;
        let byte_len = (byte_len / STEP).max(1) * STEP;
        Self { byte_len, concurrency: concurrency.max(1), joins_gaps: true }
    }

    /// Returns the division for a file with reads that wait. A system call reads neighbours only.
    pub(crate) fn of_waiting_file() -> Self {
        Self { joins_gaps: false, ..Self::new(4 << 20, 16) }
    }
}

impl fmt::Debug for dyn ReadAt + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadAt").field("byte_len", &self.byte_len()).finish_non_exhaustive()
    }
}

macro_rules! forward {
    ($($type:ty),*) => {$(
        impl ReadAt for $type {
            fn byte_len(&self) -> u64 {
                (**self).byte_len()
            }

            fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
                (**self).read_exact_at(buf, offset)
            }

            fn inner(&self) -> Option<&dyn ReadAt> {
                Some(&**self)
            }
        }
    )*};
}

forward!(Box<dyn ReadAt + '_>, &dyn ReadAt);

impl<B: AsRef<[u8]> + Send + Sync> ReadAt for B {
    fn byte_len(&self) -> u64 {
        self.as_ref().len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        let Some(bytes) = self.lend(offset..end) else {
            let message = format!("expected at least {end} bytes, found {}", self.byte_len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        };
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn lend(&self, range: Range<u64>) -> Option<&[u8]> {
        self.as_ref().get(range.start.try_into().ok()?..range.end.try_into().ok()?)
    }
}

pub(crate) fn read_to_vec(file: &impl ReadAt) -> Result<Vec<u8>> {
    let bytes = file.byte_len();
    let too_large = || Error::from(ErrorKind::TooLargeForMemory { bytes });
    let len = usize::try_from(bytes).map_err(|_| too_large())?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| too_large())?;
    buffer.resize(len, 0);
    file.read_exact_at(&mut buffer, 0)?;
    Ok(buffer)
}
