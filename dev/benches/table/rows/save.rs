//! Saving, without waiting for a disk: `serialize_to_file` does not wait for one either.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use half::bf16;
use ndarray::{ArrayD, IxDyn};
use safetensors::tensor::TensorView;
use safetensors_bridge::SaveOptions;
use safetensors_ndarray::DynArray;
use tempfile::TempDir;

use super::{Spec, limits};
use harness::data::folder_in_memory;
use harness::files::{Pattern, checksum, two_gib};
use harness::sample::{Contender, Goal, Row, Run, Watch};
use harness::system;

pub(super) fn rows() -> Vec<Spec> {
    let mut rows = vec![
        Spec::new("save 2 GiB from candle", |data| from_candle(data.path())),
        Spec::new("save 2 GiB from ndarray", |data| from_ndarray(data.path())),
    ];
    // On tmpfs the kernel uses no larger pages, and space cannot be reserved without clearing it.
    rows.extend(
        folder_in_memory()
            .map(|memory| Spec::new("save 2 GiB to tmpfs", move |_| from_ndarray(&memory))),
    );
    rows
}

const REFERENCE: &str = "safetensors serialize_to_file";
const CANDLE: &str = "candle save";
const LIMIT: &str = "parallel pwrite";

/// The memory that saving may take beside the tensors, in bytes.
const ALLOWANCE: u64 = 32 << 20;

/// The memory that a sample takes, in bytes: the file, which is in the page cache.
const MEMORY: u64 = (2 << 30) + (64 << 20);

/// The values of tensors by name.
type Tensors = BTreeMap<String, Vec<bf16>>;

fn tensors() -> (Tensors, u64) {
    let mut pattern = Pattern(7);
    let tensors = two_gib().into_iter().map(|tensor| {
        let bytes = pattern.take(tensor.bytes);
        (tensor.name, bytemuck::pod_collect_to_vec::<u8, bf16>(&bytes))
    });
    let tensors: Tensors = tensors.collect();
    let sum = checksum(
        tensors.iter().map(|(name, values)| (name, bytemuck::cast_slice::<bf16, u8>(values))),
    );
    (tensors, sum)
}

const SHAPE: [usize; 2] = [2048, 2048];

fn from_candle(folder: &Path) -> Result<Row> {
    let folder = Rc::new(tempfile::tempdir_in(folder)?);
    let (tensors, sum) = tensors();
    let tensors = tensors
        .into_iter()
        .map(|(name, values)| Ok((name, Tensor::from_vec(values, &SHAPE, &Device::Cpu)?)));
    let tensors: Rc<HashMap<String, Tensor>> = Rc::new(tensors.collect::<Result<_>>()?);
    let (for_ours, for_reference, for_candle) = (tensors.clone(), tensors.clone(), tensors.clone());
    let ours = saving(Contender::ours, "safetensors_candle::save", &folder, sum, move |path| {
        Ok(safetensors_candle::save(path, &*for_ours, &SaveOptions::new().durable(false))?)
    });
    let reference = saving(Contender::peer, REFERENCE, &folder, sum, move |path| {
        Ok(safetensors::serialize_to_file(for_reference.iter(), None, path)?)
    });
    let candle = saving(Contender::peer, CANDLE, &folder, sum, move |path| {
        Ok(candle_core::safetensors::save(&for_candle, path)?)
    });
    let limit = limit(&folder, move |write| {
        let storages: Vec<_> = tensors.values().map(Tensor::storage_and_layout).collect();
        let slices = storages.iter().map(|(storage, _)| match &**storage {
            candle_core::Storage::Cpu(storage) => {
                storage.as_slice::<bf16>().map(bytemuck::cast_slice)
            }
            _ => Err(candle_core::Error::msg("not in main memory")),
        });
        write(&slices.collect::<Result<Vec<&[u8]>, _>>()?)
    });
    let goals = [Goal::Faster(REFERENCE, 1.5), Goal::Faster(CANDLE, 1.5)];
    row(vec![ours, reference, candle, limit], goals.into())
}

fn from_ndarray(folder: &Path) -> Result<Row> {
    let folder = Rc::new(tempfile::tempdir_in(folder)?);
    let (tensors, sum) = tensors();
    let tensors = tensors.into_iter().map(|(name, values)| {
        Ok((name, DynArray::from(ArrayD::from_shape_vec(IxDyn(&SHAPE), values)?)))
    });
    let tensors: Rc<BTreeMap<String, DynArray>> = Rc::new(tensors.collect::<Result<_>>()?);
    let (for_ours, for_reference) = (tensors.clone(), tensors.clone());
    let ours = saving(Contender::ours, "safetensors_ndarray::save", &folder, sum, move |path| {
        Ok(safetensors_ndarray::save(path, &*for_ours, &SaveOptions::new().durable(false))?)
    });
    let reference = saving(Contender::peer, REFERENCE, &folder, sum, move |path| {
        let views = for_reference.iter().map(|(name, array)| {
            Ok((name, TensorView::new(safetensors::Dtype::BF16, SHAPE.into(), bytes(array)?)?))
        });
        Ok(safetensors::serialize_to_file(views.collect::<Result<Vec<_>>>()?, None, path)?)
    });
    let limit = limit(&folder, move |write| {
        write(&tensors.values().map(bytes).collect::<Result<Vec<_>>>()?)
    });
    row(vec![ours, reference, limit], vec![Goal::Faster(REFERENCE, 1.5)])
}

fn bytes(array: &DynArray) -> Result<&[u8]> {
    let DynArray::BF16(array) = array else { anyhow::bail!("another dtype") };
    Ok(bytemuck::cast_slice(array.as_slice().context("not in order")?))
}

fn row(contenders: Vec<Contender>, mut goals: Vec<Goal>) -> Result<Row> {
    goals.extend([Goal::OfLimit(LIMIT, 0.8), Goal::Memory(ALLOWANCE)]);
    Ok(Row::new(contenders).goals(goals).bytes(2 << 30).samples(9).memory(MEMORY))
}

/// A contender that saves a new file. The file is checked afterwards, and removed.
fn saving(
    role: fn(&'static str, Box<Run>) -> Contender,
    name: &'static str,
    folder: &Rc<TempDir>,
    sum: u64,
    save: impl Fn(&Path) -> Result<()> + 'static,
) -> Contender {
    let folder = folder.clone();
    role(
        name,
        Box::new(move |watch: &mut Watch| {
            let path = fresh_path(&folder)?;
            watch.time(|| save(&path))?;
            let mapped = system::map(&path)?;
            let found = safetensors::SafeTensors::deserialize(&mapped)?;
            ensure!(
                checksum(found.iter().map(|(name, view)| (name, view.data()))) == sum,
                "other bytes than were saved"
            );
            Ok(std::fs::remove_file(path)?)
        }),
    )
}

fn limit(
    folder: &Rc<TempDir>,
    with_slices: impl Fn(&mut dyn FnMut(&[&[u8]]) -> Result<()>) -> Result<()> + 'static,
) -> Contender {
    let folder = folder.clone();
    Contender::limit(LIMIT, move |watch| {
        let path = fresh_path(&folder)?;
        with_slices(&mut |slices| watch.time(|| limits::write_pieces(&path, slices)))?;
        Ok(std::fs::remove_file(path)?)
    })
}

fn fresh_path(folder: &TempDir) -> Result<PathBuf> {
    let path = folder.path().join("saved.safetensors");
    ensure!(!path.exists(), "{} is there already", path.display());
    Ok(path)
}
