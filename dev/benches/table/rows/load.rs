//! Loading into candle.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use candle_core::{CpuStorage, DType, Device, Storage};
use safetensors_bridge::{Checkpoint, Dtype, LoadOptions};

use super::{Spec, limits};
use harness::data::TestFile;
use harness::files::{Tensor, checksum, two_gib};
use harness::sample::{Contender, Goal, Row, Watch};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("load 2 GiB of 8 MiB tensors into candle", |data| {
            let file = data.file("two-gib.safetensors", &two_gib())?;
            let mut row = plain(&file, 3.0, 7.0)?;
            row.samples = 5;
            Ok(row)
        }),
        Spec::new("load 10,000 × 64 KiB into candle", |data| {
            let file = data.file("small-tensors.safetensors", &equal(10_000, 128 * 256))?;
            plain(&file, 2.0, 2.0)
        }),
        Spec::new("load 20,000 × 512 B into candle", |data| {
            let file = data.file("tiny-tensors.safetensors", &equal(20_000, 256))?;
            plain(&file, 1.0, 2.1)
        }),
        Spec::new("load one tensor of 256 KiB into candle", |data| {
            let file = data.file("one-tensor.safetensors", &equal(1, 128 << 10))?;
            plain(&file, 1.0, 1.0)
        }),
        Spec::new("load 2 GiB of BF16 into candle as F32", |data| {
            let file = data.file("two-gib.safetensors", &two_gib())?;
            let contenders = vec![ours_cast(&file), mapped_cast(&file), reused_buffers(&file)];
            let memory = Goal::Memory(2 * data_len(&file)? + ALLOWANCE);
            let goals = vec![Goal::AtLeast(MAPPED_CAST, 4.0), memory];
            Ok(Row { goals, samples: 5, ..reading(contenders, &file)? })
        }),
    ]
}

/// Makes `count` tensors, each with `elements` elements of BF16.
pub(super) fn equal(count: usize, elements: usize) -> Vec<Tensor> {
    (0..count).map(|i| Tensor::bf16(format!("blocks.{i}.weight"), &[elements])).collect()
}

/// Ours compared with both ways of candle, with the factors by which ours should be faster.
fn plain(file: &TestFile, than_mapped: f64, than_load: f64) -> Result<Row> {
    let contenders = vec![ours(file), mapped(file), candle_load(file), reused_buffers(file)];
    let goals = vec![
        Goal::AtLeast(MAPPED, than_mapped),
        Goal::AtLeast(CANDLE_LOAD, than_load),
        Goal::Memory(data_len(file)? + ALLOWANCE),
    ];
    Ok(Row { goals, samples: 7, ..reading(contenders, file)? })
}

pub(super) const MAPPED: &str = "candle MmapedSafetensors";
pub(super) const CANDLE_LOAD: &str = "candle load";
const MAPPED_CAST: &str = "candle MmapedSafetensors, to_dtype";

/// The memory that loading may take in addition to the tensors, in bytes.
pub(super) const ALLOWANCE: u64 = 32 << 20;

/// A row of processes that each load this file. A process takes up to twice the size of the file.
pub(super) fn reading(contenders: Vec<Contender>, file: &TestFile) -> Result<Row> {
    let bytes = data_len(file)?;
    Ok(Row {
        isolated: true,
        bytes: Some(bytes),
        memory: 2 * bytes + (64 << 20),
        files: vec![file.path.clone()],
        ..Row::new(contenders)
    })
}

/// Returns the bytes of a file's tensors.
pub(super) fn data_len(file: &TestFile) -> Result<u64> {
    Ok(Checkpoint::open(&file.path)?.tensors().map(|tensor| tensor.byte_len()).sum())
}

pub(super) fn ours(file: &TestFile) -> Contender {
    let file = file.clone();
    Contender::ours("safetensors_candle::load", move |watch| {
        let tensors = watch.time(|| safetensors_candle::load(&file.path, &Device::Cpu))?;
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
    then: impl Fn(candle_core::Tensor) -> Result<candle_core::Tensor>,
) -> Result<BTreeMap<String, candle_core::Tensor>> {
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
    tensors: impl Iterator<Item = (&'a String, &'a candle_core::Tensor)>,
    expected: u64,
) -> Result<()> {
    let mut sum = 0_u64;
    for (name, tensor) in tensors {
        let (storage, layout) = tensor.storage_and_layout();
        ensure!(layout.is_contiguous() && layout.start_offset() == 0, "{name} is a view");
        let Storage::Cpu(storage) = &*storage else { bail!("{name} is not in main memory") };
        let bytes: &[u8] = match storage {
            CpuStorage::BF16(values) => bytemuck::cast_slice(values),
            CpuStorage::F32(values) => bytemuck::cast_slice(values),
            _ => bail!("{name} has another dtype"),
        };
        sum = sum.wrapping_add(checksum([(name, bytes)]));
    }
    ensure!(sum == expected, "other bytes than were written");
    Ok(())
}
