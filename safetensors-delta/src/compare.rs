//! Compares an old tensor with a new one, and compresses how they differ.

use std::io::Write;
use std::path::Path;

use safetensors_core::framework::write_exactly;
use safetensors_core::{LazyTensor, ReadAt, TensorSource};
use zstd::stream::write::Encoder;

use crate::blocks::Blocks;
use crate::error::Result;
use crate::format::Encoding;
use crate::options::Options;
use crate::patch::xor;
use crate::patched::PIECE;
use crate::spool::{Spool, Spooled};
use crate::sums::Sums;

/// The bytes of the old tensor that are read at a time.
const BLOCK: usize = 1 << 20;

/// The level of zstd. Trainers publish at each step, so speed counts for more than a few per cent.
const LEVEL: i32 = 1;

/// What a thread keeps from one tensor to the next.
#[derive(Default)]
pub(crate) struct Worker {
    spool: Option<Spool>,
    scratch: Vec<u8>,
}

/// What becomes of a tensor.
pub(crate) struct Compared {
    pub(crate) old: blake3::Hash,
    pub(crate) new: blake3::Hash,
    /// `None` if all bytes are equal.
    pub(crate) change: Option<Change>,
}

/// A compressed difference.
pub(crate) struct Change {
    pub(crate) compressed: Spooled,
    pub(crate) checksum: String,
}

/// Both tensors.
struct Sides {
    old: Sums,
    new: Sums,
    is_changed: bool,
}

/// Compares two tensors of the same dtype and shape. A change is compressed to a file in the
/// directory.
pub(crate) fn compare<S: ReadAt, T: TensorSource>(
    (old, new): (LazyTensor<'_, S>, &T),
    worker: &mut Worker,
    directory: &Path,
    options: &Options,
) -> Result<Compared> {
    let Worker { spool, scratch } = worker;
    let spool = match spool {
        Some(spool) => spool,
        none => none.insert(Spool::create_in(directory)?),
    };
    let start = spool.len();
    let compared = match options.encoding {
        Encoding::Xor => by_xor((old, new), spool, scratch, options),
        Encoding::Overwrite => by_position((old, new), spool, options),
    };
    // Errors of reading are located by then.
    let sides = compared.map_err(|error| error.in_tensor(old.name()))?;
    let change = sides.is_changed.then(|| spool.since(start)).transpose()?;
    let hash = |sums: &Sums| sums.blake3().unwrap_or_else(|| blake3::hash(b""));
    Ok(Compared {
        old: hash(&sides.old),
        new: hash(&sides.new),
        change: change.map(|compressed| Change { compressed, checksum: sides.new.checksum() }),
    })
}

/// Compresses the XOR of both, from the first difference on: before it, all bytes are 0.
fn by_xor<S: ReadAt, T: TensorSource>(
    pair: (LazyTensor<'_, S>, &T),
    spool: &mut Spool,
    scratch: &mut Vec<u8>,
    options: &Options,
) -> Result<Sides> {
    // It allocates and writes nothing before it gets a byte.
    let mut encoder = encoder(spool, pair.0.byte_len())?;
    let mut new_sums = Sums::new(Some(options.checksums), true);
    let mut old_sums: Option<Sums> = None;
    each_piece(pair, |offset, old, new| {
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

/// Compresses the positions of the bytes that differ, and the new bytes. Both are counted and
/// written in passes over the tensors, so that none of them is held in memory.
fn by_position<S: ReadAt, T: TensorSource>(
    pair: (LazyTensor<'_, S>, &T),
    spool: &mut Spool,
    options: &Options,
) -> Result<Sides> {
    let mut count = 0_u32;
    let mut new_sums = Sums::new(Some(options.checksums), true);
    let mut old_sums = Sums::new(None, true);
    each_piece(pair, |_, old, new| {
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
    each_piece(pair, |offset, old, new| {
        piece.clear();
        let positions = differences(old, new).map(|(at, _)| offset as u32 + at as u32);
        piece.extend(positions.flat_map(u32::to_le_bytes));
        Ok(encoder.write_all(&piece)?)
    })?;
    each_piece(pair, |_, old, new| {
        piece.clear();
        piece.extend(differences(old, new).map(|(_, value)| value));
        Ok(encoder.write_all(&piece)?)
    })?;
    encoder.finish()?;
    Ok(sides)
}

/// The positions at which two pieces differ, and the new bytes.
fn differences<'p>(old: &'p [u8], new: &'p [u8]) -> impl Iterator<Item = (usize, u8)> + 'p {
    /// Most lines are equal, and are compared at once.
    const LINE: usize = 256;
    let lines = old.chunks(LINE).zip(new.chunks(LINE)).enumerate();
    lines.filter(|(_, (old, new))| old != new).flat_map(|(line, (old, new))| {
        let pairs = old.iter().zip(new).enumerate();
        let others = pairs.filter(|(_, (old, new))| old != new);
        others.map(move |(at, (_, &new))| (line * LINE + at, new))
    })
}

/// Begins a frame of a content of so many bytes, which its header says.
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

/// Passes the same pieces of both tensors to `take`, with their offset.
fn each_piece<S: ReadAt, T: TensorSource>(
    (old, new): (LazyTensor<'_, S>, &T),
    mut take: impl FnMut(u64, &[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let (mut blocks, mut offset) = (Blocks::new(old, BLOCK), 0);
    write_exactly(new, old.byte_len(), &mut |mut bytes| {
        while !bytes.is_empty() {
            let old = blocks.at(offset)?;
            let (piece, rest) = bytes.split_at(bytes.len().min(old.len()).min(PIECE));
            take(offset, &old[..piece.len()], piece)?;
            (offset, bytes) = (offset + piece.len() as u64, rest);
        }
        Ok(())
    })?;
    blocks.check_unchanged()
}
