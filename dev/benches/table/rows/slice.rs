//! Reading the part of a tensor that one of four ranks holds, and rows of a table by their numbers.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor as CandleTensor};
use memmap2::MmapMut;
use safetensors::SafeTensors as Reference;
use safetensors::slice::IndexOp;
use safetensors_bridge::io::FileSource;
use safetensors_bridge::slice::RankPart;
use safetensors_bridge::{Checkpoint, Limits, ReadAt};

use super::{Spec, limits};
use harness::data::Data;
use harness::files::Tensor;
use harness::sample::{Contender, Goal, Row};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    [0, 1]
        .map(|dim| {
            Spec::new(format!("rank slice of dim {dim}, one of 4 ranks"), move |data| {
                row(data, dim)
            })
        })
        .into_iter()
        .chain([Spec::new("200 rows by index of a table of 32,000", by_index)])
        .collect()
}

const LIMIT: &str = "pread of exactly those bytes";
pub(super) const NAME: &str = "weight";
pub(super) const ROWS: usize = 8192;
pub(super) const COLUMNS: usize = 16384;

/// Rank 1 holds 64 MiB of a tensor of 256 MiB: adjacent rows, or a part of each row.
fn row(data: &Data, dim: usize) -> Result<Row> {
    let path = data.file("slice.safetensors", &[Tensor::bf16(NAME.into(), &[ROWS, COLUMNS])])?.path;
    let shard = RankPart::new(dim, 1, 4);
    let runs = runs(&path, dim)?;
    let expected = read_runs(&File::open(&path)?, &runs)?.to_vec();
    let over_read = over_read(&path, shard, &expected)?;

    let (a, b, c) = (path.clone(), path.clone(), path.clone());
    let ours = Contender::ours("LazyTensor::slice, read", move |watch| {
        let checkpoint = Checkpoint::open(&a)?;
        watch.repeat(|| Ok(checkpoint.tensor(NAME)?.slice(shard)?.read()?))
    });
    let mapped = system::map(&b)?;
    ensure!(reference(&mapped, dim)? == expected, "the peer's slice differs");
    let peer = Contender::peer("safetensors, slice collected", move |watch| {
        watch.repeat(|| reference(&mapped, dim))
    });
    let limit = Contender::limit(LIMIT, move |watch| {
        let file = File::open(&c)?;
        watch.repeat(|| read_runs(&file, &runs))
    });
    let goals = [Goal::OfLimit(LIMIT, 0.8), Goal::AtMost("over-read", over_read, 1.05)];
    Ok(Row::new(vec![ours, peer, limit]).goals(goals).bytes(expected.len() as u64).reads(path))
}

/// 200 rows in any order of a table of 32,000 rows of 8 KiB, as a model looks up its tokens.
fn by_index(data: &Data) -> Result<Row> {
    const TOKENS: usize = 32_000;
    const WIDTH: usize = 4096;
    const ROW: usize = 2 * WIDTH;
    let table = Tensor::bf16(NAME.into(), &[TOKENS, WIDTH]);
    let path = data.file("embeddings.safetensors", &[table])?.path;
    let numbers: Vec<_> = (0..200_usize).map(|i| i * 2_654_435_761 % TOKENS).collect();
    let start = Checkpoint::open(&path)?.tensor(NAME)?.file_offset();
    let first = |&number: &usize| start + (number * ROW) as u64;
    let runs: Vec<_> = numbers.iter().map(first).map(|at| at..at + ROW as u64).collect();
    let expected = read_runs(&File::open(&path)?, &runs)?.to_vec();

    let checkpoint = Checkpoint::open(&path)?;
    let wanted = numbers.clone();
    ensure!(checkpoint.tensor(NAME)?.rows(&wanted)?.read()?.bytes() == expected, "rows differ");
    let ours = Contender::ours("LazyTensor::rows, read", move |watch| {
        watch.repeat(|| Ok(checkpoint.tensor(NAME)?.rows(&wanted)?.read()?))
    });
    let candle = system::candle_map(&path)?;
    let ids: Vec<_> = numbers.iter().map(|&number| number as u32).collect();
    let ids = CandleTensor::new(ids, &Device::Cpu)?;
    let whole = Contender::peer("candle, load, index_select", move |watch| {
        watch.repeat(|| Ok(candle.load(NAME, &Device::Cpu)?.index_select(&ids, 0)?))
    });
    let mapped = system::map(&path)?;
    let by_hand = Contender::peer("safetensors, mapped, rows copied", move |watch| {
        watch.repeat(|| {
            let file = Reference::deserialize(&mapped)?;
            let data = file.tensor(NAME)?.data();
            let mut bytes = Vec::with_capacity(numbers.len() * ROW);
            numbers.iter().for_each(|row| bytes.extend_from_slice(&data[row * ROW..][..ROW]));
            Ok(bytes)
        })
    });
    let file = File::open(&path)?;
    let limit = Contender::limit(LIMIT, move |watch| watch.repeat(|| read_runs(&file, &runs)));
    let goals = [Goal::Faster("candle, load, index_select", 10.0), Goal::OfLimit(LIMIT, 0.8)];
    let row = Row::new(vec![ours, whole, by_hand, limit]).goals(goals);
    Ok(row.bytes(expected.len() as u64).reads(path))
}

