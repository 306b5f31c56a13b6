//! [`GrowingWriter`]: a file with tensors that need not be known at the start, and may grow.

mod append;
mod body;
mod finish;
mod finished;
mod kept;
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

/// The space of an added tensor of at least this many bytes is reserved before it is written. If
/// its pieces come in another order than the file has them, the file system would otherwise look
/// for a place for each.
const RESERVED: u64 = 8 << 20;

/// Writes a file tensor by tensor. A tensor is [added](Self::add) at once, or [grows](Self::grow)
/// step by step along one dimension. The number of tensors and of steps need not be known at the
/// start.
///
/// [`finish`](Self::finish) gives the file its name. Until then, or if the writer is dropped, the
/// path keeps the old file. Steps that were [synced](Self::sync) survive if the process is killed.
///
/// Memory holds at most 256 KiB of each growing tensor, and 256 KiB of small added tensors for each
/// file. On the disk, space is reserved ahead: for a growing tensor its present size, 64 MiB at
/// most, and for a large added tensor its size. The writer puts one growing tensor directly at its
/// final place. Other growing tensors go to separate hidden files, and are copied at the end. So do
/// tensors that would misalign the tensors after them, in at most four files.
///
/// All methods take `&self`. Several tensors can grow at the same time, also from several threads.
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
/// The writer ignores three of the [`SaveOptions`]: [`order`](SaveOptions::order),
/// [`tied`](SaveOptions::tied) and [`progress`](SaveOptions::progress). Added tensors are in the
/// file in the order of the calls, except for tensors that would misalign others. Equal calls give
/// equal bytes.
///
/// [`resume`](Self::resume) continues a finished file, or one that a killed run has left.
#[derive(Debug)]
pub struct GrowingWriter {
    shared: Arc<Shared>,
}

/// The state that a writer shares with its growing tensors.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    options: SaveOptions,
    sync_every: AtomicU64,
    passes: Mutex<Passes>,
    tensors: Mutex<Tensors>,
    /// Locked for reading by all writing threads, and for writing by `finish`.
    state: RwLock<State>,
}

#[derive(Debug, Default)]
enum State {
    Writing(Box<Writing>),
    /// The new file is in place. The synced steps are not removed yet.
    Placed(Synced),
    #[default]
    Finished,
}

