//! Deltas of checkpoints: made, and applied.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use safetensors_bridge::delta::{Chain, Delta, Options, make};
use safetensors_bridge::framework::in_parallel;
use safetensors_bridge::{Checkpoint, LazyTensor, LoadOptions, ReadAt};

use super::Spec;
use harness::data::Data;
use harness::files::{Pattern, Tensor};
use harness::sample::{Contender, Goal, Row};

const MAKE: &str = "delta::make";
const ALONE: &str = "zstd level 1 alone, of the XOR in memory";
const FROM_FILES: &str = "both files read, XOR, zstd level 1";
const APPLY: &str = "Chain::apply";
const IN_PLACE: &str = "copied, decompressed whole, XOR in the copy";

/// 1 GiB of BF16.
const COUNT: usize = 32;
const SIDE: usize = 4096;
const BYTES: u64 = (COUNT * SIDE * SIDE * 2) as u64;

/// The memory that comparing and applying may take, in bytes.
const ALLOWANCE: u64 = 64 << 20;

pub(super) fn rows() -> Vec<Spec> {
    let parts = [1_u32, 3, 30];
    let made = parts.map(|part| {
        Spec::new(format!("make a delta, {part} % changed"), move |data| row(part, data, made))
    });
    let applied = parts.map(|part| {
        Spec::new(format!("apply a delta, {part} % changed"), move |data| row(part, data, applied))
    });
    made.into_iter().chain(applied).collect()
}

/// The files of a row.
struct Files {
    old: PathBuf,
    new: PathBuf,
    delta: PathBuf,
    out: PathBuf,
}

fn row(part: u32, data: &Data, row: fn(Files) -> Result<Row>) -> Result<Row> {
    let tensors = || (0..COUNT).map(|i| Tensor::bf16(format!("layers.{i}.weight"), &[SIDE, SIDE]));
    let tensors: Vec<_> = tensors().collect();
    let old = data.file("delta-old.safetensors", &tensors)?.path;
    let name = format!("delta-new-{part}.safetensors");
    let new = data.file_by(&name, |path| {
        let sums = harness::files::write(path, &tensors)?;
        change(path, part).map(|()| sums)
    })?;
    let place = |name: &str| data.path().join(format!("{name}-{part}"));
    let (delta, out) = (place("delta"), place("applied"));
    row(Files { old, new: new.path, delta, out })
}

/// Changes the low bits of so many per cent of the elements.
fn change(path: &Path, part: u32) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let start = file.metadata()?.len() - BYTES;
    let mut piece = vec![0; 16 << 20];
    for (number, at) in (start..start + BYTES).step_by(piece.len()).enumerate() {
        let choices = Pattern(number as u64 + 7).take(piece.len() * 2);
        file.read_exact_at(&mut piece, at)?;
        for (element, choice) in
            piece.as_chunks_mut::<2>().0.iter_mut().zip(choices.as_chunks::<4>().0)
        {
            let choice = u32::from_le_bytes(*choice);
            if choice >> 8 & 0xffff < 65_536 * part / 100 {
                element[0] ^= 1 + (choice & 1) as u8;
            }
        }
        file.write_all_at(&piece, at)?;
    }
    Ok(())
}

fn options() -> Options {
    // The peers do not wait for the disk either.
    Options::new().overwrite(true).durable(false)
}

fn make_delta(old: &Path, new: &Path, delta: &Path) -> Result<Delta> {
    let (old, new) = (Checkpoint::open(old)?, Checkpoint::open(new)?);
    let tensors = new.tensors().map(|tensor| (tensor.name(), tensor));
    Ok(make(&old, tensors, delta, &options().for_slime())?)
}

