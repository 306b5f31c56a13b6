//! Reads tensors, and compares each with its digest.

use burn::tensor::{BoolStore, DType, TensorData};
use safetensors_core::digest::{Digest, Hasher};
use safetensors_core::framework::{check_bools, default_threads};
use safetensors_core::io::FileSource;
use safetensors_core::{Dtype, ErrorKind, LazyTensor, ReadAt, Result, TensorBuf};

use crate::{dtype, load};

/// Below this length, starting threads takes longer than reading.
const WORTH_SEVERAL_THREADS: usize = 2 << 20;

/// A length that stays in the processor's cache.
const PIECE: usize = 256 << 10;

pub(super) fn threads_for(bytes: usize) -> usize {
    if bytes < WORTH_SEVERAL_THREADS { 1 } else { default_threads() }
}

/// A tensor that is to be read.
// This crate has saved it, so it is never the codes of a quantised weight.
pub(super) struct Job<'a> {
    pub(super) tensor: LazyTensor<'a, FileSource>,
    pub(super) digest: Option<Digest>,
    /// May have wider booleans than the file.
    pub(super) dtype: DType,
}

impl Job<'_> {
    /// Compares the tensor with its digest.
    pub(super) fn fill(&self, memory: &mut [u8]) -> Result<()> {
        self.try_fill(memory).map_err(|error| self.tensor.locate(error))
    }

    fn try_fill(&self, memory: &mut [u8]) -> Result<()> {
        // A record always has digests, so a file without one is not as it was saved.
        let expected = self.digest.ok_or(ErrorKind::NoDigest)?;
        let found = match self.dtype {
            DType::Bool(BoolStore::U32) => fill_wide(&self.tensor, memory)?,
            _ => fill(&self.tensor, memory)?,
        };
        if found == expected {
            return Ok(());
        }
        Err(ErrorKind::DigestMismatch {
            algorithm: "XXH3-128",
            expected: expected.to_string(),
            found: found.to_string(),
        }
        .into())
    }

    pub(super) fn read(&self) -> Result<TensorData> {
        let shape = self.tensor.shape();
        let dtype = match self.dtype {
            DType::Bool(BoolStore::U32) => Dtype::U32,
            _ => self.tensor.dtype(),
        };
        let buf = TensorBuf::filled_by(dtype, shape.to_vec(), |memory| self.fill(memory));
        let bytes = buf.and_then(dtype::into_bytes);
        let data = bytes.and_then(|bytes| load::from_bytes(bytes, shape.to_vec(), self.dtype));
        data.map_err(|error| self.tensor.locate(error))
    }
}

fn fill(tensor: &LazyTensor<'_, FileSource>, memory: &mut [u8]) -> Result<Digest> {
    let mut hasher = Hasher::default();
    let mut offset = tensor.file_offset();
    // A piece is hashed while it is in the cache of the processor.
    for piece in memory.chunks_mut(PIECE) {
        tensor.source().read_exact_at(piece, offset).map_err(ErrorKind::Io)?;
        hasher.update(piece);
        offset += piece.len() as u64;
    }
    // The digest would notice a change, but its error would blame the disk.
    tensor.source().check_unchanged().map_err(ErrorKind::Io)?;
    if tensor.dtype() == Dtype::BOOL {
        check_bools(memory, 0)?;
    }
    Ok(hasher.finish())
}

/// Fills the memory of booleans that burn holds as four bytes.
fn fill_wide(tensor: &LazyTensor<'_, FileSource>, memory: &mut [u8]) -> Result<Digest> {
    // The file has one-byte booleans, and the digest covers the file's bytes.
    let mut bytes = vec![0; memory.len() / size_of::<u32>()];
    let digest = fill(tensor, &mut bytes)?;
    for (to, from) in memory.chunks_exact_mut(size_of::<u32>()).zip(bytes) {
        to.copy_from_slice(&u32::from(from).to_ne_bytes());
    }
    Ok(digest)
}
