//! [`CheckpointBackend`]: an open checkpoint as a source of a model's weights.

use std::fmt;
use std::sync::{Arc, OnceLock};

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use safetensors_core::framework::Framework;
use safetensors_core::{Checkpoint, LazyTensor, LoadOptions, ReadAt, Result};

use super::names::{NamedTensor, Names};
use super::read_ahead::{AheadReader, ReadAhead};
use super::shared::SharedTensors;
use crate::Candle;
use crate::dtype::from_candle_dtype;
use crate::error::into_candle_error;
use crate::weights::{Source, Weights, unexpected_shape};

/// The most bytes that are read ahead by default.
const READ_AHEAD: u64 = 256 << 20;

/// An open checkpoint as a backend of candle's [`VarBuilder`].
///
/// A tensor has exactly the requested shape and dtype, and is on the requested device. The shape is
/// compared with the header before any data is read.
///
/// Elements of another dtype are converted while they are read, by the rules of [`convert`]. A
/// conversion to integers is an error if a value is not an integer or does not fit. C64 becomes F32
/// first, with a last dimension of 2: real, imaginary.
///
/// A clone is another handle of the same backend. Keep one, to list the
/// [unused](CheckpointBackend::unused) tensors after the model is built. Set options before you
/// clone: a changed backend shares only the open files.
///
/// ```
/// use candle_core::{DType, Device};
/// use safetensors_candle::CheckpointBackend;
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let values = [0.0_f32; 6];
/// let names = ["fc.weight", "fc.bias_mask"];
/// let tensors = names.map(|name| (name, TensorView::from_slice(&[2, 3], &values).unwrap()));
/// save(&path, tensors, &SaveOptions::new())?;
///
/// let backend = CheckpointBackend::new(Checkpoint::open(&path)?);
/// let builder = backend.var_builder(DType::F32, &Device::Cpu);
/// let _linear = candle_nn::linear_no_bias(3, 2, builder.pp("fc"))?;
/// let unused: Vec<_> = backend.unused().map(|tensor| tensor.name()).collect();
/// assert_eq!(unused, ["fc.bias_mask"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # From any store, under other names
///
/// The checkpoint may be in memory, in a bucket (`remote::open` of `safetensors-hub`), or in your
/// own [`Store`]. A model with other names takes a builder with [`rename_f`](VarBuilder::rename_f),
/// and one that learns sizes from its tensors calls [`get_unchecked`](VarBuilder::get_unchecked).
///
/// ```
/// use candle_core::{DType, Device};
/// use safetensors_candle::{Checkpoint, CheckpointBackend, Limits, SaveOptions};
/// use safetensors_core::checkpoint::store::MemoryStore;
/// use safetensors_core::{TensorView, serialize};
///
/// let weight = TensorView::from_slice(&[2, 3], &[0.5_f32; 6])?;
/// let file = serialize([("transformer.fc.weight", weight)], &SaveOptions::new())?;
/// let store = MemoryStore::from_iter([("model.safetensors", file)]);
///
/// let checkpoint = Checkpoint::open_in(store, "", &Limits::default())?;
/// let builder = CheckpointBackend::new(checkpoint).var_builder(DType::F32, &Device::Cpu);
/// let builder = builder.rename_f(|name| name.replace("layers.", "transformer."));
/// let inputs = builder.pp("layers.fc").get_unchecked("weight")?.dim(1)?;
/// let linear = candle_nn::linear_no_bias(inputs, 2, builder.pp("layers.fc"))?;
/// # assert_eq!(linear.weight().dims(), [2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Reading ahead
///
/// If a model asks for its tensors layer by layer, each read also brings the next tensors, by all
/// threads at once, in the requested dtype. At most [`read_ahead`](CheckpointBackend::read_ahead)
/// bytes are kept until the model asks for them. No more bytes are read in vain than the model asks
/// for. If reading ahead fails, only the requested tensor is read again.
///
/// A tensor that is saved once under several names is read once. The backend keeps it alive until
/// the model has asked for all names. A name that is asked for again gets a new tensor, unless
/// [`cache_tensors`](CheckpointBackend::cache_tensors) is set.
///
/// [`convert`]: safetensors_core::convert
/// [`Store`]: safetensors_core::checkpoint::store::Store
///
/// # Errors
///
/// candle's `CannotFindTensor` with similar names, and `UnexpectedShape`. Any other error is a
/// [`safetensors_core::Error`] that [`IntoCandle`](crate::IntoCandle) converted, such as a refused
/// [quantised weight](crate#quantised-weights). This is also an error under its model's name, say
/// `fc.weight` for the stored `fc.qweight`; `contains_tensor` returns `true` for that name.
///
/// ```
/// use candle_core::{DType, Device};
/// use safetensors_candle::CheckpointBackend;
/// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, Widening, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(
///     &path,
///     [("mask", TensorView::from_slice(&[2], &[true, false])?)],
///     &SaveOptions::new(),
/// )?;
///
/// let exact = LoadOptions::new().widening(Widening::Refuse);
/// let backend = CheckpointBackend::new_with(Checkpoint::open(&path)?, &exact)?;
/// let builder = backend.var_builder(DType::U8, &Device::Cpu);
/// assert!(builder.contains_tensor("mask"));
/// assert!(builder.get(2, "mask").unwrap_err().to_string().contains("BOOL"));
/// assert!(builder.get(2, "masks").unwrap_err().to_string().contains(r#"did you mean "mask"?"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CheckpointBackend<'a> {
    weights: Weights<'a>,
    read_ahead: u64,
    cache_tensors: bool,
    names: Arc<Names>,
    state: Arc<BackendState>,
}

