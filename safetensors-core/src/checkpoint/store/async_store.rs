//! [`AsyncStore`]: files that are read asynchronously.

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::async_file::{
    AsyncFile, CachedFile, FOREVER, Files, Missing, Opened, Recorder, again, is_not_fetched,
    not_fetched,
};
use super::fetch::{FileRange, each, plan, read};
use super::{FileKind, Store, StoreEntry, is_not_found};
use crate::checkpoint::names::{STANDARD_FILE, STANDARD_INDEX};
use crate::file::io::AsyncReadAt;
use crate::file::load::{LazyTensor, LoadOptions, read_tensors};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::parallel::{Task, lock};
use crate::format::tensor::TensorBuf;

// A longer header takes one more request.
const START: u64 = 64 << 10;

const OPENED_AT_ONCE: usize = 8;

/// Tensors of this many bytes are fetched together before they are converted.
const GROUP: u64 = 64 << 20;

/// A [`Store`] that opens and reads its files asynchronously, in any runtime: for servers, which
/// must not block a worker, and browsers, which cannot block.
///
/// It is made from a function that opens the file of a path, for example by a request. The error
/// [`NotFound`](io::ErrorKind::NotFound) means that there is none. A directory opens as its
/// `model.safetensors`, or otherwise by its `model.safetensors.index.json`.
///
/// | to | use |
/// |---|---|
/// | open a checkpoint: only the headers are fetched | [`Checkpoint::open_async`](crate::Checkpoint::open_async) |
/// | load tensors | [`load`](Self::load) |
/// | read in any other way: slices, quantised weights, ranks | [`run`](Self::run) |
/// | read by code that must not block, such as a `VarBuilder` | [`fetch`](Self::fetch) before |
///
/// Up to 64 MiB are converted without a yield, so a server that must answer within milliseconds
/// should give loads a separate worker. A checkpoint keeps its files open, and files of at most 64
/// KiB in memory.
///
/// ```
/// use safetensors_core::checkpoint::store::AsyncStore;
/// use safetensors_core::io::AsyncReadAt;
/// use safetensors_core::{Checkpoint, Limits, LoadOptions, SaveOptions, TensorView, serialize};
/// use std::collections::HashMap;
/// use std::io;
/// use std::path::PathBuf;
/// # use std::task::{Context, Poll, Waker};
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         let mut context = Context::from_waker(Waker::noop());
/// #         if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
/// #             return output;
/// #         }
/// #     }
/// # }
///
/// /// An object on a server.
/// struct Object(Vec<u8>);
///
/// impl AsyncReadAt for Object {
///     fn byte_len(&self) -> u64 {
///         self.0.len() as u64
///     }
///
///     async fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
///         // Here a request for a range would be awaited.
///         safetensors_core::ReadAt::read_exact_at(&self.0, buf, offset)
///     }
/// }
///
/// let values = [1.0_f32, 2.0];
/// let tensors = ["a", "b"].map(|name| (name, TensorView::from_slice(&[2], &values).unwrap()));
/// let file = serialize(tensors, &SaveOptions::new())?;
/// let server = HashMap::from([(PathBuf::from("gpt/model.safetensors"), file)]);
///
/// let store = AsyncStore::new(move |path| {
///     let found = server.get(&path).cloned();
///     async move { found.map(Object).ok_or_else(|| io::ErrorKind::NotFound.into()) }
/// });
/// block_on(async {
///     let checkpoint = Checkpoint::open_async(&store, "gpt", &Limits::default()).await?;
///     let bufs = store.load(&checkpoint.tensors().collect::<Vec<_>>(), &LoadOptions::new()).await?;
///     assert_eq!(bufs[1].as_slice::<f32>()?, values);
///     let slice = store.run(|_| checkpoint.tensor("a")?.slice((1,))?.read()).await?;
///     assert_eq!(slice.as_slice::<f32>()?, [2.0]);
///     Ok::<(), safetensors_core::Error>(())
/// })?;
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub struct AsyncStore<S, O> {
    open: Arc<O>,
    files: Arc<Files<S>>,
    missing: Arc<Recorder<S>>,
}

impl<S, O> Clone for AsyncStore<S, O> {
    fn clone(&self) -> Self {
        self.with_files(Arc::clone(&self.files))
    }
}

impl<S, O> AsyncStore<S, O> {
    fn with_files(&self, files: Arc<Files<S>>) -> Self {
        Self { open: Arc::clone(&self.open), files, missing: Arc::clone(&self.missing) }
    }
}

impl<S, O> fmt::Debug for AsyncStore<S, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opened: Vec<_> = lock(&self.files.0).keys().cloned().collect();
        f.debug_struct("AsyncStore").field("opened", &opened).finish_non_exhaustive()
    }
}

/// Bytes that [`AsyncStore::fetch`] has fetched. They stay in memory until this is dropped.
#[must_use = "the bytes are dropped with it"]
pub struct Fetched<S> {
    owner: Task,
    files: Vec<Arc<CachedFile<S>>>,
    failed: Vec<Arc<Files<S>>>,
}

