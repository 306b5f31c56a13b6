//! Reading many tensors at once: a plan of pieces, and threads that read them into place.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread;

use crate::convert::{Conversion, ReadScratch, read_converted};
use crate::{ConvertOptions, Dtype, ErrorKind, LazyTensor, ReadAt, Result, TensorBuf, Widening};

/// The most bytes that a thread reads at once. Large enough to keep a disk busy, small enough to share the work evenly.
const PIECE: usize = 4 << 20;

/// More threads than this gain nothing on local disks.
const MAX_DEFAULT_THREADS: usize = 8;

/// How tensors are loaded.
///
/// ```
/// use safetensors_core::{LoadOptions, Widening};
///
/// let options = LoadOptions::new().threads(2).widening(Widening::Exact);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) no_aliases: bool,
    pub(crate) widening: Widening,
    floats: Option<Dtype>,
    integers: Option<Dtype>,
    convert: ConvertOptions,
}

impl LoadOptions {
    /// One thread a core, eight at most; dtypes that the framework lacks are widened losslessly.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads with this many threads; 0 for the default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = NonZeroUsize::new(threads);
        self
    }

    /// Says whether dtypes that the framework lacks may be widened.
    #[must_use]
    pub fn widening(mut self, widening: Widening) -> Self {
        self.widening = widening;
        self
    }

    /// Whether [`framework::load`](crate::framework::load) gives a tensor under the names too that were
    /// [dropped](crate::Checkpoint::aliases) when it was saved, as a clone. On by default. A clone shares the elements in
    /// candle; in ndarray and burn it is a copy.
    #[must_use]
    pub fn aliases(mut self, aliases: bool) -> Self {
        self.no_aliases = !aliases;
        self
    }

    /// Converts every tensor of a floating-point dtype to this one while it is read, for example BF16 to F32.
    ///
    /// ```
    /// use half::bf16;
    /// use safetensors_core::{Checkpoint, Dtype, LoadOptions, SaveOptions, TensorView, save};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("model.safetensors");
    /// save(&path, [("w", TensorView::from_slice(&[1], &[bf16::ONE])?)], &SaveOptions::new())?;
    /// let bufs = Checkpoint::open(&path)?.read_all(&LoadOptions::new().floats_as(Dtype::F32))?;
    /// assert_eq!(bufs[0].as_slice::<f32>()?, [1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn floats_as(mut self, to: Dtype) -> Self {
        self.floats = Some(to);
        self
    }

    /// Converts every tensor of integers to this dtype while it is read. BOOL tensors stay as they are.
    #[must_use]
    pub fn integers_as(mut self, to: Dtype) -> Self {
        self.integers = Some(to);
        self
    }

    /// Says how elements are converted, where they are.
    #[must_use]
    pub fn convert_options(mut self, options: ConvertOptions) -> Self {
        self.convert = options;
        self
    }

    /// The dtype that a tensor has after reading, given its dtype in the file.
    pub fn dtype_of(&self, dtype: Dtype) -> Dtype {
        use Dtype::{I8, I16, I32, I64, U8, U16, U32, U64};
        let to = match dtype {
            _ if dtype.is_float() => self.floats,
            I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 => self.integers,
            _ => None,
        };
        to.unwrap_or(dtype)
    }

    /// What happens to the elements of a dtype, if anything does.
    fn conversion(&self, dtype: Dtype) -> Result<Option<Conversion>, ErrorKind> {
        let to = self.dtype_of(dtype);
        if to == dtype { Ok(None) } else { Conversion::new(dtype, to, &self.convert).map(Some) }
    }

    fn thread_count(&self) -> usize {
        self.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, |threads| {
            if self.threads.is_some() { threads.get() } else { threads.get().min(MAX_DEFAULT_THREADS) }
        })
    }
}

/// A piece of one tensor, to be read into its place and perhaps converted.
struct Piece<'a, 'b, S> {
    tensor: LazyTensor<'a, S>,
    conversion: Option<Conversion>,
    /// Where the piece begins in the file.
    offset: u64,
    /// The index of its first element in the tensor.
    first: u64,
    bytes: &'b mut [u8],
}

impl<S: ReadAt> Piece<'_, '_, S> {
    fn read(self, scratch: &mut ReadScratch) -> Result<()> {
        let source = self.tensor.source();
        match self.conversion {
            None => source.read_exact_at(self.bytes, self.offset).map_err(|error| ErrorKind::Io(error).into()),
            Some(conversion) => read_converted(source, self.offset, &conversion, self.first, self.bytes, scratch),
        }
        .map_err(|error| self.tensor.locate(error))
    }
}

/// Reads tensors in parallel, each into a buffer of its own, and returns them in the order given.
///
/// Tensors that `options` converts are converted while they are read: the file's bytes pass through a small buffer of each
/// thread.
///
/// # Errors
///
/// The first failure stops all threads. It names the tensor and the file. [`ErrorKind::NoConversion`] and the errors of
/// allocation come before anything is read.
pub fn read<S: ReadAt>(tensors: &[LazyTensor<'_, S>], options: &LoadOptions) -> Result<Vec<TensorBuf>> {
    let mut bufs = tensors
        .iter()
        .map(|tensor| {
            let conversion = options.conversion(tensor.dtype()).map_err(|kind| tensor.locate(kind.into()))?;
            let buf = TensorBuf::zeroed(options.dtype_of(tensor.dtype()), tensor.shape().to_vec());
            Ok((buf.map_err(|error| tensor.locate(error))?, conversion))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut pieces = Vec::new();
    for (tensor, (buf, conversion)) in tensors.iter().zip(&mut bufs) {
        let conversion = *conversion;
        // Both are whole: a piece is converted to elements of 1, 2, 4 or 8 bytes, or not at all.
        let elements = PIECE as u64 * 8 / u64::from(buf.dtype().bits());
        let step = PIECE as u64 * u64::from(tensor.dtype().bits()) / u64::from(buf.dtype().bits());
        for (number, bytes) in (0..).zip(buf.bytes_mut().chunks_mut(PIECE)) {
            let (offset, first) = (tensor.file_offset() + number * step, number * elements);
            pieces.push(Piece { tensor: *tensor, conversion, offset, first, bytes });
        }
    }
    read_pieces(pieces, options.thread_count())?;
    let finish = |(tensor, (mut buf, conversion)): (&LazyTensor<'_, S>, (TensorBuf, Option<Conversion>))| {
        if conversion.is_none() {
            buf.finish_reading().map_err(|error| tensor.locate(error))?;
        }
        Ok(buf)
    };
    tensors.iter().zip(bufs).map(finish).collect()
}

fn read_pieces<S: ReadAt>(pieces: Vec<Piece<'_, '_, S>>, threads: usize) -> Result<()> {
    let threads = threads.min(pieces.len());
    let queue = Mutex::new(pieces.into_iter());
    let next = || queue.lock().ok()?.next();
    let work = || -> Result<()> {
        let mut scratch = ReadScratch::default();
        while let Some(piece) = next() {
            if let Err(error) = piece.read(&mut scratch) {
                // Nothing is left for the other threads to do.
                let _ = queue.lock().map(|mut queue| queue.by_ref().for_each(drop));
                return Err(error);
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        // The calling thread is one of them.
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut result = work();
        for other in others {
            let theirs = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(theirs);
        }
        result
    })
}
