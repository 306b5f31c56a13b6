//! Compares an old tensor with a new one, and compresses the difference.

use std::io::{self, Write};
use std::path::Path;

use safetensors_core::error::Mismatch;
use safetensors_core::framework::write_exactly;
use safetensors_core::{LazyTensor, ReadAt, TensorSource, shape};
use zstd::stream::write::Encoder;

use crate::blocks::Blocks;
use crate::error::Result;
use crate::format::Encoding;
use crate::frame::PIECE;
use crate::options::Options;
use crate::patch::{LARGEST, xor};
use crate::spool::{Spool, Spooled};
use crate::sums::Sums;

const BLOCK: usize = 1 << 20;

/// Trainers publish at each step, so speed counts for more than a few per cent.
const LEVEL: i32 = 1;

#[derive(Default)]
pub(crate) struct Worker {
    spool: Option<Spool>,
    scratch: Vec<u8>,
}

pub(crate) struct Pair<'a, S, T> {
    pub(crate) name: String,
    pub(crate) old: Option<LazyTensor<'a, S>>,
    pub(crate) new: Option<T>,
}

impl<S: ReadAt, T: TensorSource> Pair<'_, S, T> {
    /// Returns the difference that the shared format cannot express.
    pub(crate) fn mismatch(&self) -> Option<Mismatch> {
        let name = self.name.clone();
        let (old, new) = match (&self.old, &self.new) {
            (Some(old), Some(new)) => (old, new),
            (Some(_), None) => return Some(Mismatch::Missing { name }),
            (None, _) => return Some(Mismatch::Extra { name }),
        };
        Mismatch::of_shapes(&name, old.shape(), new.shape())
            .or_else(|| Mismatch::of_dtypes(&name, old.dtype(), new.dtype()))
    }

    pub(crate) fn byte_len(&self) -> u64 {
        let old = self.old.as_ref().map_or(0, |old| old.byte_len());
        let new = self.new.as_ref().map(|new| shape::byte_len(new.dtype(), new.shape()));
        old.saturating_add(new.and_then(Result::ok).unwrap_or_default())
    }
}

/// The hash of an absent tensor is `None`.
pub(crate) struct Compared {
    pub(crate) old: Option<blake3::Hash>,
    pub(crate) new: Option<blake3::Hash>,
    /// `None` if all bytes are equal, or if there is no new tensor.
    pub(crate) difference: Option<Difference>,
}

pub(crate) struct Difference {
    pub(crate) compressed: Spooled,
    pub(crate) checksum: String,
    pub(crate) is_whole: bool,
}

struct Both<'a, S, T> {
    old: LazyTensor<'a, S>,
    new: &'a T,
}

struct Sides {
    old: Sums,
    new: Sums,
    is_changed: bool,
}

/// Or compresses the new tensor, if smaller or the only way.
pub(crate) fn compare<S: ReadAt, T: TensorSource>(
    pair: &Pair<'_, S, T>,
    worker: &mut Worker,
    directory: &Path,
    options: &Options,
) -> Result<Compared> {
    let Worker { spool, scratch } = worker;
    let spool = match spool {
        Some(spool) => spool,
        none => none.insert(Spool::create_in(directory)?),
    };
    let compared = match (&pair.old, &pair.new) {
        (Some(old), Some(new)) if pair.mismatch().is_none() => {
            Both { old: *old, new }.compare(spool, scratch, options)
        }
        (old, new) => apart(old.as_ref(), new.as_ref(), spool, options),
    };
    // Errors of reading are located by then.
    compared.map_err(|error| error.in_tensor(&pair.name))
}