impl<S> Fetched<S> {
    fn new() -> Self {
        Self { owner: Task::new(), files: Vec::new(), failed: Vec::new() }
    }

    fn add(&mut self, file: &Arc<CachedFile<S>>) {
        // The ranges of a file mostly follow one another.
        if !self.files.last().is_some_and(|last| Arc::ptr_eq(last, file)) {
            self.files.push(Arc::clone(file));
        }
    }
}

impl<S> fmt::Debug for Fetched<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetched").finish_non_exhaustive()
    }
}

impl<S> Drop for Fetched<S> {
    fn drop(&mut self) {
        for files in &self.failed {
            // A file that could not be opened may be readable the next time. A file that does not
            // exist stays so.
            lock(&files.0).retain(|_, file| match file {
                Ok(_) => true,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            });
        }
        self.files.iter().for_each(|file| file.release(self.owner));
    }
}

impl<S, O, F> AsyncStore<S, O>
where
    S: AsyncReadAt,
    O: Fn(PathBuf) -> F + Send + Sync,
    F: Future<Output = io::Result<S>>,
{
    /// Makes a store of the files that a function opens.
    pub fn new(open: O) -> Self {
        Self { open: Arc::new(open), files: Arc::default(), missing: Arc::default() }
    }

    /// Runs `work`, which may read files of the store in every way. When it lacks bytes, all that
    /// it announced are fetched at once, and `work` runs again from its start. So memory holds all
    /// bytes that it reads, and it must not have effects that may happen only once.
    ///
    /// Its store has its own files, which stay open as long as a clone of it. Only reads by this
    /// thread and by the threads of loads count. Opening, [`read_tensors`] and the other loads
    /// announce their reads; single reads do not: a loop that reads 100 tensors one by one runs 100
    /// times.
    pub async fn run<T>(&self, mut work: impl FnMut(&Self) -> Result<T>) -> Result<T> {
        let mut fetched = Fetched::new();
        let store = self.with_files(Arc::default());
        loop {
            match self.missing.record(fetched.owner, || work(&store)) {
                Ok(result) => return result,
                Err(missing) => self.obtain(missing, &mut fetched).await,
            }
        }
    }

    /// Fetches tensors, and keeps their bytes in memory until the result is dropped, for code that
    /// cannot wait, such as candle's `VarBuilder`. For quantised weights as numbers, first
    /// [list](crate::Checkpoint::quantized_weights) them by [`run`](Self::run), which fetches the
    /// settings next to the files, and then fetch all stored tensors.
    ///
    /// Only the [progress](LoadOptions::progress) of the options has an effect. It counts the bytes
    /// as they arrive.
    pub async fn fetch(
        &self,
        tensors: &[LazyTensor<'_, AsyncFile<S>>],
        options: &LoadOptions,
    ) -> Result<Fetched<S>> {
        // Whether tensors are codes is asked when nothing can be fetched any more.
        self.run(|_| {
            let asked = tensors.iter().map(LazyTensor::refuse_codes);
            asked.filter_map(Result::err).find(is_not_fetched).map_or(Ok(()), Err)
        })
        .await?;
        let mut fetched = Fetched::new();
        let total = tensors.iter().map(LazyTensor::byte_len).sum();
        let progress = options.meter(total);
        let wanted = tensors.iter().enumerate().map(|(of, tensor)| {
            let start = tensor.file_offset();
            let file = Arc::clone(&tensor.source().cached);
            FileRange { file, range: start..start + tensor.byte_len(), of }
        });
        let mut left = total;
        let mut result = Ok(());
        let mut done = |(of, bytes, sent): (usize, u64, Result<(), Arc<io::Error>>)| {
            let tensor: &LazyTensor<'_, _> = &tensors[of];
            result = sent
                .map_err(|error| tensor.locate(ErrorKind::Io(again(&error)).into()))
                .and_then(|()| progress.add(bytes, tensor.name()));
            left = left.saturating_sub(bytes);
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.send(wanted.collect(), &mut fetched, &mut done).await;
        result?;
        // Bytes that were there already, or that two of the tensors share.
        if let Some(last) = tensors.last()
            && left > 0
        {
            progress.add(left, last.name())?;
        }
        Ok(fetched)
    }

    /// Reads tensors asynchronously, like [`read_tensors`], except that
    /// [progress](LoadOptions::progress) counts bytes as they arrive. Up to 64 MiB of tensors, or a
    /// larger one, are in memory twice until they are converted. Dropping the future cancels the
    /// load.
    pub async fn load(
        &self,
        tensors: &[LazyTensor<'_, AsyncFile<S>>],
        options: &LoadOptions,
    ) -> Result<Vec<TensorBuf>> {
        // A tensor that cannot be loaded fails before it is fetched. The settings of quantised
        // weights are fetched for that.
        self.run(|_| {
            tensors.iter().try_for_each(|tensor| {
                let loaded = tensor.dtype_plan(options)?;
                let len = loaded.byte_len(tensor.shape(), options);
                len.map(drop).map_err(|error| tensor.locate(error))
            })
        })
        .await?;
        let total = tensors.iter().map(LazyTensor::byte_len).sum();
        let counting = options.clone().counting(total);
        let unwatched = options.unwatched();
        let mut bufs = Vec::with_capacity(tensors.len());
        let mut rest = tensors;
        while !rest.is_empty() {
            let mut bytes = 0_u64;
            let fits = rest.iter().take_while(|tensor| {
                bytes = bytes.saturating_add(tensor.byte_len());
                bytes <= GROUP
            });
            let (group, later) = rest.split_at(fits.count().max(1));
            // To fetch into the buffers of the tensors would save a copy, and would need the plan
            // of a load as public data.
            let _fetched = self.fetch(group, &counting).await?;
            bufs.extend(read_tensors(group, &unwatched)?);
            rest = later;
        }
        Ok(bufs)
    }

    /// Errors are kept for later reads.
    async fn obtain(&self, missing: Missing<S>, fetched: &mut Fetched<S>) {
        let owner = fetched.owner;
        let open = async |(files, path): (Arc<Files<S>>, PathBuf)| {
            let file = self.open_file(path.clone(), owner).await;
            (file, files, path)
        };
        let opened = |(file, files, path): (io::Result<_>, Arc<Files<S>>, PathBuf)| {
            match &file {
                Ok(file) => fetched.add(file),
                Err(_) => fetched.failed.push(Arc::clone(&files)),
            }
            let mut files = lock(&files.0);
            // Another task may have opened it since.
            if !matches!(files.get(&path), Some(Ok(_))) {
                files.insert(path, file.map_err(Arc::new));
            }
            ControlFlow::Continue(())
        };
        let _ = each(missing.paths.into_iter().map(open), OPENED_AT_ONCE, opened).await;
        let ranges = missing.ranges.into_iter();
        let wanted = ranges.map(|(file, range)| FileRange { file, range, of: 0 }).collect();
        self.send(wanted, fetched, &mut |_| ControlFlow::Continue(())).await;
    }

    async fn open_file(&self, path: PathBuf, owner: Task) -> io::Result<Arc<CachedFile<S>>> {
        let cached = CachedFile::new((self.open)(path).await?);
        let len = cached.source.byte_len();
        let start = 0..len.min(START).min(cached.source.requests().byte_len.max(1) as u64);
        let bytes = read(&cached.source, start.clone()).await?;
        // Such are the settings next to a model, which some code reads outside of runs.
        let owner = if start.end == len { FOREVER } else { owner };
        cached.add(start, Ok(bytes), owner);
        Ok(Arc::new(cached))
    }

    async fn send(
        &self,
        wanted: Vec<FileRange<S>>,
        fetched: &mut Fetched<S>,
        done: &mut impl FnMut((usize, u64, Result<(), Arc<io::Error>>)) -> ControlFlow<()>,
    ) {
        let at_once = wanted.iter().map(|wanted| wanted.file.source.requests().concurrency).max();
        wanted.iter().for_each(|wanted| fetched.add(&wanted.file));
        let owner = fetched.owner;
        let requests = plan(wanted, owner).into_iter().map(|request| request.send(owner));
        let _ = each(requests, at_once.unwrap_or(1), done).await;
    }

    pub(crate) async fn has_current_indexes(&self) -> Result<bool> {
        let version = |(path, file): (&PathBuf, &Opened<S>)| {
            let is_index = path.extension().is_some_and(|end| end == "json");
            let version = file.as_ref().ok().filter(|_| is_index)?.source.version()?;
            Some((path.clone(), version))
        };
        let indexes: Vec<_> = lock(&self.files.0).iter().filter_map(version).collect();
        for (path, version) in indexes {
            match (self.open)(path.clone()).await {
                Ok(file) if file.version().as_ref() == Some(&version) => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io(error, &path));
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl<S, O> Store for AsyncStore<S, O>
where
    S: AsyncReadAt,
    O: Send + Sync,
{
    type File = AsyncFile<S>;

    fn open(&self, path: &Path) -> Result<AsyncFile<S>> {
        let cached = match lock(&self.files.0).get(path) {
            Some(opened) => opened.as_ref().map(Arc::clone).map_err(again),
            None => {
                self.missing.path(&self.files, path);
                Err(not_fetched("the file has"))
            }
        };
        let cached = cached.map_err(|error| Error::io(error, path))?;
        Ok(AsyncFile::new(cached, Arc::clone(&self.missing)))
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        let exists = |path: &Path| match self.open(path) {
            Ok(_) => Ok(true),
            Err(error) if is_not_found(&error) => Ok(false),
            Err(error) => Err(error),
        };
        let is_named = path.extension().is_some_and(|end| end == "safetensors" || end == "json");
        if !is_named {
            for name in [STANDARD_FILE, STANDARD_INDEX] {
                if exists(&path.join(name))? {
                    return Ok(Some(FileKind::Directory));
                }
            }
        }
        Ok(exists(path)?.then_some(FileKind::File))
    }

    fn list(&self, _: &Path) -> Result<Vec<StoreEntry>> {
        Ok(Vec::new())
    }
}
