//! Loading into candle.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Result, bail, ensure};
use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use safetensors_bridge::{Checkpoint, Dtype, LoadOptions};

use super::{Spec, limits};
use harness::data::TestFile;
use harness::files::{self, checksum, two_gib};
use harness::sample::{Contender, Goal, Row, Watch};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("load 2 GiB of 8 MiB tensors into candle", |data| {
            let file = data.file("two-gib.safetensors", &two_gib())?;
            let goals = [
                Goal::Faster(MAPPED, 3.0),
                Goal::Faster(CANDLE_LOAD, 7.0),
                Goal::Memory(data_len(&file)? + ALLOWANCE),
            ];
            let contenders = vec![ours(&file), mapped(&file), candle_load(&file), arena(&file)?];
            Ok(reading(contenders, &file)?.goals(goals).samples(5))
        }),
        Spec::new("load 10,000 × 64 KiB into candle", |data| {
            let tensors =
                (0..10_000).map(|i| files::Tensor::bf16(format!("blocks.{i}.weight"), &[128, 256]));
            let file = data.file("small-tensors.safetensors", &tensors.collect::<Vec<_>>())?;
            let goals = [
                Goal::Faster(MAPPED, 2.0),
                Goal::Faster(CANDLE_LOAD, 2.0),
                Goal::Memory(data_len(&file)? + ALLOWANCE),
            ];
            let contenders =
                vec![ours(&file), mapped(&file), candle_load(&file), reused_buffers(&file)];
            Ok(reading(contenders, &file)?.goals(goals).samples(7))
        }),
        Spec::new("load 2 GiB of BF16 into candle as F32", |data| {
            let file = data.file("two-gib.safetensors", &two_gib())?;
            let goals =
                [Goal::Faster(MAPPED_CAST, 4.0), Goal::Memory(2 * data_len(&file)? + ALLOWANCE)];
            let contenders = vec![ours_cast(&file), mapped_cast(&file), reused_buffers(&file)];
            Ok(reading(contenders, &file)?.goals(goals).samples(5))
        }),
    ]
}

pub(super) const MAPPED: &str = "candle MmapedSafetensors";
pub(super) const CANDLE_LOAD: &str = "candle load";
const MAPPED_CAST: &str = "candle MmapedSafetensors, to_dtype";

/// The memory that loading may take beside the tensors, in bytes.
pub(super) const ALLOWANCE: u64 = 32 << 20;

/// A row of processes that each load this file. A process takes up to twice the size of the file.
pub(super) fn reading(contenders: Vec<Contender>, file: &TestFile) -> Result<Row> {
    let bytes = data_len(file)?;
    Ok(Row::new(contenders)
        .isolated()
        .bytes(bytes)
        .memory(2 * bytes + (64 << 20))
        .reads(&file.path))
}

pub(super) fn data_len(file: &TestFile) -> Result<u64> {
    Ok(limits::data_range(&std::fs::File::open(&file.path)?)?.1 as u64)
}

pub(super) fn ours(file: &TestFile) -> Contender {
    ours_with("safetensors_candle::load", file, LoadOptions::new())
}

pub(super) fn ours_with(name: &'static str, file: &TestFile, options: LoadOptions) -> Contender {
    let file = file.clone();
    Contender::ours(name, move |watch| {
        let tensors =
            watch.time(|| safetensors_candle::load_with(&file.path, &Device::Cpu, &options))?;
        verify(tensors.iter(), file.sums.plain)
    })
}

fn ours_cast(file: &TestFile) -> Contender {
    let file = file.clone();
    Contender::ours("safetensors_candle::load_with, floats as F32", move |watch| {
        let options = LoadOptions::new().floats_as(Dtype::F32);
        let tensors =
            watch.time(|| safetensors_candle::load_with(&file.path, &Device::Cpu, &options))?;
        verify(tensors.iter(), file.sums.widened)
    })
}

pub(super) fn mapped(file: &TestFile) -> Contender {
    let file = file.clone();
    Contender::peer(MAPPED, move |watch| {
        let tensors = load_mapped(watch, &file.path, Ok)?;
        verify(tensors.iter(), file.sums.plain)
    })
}

fn mapped_cast(file: &TestFile) -> Contender {
    let file = file.clone();
    Contender::peer(MAPPED_CAST, move |watch| {
        let tensors = load_mapped(watch, &file.path, |tensor| Ok(tensor.to_dtype(DType::F32)?))?;
        verify(tensors.iter(), file.sums.widened)
    })
}

pub(super) fn candle_load(file: &TestFile) -> Contender {
    let file = file.clone();
    Contender::peer(CANDLE_LOAD, move |watch| {
        let tensors = watch.time(|| candle_core::safetensors::load(&file.path, &Device::Cpu))?;
        verify(tensors.iter(), file.sums.plain)
    })
}

fn arena(file: &TestFile) -> Result<Contender> {
    let file = file.clone();
    let checkpoint = Checkpoint::open(&file.path)?;
    Ok(Contender::limit("pread into one arena of huge pages", move |watch| {
        let arena = watch.time(|| limits::read_into_arena(&file.path))?;
        let tensors = checkpoint.tensors().map(|tensor| {
            let offsets = tensor.info().data_offsets();
            (tensor.name().to_owned(), &arena[offsets.start as usize..offsets.end as usize])
        });
        ensure!(checksum(tensors) == file.sums.plain, "other bytes than were written");
        Ok(())
    }))
}

fn reused_buffers(file: &TestFile) -> Contender {
    let path = file.path.clone();
    Contender::limit("pread into reused buffers", move |watch| {
        watch.time(|| limits::read_into_reused_buffers(&path))
    })
}

/// Loads a file by candle's mapping, as a program does. Dropping the mapping is not timed.
fn load_mapped(
    watch: &mut Watch,
    path: &Path,
    then: impl Fn(Tensor) -> Result<Tensor>,
) -> Result<BTreeMap<String, Tensor>> {
    let (_file, tensors) = watch.time(|| -> Result<_> {
        let file = system::candle_map(path)?;
        let mut tensors = BTreeMap::new();
        for (name, _) in file.tensors() {
            let tensor = then(file.load(&name, &Device::Cpu)?)?;
            tensors.insert(name, tensor);
        }
        Ok((file, tensors))
    })?;
    Ok(tensors)
}

/// Checks that tensors have the names and the bytes that were written.
pub(super) fn verify<'a>(
    tensors: impl Iterator<Item = (&'a String, &'a Tensor)>,
    expected: u64,
) -> Result<()> {
    let mut sums = HashMap::new();
    for (name, tensor) in tensors {
        let (storage, layout) = tensor.storage_and_layout();
        ensure!(layout.is_contiguous() && layout.start_offset() == 0, "{name} is a view");
        let Storage::Cpu(storage) = &*storage else { bail!("{name} is not in main memory") };
        let bytes: &[u8] = match storage {
            CpuStorage::BF16(values) => bytemuck::cast_slice(values),
            CpuStorage::F32(values) => bytemuck::cast_slice(values),
            _ => bail!("{name} has another dtype"),
        };
        sums.insert(name, checksum([(name, bytes)]));
    }
    ensure!(
        sums.values().copied().fold(0, u64::wrapping_add) == expected,
        "other bytes than were written"
    );
    Ok(())
}
