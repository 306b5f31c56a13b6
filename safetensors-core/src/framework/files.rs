//! The loading and saving that every [`Framework`] gets.

use std::collections::BTreeMap;
use std::path::Path;

use super::Framework;
use crate::checkpoint::{self, Checkpoint, Computed, SavedShards, ShardOptions};
use crate::file::io::ReadAt;
use crate::file::load::{LazyTensor, LoadOptions, read_tensors};
use crate::file::save::SaveOptions;
use crate::format::convert::DtypeTable;
use crate::format::error::Result;
use crate::format::tensor::TensorSource;

impl LoadOptions {
    /// Loads tensors in the dtypes that the framework `F` holds. A dtype that it lacks is widened
    /// if [`widening`](LoadOptions::widening) allows that, and is an error if not.
    ///
    /// [`load`] calls this. An adapter that reads in another way calls it, too, and then passes
    /// each buffer to [`Framework::from_exact`].
    pub fn for_framework<F: Framework + ?Sized>(self) -> Self {
        self.held_by(DtypeTable::new::<F>())
    }
}

/// Loads every tensor of a checkpoint into a framework, reading in parallel.
///
/// All dtypes are checked before a byte of data is read. A tensor that was saved once for several
/// names is read once and returned under each of them, as a clone, unless the options turn that
/// off. [Quantised weights](crate::quantized) are an error, unless the options [allow
/// them](LoadOptions::quantized).
///
/// # Errors
///
/// As for [`Framework::read_tensors`]; each error names the file and the tensor.
pub fn load<F: Framework>(
    checkpoint: &Checkpoint<impl ReadAt>,
    device: &F::Device,
    options: &LoadOptions,
) -> Result<BTreeMap<String, F::Tensor>> {
    if let Some(view) = view(checkpoint, options)? {
        return load_by(&view, options, |tensors| F::read_tensors(tensors, device, options));
    }
    load_by(checkpoint, options, |tensors| F::read_tensors(tensors, device, options))
}

/// Returns a checkpoint as a load with these options shows it: with experts in another layout, and
/// with quantised weights as numbers. Returns `None` if it is shown as it is stored.
#[doc(hidden)]
pub fn view<'a>(
    checkpoint: &'a Checkpoint<impl ReadAt>,
    options: &LoadOptions,
) -> Result<Option<Checkpoint<Box<dyn ReadAt + 'a>>>> {
    if let Some((layout, experts)) = options.expert_layout() {
        let arranged = checkpoint.by_ref().experts(layout, &experts)?;
        return Ok(Some(numbers(arranged, options)?));
    }
    let numbers = if options.reads_numbers() { checkpoint.numbers()? } else { None };
    Ok(numbers.map(Checkpoint::into_boxed))
}

/// Like [`view`], for a checkpoint that is not needed otherwise.
#[doc(hidden)]
pub fn into_view<'a>(
    checkpoint: Checkpoint<impl ReadAt + 'a>,
    options: &LoadOptions,
) -> Result<Checkpoint<Box<dyn ReadAt + 'a>>> {
    match options.expert_layout() {
        Some((layout, experts)) => numbers(checkpoint.experts(layout, &experts)?, options),
        None => numbers(checkpoint, options),
    }
}

fn numbers<'a>(
    checkpoint: Checkpoint<impl ReadAt + 'a>,
    options: &LoadOptions,
) -> Result<Checkpoint<Box<dyn ReadAt + 'a>>> {
    match options.reads_numbers() {
        true => Ok(checkpoint.dequantized()?.into_boxed()),
        false => Ok(checkpoint.into_boxed()),
    }
}

