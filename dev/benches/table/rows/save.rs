//! Saving, without waiting for a disk: `serialize_to_file` does not wait for one either.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Result, bail, ensure};
use candle_core::{Device, Storage, Tensor};
use half::bf16;
use safetensors_bridge::{Checkpoint, SaveOptions, ShardOptions};
use tempfile::TempDir;

use super::{Spec, limits};
use harness::files::{Pattern, checksum, matrices};
use harness::sample::{Contender, Goal, Role, Row, Watch};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    let mut rows = vec![
        Spec::new("save 2 GiB from candle", |data| in_one_file(data.path())),
        Spec::new("save 2 GiB from candle in shards of 512 MiB", |data| in_shards(data.path())),
    ];
    // On tmpfs the kernel uses no larger pages, and space cannot be reserved without clearing it.
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        rows.push(Spec::new("save 2 GiB from candle to tmpfs", |_| in_one_file(memory)));
    }
    rows
}

const REFERENCE: &str = "safetensors serialize_to_file";
const CANDLE: &str = "candle save";
const LIMIT: &str = "parallel pwrite";

/// The memory that saving may take in addition to the tensors, in bytes.
const ALLOWANCE: u64 = 32 << 20;

/// Tensors by name, and the checksum of all.
fn tensors() -> Result<(Rc<HashMap<String, Tensor>>, u64)> {
    let mut pattern = Pattern(7);
    let mut sum = 0_u64;
    let tensors = matrices(256).into_iter().map(|tensor| {
        let bytes = pattern.take(tensor.bytes);
        sum = sum.wrapping_add(checksum([(&tensor.name, &bytes)]));
        let values = bytemuck::pod_collect_to_vec::<u8, bf16>(&bytes);
        Ok((tensor.name, Tensor::from_vec(values, tensor.shape, &Device::Cpu)?))
    });
    let tensors = tensors.collect::<Result<_>>()?;
    Ok((Rc::new(tensors), sum))
}

fn in_one_file(folder: &Path) -> Result<Row> {
    let folder = Rc::new(tempfile::tempdir_in(folder)?);
    let (tensors, sum) = tensors()?;
    let (for_ours, for_reference, for_candle) = (tensors.clone(), tensors.clone(), tensors.clone());
    let ours = saving(Role::Ours, "safetensors_candle::save", &folder, sum, move |path| {
        Ok(safetensors_candle::save(path, &*for_ours, &options())?)
    });
    let reference = saving(Role::Peer, REFERENCE, &folder, sum, move |path| {
        Ok(safetensors::serialize_to_file(for_reference.iter(), None, path)?)
    });
    let candle = saving(Role::Peer, CANDLE, &folder, sum, move |path| {
        Ok(candle_core::safetensors::save(&for_candle, path)?)
    });
    let limit = Contender::limit(LIMIT, move |watch| {
        let path = fresh_path(&folder)?;
        let storages: Vec<_> = tensors.values().map(Tensor::storage_and_layout).collect();
        let slices = storages.iter().map(|(storage, _)| match &**storage {
            Storage::Cpu(storage) => Ok(bytemuck::cast_slice(storage.as_slice::<bf16>()?)),
            _ => bail!("not in main memory"),
        });
        let slices = slices.collect::<Result<Vec<&[u8]>>>()?;
        watch.time(|| limits::write_pieces(&path, &slices))?;
        Ok(std::fs::remove_file(path)?)
    });
    let goals = vec![
        Goal::AtLeast(REFERENCE, 1.5),
        Goal::AtLeast(CANDLE, 1.5),
        Goal::AtLeast(LIMIT, 0.8),
        Goal::Memory(ALLOWANCE),
    ];
    let contenders = vec![ours, reference, candle, limit];
    Ok(Row { goals, bytes: Some(2 << 30), ..Row::new(contenders) })
}

/// Shards with an index, compared with one file of the same tensors.
fn in_shards(folder: &Path) -> Result<Row> {
    const ONE_FILE: &str = "safetensors_candle::save, one file";
    let folder = Rc::new(tempfile::tempdir_in(folder)?);
    let (tensors, sum) = tensors()?;
    let (for_ours, directory) = (tensors.clone(), folder.path().join("shards"));
    let ours = Contender::ours("safetensors_candle::save_sharded", move |watch| {
        let shards = ShardOptions::new().max_shard_size((512 << 20).into());
        let shards = shards.save_options(options());
        watch.time(|| safetensors_candle::save_sharded(&directory, &*for_ours, &shards))?;
        let saved = Checkpoint::open(&directory)?;
        let tensors = saved.tensors().map(|tensor| Ok((tensor.name(), tensor.read()?)));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let found = checksum(tensors.iter().map(|(name, buf)| (name, buf.bytes())));
        ensure!(found == sum, "other bytes than were saved");
        Ok(std::fs::remove_dir_all(&directory)?)
    });
    let one_file = saving(Role::Limit, ONE_FILE, &folder, sum, move |path| {
        Ok(safetensors_candle::save(path, &*tensors, &options())?)
    });
    Ok(Row { samples: 5, bytes: Some(2 << 30), ..Row::new(vec![ours, one_file]) })
}

fn options() -> SaveOptions {
    SaveOptions::new().durable(false)
}

/// A contender that saves a new file. The file is checked afterwards, and removed.
fn saving(
    role: Role,
    name: &'static str,
    folder: &Rc<TempDir>,
    sum: u64,
    save: impl Fn(&Path) -> Result<()> + 'static,
) -> Contender {
    let folder = folder.clone();
    Contender::new(role, name, move |watch: &mut Watch| {
        let path = fresh_path(&folder)?;
        watch.time(|| save(&path))?;
        let mapped = system::map(&path)?;
        let found = safetensors::SafeTensors::deserialize(&mapped)?;
        ensure!(
            checksum(found.iter().map(|(name, view)| (name, view.data()))) == sum,
            "other bytes than were saved"
        );
        Ok(std::fs::remove_file(path)?)
    })
}

fn fresh_path(folder: &TempDir) -> Result<PathBuf> {
    let path = folder.path().join("saved.safetensors");
    ensure!(!path.exists(), "{} is there already", path.display());
    Ok(path)
}