/// Shared by the clones of a backend.
#[derive(Debug)]
struct BackendState {
    ahead: ReadAhead,
    shared: SharedTensors,
    /// Options with the progress of the model, made for the first read.
    options: OnceLock<LoadOptions>,
}

impl BackendState {
    fn new(tensors: usize) -> Arc<Self> {
        let ahead = ReadAhead::new(tensors);
        Arc::new(Self { ahead, shared: SharedTensors::default(), options: OnceLock::new() })
    }
}

impl fmt::Debug for CheckpointBackend<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointBackend")
            .field("weights", &self.weights)
            .field("read_ahead", &self.read_ahead)
            .field("cache_tensors", &self.cache_tensors)
            .finish_non_exhaustive()
    }
}

/// # Options
impl<'a> CheckpointBackend<'a> {
    /// Makes a backend that widens dtypes that candle lacks, reads at most 256 MiB ahead, and reads
    /// with one thread per core, at most eight.
    pub fn new(checkpoint: Checkpoint<impl ReadAt + 'a>) -> Self {
        Self::over(Weights::new(checkpoint, &LoadOptions::new()))
    }

    /// Makes a backend like [`new`](CheckpointBackend::new), with options. Their dtypes have no
    /// effect, because the model asks for its own. If they ask for the numbers of [quantised
    /// weights](crate#quantised-weights), the backend has the tensors of
    /// [`Checkpoint::dequantized`].
    ///
    /// Progress is counted for the entire model: `bytes_total` is the size of all visible tensors,
    /// in the dtype that the model asks for first. It ends below the total if the model leaves
    /// tensors [unused](CheckpointBackend::unused). The callback can cancel the read that it
    /// reports. It must not ask this backend or its builders for tensors, or it may wait for its
    /// own read.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// use candle_core::{DType, Device};
    /// use safetensors_candle::{Checkpoint, CheckpointBackend, LoadOptions};
    /// # use safetensors_core::{SaveOptions, TensorView, save};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// # let weight = TensorView::from_slice(&[1, 1], &[1_f32])?;
    /// # save(&path, [("fc.weight", weight)], &SaveOptions::new())?;
    ///
    /// // For a bar of the crate indicatif: set_length(bytes_total), set_position(bytes_done).
    /// let options = LoadOptions::new().progress(|progress| {
    ///     eprint!("\r{} of {} bytes", progress.bytes_done, progress.bytes_total);
    ///     ControlFlow::Continue(())
    /// });
    /// let backend = CheckpointBackend::new_with(Checkpoint::open(&path)?, &options)?;
    /// let builder = backend.var_builder(DType::F32, &Device::Cpu);
    /// let _model = candle_nn::linear_no_bias(1, 1, builder.pp("fc"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new_with(
        checkpoint: Checkpoint<impl ReadAt + 'a>,
        options: &LoadOptions,
    ) -> Result<Self> {
        Ok(Self::over(Weights::prepare(checkpoint, options)?))
    }

    fn over(weights: Weights<'a>) -> Self {
        Self {
            read_ahead: READ_AHEAD,
            cache_tensors: false,
            names: Arc::new(Names::new(&weights.checkpoint)),
            state: BackendState::new(weights.checkpoint.len()),
            weights,
        }
    }

    /// Sets the most bytes of tensors that are read before the model asks for them. 0 reads each
    /// tensor when it is asked for. The default is 256 MiB.
    #[must_use]
    pub fn read_ahead(self, bytes: u64) -> Self {
        Self { read_ahead: bytes, ..self }.reset()
    }

    /// Sets whether a tensor that is asked for again, in the same dtype and on the same device,
    /// shares the memory of the first one. Off by default.
    ///
    /// The backend then keeps every tensor that it has handed out, until it and its builders are
    /// dropped, even tensors that the model drops. An operation that writes in place, such as
    /// `slice_set`, writes into all tensors that share the memory.
    #[must_use]
    pub fn cache_tensors(self, share: bool) -> Self {
        Self { cache_tensors: share, ..self }.reset()
    }

    /// Hides the tensors from the model for which `keep` returns `false`. Each alias is hidden or
    /// kept by its own name. A second filter hides more.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use safetensors_candle::CheckpointBackend;
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("model.safetensors");
    /// let values = [1_f32];
    /// let tensors = ["fc.weight", "fc.bias"]
    ///     .map(|name| (name, TensorView::from_slice(&[1], &values).unwrap()));
    /// save(&path, tensors, &SaveOptions::new())?;
    ///
    /// let backend = CheckpointBackend::new(Checkpoint::open(&path)?);
    /// let backend = backend.filter(|name| !name.ends_with(".bias"));
    /// let builder = backend.var_builder(DType::F32, &Device::Cpu);
    /// assert!(builder.contains_tensor("fc.weight") && !builder.contains_tensor("fc.bias"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn filter(self, keep: impl FnMut(&str) -> bool) -> Self {
        let mut names = (*self.names).clone();
        names.filter(&self.weights.checkpoint, keep);
        Self { names: Arc::new(names), ..self }.reset()
    }

    /// Drops tensors that were read: other options make other tensors.
    fn reset(self) -> Self {
        Self { state: BackendState::new(self.weights.checkpoint.len()), ..self }
    }
}

