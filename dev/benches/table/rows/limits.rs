//! The limits of the machine: moving the same bytes, and nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use anyhow::{Result, ensure};
use memmap2::MmapMut;

/// The number of bytes that a thread reads or writes at once.
const PIECE: usize = 4 << 20;

pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(8)
}

/// Reads a whole file past the page cache, into one small buffer per thread, over and over.
#[cfg(target_os = "linux")]
pub(crate) fn read_past_the_cache(path: &Path) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    const DIRECT_PIECE: usize = 8 << 20;
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let len = file.metadata()?.len() as usize;
    in_pieces(threads(), (0..len).step_by(DIRECT_PIECE), |at, buffer: &mut Option<MmapMut>| {
        // Such reads need a buffer that is aligned to the blocks of the disk.
        let buffer = match buffer {
            Some(buffer) => buffer,
            None => buffer.insert(MmapMut::map_anon(DIRECT_PIECE)?),
        };
        let read = file.read_at(buffer, at as u64)?;
        ensure!(read == DIRECT_PIECE.min(len - at), "{read} bytes are read at {at}");
        Ok(())
    })
}

/// Reads a file into one small buffer per thread, over and over. So only the reading itself is
/// measured.
pub(crate) fn read_into_reused_buffers(path: &Path, threads: usize) -> Result<()> {
    let file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    in_pieces(threads, (0..len).step_by(PIECE), |at, buffer: &mut Vec<u8>| {
        buffer.resize(PIECE.min(len - at), 0);
        Ok(file.read_exact_at(buffer, at as u64)?)
    })
}

/// Writes pieces of memory one after the other to a new file, in parallel.
pub(crate) fn write_pieces(path: &Path, tensors: &[&[u8]]) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(tensors.iter().map(|tensor| tensor.len() as u64).sum())?;
    let mut offset = 0;
    let placed = tensors.iter().flat_map(|tensor| tensor.chunks(PIECE)).map(|piece| {
        offset += piece.len() as u64;
        (offset - piece.len() as u64, piece)
    });
    in_pieces(
        threads(),
        placed,
        |(offset, piece), _: &mut ()| Ok(file.write_all_at(piece, offset)?),
    )
}

/// Does work on pieces with several threads. Each thread has its own buffer of type `B`.
fn in_pieces<T: Send, B: Default>(
    threads: usize,
    pieces: impl Iterator<Item = T> + Send,
    work: impl Fn(T, &mut B) -> Result<()> + Sync,
) -> Result<()> {
    let pieces = Mutex::new(pieces);
    thread::scope(|scope| {
        let work = || -> Result<()> {
            let mut buffer = B::default();
            while let Some(piece) = pieces.lock().ok().and_then(|mut pieces| pieces.next()) {
                work(piece, &mut buffer)?;
            }
            Ok(())
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mine = work();
        others.into_iter().filter_map(|other| other.join().ok()).fold(mine, Result::and)
    })
}
