//! [`Samples`]: a directory of files as a data set.

mod batch;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use batch::stack;

use super::Framework;
use super::files::{load_by, view};
use crate::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry};
use crate::checkpoint::{Checkpoint, Opener};
use crate::file::io::ReadAt;
use crate::file::load::{LoadOptions, read_tensors};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::Limits;
use crate::format::header::Metadata;
use crate::format::parallel::{default_threads, in_order_ahead};
use crate::format::tensor::TensorBuf;

const PREFETCH: usize = 16;

const DEEPEST: usize = 16;

/// A directory of safetensors files as a data set: each `*.safetensors` file in it and below is a
/// sample, in the order of the paths. It is on the local disk or in any [`Store`], such as a
/// bucket.
///
/// Files are opened when they are read. Hidden files, synced steps of an unfinished file, and names
/// on a local disk that are not UTF-8 are skipped.
///
/// ```
/// use safetensors_core::framework::{Framework, Samples, Support};
/// # use safetensors_core::{Dtype, Error, Result, SaveOptions, TensorBuf, TensorSource, TensorView};
/// # use safetensors_core::save;
/// # struct Bufs;
/// # #[derive(Clone)]
/// # struct Buf(std::sync::Arc<TensorBuf>);
/// # impl Framework for Bufs {
/// #     const NAME: &'static str = "bufs";
/// #     type Tensor = Buf;
/// #     type Device = ();
/// #     fn support(_: Dtype) -> Support { Support::Exact }
/// #     fn from_exact(buf: TensorBuf, (): &()) -> Result<Buf> { Ok(Buf(buf.into())) }
/// #     fn source(tensor: &Buf) -> Result<impl TensorSource + '_> { Ok(&*tensor.0) }
/// # }
/// # let dir = tempfile::tempdir()?;
/// # let directory = dir.path();
/// for i in 0..10_u8 {
///     let pixels = [i; 4];
///     let image = TensorView::from_slice(&[2, 2], &pixels)?;
///     let options = SaveOptions::new().metadata([("taken", format!("2026-11-{i:02}"))]);
///     save(directory.join(format!("{i:05}.safetensors")), [("image", image)], &options)?;
/// }
///
/// // An adapter gives its framework and a device: `Samples::<Candle>::open(path, Device::Cpu)`.
/// let samples = Samples::<Bufs>::open(directory, ())?;
/// assert_eq!(samples.len(), 10);
/// assert_eq!(samples.get(3)?.metadata["taken"], "2026-11-03");
///
/// // An epoch: batches of 4, read ahead in an order that the seed decides.
/// let mut seen = 0;
/// samples.for_each_batch(samples.shuffled(7), 4, |batch| {
///     assert_eq!(batch.tensors["image"].0.shape(), [batch.positions.len(), 2, 2]);
///     seen += batch.positions.len();
///     Ok::<(), Error>(())
/// })?;
/// assert_eq!(seen, 10);
///
/// // Some tensors of each sample, or only its metadata.
/// assert_eq!(samples.metadata(3)?["taken"], "2026-11-03");
/// assert!(samples.only(["image"]).get(3)?.tensors.contains_key("image"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Samples<F: Framework, S = LocalStore> {
    files: Files<S>,
    device: F::Device,
    threads: usize,
    prefetch: usize,
}

#[derive(Debug)]
struct Files<S> {
    store: S,
    paths: Vec<PathBuf>,
    options: LoadOptions,
    /// `None` reads all tensors.
    only: Option<BTreeSet<String>>,
}

/// A sample: the content of a file.
#[derive(Clone, Debug)]
pub struct Sample<T> {
    /// The tensors by name.
    pub tensors: BTreeMap<String, T>,
    /// The metadata of the file.
    pub metadata: Metadata,
}

/// Several samples, stacked.
#[derive(Clone, Debug)]
pub struct SampleBatch<T> {
    /// The tensors by name. The first dimension counts the samples.
    pub tensors: BTreeMap<String, T>,
    /// The metadata of each sample.
    pub metadata: Vec<Metadata>,
    /// The position of each sample in the data set.
    pub positions: Vec<usize>,
}

impl<F: Framework> Samples<F> {
    /// Lists the samples in a directory of the local disk, and below it, at most 16 deep. Tensors
    /// go to `device`.
    pub fn open(directory: impl AsRef<Path>, device: F::Device) -> Result<Self> {
        Self::open_in(LocalStore, directory, device)
    }
}

