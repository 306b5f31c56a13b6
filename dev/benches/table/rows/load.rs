//! Loading into candle.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use candle_core::{CpuStorage, DType, Device, Storage};
use safetensors_bridge::{Dtype, LoadOptions};

use super::{Spec, limits};
use harness::data::{Data, TestFile};
use harness::files::{Tensor, checksum, matrices};
use harness::sample::{Contender, Goal, Role, Row};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    let equal_rows = [
        ("10,000 × 64 KiB", 10_000, 128 * 256, 1.5, 1.2),
        ("20,000 × 512 B", 20_000, 256, 1.5, 1.2),
        ("one tensor of 256 KiB", 1, 128 << 10, 1.0, 1.0),
    ];
    let equal_rows = equal_rows.map(|(what, count, elements, first, again)| {
        Spec::new(format!("load {what} into candle"), move |data| {
            let file =
                data.file(&format!("{count}-tensors.safetensors"), &equal(count, elements))?;
            plain(&file, first, again)
        })
    });
    let mut rows = vec![Spec::new("load 2 GiB of 8 MiB tensors into candle", |data| {
        plain(&data.file("two-gib.safetensors", &matrices(256))?, 1.5, 1.2)
    })];
    rows.extend(equal_rows);
    rows.push(Spec::new("load 1 GiB of BF16 into candle as F32", |data| {
        let file = data.file("one-gib.safetensors", &matrices(128))?;
        let memory = Goal::Memory(2 * file.data_len()? + ALLOWANCE);
        let contenders = vec![
            load_as(Role::Ours, OURS_CAST, &file, DType::F32),
            mapped_as(MAPPED_CAST, &file, DType::F32),
            limit(&file),
        ];
        let mut row = reading(contenders, &file)?;
        row.goals.push(memory);
        Ok(row)
    }));
    #[cfg(target_os = "linux")]
    rows.extend([
        Spec::new("first load of 2 GiB into candle, page cache cold", cache_cold),
        Spec::new("load 2 GiB into candle, page cache left cold", cache_left_cold),
    ]);
    rows
}

/// Makes `count` tensors, each with `elements` elements of BF16.
pub(super) fn equal(count: usize, elements: usize) -> Vec<Tensor> {
    (0..count).map(|i| Tensor::bf16(format!("blocks.{i}.weight"), &[elements])).collect()
}

/// Ours compared with both ways of candle, and how many times as fast ours should be.
fn plain(file: &TestFile, first: f64, again: f64) -> Result<Row> {
    let contenders = vec![ours(file), mapped(file), candle_load(file), limit(file)];
    let memory = Goal::Memory(file.data_len()? + ALLOWANCE);
    Ok(Row { goals: vec![Goal::EachTime(first, again), memory], ..reading(contenders, file)? })
}

#[cfg(target_os = "linux")]
fn cache_cold(data: &Data) -> Result<Row> {
    const DIRECT: &str = "read past the cache (O_DIRECT)";
    let file = data.file("two-gib.safetensors", &matrices(256))?;
    let path = file.path.clone();
    let direct =
        Contender::limit(DIRECT, move |watch| watch.time(|| limits::read_past_the_cache(&path)));
    let contenders = vec![ours(&file), mapped(&file), candle_load(&file), direct];
    let goals = vec![
        Goal::AtLeast(MAPPED, 2.0),
        Goal::AtLeast(CANDLE_LOAD, 2.0),
        Goal::AtLeast(DIRECT, 1.0),
        Goal::Memory(file.data_len()? + ALLOWANCE),
    ];
    Ok(Row { goals, loads: 1, samples: 3, cold: true, ..reading(contenders, &file)? })
}

