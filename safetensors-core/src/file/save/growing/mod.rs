//! [`GrowingWriter`]: a file with tensors that may grow.

mod append;
mod body;
mod earlier_steps;
mod finish;
mod finished;
mod passes;
mod resume;
mod series;
mod steps;
mod stored;
mod sync;
mod synced;
mod tensors;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use crate::format::parallel::{lock, unpoisoned};
use append::Before;
use body::{Body, BodyPlace};
use passes::Passes;
pub use series::GrowingTensor;
use series::Series;
use stored::StoredSteps;
use sync::Synced;
use tensors::{GrowingEntry, Tensors, Whole};

use super::SaveOptions;
use super::pieces::Pieces;
use crate::file::io::reserve::reserve_ahead;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{DIMENSIONS, Limits, attribute_key, dimensions_text};
use crate::format::tensor::{TensorSource, shape};

// The file system would otherwise look for a place for each piece out of order.
const RESERVED: u64 = 8 << 20;

/// Writes a file tensor by tensor. Each is [added](Self::add) at once, or [grows](Self::grow) along
/// a dimension, also from several threads.
///
/// Until [`finish`](Self::finish), or if the writer is dropped, the path keeps the old file.
/// [Synced](Self::sync) steps survive a killed process, and [`resume`](Self::resume) continues
/// them, or a finished file.
///
/// Memory holds at most 256 KiB of each growing tensor, and of small added tensors of each file.
/// The disk reserves the present size of a growing tensor ahead, at most 64 MiB. One growing tensor
/// is written in place. Others, and tensors that would misalign the next, are copied from hidden
/// files at the end.
///
/// ```
/// use safetensors_core::save::GrowingWriter;
/// use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.safetensors");
/// let writer = GrowingWriter::create(&path, &SaveOptions::new())?;
/// writer.add("x", &TensorView::from_slice(&[2], &[0.0_f32, 0.5])?)?;
/// writer.attribute("x", "units", "m")?;
/// let time = writer.grow("time", Dtype::F64, 0, &[])?;
/// let u = writer.grow("u", Dtype::F32, 0, &[2])?;
/// for step in 0..3 {
///     time.append(&TensorView::from_slice(&[], &[f64::from(step)])?)?;
///     u.append(&TensorView::from_slice(&[2], &[step as f32; 2])?)?;
/// }
/// writer.finish()?;
///
/// let file = Checkpoint::open(&path)?;
/// assert_eq!(file.tensor("u")?.shape(), [3, 2]);
/// assert_eq!(file.tensor("time")?.read()?.into_vec::<f64>()?, [0.0, 1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`SaveOptions::order`], [`SaveOptions::tied`] and [`SaveOptions::progress`] are ignored. Added
/// tensors keep the order of the calls, unless they would misalign others. Equal calls give equal
/// bytes.
#[derive(Debug)]
pub struct GrowingWriter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    options: SaveOptions,
    sync_every: AtomicU64,
    passes: Mutex<Passes>,
    tensors: Mutex<Tensors>,
    state: RwLock<WriterState>,
}

#[derive(Debug, Default)]
enum WriterState {
    Writing(Box<Writing>),
    /// In place, but the synced steps are not removed yet.
    Placed(Synced),
    #[default]
    Finished,
}

#[derive(Debug)]
struct Writing {
    body: Body,
    /// The finished file that is appended to.
    before: Option<Before>,
    synced: Mutex<Synced>,
}

impl Writing {
    fn create(
        path: &Path,
        options: &SaveOptions,
        synced: Synced,
        before: Option<Before>,
    ) -> Result<Self> {
        let body = options.check_align().and_then(|()| Body::create(path, options));
        let body = body.map_err(|error| error.in_path(path))?;
        Ok(Self { body, before, synced: Mutex::new(synced) })
    }

    fn into_synced(self) -> Synced {
        unpoisoned(self.synced.into_inner())
    }
}

impl GrowingWriter {
    /// Begins a new file, to replace the one at the path. [`resume`](Self::resume) appends instead.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileBusy`] if another writer of this path is alive, in any program;
    /// [`ErrorKind::SyncedStepsLeft`] if a killed run left [synced](Self::sync) steps, which stay;
    /// as for [`AtomicFile::create`](super::AtomicFile::create); [`ErrorKind::BadAlignment`].
    pub fn create(path: impl AsRef<Path>, options: &SaveOptions) -> Result<Self> {
        let path = path.as_ref();
        let mut synced = Synced::new(path).map_err(|error| error.in_path(path))?;
        if synced.find()?.is_some() {
            return Err(synced.left().in_path(path));
        }
        Self::create_with(path, options, synced)
    }

