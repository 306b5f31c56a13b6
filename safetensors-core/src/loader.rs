//! Reading many tensors at once: a plan of pieces, and threads that read them into place.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread;

use crate::{ErrorKind, LazyTensor, ReadAt, Result, TensorBuf, Widening};

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
    pub(crate) widening: Widening,
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

    fn thread_count(&self) -> usize {
        self.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, |threads| {
            if self.threads.is_some() { threads.get() } else { threads.get().min(MAX_DEFAULT_THREADS) }
        })
    }
}

/// A piece of one tensor, to be read into its place.
struct Piece<'a, 'b, S> {
    tensor: LazyTensor<'a, S>,
    offset: u64,
    bytes: &'b mut [u8],
}

/// Reads tensors in parallel, each into a buffer of its own, and returns them in the order given.
///
/// # Errors
///
/// The first failure stops all threads. It names the tensor and the file.
pub fn read<S: ReadAt>(tensors: &[LazyTensor<'_, S>], options: &LoadOptions) -> Result<Vec<TensorBuf>> {
    let mut bufs = tensors
        .iter()
        .map(|tensor| TensorBuf::zeroed(tensor.dtype(), tensor.shape().to_vec()).map_err(|error| tensor.locate(error)))
        .collect::<Result<Vec<_>>>()?;
    let mut pieces = Vec::new();
    for (tensor, buf) in tensors.iter().zip(&mut bufs) {
        let mut offset = tensor.file_offset();
        for bytes in buf.bytes_mut().chunks_mut(PIECE) {
            let next = offset + bytes.len() as u64;
            pieces.push(Piece { tensor: *tensor, offset, bytes });
            offset = next;
        }
    }
    read_pieces(pieces, options.thread_count())?;
    for (tensor, buf) in tensors.iter().zip(&mut bufs) {
        buf.finish_reading().map_err(|error| tensor.locate(error))?;
    }
    Ok(bufs)
}

fn read_pieces<S: ReadAt>(pieces: Vec<Piece<'_, '_, S>>, threads: usize) -> Result<()> {
    let threads = threads.min(pieces.len());
    let queue = Mutex::new(pieces.into_iter());
    let next = || queue.lock().ok()?.next();
    let work = || -> Result<()> {
        while let Some(Piece { tensor, offset, bytes }) = next() {
            if let Err(error) = tensor.source().read_exact_at(bytes, offset) {
                // Nothing is left for the other threads to do.
                let _ = queue.lock().map(|mut queue| queue.by_ref().for_each(drop));
                return Err(tensor.locate(ErrorKind::Io(error).into()));
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