/// A load that leaves no pages of the file in memory, on Linux 6.14 and a file system of a disk.
#[cfg(target_os = "linux")]
fn cache_left_cold(data: &Data) -> Result<Row> {
    const LOAD: &str = "load_with, which leaves pages";
    let file = data.file("two-gib.safetensors", &matrices(256))?;
    let load = |role, name, drops| {
        let (file, options) = (file.clone(), LoadOptions::new().drop_page_cache(drops));
        Contender::new(role, name, move |watch| {
            let load = || safetensors_candle::load_with(&file.path, &Device::Cpu, &options);
            verify(watch.time(load)?.iter(), file.sums.plain)
        })
    };
    let contenders = vec![
        load(Role::Ours, "safetensors_candle::load_with, drop_page_cache", true),
        load(Role::Limit, LOAD, false),
    ];
    let goals = vec![Goal::AtLeast(LOAD, 0.95)];
    Ok(Row { goals, loads: 1, samples: 10, cold: true, ..reading(contenders, &file)? })
}

pub(super) const MAPPED: &str = "candle MmapedSafetensors";
const CANDLE_LOAD: &str = "candle load";
const OURS_CAST: &str = "safetensors_candle::load_with, floats as F32";
const MAPPED_CAST: &str = "candle MmapedSafetensors, to_dtype";

/// The memory that loading may take in addition to the tensors, in bytes.
pub(super) const ALLOWANCE: u64 = 32 << 20;

/// A row of processes that each load this file.
pub(super) fn reading(contenders: Vec<Contender>, file: &TestFile) -> Result<Row> {
    let files = vec![file.path.clone()];
    Ok(Row { bytes: Some(file.data_len()?), files, ..Row::loads(contenders) })
}

pub(super) fn ours(file: &TestFile) -> Contender {
    let file = file.clone();
    Contender::ours("safetensors_candle::load", move |watch| {
        let tensors = watch.time(|| safetensors_candle::load(&file.path, &Device::Cpu))?;
        verify(tensors.iter(), file.sums.plain)
    })
}

/// Loads BF16 as it is, or as F32.
pub(super) fn load_as(role: Role, name: &'static str, file: &TestFile, dtype: DType) -> Contender {
    let file = file.clone();
    let options = match dtype {
        DType::F32 => LoadOptions::new().floats_as(Dtype::F32),
        _ => LoadOptions::new(),
    };
    Contender::new(role, name, move |watch| {
        let load = || safetensors_candle::load_with(&file.path, &Device::Cpu, &options);
        let tensors = watch.time(load)?;
        verify(tensors.iter(), sum(&file, dtype))
    })
}

/// Returns the checksum of the tensors in a dtype.
pub(super) fn sum(file: &TestFile, dtype: DType) -> u64 {
    if dtype == DType::F32 { file.sums.widened } else { file.sums.plain }
}

pub(super) fn mapped(file: &TestFile) -> Contender {
    mapped_as(MAPPED, file, DType::BF16)
}

/// Loads a file by candle's mapping, as a program does. Dropping the mapping is not timed.
fn mapped_as(name: &'static str, file: &TestFile, dtype: DType) -> Contender {
    let file = file.clone();
    Contender::peer(name, move |watch| {
        let (_map, tensors) = watch.time(|| -> Result<_> {
            let map = system::candle_map(&file.path)?;
            let mut tensors = BTreeMap::new();
            for (name, _) in map.tensors() {
                let tensor = map.load(&name, &Device::Cpu)?.to_dtype(dtype)?;
                tensors.insert(name, tensor);
            }
            Ok((map, tensors))
        })?;
        verify(tensors.iter(), sum(&file, dtype))
    })
}

pub(super) fn candle_load(file: &TestFile) -> Contender {
    let file = file.clone();
    Contender::peer(CANDLE_LOAD, move |watch| {
        let tensors = watch.time(|| candle_core::safetensors::load(&file.path, &Device::Cpu))?;
        verify(tensors.iter(), file.sums.plain)
    })
}

/// The limit of each load.
pub(super) fn limit(file: &TestFile) -> Contender {
    let path = file.path.clone();
    Contender::limit("pread into reused buffers", move |watch| {
        watch.time(|| limits::read_into_reused_buffers(&path, limits::threads()))
    })
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