    fn create_with(path: &Path, options: &SaveOptions, synced: Synced) -> Result<Self> {
        let writing = Writing::create(path, options, synced, None)?;
        Ok(Self::new(path, options.clone(), writing, Tensors::default()))
    }

    fn new(path: &Path, options: SaveOptions, writing: Writing, mut tensors: Tensors) -> Self {
        tensors.metadata.clone_from(&options.metadata);
        let shared = Shared {
            path: path.into(),
            options,
            sync_every: AtomicU64::new(0),
            passes: Mutex::default(),
            tensors: Mutex::new(tensors),
            state: RwLock::new(WriterState::Writing(Box::new(writing))),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Calls [`sync`](Self::sync) whenever a tensor has grown by this many steps. 0, the default,
    /// never calls it.
    ///
    /// The call comes between two passes of the loop that appends, so that all tensors have the
    /// steps of the same passes. A pass must append to each tensor at most once, in the order of
    /// their first steps; other loops must call `sync` themselves. Where the end of a pass is
    /// unclear, as in a loop that also [adds](Self::add), the call waits for twice that many steps.
    #[must_use]
    pub fn sync_every(self, steps: u64) -> Self {
        self.shared.sync_every.store(steps, Ordering::Relaxed);
        self
    }

    /// Adds a complete tensor, with its present bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DuplicateTensor`], [`ErrorKind::ReservedName`] and bad shapes (see
    /// [`shape::byte_len`](crate::shape::byte_len)) change nothing. After [`ErrorKind::Io`],
    /// [`ErrorKind::SourceLength`] or an error of the source, the tensor must be added before
    /// finishing.
    pub fn add(&self, name: &str, tensor: &dyn TensorSource) -> Result<()> {
        self.write(name, tensor).map_err(|error| self.shared.locate(error.in_tensor(name)))
    }

    fn write(&self, name: &str, tensor: &dyn TensorSource) -> Result<()> {
        let dtype = tensor.dtype();
        let shape = tensor.shape();
        let len = shape::byte_len(dtype, shape)?;
        Limits::default().check_ndim(shape.len())?;
        self.shared.while_writing(|Writing { body, .. }| self.write_to(body, name, tensor, len))
    }

    fn write_to(&self, body: &Body, name: &str, tensor: &dyn TensorSource, len: u64) -> Result<()> {
        let dtype = tensor.dtype();
        let shape = tensor.shape();
        let entry = lock(&self.shared.tensors).enter_whole(name, dtype, shape, || {
            body.place(dtype, len).map_err(|error| ErrorKind::Io(error).into())
        })?;
        let GrowingEntry::Whole(whole) = &*entry else { return Ok(()) };
        let BodyPlace { home, start, .. } = &whole.place;
        lock(&self.shared.passes).add();
        let write = || {
            if len >= RESERVED {
                let (file, start) = body.locate(home, *start)?;
                reserve_ahead(file, start, len);
            }
            Pieces::new(len)
                .write(tensor, &mut |offset, bytes| Ok(body.write(home, bytes, start + offset)?))
        };
        let written = write();
        let state = if written.is_ok() { &whole.written } else { &whole.failed };
        state.store(true, Ordering::Release);
        written
    }

    /// Begins a tensor that grows along dimension `axis`. `step_shape` lacks that dimension. A
    /// tensor of a file that is [appended to](Self::resume) keeps its steps.
    ///
    /// Dimension 0 is cheapest: along others, [`finish`](Self::finish) rearranges the bytes.
    ///
    /// ```
    /// use safetensors_core::save::GrowingWriter;
    /// use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("columns.safetensors");
    /// let writer = GrowingWriter::create(&path, &SaveOptions::new())?;
    /// let columns = writer.grow("table", Dtype::U8, 1, &[2])?;
    /// columns.append(&TensorView::from_slice(&[2], &[1_u8, 2])?)?;
    /// // Several steps at once: the first dimension counts them.
    /// columns.extend(&TensorView::from_slice(&[2, 2], &[3_u8, 4, 5, 6])?)?;
    /// writer.finish()?;
    ///
    /// let table = Checkpoint::open(&path)?.tensor("table")?.read()?;
    /// assert_eq!(table.shape(), [2, 3]);
    /// assert_eq!(table.into_vec::<u8>()?, [1, 3, 5, 2, 4, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DuplicateTensor`]; [`ErrorKind::ReservedName`]; [`ErrorKind::NoSuchDim`];
    /// [`ErrorKind::WrongDtype`] and [`ErrorKind::WrongShape`] if the file that is appended to has
    /// another tensor of that name; [`ErrorKind::TooManyDimensions`]; [`ErrorKind::ShapeOverflow`];
    /// [`ErrorKind::PartialByte`], also if a byte would have to be cut.
    pub fn grow(
        &self,
        name: &str,
        dtype: Dtype,
        axis: usize,
        step_shape: &[usize],
    ) -> Result<GrowingTensor> {
        let series = Series::new(name, dtype, axis, step_shape).map_err(Error::from);
        let series = series.and_then(|series| {
            Limits::default().check_ndim(step_shape.len() + 1)?;
            self.shared.while_writing(|_| self.grow_on(series))
        });
        match series {
            Ok(series) => Ok(GrowingTensor { writer: Arc::clone(&self.shared), series }),
            Err(error) => Err(self.shared.locate(error.in_tensor(name))),
        }
    }

    /// Adds entries to the `__metadata__`, or replaces them.
    pub fn metadata<K: Into<String>, V: Into<String>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) {
        let entries = entries.into_iter().map(|(key, value)| (key.into(), value.into()));
        lock(&self.shared.tensors).metadata.extend(entries);
    }

    /// Sets an [attribute](crate::header::attributes()), such as units, of an added or growing
    /// tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`]; [`ErrorKind::BadAttributeName`] if `name` has a `#`.
    pub fn attribute(&self, tensor: &str, name: &str, value: impl Into<String>) -> Result<()> {
        self.attribute_by(tensor, name, |_| Ok(value.into()))
    }

    /// Names the [dimensions](crate::header::dimensions()) of an added or growing tensor. A tensor
    /// with one dimension and its name is a coordinate.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`]; [`ErrorKind::BadAttribute`] unless there is a different name
    /// for each dimension.
    pub fn dimensions(&self, tensor: &str, names: &[&str]) -> Result<()> {
        self.attribute_by(tensor, DIMENSIONS, |ndim| dimensions_text(names, ndim))
    }

    fn attribute_by(
        &self,
        tensor: &str,
        name: &str,
        value: impl FnOnce(usize) -> Result<String>,
    ) -> Result<()> {
        let set = |_: &Writing| {
            let mut tensors = lock(&self.shared.tensors);
            let Tensors { list, names, metadata, .. } = &mut *tensors;
            let Some(at) = names.find(tensor, |i| list[i].name()) else {
                return Err(Error::not_found(tensor, list.iter().map(|entry| entry.name())));
            };
            let ndim = match &*list[at] {
                GrowingEntry::Whole(whole) => whole.shape.len(),
                GrowingEntry::Growing(series) => series.step_shape.len() + 1,
            };
            metadata.insert(attribute_key(tensor, name)?, value(ndim)?);
            Ok(())
        };
        self.shared.while_writing(set).map_err(|error| self.shared.locate(error.in_tensor(tensor)))
    }
}

// Other writers of the path may begin. Growing tensors take nothing more, and hold no files.
impl Drop for GrowingWriter {
    fn drop(&mut self) {
        *unpoisoned(self.shared.state.write()) = WriterState::Finished;
        for entry in &lock(&self.shared.tensors).list {
            if let GrowingEntry::Growing(series) = &**entry {
                lock(&series.state).stored = StoredSteps::default();
            }
        }
    }
}

impl Shared {
    /// Runs `work` while the file cannot be finished.
    fn while_writing<T>(&self, work: impl FnOnce(&Writing) -> Result<T>) -> Result<T> {
        match &*unpoisoned(self.state.read()) {
            WriterState::Writing(writing) => work(writing),
            WriterState::Placed(_) | WriterState::Finished => {
                Err(ErrorKind::AlreadyFinished.into())
            }
        }
    }

    fn locate(&self, error: Error) -> Error {
        error.in_path(&self.path)
    }
}
