//! [`TensorCache`]: tensors and slices of tensors in memory, within a budget of bytes.

mod slots;
#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{Builder, JoinHandle};

use slots::{SliceKey, Slots};

use super::{Framework, into_view};
use crate::checkpoint::Checkpoint;
use crate::file::io::ReadAt;
use crate::file::load::LoadOptions;
use crate::format::error::{ErrorKind, Result};
use crate::format::parallel::{OnPanic, lock, unpoisoned};
use crate::format::slice::IntoIndices;

/// Reads tensors and slices of tensors when they are asked for, and keeps them within a budget of
/// bytes: the experts of a mixture, the rows of an embedding, the layers of a model that is larger
/// than memory. The least recently used are dropped first.
///
/// Any number of threads can use a cache. A slice that several threads ask for is read once.
///
/// # Memory
///
/// The slices that are kept and the slices that are being read never take more than the budget
/// together. They count with their bytes in the framework's dtype. A [`get`](TensorCache::get)
/// waits while all of the budget is being read into. The budget does not count slices that the
/// program still holds after the cache has dropped them, or a few MiB for conversions. Memory of
/// the host is not counted while a slice is copied to another device.
///
/// # Changed files
///
/// A read of a file that has changed since it was opened fails, and the slice is not kept. Slices
/// that were read before the change stay.
///
/// ```
/// use safetensors_core::framework::{Framework, Support, TensorCache};
/// # use safetensors_core::{Checkpoint, Dtype, LoadOptions, Result, SaveOptions};
/// # use safetensors_core::{TensorBuf, TensorSource, TensorView, save};
/// # struct Bufs;
/// # impl Framework for Bufs {
/// #     const NAME: &'static str = "bufs";
/// #     type Tensor = std::sync::Arc<TensorBuf>;
/// #     type Device = ();
/// #     fn support(_: Dtype) -> Support { Support::Exact }
/// #     fn from_exact(buf: TensorBuf, (): &()) -> Result<Self::Tensor> { Ok(buf.into()) }
/// #     fn source(tensor: &Self::Tensor) -> Result<impl TensorSource + '_> { Ok(&**tensor) }
/// # }
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// // Eight experts of 16 bytes.
/// let values: Vec<f32> = (0..32).map(|i| i as f32).collect();
/// let experts = TensorView::from_slice(&[8, 2, 2], &values)?;
/// save(&path, [("experts", experts)], &SaveOptions::new())?;
///
/// // An adapter gives its framework and a device, such as `Candle` and `Device::Cpu`.
/// let checkpoint = Checkpoint::open(&path)?;
/// let cache = TensorCache::<Bufs>::new(checkpoint, (), 32, &LoadOptions::new())?;
/// let expert = cache.get("experts", (5,))?;
/// assert_eq!(expert.as_slice::<f32>()?, [20.0, 21.0, 22.0, 23.0]);
///
/// // The next ones are read in the background.
/// cache.read_ahead([("experts", (6,)), ("experts", (5,))])?;
/// assert_eq!(cache.get("experts", (6,))?.as_slice::<f32>()?[0], 24.0);
/// assert_eq!(cache.get("experts", (5,))?.as_slice::<f32>()?[0], 20.0);
/// let stats = cache.stats();
/// assert_eq!((stats.bytes_read, stats.bytes_kept), (32, 32));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TensorCache<F: Framework> {
    reader: Arc<CacheReader<F>>,
    /// The most threads that read ahead.
    most_threads: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// How well a [`TensorCache`] works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// The calls of [`get`](TensorCache::get) that found a slice in memory.
    pub hits: u64,
    /// The calls of [`get`](TensorCache::get) that read a slice, or waited for it.
    pub misses: u64,
    /// The bytes that were read, also in the background, in the framework's dtype.
    pub bytes_read: u64,
    /// The bytes of the slices that are kept or being read.
    pub bytes_kept: u64,
}

/// The state that the threads share.
struct CacheReader<F: Framework> {
    checkpoint: Checkpoint<Box<dyn ReadAt>>,
    device: F::Device,
    options: LoadOptions,
    budget: u64,
    slots: Mutex<Slots<F::Tensor>>,
    /// Signals that a read has ended, that there is more to read ahead, and the end.
    changed: Condvar,
}

impl<F: Framework> TensorCache<F> {
    /// Makes a cache of a checkpoint's tensors, with a budget in bytes. Nothing is read yet.
    ///
    /// `options` apply to each slice. Their progress callback is called for each, in the thread
    /// that reads. Their number of threads is also the number of slices that are read ahead at
    /// once. [Quantised weights](LoadOptions::quantized) can be read as numbers or as stored codes,
    /// and [experts](LoadOptions::experts) in either layout.
    ///
    /// # Errors
    ///
    /// As for [`Checkpoint::dequantized`] and [`Checkpoint::experts`] if the options ask for them.
    pub fn new(
        checkpoint: Checkpoint<impl ReadAt + 'static>,
        device: F::Device,
        budget: u64,
        options: &LoadOptions,
    ) -> Result<Self> {
        let checkpoint = into_view(checkpoint, options)?;
        let sources = checkpoint.files().iter().map(|file| file.safetensors().source());
        let most_threads = options.threads_for(sources, usize::MAX);
        let reader = CacheReader {
            checkpoint,
            device,
            options: options.clone().for_framework::<F>(),
            budget,
            slots: Mutex::new(Slots::new(budget)),
            changed: Condvar::new(),
        };
        Ok(Self { reader: Arc::new(reader), most_threads, threads: Mutex::default() })
    }