/// The ranges of the file that hold the slice.
pub(super) fn runs(path: &Path, dim: usize) -> Result<Vec<Range<u64>>> {
    let start = Checkpoint::open(path)?.tensor(NAME)?.file_offset();
    let (bytes, part) = ((2 * COLUMNS) as u64, |len: usize| (len / 4) as u64);
    if dim == 0 {
        let first = start + part(ROWS) * bytes;
        return Ok(std::iter::once(first..first + part(ROWS) * bytes).collect());
    }
    let width = 2 * part(COLUMNS);
    Ok((0..ROWS as u64)
        .map(|row| start + row * bytes + width)
        .map(|first| first..first + width)
        .collect())
}

/// Reads ranges one after the other into fresh memory, in huge pages where the system has them.
pub(super) fn read_runs(file: &File, runs: &[Range<u64>]) -> Result<MmapMut> {
    let mut bytes = limits::arena(runs.iter().map(|run| (run.end - run.start) as usize).sum())?;
    let mut rest = &mut bytes[..];
    for run in runs {
        let (here, after) = rest.split_at_mut((run.end - run.start) as usize);
        file.read_exact_at(here, run.start)?;
        rest = after;
    }
    Ok(bytes)
}

fn reference(mapped: &[u8], dim: usize) -> Result<Vec<u8>> {
    let file = Reference::deserialize(mapped)?;
    let tensor = file.tensor(NAME)?;
    let slice = match dim {
        0 => tensor.slice(ROWS / 4..ROWS / 2),
        _ => tensor.slice((.., COLUMNS / 4..COLUMNS / 2)),
    };
    let slice = slice.ok().context("no such slice")?;
    let mut bytes = Vec::with_capacity(slice.remaining_byte_len());
    slice.for_each(|run| bytes.extend_from_slice(run));
    Ok(bytes)
}

/// The number of bytes that are read for each byte of the slice.
fn over_read(path: &Path, shard: RankPart, expected: &[u8]) -> Result<f64> {
    let open =
        |path: &Path| Ok(Counting { source: FileSource::open(path)?, bytes: AtomicU64::new(0) });
    let checkpoint = Checkpoint::open_by(path, &Limits::default(), open)?;
    let tensor = checkpoint.tensor(NAME)?;
    let counted = || tensor.source().bytes.load(Ordering::Relaxed);
    let before = counted();
    ensure!(tensor.slice(shard)?.read()?.bytes() == expected, "our slice differs");
    Ok((counted() - before) as f64 / expected.len() as f64)
}

/// A file that counts what is read from it.
struct Counting {
    source: FileSource,
    bytes: AtomicU64,
}

impl ReadAt for Counting {
    fn byte_len(&self) -> u64 {
        self.source.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.source.read_exact_at(buf, offset)
    }
}