fn made(files: Files) -> Result<Row> {
    let Files { old, new, delta, .. } = files;
    let read =
        |path: &Path| -> Result<_> { Ok(Checkpoint::open(path)?.read_all(&LoadOptions::new())?) };
    let (from, to, reads) = (old.clone(), new.clone(), [old.clone(), new.clone()]);
    let (also_old, also_new) = (old.clone(), new.clone());
    let mut differences: Option<Vec<Vec<u8>>> = None;
    let row = Row::new(vec![
        Contender::ours(MAKE, move |watch| {
            let made = watch.time(|| make_delta(&from, &to, &delta))?;
            ensure!(made.tensors().count() == COUNT, "fewer tensors");
            Ok(())
        }),
        Contender::limit(ALONE, move |watch| {
            if differences.is_none() {
                let xor = read(&old)?.into_iter().zip(read(&new)?).map(|(old, new)| {
                    let bytes = old.bytes().iter().zip(new.bytes());
                    bytes.map(|(old, new)| old ^ new).collect()
                });
                differences = Some(xor.collect());
            }
            let differences = differences.iter().flatten().collect::<Vec<_>>();
            let sizes = watch.time(|| {
                in_parallel(differences, 0, |bytes: &Vec<u8>, _: &mut ()| {
                    Ok(zstd::bulk::compress(bytes, 1)?.len())
                })
            })?;
            ensure!(sizes.len() == COUNT, "fewer tensors");
            Ok(())
        }),
        Contender::limit(FROM_FILES, move |watch| {
            let sizes = watch.time(|| from_files(&also_old, &also_new))?;
            ensure!(sizes.len() == COUNT, "fewer tensors");
            Ok(())
        }),
    ]);
    let [old, new] = reads;
    Ok(row
        .goals([Goal::OfLimit(ALONE, 0.8), Goal::OfLimit(FROM_FILES, 0.8), Goal::Memory(ALLOWANCE)])
        .isolated()
        .samples(5)
        .bytes(BYTES)
        .reads(old)
        .reads(new))
}

/// What the format asks for and no more: no digest, no checksum, and nothing is written. Returns
/// the sizes of the compressed differences.
fn from_files(old: &Path, new: &Path) -> Result<Vec<usize>> {
    let (old, new) = (Checkpoint::open(old)?, Checkpoint::open(new)?);
    let tensors: Vec<_> = new.tensors().collect();
    let sizes = in_parallel(tensors, 0, |new, buffers: &mut [Vec<u8>; 2]| {
        let old = old.tensor(new.name())?;
        for (tensor, buffer) in [&old, &new].into_iter().zip(buffers.iter_mut()) {
            buffer.resize(tensor.byte_len() as usize, 0);
            tensor.source().read_exact_at(buffer, tensor.file_offset())?;
        }
        let [old, new] = buffers;
        new.iter_mut().zip(old).for_each(|(byte, other)| *byte ^= *other);
        Ok(zstd::bulk::compress(new, 1)?.len())
    })?;
    Ok(sizes)
}

fn applied(files: Files) -> Result<Row> {
    let Files { old, new, delta, out } = files;
    if !delta.exists() {
        make_delta(&old, &new, &delta)?;
    }
    let (base, from, copy) = (old.clone(), delta.clone(), out.with_extension("copy"));
    let also = old.clone();
    Ok(Row::new(vec![
        Contender::ours(APPLY, move |watch| {
            watch.time(|| -> Result<()> {
                let base = Checkpoint::open(&base)?;
                Ok(Chain::new([Delta::open(&from)?])?.apply(&base, &out, &options()).map(drop)?)
            })
        }),
        Contender::peer(IN_PLACE, move |watch| watch.time(|| in_place(&also, &delta, &copy))),
    ])
    .goals([Goal::Faster(IN_PLACE, 1.0), Goal::Memory(ALLOWANCE)])
    .isolated()
    .samples(5)
    .bytes(BYTES)
    .reads(old))
}

/// What the receivers of slime and ModelExpress do, in several threads: the base is copied, and
/// each tensor decompressed, changed in the copy, and compared with its checksum.
fn in_place(base: &Path, delta: &Path, copy: &Path) -> Result<()> {
    fs::copy(base, copy)?;
    let (checkpoint, delta) = (Checkpoint::open(copy)?, Delta::open(delta)?);
    let file = OpenOptions::new().read(true).write(true).open(copy)?;
    let differences: Vec<_> = delta.checksums().collect();
    in_parallel(
        differences,
        0,
        |(compressed, checksum): (LazyTensor<'_, _>, &str), _: &mut ()| {
            let tensor = checkpoint.tensor(compressed.name())?;
            let mut bytes = vec![0; tensor.byte_len() as usize];
            file.read_exact_at(&mut bytes, tensor.file_offset())?;
            let difference = zstd::bulk::decompress(compressed.read()?.bytes(), bytes.len())?;
            bytes.iter_mut().zip(difference).for_each(|(byte, other)| *byte ^= other);
            let found = safetensors_bridge::digest::Digest::of(&bytes).to_string();
            if found != checksum {
                return Err(std::io::Error::other("another checksum").into());
            }
            Ok(file.write_all_at(&bytes, tensor.file_offset())?)
        },
    )?;
    Ok(())
}
