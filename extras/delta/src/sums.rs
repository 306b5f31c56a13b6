//! [`Sums`]: the digests of a tensor's bytes. [`digest()`]: the digest of all tensors.

use safetensors_core::digest::Hasher;
use safetensors_core::framework::in_parallel;
use safetensors_core::{Checkpoint, Dtype, LazyTensor, ReadAt, TensorSource};

use crate::error::Result;
use crate::format::ChecksumFormat;
use crate::options::Options;

/// BLAKE3 for the checkpoint's digest, and the delta's checksum.
#[derive(Clone, Default)]
pub(crate) struct Sums {
    blake3: Option<Box<blake3::Hasher>>,
    other: Option<Other>,
}

#[derive(Clone)]
enum Other {
    Xxh3(Box<Hasher>),
    Adler32(simd_adler32::Adler32),
}

impl Sums {
    pub(crate) fn new(checksum: Option<ChecksumFormat>, blake3: bool) -> Self {
        let is_checksum = checksum == Some(ChecksumFormat::Blake3);
        let other = match checksum {
            Some(ChecksumFormat::Xxh3) => Some(Other::Xxh3(Box::default())),
            Some(ChecksumFormat::Adler32) => Some(Other::Adler32(simd_adler32::Adler32::new())),
            Some(ChecksumFormat::Blake3) | None => None,
        };
        Self { blake3: (blake3 || is_checksum).then(Box::default), other }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(blake3) = &mut self.blake3 {
            blake3.update(bytes);
        }
        match &mut self.other {
            Some(Other::Xxh3(xxh3)) => xxh3.update(bytes),
            Some(Other::Adler32(adler32)) => adler32.write(bytes),
            None => {}
        }
    }

    pub(crate) fn without_checksum(&self) -> Self {
        Self { blake3: self.blake3.clone(), other: None }
    }

    pub(crate) fn blake3(&self) -> Option<blake3::Hash> {
        self.blake3.as_ref().map(|blake3| blake3.finalize())
    }

    pub(crate) fn checksum(&self) -> String {
        match &self.other {
            Some(Other::Xxh3(xxh3)) => xxh3.finish().to_string(),
            Some(Other::Adler32(adler32)) => format!("{:08x}", adler32.finish()),
            None => self.blake3().map(|hash| hash.to_hex().to_string()).unwrap_or_default(),
        }
    }
}

/// Computes the digest of a checkpoint, as 64 hex digits: the BLAKE3 of a line of JSON for each
/// tensor, sorted by name, such as `["name","F32",[2,3],"BLAKE3 of its bytes"]`.
///
/// Files, order and metadata do not count. Of the options, only threads and progress have an
/// effect.
///
/// ```
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
/// use safetensors_delta::{Options, digest};
///
/// let weight = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
/// let plain = serialize([("w", weight)], &SaveOptions::new())?;
/// let other = serialize([("w", weight)], &SaveOptions::new().metadata([("step", "3")]))?;
/// let plain = Checkpoint::from_source(plain, "plain")?;
/// let other = Checkpoint::from_source(other, "other")?;
/// assert_eq!(digest(&plain, &Options::new())?, digest(&other, &Options::new())?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`safetensors_core::ErrorKind::Io`] if a tensor cannot be read, or its file has changed.
pub fn digest<S: ReadAt>(checkpoint: &Checkpoint<S>, options: &Options) -> Result<String> {
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let line = |tensor: LazyTensor<'_, S>, _: &mut ()| {
        let mut sums = Sums::new(None, true);
        tensor.write_to(&mut |piece| {
            sums.update(piece);
            options.advance(piece.len());
            Ok(())
        })?;
        Ok(sums.blake3())
    };
    let hashes = in_parallel(tensors.iter().copied(), options.threads, line)?;
    let lines = tensors.iter().zip(hashes);
    let lines = lines.filter_map(|(it, hash)| Some((it.name(), it.dtype(), it.shape(), hash?)));
    Ok(digest_of(lines).to_hex().to_string())
}

pub(crate) type Line<'a> = (&'a str, Dtype, &'a [usize], blake3::Hash);

/// Takes the lines in any order.
pub(crate) fn digest_of<'a>(lines: impl IntoIterator<Item = Line<'a>>) -> blake3::Hash {
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_unstable_by_key(|(name, ..)| *name);
    let mut hasher = blake3::Hasher::new();
    for (name, dtype, shape, hash) in lines {
        let line = serde_json::json!([name, dtype.to_string(), shape, hash.to_hex().as_str()]);
        hasher.update(line.to_string().as_bytes());
        hasher.update(b"\n");
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_have_the_format_of_the_field() {
        // The new `a.w` of the example that slime and ModelExpress were run with.
        let halves = |values: [u16; 6]| values.map(u16::to_le_bytes).concat();
        let new = halves([0x0000, 0x4020, 0x4000, 0x4040, 0x4080, 0x40a0]);
        let checksum = |format| {
            let mut sums = Sums::new(Some(format), false);
            new.chunks(5).for_each(|piece| sums.update(piece));
            sums.checksum()
        };
        assert_eq!(checksum(ChecksumFormat::Adler32), "0c4c02c1");
        assert_eq!(checksum(ChecksumFormat::Xxh3), "748dfa0e0e93d69467aa7e4973fbe245");
        assert!(checksum(ChecksumFormat::Blake3).starts_with("3142dcc5b176bbdd"));
    }

    #[test]
    fn the_digest_of_a_checkpoint_hashes_its_lines_in_order_of_names() {
        let hash = blake3::hash(b"");
        let hex = hash.to_hex();
        let text = format!("[\"a\\n\",\"F32\",[2,3],\"{hex}\"]\n[\"b\",\"BF16\",[],\"{hex}\"]\n");
        let lines = [("b", Dtype::BF16, &[][..], hash), ("a\n", Dtype::F32, &[2, 3][..], hash)];
        assert_eq!(digest_of(lines), blake3::hash(text.as_bytes()));
    }
}