impl<F: Framework, S: Store> Samples<F, S> {
    /// Lists the samples in a directory of a store, and below it.
    pub fn open_in(store: S, directory: impl AsRef<Path>, device: F::Device) -> Result<Self> {
        let mut paths = Vec::new();
        list(&store, directory.as_ref(), DEEPEST, &mut paths)?;
        paths.sort();
        let options = LoadOptions::new().for_framework::<F>();
        let files = Files { store, paths, options, only: None };
        Ok(Self { files, device, threads: 0, prefetch: PREFETCH })
    }

    /// Sets how tensors are converted while they are read. One thread reads a sample, so the number
    /// of threads in `options` is not used.
    #[must_use]
    pub fn load_options(mut self, options: LoadOptions) -> Self {
        self.files.options = options.for_framework::<F>();
        self
    }

    /// Reads only the tensors of these names, and of earlier calls; without names, only metadata. A
    /// sample that lacks one of them is an error.
    #[must_use]
    pub fn only(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let names = names.into_iter().map(Into::into);
        self.files.only.get_or_insert_default().extend(names);
        self
    }

    /// Sets the number of threads that each read entire samples; 0, the default, means
    /// [`default_threads`](super::default_threads).
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets the most samples that are read ahead, at least 1, and 16 by default.
    #[must_use]
    pub fn prefetch(self, samples: usize) -> Self {
        Self { prefetch: samples.max(1), ..self }
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.files.paths.len()
    }

    /// Returns `true` if there is no sample.
    pub fn is_empty(&self) -> bool {
        self.files.paths.is_empty()
    }

    /// Returns the path of the sample at a position.
    pub fn path(&self, position: usize) -> Option<&Path> {
        self.files.paths.get(position).map(PathBuf::as_path)
    }

    /// Reads the sample at a position, counted from 0, with this thread, so that the workers of a
    /// data loader can each call this.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) of the kind
    /// [`NotFound`](std::io::ErrorKind::NotFound) if there is no such position; otherwise as for
    /// [`load`](super::load).
    pub fn get(&self, position: usize) -> Result<Sample<F::Tensor>> {
        let Sample { tensors, metadata } = self.files.read(position)?;
        let tensors = self.place(tensors).map_err(|error| self.locate(error, position))?;
        Ok(Sample { tensors, metadata })
    }

    /// Reads the metadata of the sample at a position. No tensors are read.
    pub fn metadata(&self, position: usize) -> Result<Metadata> {
        Ok(self.files.open(position)?.metadata().clone())
    }