impl<'a> CheckpointBackend<'a> {
    /// Returns the visible tensors that the model has not asked for yet, in the order of the files.
    /// A tied tensor counts as used once the model asks for one of its names. `contains_tensor`
    /// does not count.
    pub fn unused(&self) -> impl Iterator<Item = LazyTensor<'_, Box<dyn ReadAt + 'a>>> {
        let asked = self.state.ahead.asked();
        let tensors = self.weights.checkpoint.tensors().zip(asked).enumerate();
        tensors.filter_map(move |(position, (tensor, asked))| {
            (!asked && !self.names.is_hidden(position)).then_some(tensor)
        })
    }

    fn find(&self, name: &str) -> candle_core::Result<NamedTensor<'_, Source<'a>>> {
        let found = self.names.find(&self.weights.checkpoint, name);
        let found = found.ok_or_else(|| self.names.missing(&self.weights, name))?;
        self.weights.check(&found.tensor).map_err(into_candle_error)?;
        Ok(found)
    }

    fn reader(&self, dtype: DType) -> Result<AheadReader<'_>> {
        let mut reader = AheadReader {
            checkpoint: &self.weights.checkpoint,
            options: self.weights.options_for(dtype)?,
            dtype: from_candle_dtype(dtype)?,
            limit: self.read_ahead,
            hidden: self.names.hidden(),
        };
        let options = self.state.options.get_or_init(|| {
            let lens = self.unused().map(|tensor| reader.byte_len(&tensor));
            let bytes = lens.fold(0, u64::saturating_add);
            self.weights.options.clone().parts_of(bytes)
        });
        reader.options = options.clone().all_as(reader.dtype);
        Ok(reader)
    }
}