impl<S: ReadAt, T: TensorSource> Both<'_, S, T> {
    fn compare(
        &self,
        spool: &mut Spool,
        scratch: &mut Vec<u8>,
        options: &Options,
    ) -> Result<Compared> {
        let start = spool.len();
        let sides = match options.encoding {
            // A tensor with positions that could not be written.
            Encoding::Overwrite if options.whole && self.old.byte_len() > LARGEST => {
                let compared = apart(Some(&self.old), Some(self.new), spool, options)?;
                let is_changed = compared.old != compared.new;
                let difference = compared.difference.filter(|_| is_changed);
                return Ok(Compared { difference, ..compared });
            }
            Encoding::Xor => self.by_xor(spool, scratch, options),
            Encoding::Overwrite => self.by_position(spool, options),
        }?;
        let hash = |sums: &Sums| Some(sums.blake3().unwrap_or_else(|| blake3::hash(b"")));
        let old = hash(&sides.old);
        let new = hash(&sides.new);
        if !sides.is_changed {
            return Ok(Compared { old, new, difference: None });
        }
        let difference = spool.since(start)?;
        let end = spool.len();
        let is_whole = options.whole && is_smaller_whole(self.new, spool, difference.len())?;
        let compressed = if is_whole { spool.since(end)? } else { difference };
        let difference = Difference { compressed, checksum: sides.new.checksum(), is_whole };
        Ok(Compared { old, new, difference: Some(difference) })
    }

    /// From the first difference on: before it, all bytes are 0.
    fn by_xor(&self, spool: &mut Spool, scratch: &mut Vec<u8>, options: &Options) -> Result<Sides> {
        // It allocates and writes nothing before it gets a byte.
        let mut encoder = encoder(spool, self.old.byte_len())?;
        let mut new_sums = Sums::new(Some(options.checksums), true);
        let mut old_sums: Option<Sums> = None;
        self.each_piece(|offset, old, new| {
            // Equal bytes at the start are hashed once for both. Where 1 % of the elements change,
            // hashing is a fourth of the time of a delta, and reading is as much.
            if old_sums.is_none() && old != new {
                old_sums = Some(new_sums.without_checksum());
                write_zeros(&mut encoder, offset)?;
            }
            new_sums.update(new);
            if let Some(old_sums) = &mut old_sums {
                old_sums.update(old);
                scratch.clear();
                scratch.extend_from_slice(new);
                xor(scratch, old);
                encoder.write_all(scratch)?;
            }
            options.advance(old.len());
            Ok(())
        })?;
        let is_changed = old_sums.is_some();
        if is_changed {
            encoder.finish()?;
        }
        Ok(Sides { old: old_sums.unwrap_or_else(|| new_sums.clone()), new: new_sums, is_changed })
    }

    /// In passes over the tensors, so that positions and bytes are not held in memory.
    fn by_position(&self, spool: &mut Spool, options: &Options) -> Result<Sides> {
        let mut count = 0_u32;
        let mut new_sums = Sums::new(Some(options.checksums), true);
        let mut old_sums = Sums::new(None, true);
        self.each_piece(|_, old, new| {
            count += differences(old, new).count() as u32;
            old_sums.update(old);
            new_sums.update(new);
            options.advance(old.len());
            Ok(())
        })?;
        let sides = Sides { old: old_sums, new: new_sums, is_changed: count > 0 };
        if count == 0 {
            return Ok(sides);
        }
        let mut encoder = encoder(spool, 4 + 5 * u64::from(count))?;
        encoder.write_all(&count.to_le_bytes())?;
        let mut piece = Vec::new();
        self.each_piece(|offset, old, new| {
            piece.clear();
            let positions = differences(old, new).map(|(at, _)| offset as u32 + at as u32);
            piece.extend(positions.flat_map(u32::to_le_bytes));
            Ok(encoder.write_all(&piece)?)
        })?;
        self.each_piece(|_, old, new| {
            piece.clear();
            piece.extend(differences(old, new).map(|(_, value)| value));
            Ok(encoder.write_all(&piece)?)
        })?;
        encoder.finish()?;
        Ok(sides)
    }

    fn each_piece(&self, mut take: impl FnMut(u64, &[u8], &[u8]) -> Result<()>) -> Result<()> {
        let mut blocks = Blocks::new(self.old, BLOCK);
        let mut offset = 0;
        write_exactly(self.new, self.old.byte_len(), &mut |mut bytes| {
            while !bytes.is_empty() {
                let old = blocks.at(offset)?;
                let (piece, rest) = bytes.split_at(bytes.len().min(old.len()).min(PIECE));
                take(offset, &old[..piece.len()], piece)?;
                offset += piece.len() as u64;
                bytes = rest;
            }
            Ok(())
        })?;
        blocks.check_unchanged()
    }
}