/// The files that are written to.
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
    /// Begins a new file, without its name yet. [`finish`](Self::finish) replaces the file that the
    /// path has then, with all its steps. [`resume`](Self::resume) appends to it instead.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileBusy`] if another writer of this path is alive, also in another program;
    /// [`ErrorKind::SyncedStepsLeft`] if an earlier run was killed before it finished and left
    /// [synced](Self::sync) steps, which stay; [`ErrorKind::NotAFile`] if the path has something
    /// else than a regular file; [`ErrorKind::FileExists`]; [`ErrorKind::ReadOnlyFile`];
    /// [`ErrorKind::BadAlignment`]; [`ErrorKind::Io`].
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
            state: RwLock::new(State::Writing(Box::new(writing))),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Calls [`sync`](Self::sync) whenever a tensor has grown by this many steps. The default, 0,
    /// never calls it.
    ///
    /// The call comes between two passes of the loop that appends, so that all tensors have the
    /// steps of the same passes, also if one grows in every tenth pass only. A pass is assumed to
    /// append to each tensor at most once, and always in the order of their first steps. Where it
    /// is not clear whether a pass ends, as in a loop that also [adds](Self::add) a tensor in each
    /// pass, the call waits until there are twice that many steps. Another kind of loop must call
    /// `sync` itself when a pass ends.
    #[must_use]
    pub fn sync_every(self, steps: u64) -> Self {
        self.shared.sync_every.store(steps, Ordering::Relaxed);
        self
    }

    /// Adds a complete tensor. Its bytes are taken at once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DuplicateTensor`], [`ErrorKind::ReservedName`] and bad shapes (see
    /// [`shape::byte_len`](crate::shape::byte_len)) leave the file unchanged. After
    /// [`ErrorKind::Io`], [`ErrorKind::SourceLength`] or an error of the source, the file can be
    /// finished only when a tensor with this name, dtype and shape was added.
    pub fn add(&self, name: &str, tensor: &(impl TensorSource + ?Sized)) -> Result<()> {
        self.write(name, tensor).map_err(|error| self.shared.locate(error.in_tensor(name)))
    }

    fn write(&self, name: &str, tensor: &(impl TensorSource + ?Sized)) -> Result<()> {
        let dtype = tensor.dtype();
        let shape = tensor.shape();
        let len = shape::byte_len(dtype, shape)?;
        Limits::default().check_ndim(shape.len())?;
        self.shared.while_writing(|Writing { body, .. }| self.write_to(body, name, tensor, len))
    }

    fn write_to(
        &self,
        body: &Body,
        name: &str,
        tensor: &(impl TensorSource + ?Sized),
        len: u64,
    ) -> Result<()> {
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

    /// Begins a tensor that grows along dimension `axis`. `step_shape` is the shape of a step: the
    /// tensor's shape without that dimension. A tensor of a file that is [appended
    /// to](Self::resume) continues with its present steps.
    ///
    /// Dimension 0 is cheapest. Along another dimension the bytes of a step are not contiguous in
    /// the file, so [`finish`](Self::finish) rearranges them.
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
    /// [`ErrorKind::PartialByte`], also if a packed dtype would have to be cut inside a byte.
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

    /// Adds entries to the `__metadata__` of the file. An entry replaces an earlier one with the
    /// same key.
    pub fn metadata<K: Into<String>, V: Into<String>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) {
        let entries = entries.into_iter().map(|(key, value)| (key.into(), value.into()));
        lock(&self.shared.tensors).metadata.extend(entries);
    }

    /// Gives a tensor an [attribute](crate::header::attributes()), such as its units. The tensor
    /// has been added, or grows. The value replaces an earlier one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`]; [`ErrorKind::BadAttributeName`] if the attribute's name has a
    /// `#`.
    pub fn attribute(&self, tensor: &str, name: &str, value: impl Into<String>) -> Result<()> {
        self.attribute_by(tensor, name, |_| Ok(value.into()))
    }

    /// Names the dimensions of a tensor, in the attribute `dimensions`, see
    /// [`dimensions`](crate::header::dimensions()). The tensor has been added, or grows. A tensor
    /// with one dimension that has the name of a dimension is its coordinate.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`]; [`ErrorKind::BadAttribute`] if there are more or fewer names
    /// than dimensions, or two are equal.
    pub fn dimensions(&self, tensor: &str, names: &[&str]) -> Result<()> {
        self.attribute_by(tensor, DIMENSIONS, |ndim| dimensions_text(names, ndim))
    }

    /// Sets an attribute to a value that may depend on the number of dimensions.
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

/// Other writers of the path may begin. Growing tensors take nothing more, and hold no files.
impl Drop for GrowingWriter {
    fn drop(&mut self) {
        *unpoisoned(self.shared.state.write()) = State::Finished;
        for entry in &lock(&self.shared.tensors).list {
            if let GrowingEntry::Growing(series) = &**entry {
                lock(&series.state).stored = StoredSteps::default();
            }
        }
    }
}

impl Shared {
    /// Calls a function with the files that are written to, while the file cannot be finished.
    fn while_writing<T>(&self, work: impl FnOnce(&Writing) -> Result<T>) -> Result<T> {
        match &*unpoisoned(self.state.read()) {
            State::Writing(writing) => work(writing),
            State::Placed(_) | State::Finished => Err(ErrorKind::AlreadyFinished.into()),
        }
    }

    fn locate(&self, error: Error) -> Error {
        error.in_path(&self.path)
    }
}
