//! [`Writer`]: writes arrays to one file.

use std::marker::PhantomData;
use std::path::Path;

use ndarray::{ArrayRef, Axis, Dimension, aview0};
use safetensors_core::save::{GrowingTensor, GrowingWriter};
use safetensors_core::{Error, ErrorKind, Result, SaveOptions, TensorSource};

use crate::array::ArraySource;
use crate::{ArrayElement, MetadataValue};

/// Writes arrays and views of any element type, dimension and memory layout to a file.
///
/// [`finish`](Writer::finish) gives the file its name. Until then the path keeps the old file.
///
/// ```
/// use ndarray::{array, s};
/// use safetensors_ndarray::{Reader, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("wind.safetensors");
/// let u = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
/// let mask = array![true, false];
///
/// let w = Writer::create(&path)?;
/// w.add("u", &u)?;
/// w.add("u transposed", &u.t())?;
/// w.add("every other column", &u.slice(s![.., ..;2]))?;
/// w.add("mask", &mask)?;
/// w.attribute("u", "units", "m/s")?;
/// w.metadata([("title", "wind over the ridge")]);
/// w.finish()?;
///
/// let r = Reader::open(&path)?;
/// assert_eq!(r.read::<f64, ndarray::Ix2>("u transposed")?, u.t());
/// assert_eq!(r.attribute("u", "units"), Some("m/s"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`grow`](Writer::grow) writes an array step by step, and [`resume`](Writer::resume) goes on with
/// a file, or with a run that was killed.
#[derive(Debug)]
pub struct Writer(GrowingWriter);