fn apart<S: ReadAt, T: TensorSource>(
    old: Option<&LazyTensor<'_, S>>,
    new: Option<&T>,
    spool: &mut Spool,
    options: &Options,
) -> Result<Compared> {
    let mut compared = Compared { old: None, new: None, difference: None };
    if let Some(old) = old {
        let mut sums = Sums::new(None, true);
        old.write_to(&mut |bytes| {
            sums.update(bytes);
            options.advance(bytes.len());
            Ok(())
        })?;
        compared.old = sums.blake3();
    }
    if let Some(new) = new {
        let start = spool.len();
        let mut sums = Sums::new(Some(options.checksums), true);
        compress(new, spool, |piece, _| {
            sums.update(piece);
            Ok(())
        })?;
        let compressed = spool.since(start)?;
        let checksum = sums.checksum();
        compared.new = sums.blake3();
        compared.difference = Some(Difference { compressed, checksum, is_whole: true });
    }
    Ok(compared)
}

fn is_smaller_whole<T: TensorSource>(new: &T, spool: &mut Spool, most: u64) -> Result<bool> {
    let start = spool.len();
    let mut is_smaller = true;
    let compressed = compress(new, spool, |_, len| {
        is_smaller = len - start < most;
        if is_smaller { Ok(()) } else { Err(io::Error::other("it is larger whole").into()) }
    });
    if is_smaller {
        compressed?;
    }
    Ok(is_smaller && spool.len() - start < most)
}

/// Calls `each` with each piece before it is compressed, and with the bytes of the spool.
fn compress<T: TensorSource>(
    new: &T,
    spool: &mut Spool,
    mut each: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let len = shape::byte_len(new.dtype(), new.shape())?;
    let mut encoder = encoder(spool, len)?;
    write_exactly(new, len, &mut |bytes| {
        bytes.chunks(PIECE).try_for_each(|piece| {
            each(piece, encoder.get_ref().len())?;
            Ok(encoder.write_all(piece)?)
        })
    })?;
    encoder.finish()?;
    Ok(())
}

fn differences<'p>(old: &'p [u8], new: &'p [u8]) -> impl Iterator<Item = (usize, u8)> + 'p {
    const LINE: usize = 256;
    let lines = old.chunks(LINE).zip(new.chunks(LINE)).enumerate();
    lines.filter(|(_, (old, new))| old != new).flat_map(|(line, (old, new))| {
        let pairs = old.iter().zip(new).enumerate();
        let others = pairs.filter(|(_, (old, new))| old != new);
        others.map(move |(at, (_, &new))| (line * LINE + at, new))
    })
}

/// The header has the size `content`.
fn encoder(spool: &mut Spool, content: u64) -> Result<Encoder<'static, &mut Spool>> {
    let mut encoder = Encoder::new(spool, LEVEL)?;
    encoder.set_pledged_src_size(Some(content))?;
    encoder.include_contentsize(true)?;
    Ok(encoder)
}

fn write_zeros(out: &mut impl Write, mut count: u64) -> Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    while count > 0 {
        let now = count.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..now as usize])?;
        count -= now;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};

    use super::*;
    use crate::make::make;

    #[test]
    fn a_tensor_too_large_for_positions_is_stored_whole_if_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("base.safetensors");
        let mut bytes = vec![7; LARGEST as usize + 1];
        fn view(bytes: &[u8]) -> [(&str, TensorView<'_>); 1] {
            [("w", TensorView::from_slice(&[LARGEST as usize + 1], bytes).unwrap())]
        }
        save(&path, view(&bytes), &SaveOptions::new().durable(false)).unwrap();
        let base = Checkpoint::open(&path).unwrap();
        let mut options = Options::new().durable(false).encoding(Encoding::Overwrite);
        options.whole = true;
        let make = |name: &str, bytes: &[u8]| {
            let delta = make(&base, view(bytes), directory.path().join(name), &options).unwrap();
            delta.tensors().count()
        };
        assert_eq!(make("same", &bytes), 0);
        bytes[9] = 8;
        assert_eq!(make("other", &bytes), 1);
    }
}