/// Loads a checkpoint with these options, read by `read`.
pub(super) fn load_by<S: ReadAt, T: Clone>(
    checkpoint: &Checkpoint<S>,
    options: &LoadOptions,
    read: impl FnOnce(&[LazyTensor<'_, S>]) -> Result<Vec<T>>,
) -> Result<BTreeMap<String, T>> {
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let names = tensors.iter().map(|tensor| tensor.name().into());
    let mut loaded: BTreeMap<String, T> = names.zip(read(&tensors)?).collect();
    add_aliases(&mut loaded, checkpoint, options);
    Ok(loaded)
}

/// Adds a clone of each tensor for every alias, if the options ask for them.
#[doc(hidden)]
pub fn add_aliases<S: ReadAt, T: Clone>(
    loaded: &mut BTreeMap<String, T>,
    checkpoint: &Checkpoint<S>,
    options: &LoadOptions,
) {
    for (alias, tensor) in checkpoint.aliases().filter(|_| options.aliases) {
        if let Some(tensor) = loaded.get(tensor.name()).cloned() {
            loaded.insert(alias.into(), tensor);
        }
    }
}

/// Opens a checkpoint, as [`Checkpoint::open`] does, and [loads](load) every tensor.
pub fn load_path<F: Framework>(
    path: impl AsRef<Path>,
    device: &F::Device,
    options: &LoadOptions,
) -> Result<BTreeMap<String, F::Tensor>> {
    load::<F>(&Checkpoint::open(path)?, device, options)
}

/// Prepares a checkpoint for a load with these options: with [quantised weights as
/// numbers](Checkpoint::dequantized) for [`Numbers`](crate::load::QuantizedWeights::Numbers),
/// otherwise as it is stored.
#[doc(hidden)]
pub fn prepare<S: ReadAt>(
    checkpoint: Checkpoint<S>,
    options: &LoadOptions,
) -> Result<Checkpoint<Computed<S>>> {
    match options.reads_numbers() {
        true => checkpoint.dequantized(),
        false => checkpoint.without_numbers(),
    }
}

/// Reads tensors in parallel into main memory, some at a time, and moves them onto a device. So
/// main memory holds one batch.
///
/// A batch has tensors that take up to `batch_bytes` in memory, or one that is larger.
pub fn read_in_batches<F: Framework + ?Sized, S: ReadAt>(
    tensors: &[LazyTensor<'_, S>],
    device: &F::Device,
    options: &LoadOptions,
    batch_bytes: u64,
) -> Result<Vec<F::Tensor>> {
    let options = options.clone().for_framework::<F>();
    // All dtypes are checked now, and progress counts over all batches.
    let len = |tensor: &LazyTensor<'_, S>| {
        let loaded = tensor.dtype_plan(&options)?;
        loaded.byte_len(tensor.shape(), &options).map_err(|error| tensor.locate(error))
    };
    let lens = tensors.iter().map(len).collect::<Result<Vec<u64>>>()?;
    let options = options.counting(lens.iter().fold(0, |sum, len| sum.saturating_add(*len)));
    let mut loaded = Vec::with_capacity(tensors.len());
    while let Some(rest) = lens.get(loaded.len()..).filter(|rest| !rest.is_empty()) {
        let mut bytes: u64 = 0;
        let fits = |len: &&u64| {
            bytes = bytes.saturating_add(**len);
            bytes <= batch_bytes
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let batch = &tensors[loaded.len()..][..count];
        loaded.extend(read_into_host::<F, S>(batch, device, &options)?);
    }
    Ok(loaded)
}

/// Reads all tensors in parallel into main memory, and moves them onto a device. This is the
/// default of [`Framework::read_tensors`].
pub(super) fn read_into_host<F: Framework + ?Sized, S: ReadAt>(
    tensors: &[LazyTensor<'_, S>],
    device: &F::Device,
    options: &LoadOptions,
) -> Result<Vec<F::Tensor>> {
    let bufs = read_tensors(tensors, &options.clone().for_framework::<F>())?;
    let loaded = tensors
        .iter()
        .zip(bufs)
        .map(|(tensor, buf)| F::from_exact(buf, device).map_err(|error| tensor.locate(error)));
    loaded.collect()
}

/// Saves tensors of a framework to one file, atomically.
///
/// # Errors
///
/// As for [`Framework::source`] and [`crate::save()`]; each error names the file, and the tensor if
/// it is about one. After an error the file at `path` is unchanged, except for
/// [`ErrorKind::NotDurable`](crate::ErrorKind::NotDurable).
pub fn save<'a, F: Framework>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a F::Tensor)>,
    options: &SaveOptions,
) -> Result<()>
where
    F::Tensor: 'a,
{
    let path = path.as_ref();
    let sources = sources::<F>(tensors).map_err(|error| error.in_path(path))?;
    crate::file::save::save(path, sources, options)
}

/// Saves tensors of a framework to a directory as a checkpoint in one or more files, see
/// [`crate::save_sharded`].
pub fn save_sharded<'a, F: Framework>(
    directory: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a F::Tensor)>,
    options: &ShardOptions,
) -> Result<SavedShards>
where
    F::Tensor: 'a,
{
    let directory = directory.as_ref();
    let sources = sources::<F>(tensors).map_err(|error| error.in_path(directory))?;
    checkpoint::save_sharded(directory, sources, options)
}

/// Returns the options for a file that the caller synchronises soon after the save, together with
/// other files. The save does not wait for the disk, but the disk begins at the same time.
#[doc(hidden)]
pub fn synced_later(options: SaveOptions) -> SaveOptions {
    SaveOptions { durable: false, synced_later: true, ..options }
}

/// Returns the sources that the tensors are written from.
fn sources<'a, F: Framework>(
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a F::Tensor)>,
) -> Result<Vec<(impl AsRef<str>, impl TensorSource + 'a)>>
where
    F::Tensor: 'a,
{
    let tensors = tensors.into_iter().map(|(name, tensor)| match F::source(tensor) {
        Ok(source) => Ok((name, source)),
        Err(error) => Err(error.in_tensor(name.as_ref())),
    });
    tensors.collect()
}