impl Writer {
    /// Begins a new file, which gets its name by [`finish`](Writer::finish).
    ///
    /// # Errors
    ///
    /// Like [`GrowingWriter::create`]: for example
    /// [`SyncedStepsLeft`](safetensors_core::ErrorKind::SyncedStepsLeft) if a run was killed. Its
    /// steps stay, and [`resume`](Writer::resume) goes on with them.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Self::create_with(path, &SaveOptions::new())
    }

    /// Begins a new file like [`create`](Writer::create), with options: metadata, alignment,
    /// durability, digests. [`GrowingWriter`] lists the options that have no effect.
    pub fn create_with(path: impl AsRef<Path>, options: &SaveOptions) -> Result<Self> {
        GrowingWriter::create(path, options).map(Self)
    }

    /// Goes on with the file at a path, or begins it.
    ///
    /// After a kill, the file first gets the steps that the run had [synced](Writer::sync). All
    /// arrays and metadata stay, and [`grow`](Writer::grow) goes on with an array, which has
    /// [`steps`](ArrayAppender::steps) steps.
    ///
    /// The path keeps the old file until [`finish`](Writer::finish), which writes the complete file
    /// again, old steps included, so have space for both. So does the recovery after a kill.
    ///
    /// ```
    /// use ndarray::{Axis, Ix1};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("run.safetensors");
    /// let run = |until: u64| {
    ///     let w = Writer::resume(&path)?.sync_every(50);
    ///     let time = w.grow("time", Axis(0), &[])?;
    ///     for step in time.steps()..until {
    ///         time.push(0.1 * step as f64)?;
    ///     }
    ///     Ok::<_, safetensors_core::Error>(w)
    /// };
    /// run(100)?.finish()?;
    /// drop(run(170)?); // It is killed. 150 steps are safe.
    /// run(200)?.finish()?;
    ///
    /// let time = Reader::open(&path)?.read::<f64, Ix1>("time")?;
    /// assert_eq!(time, ndarray::Array1::from_iter((0..200).map(|step| 0.1 * f64::from(step))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(path: impl AsRef<Path>) -> Result<Self> {
        GrowingWriter::resume(path, &SaveOptions::new()).map(Self)
    }

    /// Calls [`sync`](Writer::sync) whenever an array has grown by this many steps. The default, 0,
    /// never calls it.
    ///
    /// The call comes between two passes of the loop that appends, so that all arrays have the
    /// steps of the same passes. A pass should append to each array at most once, in the order of
    /// their first steps; other loops should call `sync` themselves. If the end of a pass is not
    /// clear, as in a loop that also [adds](Writer::add) an array in each pass, the call waits
    /// until there are twice that many steps.
    #[must_use]
    pub fn sync_every(self, steps: u64) -> Self {
        Self(self.0.sync_every(steps))
    }

    /// Adds an array or a view of any memory layout, and writes it at once. Elements that are not
    /// in C order pass through buffers of 2 to 8 MiB. A second thread helps with a large array.
    ///
    /// # Errors
    ///
    /// Like [`GrowingWriter::add`]: for example
    /// [`DuplicateTensor`](safetensors_core::ErrorKind::DuplicateTensor).
    pub fn add<T: ArrayElement, D: Dimension>(
        &self,
        name: &str,
        array: &ArrayRef<T, D>,
    ) -> Result<()> {
        self.0.add(name, &ArraySource::new(array))
    }

    /// Adds any other tensor, such as a [`DynArray`](crate::DynArray), a tensor of another file, or
    /// an array of an npy file.
    pub fn add_tensor(&self, name: &str, tensor: &dyn TensorSource) -> Result<()> {
        self.0.add(name, tensor)
    }

    /// Gives an added or growing array an attribute: a text, such as its `units`, or a number. It
    /// replaces an earlier value.
    ///
    /// The file's metadata gets an entry `attribute:ARRAY#NAME`, see
    /// [`attributes`](safetensors_core::header::attributes()), which other programs ignore.
    ///
    /// # Errors
    ///
    /// [`TensorNotFound`](safetensors_core::ErrorKind::TensorNotFound);
    /// [`BadAttributeName`](safetensors_core::ErrorKind::BadAttributeName) if `name` has a `#`.
    pub fn attribute(&self, array: &str, name: &str, value: impl MetadataValue) -> Result<()> {
        self.0.attribute(array, name, value.to_text())
    }

    /// Names the axes of an added or growing array. An array with one axis and the name of a
    /// dimension is its coordinate: [`Reader::select`](crate::Reader::select) takes parts by its
    /// elements.
    pub fn dimensions(&self, array: &str, names: &[&str]) -> Result<()> {
        self.0.dimensions(array, names)
    }

    /// Adds entries to the metadata of the file: texts or numbers. An entry replaces an earlier one
    /// of its key.
    ///
    /// ```
    /// use ndarray::array;
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("wind.safetensors");
    /// let w = Writer::create(&path)?;
    /// w.add("u", &array![1_i16, 2, -999])?;
    /// w.attribute("u", "units", "m/s")?;
    /// w.attribute("u", "scale_factor", 0.01)?;
    /// w.metadata([("title", "wind over the ridge")]);
    /// w.metadata([("planck", 6.62607015e-34), ("dt", 0.1)]);
    /// w.finish()?;
    ///
    /// let r = Reader::open(&path)?;
    /// assert_eq!(r.attribute("u", "units"), Some("m/s"));
    /// assert_eq!(r.metadata()["planck"], "6.62607015e-34");
    /// let factor: f64 = r.attribute("u", "scale_factor").unwrap_or("1").parse()?;
    /// assert_eq!((factor, r.metadata()["dt"].parse()), (0.01, Ok(0.1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metadata<K: Into<String>, V: MetadataValue>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) {
        self.0.metadata(entries.into_iter().map(|(key, value)| (key, value.to_text())));
    }

    /// Begins an array that grows along `axis`. `step_shape` is the array's shape without that
    /// axis.
    ///
    /// Several arrays can grow at the same time, also from several threads. Memory holds at most
    /// 256 KiB of each.
    ///
    /// ```
    /// use ndarray::{Array2, Axis, Ix1, Ix3};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("run.safetensors");
    /// let w = Writer::create(&path)?;
    /// let time = w.grow("time", Axis(0), &[])?;
    /// let u = w.grow("u", Axis(0), &[3, 4])?;
    /// let mut state = Array2::<f32>::zeros((4, 3));
    /// for step in 0..10 {
    ///     state += 1.0;
    ///     time.push(0.1 * f64::from(step))?;
    ///     u.append(&state.t())?;
    /// }
    /// w.finish()?;
    ///
    /// let r = Reader::open(&path)?;
    /// assert_eq!(r.read::<f64, Ix1>("time")?.len(), 10);
    /// assert_eq!(r.read::<f32, Ix3>("u")?.dim(), (10, 3, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// `Axis(0)` is cheapest. Along another axis [`finish`](Writer::finish) rearranges the
    /// elements.
    pub fn grow<T: ArrayElement>(
        &self,
        name: &str,
        axis: Axis,
        step_shape: &[usize],
    ) -> Result<ArrayAppender<T>> {
        let tensor = self.0.grow(name, T::DTYPE, axis.index(), step_shape)?;
        Ok(ArrayAppender { tensor, axis, elements: PhantomData })
    }

    /// Writes all arrays and steps that are new since the last call to a separate file, and waits
    /// until it is on the disk, so that they survive a kill.
    ///
    /// For `run.safetensors` the files are `run.safetensors.synced/00000001.safetensors` and so on,
    /// which every reader can open. [`resume`](Writer::resume) goes on with them, and
    /// [`finish`](Writer::finish) removes them: until then, they are on the disk twice.
    ///
    /// ```
    /// use ndarray::{Axis, Ix1};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("run.safetensors");
    /// let w = Writer::create(&path)?.sync_every(100);
    /// let energy = w.grow("energy", Axis(0), &[])?;
    /// for step in 0..250 {
    ///     energy.push(f64::from(step))?;
    /// }
    /// drop(w); // The run ends here, before it has finished the file.
    ///
    /// assert!(!path.exists());
    /// Writer::resume(&path)?;
    /// assert_eq!(Reader::open(&path)?.read::<f64, Ix1>("energy")?.len(), 200);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    /// Completes the file and gives it its name, replacing the old file.
    ///
    /// An error loses nothing. Call this again, for example when the disk has space again; arrays
    /// can be added and appended to before that. Afterwards this does nothing, and all other
    /// methods fail.
    pub fn finish(&self) -> Result<()> {
        self.0.finish()
    }
}