    /// Returns all positions in an order that the seed decides, the same on every machine.
    pub fn shuffled(&self, seed: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        let mut state = seed;
        // Fisher and Yates, with the generator SplitMix64.
        for last in (1..order.len()).rev() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut random = state;
            random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            random ^= random >> 31;
            let below = last as u128 + 1;
            order.swap(last, ((u128::from(random) * below) >> 64) as usize);
        }
        order
    }

    /// Reads samples in the given order and passes each to `take`, with its position. Other threads
    /// read [ahead](Samples::prefetch). The first error, in the order of the samples, ends it.
    pub fn for_each<E: From<Error>>(
        &self,
        order: impl IntoIterator<Item = usize, IntoIter: Send>,
        mut take: impl FnMut(usize, Sample<F::Tensor>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read_ahead(order, |position, Sample { tensors, metadata }| {
            let tensors = self.place(tensors).map_err(|error| self.locate(error, position))?;
            take(position, Sample { tensors, metadata })
        })
    }

    /// Like [`for_each`](Samples::for_each), with batches of `size` samples. The last batch has the
    /// rest.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatches`](crate::ErrorKind::Mismatches) for a sample with other names,
    /// dtypes or shapes than the first of the batch.
    pub fn for_each_batch<E: From<Error>>(
        &self,
        order: impl IntoIterator<Item = usize, IntoIter: Send>,
        size: usize,
        mut take: impl FnMut(SampleBatch<F::Tensor>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut waiting: Vec<(usize, Sample<TensorBuf>)> = Vec::new();
        let mut flush = |waiting: &mut Vec<(usize, Sample<TensorBuf>)>| {
            let batch = stack(std::mem::take(waiting));
            let batch = batch.map_err(|(position, error)| self.locate(error, position))?;
            let SampleBatch { tensors, metadata, positions } = batch;
            let tensors = self.place(tensors).map_err(|error| self.locate(error, positions[0]))?;
            take(SampleBatch { tensors, metadata, positions })
        };
        self.read_ahead(order, |position, sample| {
            waiting.push((position, sample));
            if waiting.len() < size { Ok(()) } else { flush(&mut waiting) }
        })?;
        if waiting.is_empty() { Ok(()) } else { flush(&mut waiting) }
    }

    fn read_ahead<E: From<Error>>(
        &self,
        order: impl IntoIterator<Item = usize, IntoIter: Send>,
        mut take: impl FnMut(usize, Sample<TensorBuf>) -> Result<(), E>,
    ) -> Result<(), E> {
        // A thread reads a few samples at a time, because to wake another one takes as long as to
        // read a small sample.
        let threads = NonZeroUsize::new(self.threads).map_or_else(default_threads, usize::from);
        let at_once = (self.prefetch / (2 * threads)).max(1);
        let mut order = order.into_iter().fuse();
        let some = std::iter::from_fn(move || {
            let positions: Vec<usize> = order.by_ref().take(at_once).collect();
            (!positions.is_empty()).then_some(positions)
        });
        // A device need not be for several threads.
        let files = &self.files;
        let read = |positions: &Vec<usize>, _: &mut ()| {
            let mut samples = Vec::with_capacity(positions.len());
            for &position in positions {
                samples.push(files.read(position));
                if samples.last().is_some_and(Result::is_err) {
                    break;
                }
            }
            samples
        };
        in_order_ahead(some, threads, self.prefetch / at_once, read, |positions, samples| {
            let mut samples = positions.into_iter().zip(samples);
            samples.try_for_each(|(position, sample)| take(position, sample?))
        })
    }

    fn place(&self, tensors: BTreeMap<String, TensorBuf>) -> Result<BTreeMap<String, F::Tensor>> {
        let place = |(name, buf): (String, TensorBuf)| match F::from_exact(buf, &self.device) {
            Ok(tensor) => Ok((name, tensor)),
            Err(error) => Err(error.in_tensor(&name)),
        };
        tensors.into_iter().map(place).collect()
    }

    fn locate(&self, error: Error, position: usize) -> Error {
        match self.path(position) {
            Some(path) => error.in_path(path),
            None => error,
        }
    }
}

impl<S: Store> Files<S> {
    fn open(&self, position: usize) -> Result<Checkpoint<S::File>> {
        let Some(path) = self.paths.get(position) else {
            let text = format!("there is no sample {position} among {}", self.paths.len());
            let error = std::io::Error::new(std::io::ErrorKind::NotFound, text);
            return Err(ErrorKind::Io(error).into());
        };
        Opener { store: &self.store, limits: &Limits::default(), joins: false }.alone(path)
    }

    fn read(&self, position: usize) -> Result<Sample<TensorBuf>> {
        let file = self.open(position)?;
        // Samples are read side by side.
        let options = self.options.clone().threads(1);
        let tensors = match &view(&file, &options)? {
            Some(file) => self.tensors(file, &options),
            None => self.tensors(&file, &options),
        }?;
        Ok(Sample { tensors, metadata: file.metadata().clone() })
    }

    fn tensors(
        &self,
        file: &Checkpoint<impl ReadAt>,
        options: &LoadOptions,
    ) -> Result<BTreeMap<String, TensorBuf>> {
        let Some(only) = &self.only else {
            return load_by(file, options, |tensors| read_tensors(tensors, options));
        };
        let names: Vec<&String> = only.iter().collect();
        Ok(only.iter().cloned().zip(file.read_named(&names, options)?).collect())
    }
}

fn list(
    store: &impl Store,
    directory: &Path,
    deepest: usize,
    paths: &mut Vec<PathBuf>,
) -> Result<()> {
    if deepest == 0 {
        let problem = format!("more than {DEEPEST} directories deep: does a link lead back up?");
        return Err(Error::io(std::io::Error::other(problem), directory));
    }
    for StoreEntry { name, kind } in store.list(directory)? {
        if name.starts_with('.') {
            continue;
        }
        let path = directory.join(&name);
        match kind {
            FileKind::File if name.ends_with(".safetensors") => paths.push(path),
            FileKind::Directory if !name.ends_with(".synced") => {
                list(store, &path, deepest - 1, paths)?;
            }
            _ => {}
        }
    }
    Ok(())
}