impl<'a> CheckpointBackend<'a> {
    /// Returns a [`VarBuilder`] that shares this backend. Tensors have this `dtype` and `device`,
    /// unless the model asks for others.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> VarBuilder<'a> {
        VarBuilder::from_backend(Box::new(self.clone()), dtype, device.clone())
    }

    /// Reads tensors now, in parallel, and keeps them in main memory until the model asks for them.
    /// `prefix` is the prefix of their names, as [`VarBuilder::prefix`] returns it; an empty one
    /// selects all. Returns the number of tensors that were read.
    ///
    /// For a `dtype` of floats, only floats are read, because a model asks for integers in another
    /// dtype. Tensors without a conversion to `dtype` and refused quantised weights are skipped. A
    /// request in another dtype reads the tensor again.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use safetensors_candle::CheckpointBackend;
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("model.safetensors");
    /// let values = [1_f32];
    /// let tensors = ["a.weight", "b.weight"]
    ///     .map(|name| (name, TensorView::from_slice(&[1], &values).unwrap()));
    /// save(&path, tensors, &SaveOptions::new())?;
    ///
    /// let backend = CheckpointBackend::new(Checkpoint::open(&path)?);
    /// assert_eq!(backend.prefetch("a", DType::F32)?, 1);
    /// assert_eq!(backend.prefetch("", DType::F32)?, 1);
    /// let builder = backend.var_builder(DType::F32, &Device::Cpu);
    /// assert_eq!(builder.get(1, "a.weight")?.to_vec1::<f32>()?, [1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`Checkpoint::read_named`]. Then nothing of this call is kept.
    pub fn prefetch(&self, prefix: &str, dtype: DType) -> Result<usize> {
        let prefix = prefix.strip_suffix('.').unwrap_or(prefix);
        let below = self.names.visible(&self.weights.checkpoint).filter(|(name, _)| {
            let rest = name.strip_prefix(prefix);
            rest.is_some_and(|rest| prefix.is_empty() || rest.is_empty() || rest.starts_with('.'))
        });
        self.state.ahead.prefetch(&self.reader(dtype)?, below.map(|(_, position)| position))
    }

    fn load(
        &self,
        found: &NamedTensor<'_, Source<'a>>,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let read = || self.read(found, dtype, device);
        let names = self.names.tied(found.position).filter(|_| !self.cache_tensors);
        if names.is_none() && !self.cache_tensors {
            return read();
        }
        let tied = names.map(|names| (name, names));
        self.state.shared.get(found.position, tied, dtype, device, read)
    }

    fn read(
        &self,
        NamedTensor { position, tensor }: &NamedTensor<'_, Source<'a>>,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let reader = self.reader(dtype);
        let buf = reader.and_then(|reader| self.state.ahead.take(&reader, *position, tensor));
        let read = buf.and_then(|buf| Candle::from_exact(buf, device));
        read.map_err(|error| into_candle_error(tensor.locate(error)))
    }
}

impl SimpleBackend for CheckpointBackend<'_> {
    fn get(
        &self,
        expected: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let found = self.find(name)?;
        let tensor = &found.tensor;
        let got = self.weights.loaded_shape(tensor, tensor.shape()).map_err(into_candle_error)?;
        if got != expected {
            return Err(unexpected_shape(tensor, name, (expected, got), ""));
        }
        self.load(&found, name, dtype, device)
    }

    fn get_unchecked(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        self.load(&self.find(name)?, name, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.names.find(&self.weights.checkpoint, name).is_some()
            || self.names.is_refused(&self.weights, name)
    }
}