/// An array of a [`Writer`] that grows along one axis. Clones append to the same array, also in
/// other threads.
///
/// It borrows nothing, so a struct can have a writer and its arrays:
///
/// ```
/// use ndarray::{Array2, Axis, Ix3};
/// use safetensors_ndarray::{ArrayAppender, Error, Reader, Writer};
///
/// struct Output {
///     writer: Writer,
///     time: ArrayAppender<f64>,
///     heat: ArrayAppender<f32>,
/// }
///
/// impl Output {
///     fn open(path: &std::path::Path) -> Result<Self, Error> {
///         let writer = Writer::resume(path)?.sync_every(50);
///         let time = writer.grow("time", Axis(0), &[])?;
///         let heat = writer.grow("heat", Axis(0), &[2, 3])?;
///         Ok(Self { writer, time, heat })
///     }
///
///     fn step(&self, time: f64, heat: &Array2<f32>) -> Result<(), Error> {
///         self.time.push(time)?;
///         self.heat.append(heat)
///     }
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.safetensors");
/// let output = Output::open(&path)?;
/// output.step(0.5, &Array2::zeros((2, 3)))?;
/// output.writer.finish()?;
/// assert_eq!(Reader::open(&path)?.read::<f32, Ix3>("heat")?.dim(), (1, 2, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It takes no more steps once the writer is finished or dropped.
#[derive(Clone, Debug)]
pub struct ArrayAppender<T> {
    tensor: GrowingTensor,
    axis: Axis,
    elements: PhantomData<fn(T)>,
}

impl<T: ArrayElement> ArrayAppender<T> {
    /// Appends one step, of any memory layout. If that fails, the array is unchanged.
    ///
    /// # Errors
    ///
    /// [`WrongShape`](safetensors_core::ErrorKind::WrongShape); otherwise like
    /// [`GrowingTensor::append`].
    pub fn append<D: Dimension>(&self, step: &ArrayRef<T, D>) -> Result<()> {
        self.tensor.append(&ArraySource::new(step))
    }

    /// Appends one step that is a single element.
    pub fn push(&self, value: T) -> Result<()> {
        self.append(&aview0(&value))
    }

    /// Appends several steps at once. The length of the growing axis is the number of steps.
    ///
    /// ```
    /// use ndarray::{Axis, Ix2, array};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("columns.safetensors");
    /// let w = Writer::create(&path)?;
    /// let table = w.grow("table", Axis(1), &[2])?;
    /// table.append(&array![1, 4])?;
    /// table.extend(&array![[2, 3], [5, 6]])?;
    /// w.finish()?;
    ///
    /// let table = Reader::open(&path)?.read::<i32, Ix2>("table")?;
    /// assert_eq!(table, array![[1, 2, 3], [4, 5, 6]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn extend<D: Dimension>(&self, steps: &ArrayRef<T, D>) -> Result<()> {
        let mut steps = steps.view().into_dyn();
        let axis = self.axis.index();
        if axis < steps.ndim() {
            // In the writer, the first axis counts the steps.
            let others = (0..steps.ndim()).filter(|&other| other != axis);
            let order: Vec<usize> = std::iter::once(axis).chain(others).collect();
            steps = steps.permuted_axes(order);
        }
        self.tensor.extend(&ArraySource::new(&steps)).map_err(|error| self.in_callers_order(error))
    }

    /// Puts the shapes of an error into the order of the caller's axes.
    fn in_callers_order(&self, error: Error) -> Error {
        let ErrorKind::WrongShape { expected, found } = error.kind() else { return error };
        let axis = self.axis.index();
        let restored = |shape: &[usize]| match shape.split_first() {
            Some((&steps, others)) if axis <= others.len() => {
                let mut shape = others.to_vec();
                shape.insert(axis, steps);
                shape
            }
            _ => shape.to_vec(),
        };
        let kind = ErrorKind::WrongShape { expected: restored(expected), found: restored(found) };
        // The writer has added the file and the tensor.
        Error::from(kind)
            .in_tensor(error.tensor().unwrap_or_default())
            .in_file(error.file().unwrap_or_default())
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.tensor.steps()
    }
}
