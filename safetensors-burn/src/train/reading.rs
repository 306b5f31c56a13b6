//! Reads tensors into existing memory, several at a time, and compares each with its digest.

use std::sync::{Mutex, PoisonError};
use std::thread;

use burn::tensor::{BoolStore, DType};
use safetensors_core::digest::{Digest, Hasher};
use safetensors_core::framework::{check_bools, default_threads};
use safetensors_core::io::FileSource;
use safetensors_core::{Dtype, ErrorKind, LazyTensor, ReadAt, Result};

/// Fewer bytes than this are read by one thread, because starting others takes longer.
const WORTH_SEVERAL_THREADS: usize = 2 << 20;

/// Bytes are hashed in pieces of this length, while they are still in the processor's cache.
const PIECE: usize = 256 << 10;

/// A tensor, and where its bytes go.
pub(super) struct Job<'a> {
    pub(super) tensor: LazyTensor<'a, FileSource>,
    /// The digest that the file records.
    pub(super) digest: Option<Digest>,
    /// The dtype in burn, whose booleans may be wider than those of the file.
    pub(super) dtype: DType,
    pub(super) memory: &'a mut [u8],
}

/// Does all jobs, each in one thread.
///
/// # Errors
///
/// The first error of the job that comes first, among those that were begun. Each names the file
/// and the tensor.
pub(super) fn read_all(jobs: Vec<Job<'_>>) -> Result<()> {
    let bytes: usize = jobs.iter().map(|job| job.memory.len()).sum();
    let several = bytes >= WORTH_SEVERAL_THREADS;
    let threads = if several { default_threads().min(jobs.len()) } else { 1 };
    let queue = Mutex::new(jobs.into_iter());
    // The lock must not be held while a job is done.
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || std::iter::from_fn(next).try_for_each(Job::run);
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut result = work();
        for other in others {
            let theirs = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(theirs);
        }
        result
    })
}

impl Job<'_> {
    fn run(self) -> Result<()> {
        let Self { tensor, digest, dtype, memory } = self;
        let mut read = || {
            let expected = digest.ok_or(ErrorKind::NoDigest)?;
            let found = match dtype {
                DType::Bool(BoolStore::U32) => fill_wide(&tensor, memory)?,
                _ => fill(&tensor, memory)?,
            };
            if found != expected {
                let (expected, found) = (expected.to_string(), found.to_string());
                let kind = ErrorKind::DigestMismatch { algorithm: "XXH3-128", expected, found };
                return Err(kind.into());
            }
            Ok(())
        };
        read().map_err(|error| tensor.locate(error))
    }
}

/// Reads the bytes of a tensor, and returns their digest.
fn fill(tensor: &LazyTensor<'_, FileSource>, memory: &mut [u8]) -> Result<Digest> {
    let mut hasher = Hasher::new();
    let mut offset = tensor.file_offset();
    for piece in memory.chunks_mut(PIECE) {
        tensor.source().read_exact_at(piece, offset).map_err(ErrorKind::Io)?;
        hasher.update(piece);
        offset += piece.len() as u64;
    }
    tensor.source().check_unchanged().map_err(ErrorKind::Io)?;
    if tensor.dtype() == Dtype::BOOL {
        check_bools(memory, 0)?;
    }
    Ok(hasher.finish())
}

/// [`fill`] for booleans that burn holds as numbers of four bytes.
fn fill_wide(tensor: &LazyTensor<'_, FileSource>, memory: &mut [u8]) -> Result<Digest> {
    let mut bytes = vec![0; memory.len() / size_of::<u32>()];
    let digest = fill(tensor, &mut bytes)?;
    for (to, from) in memory.chunks_exact_mut(size_of::<u32>()).zip(bytes) {
        to.copy_from_slice(&u32::from(from).to_ne_bytes());
    }
    Ok(digest)
}