    /// Returns a slice of the tensor of this name, which is read now unless it is kept. `indices`
    /// are as for [`slice`](crate::LazyTensor::slice): `(3,)` is the fourth expert of a stack, and
    /// `()` all of the tensor. If another thread reads the slice, this waits for it.
    ///
    /// # Errors
    ///
    /// - As for [`Checkpoint::tensor`], [`LazyTensor::slice`](crate::LazyTensor::slice) and
    ///   [`load`](super::load), for this slice alone. The next call reads again.
    /// - [`ErrorKind::OverBudget`] for a slice that is larger than the budget.
    pub fn get(&self, name: &str, indices: impl IntoIndices) -> Result<Arc<F::Tensor>> {
        let reader = &*self.reader;
        let key = reader.key(name, indices)?;
        let mut slots = lock(&reader.slots);
        let mut has_waited = false;
        loop {
            match slots.take(&key, has_waited) {
                Some(found) => {
                    // A slice that was read ahead leaves room for the next.
                    reader.changed.notify_all();
                    return found;
                }
                None if slots.begin(&key) => break,
                None => slots = unpoisoned(reader.changed.wait(slots)),
            }
            has_waited = true;
        }
        drop(slots);
        if has_waited {
            // This slice may have been the one that all others waited for.
            reader.changed.notify_all();
        }
        let _on_panic = OnPanic(|| reader.finish(&key, None));
        let read = reader.read(&key, &reader.options);
        reader.finish(&key, read.as_ref().ok().cloned().map(Ok));
        read
    }

    /// Returns the numbers so far.
    pub fn stats(&self) -> CacheStats {
        lock(&self.reader.slots).stats
    }
}

impl<F> TensorCache<F>
where
    F: Framework<Tensor: Send + Sync, Device: Send + Sync> + 'static,
{
    /// Reads slices in the background, in this order, as far as the budget allows, and returns at
    /// once. The list replaces the rest of an earlier list.
    ///
    /// A slice that was read ahead stays until it is asked for, another list is given, or
    /// [`get`](TensorCache::get) needs its room and finds nothing else to drop. The last of the list
    /// are dropped first. So a list may be longer than the budget: the slices of all layers in their
    /// order, for example. After another list, the slices that only the earlier list had are the
    /// first to drop. An error of a background read is the error of the next `get` of that slice.
    ///
    /// The threads start with the first list. If the system has none, nothing is read ahead.
    ///
    /// # Errors
    ///
    /// As for [`get`](TensorCache::get), for the first slice that cannot be read. The earlier list
    /// is kept then.
    pub fn read_ahead<N: AsRef<str>>(
        &self,
        slices: impl IntoIterator<Item = (N, impl IntoIndices)>,
    ) -> Result<()> {
        let keys =
            slices.into_iter().map(|(name, indices)| self.reader.key(name.as_ref(), indices));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let mut threads = lock(&self.threads);
        while threads.len() < self.most_threads.min(keys.len()) {
            let reader = self.reader.clone();
            let thread = Builder::new().name("safetensors-read".into());
            let Ok(thread) = thread.spawn(move || reader.read_listed()) else { break };
            threads.push(thread);
        }
        lock(&self.reader.slots).list(keys);
        self.reader.changed.notify_all();
        Ok(())
    }
}

/// Stops reading ahead. Waits for the slices that are being read.
impl<F: Framework> Drop for TensorCache<F> {
    fn drop(&mut self) {
        lock(&self.reader.slots).is_closed = true;
        self.reader.changed.notify_all();
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }
}

impl<F: Framework> fmt::Debug for TensorCache<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorCache")
            .field("checkpoint", &self.reader.checkpoint)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl<F: Framework> CacheReader<F> {
    /// Checks a slice, and finds its place and its bytes in memory.
    fn key(&self, name: &str, indices: impl IntoIndices) -> Result<SliceKey> {
        let tensor = self.checkpoint.tensor(name)?;
        let position = self.checkpoint.position(name).ok_or(ErrorKind::TensorNotFound)?;
        let selection = tensor.selection(indices)?;
        let plan = tensor.dtype_plan(&self.options)?;
        let bytes = plan.byte_len(selection.shape(), &self.options);
        let bytes = bytes.map_err(|error| tensor.locate(error))?;
        let budget = self.budget;
        if bytes > budget {
            return Err(tensor.locate(ErrorKind::OverBudget { bytes, budget }.into()));
        }
        Ok(SliceKey { position, selection, bytes })
    }

    /// Reads the listed slices until the cache is dropped.
    fn read_listed(&self) {
        let options = self.options.clone().threads(1);
        let mut slots = lock(&self.slots);
        while !slots.is_closed {
            let Some(key) = slots.begin_listed() else {
                slots = unpoisoned(self.changed.wait(slots));
                continue;
            };
            drop(slots);
            // After a panic, the caller who asks for the slice reads it.
            let read = catch_unwind(AssertUnwindSafe(|| self.read(&key, &options)));
            self.finish(&key, read.ok());
            slots = lock(&self.slots);
        }
    }

    /// Reads a slice that was begun.
    fn read(&self, key: &SliceKey, options: &LoadOptions) -> Result<Arc<F::Tensor>> {
        let tensor = self.checkpoint.tensor_at(key.position).ok_or(ErrorKind::TensorNotFound)?;
        let buf = tensor.selected(key.selection.clone()).read_with(options)?;
        let placed = F::from_exact(buf, &self.device).map_err(|error| tensor.locate(error));
        placed.map(Arc::new)
    }

    fn finish(&self, key: &SliceKey, read: Option<Result<Arc<F::Tensor>>>) {
        lock(&self.slots).finish(key, read);
        self.changed.notify_all();
    }
}
