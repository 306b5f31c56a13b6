//! [`CheckpointBackend`]: lets candle's models read their weights from a checkpoint.

use std::path::Path;

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use safetensors_core::framework::Framework;
use safetensors_core::io::FileSource;
use safetensors_core::slice::TensorPart;
use safetensors_core::{Checkpoint, LazyTensor, LoadOptions, ReadAt, Result, Widening};

use crate::Candle;
use crate::dtype::from_candle_dtype;
use crate::error::into_candle_error;

/// Makes a [`VarBuilder`] over a checkpoint. The path is that of a file, of an index of shards, or
/// of the directory that holds either.
///
/// Every model of candle-transformers loads through a `VarBuilder`. This function reads only the
/// headers. A tensor is read when the model asks for it. It then has the requested shape and dtype,
/// and lies on the requested device. A tensor that was saved once under several names is found
/// under all of them; see [`Checkpoint::aliases`].
///
/// ```
/// use candle_core::{DType, Device};
/// use safetensors_core::{SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let weight = TensorView::from_slice(&[2, 3], &[0.0_f32; 6])?;
/// save(&path, [("encoder.fc.weight", weight)], &SaveOptions::new())?;
///
/// let builder = safetensors_candle::var_builder(&path, DType::BF16, &Device::Cpu)?;
/// let encoder = builder.pp("encoder");
/// let linear = candle_nn::linear_no_bias(3, 2, encoder.pp("fc"))?;
/// assert_eq!(linear.weight().dtype(), DType::BF16);
/// assert!(encoder.get((3, 2), "fc.weight").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Those of [`Checkpoint::open`]. [`CheckpointBackend`] lists the errors of the builder itself.
pub fn var_builder(
    path: impl AsRef<Path>,
    dtype: DType,
    device: &Device,
) -> Result<VarBuilder<'static>> {
    Ok(var_builder_from(Checkpoint::open(path)?, dtype, device))
}

/// [`var_builder()`] over a checkpoint that is already open, for example with limits or mapped.
///
/// ```
/// use candle_core::{DType, Device};
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// save(&path, [("scale", TensorView::from_slice(&[], &[0.5_f32])?)], &SaveOptions::new())?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let builder = safetensors_candle::var_builder_from(checkpoint, DType::F32, &Device::Cpu);
/// assert_eq!(builder.get((), "scale")?.to_scalar::<f32>()?, 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn var_builder_from<'a, S: ReadAt + 'a>(
    checkpoint: Checkpoint<S>,
    dtype: DType,
    device: &Device,
) -> VarBuilder<'a> {
    VarBuilder::from_backend(Box::new(CheckpointBackend::new(checkpoint)), dtype, device.clone())
}

/// An open checkpoint as a backend of candle's [`VarBuilder`].
///
/// A tensor has exactly the requested shape, has the requested dtype, and lies on the requested
/// device. The shape is compared with the header before any data is read. `contains_tensor` reads
/// nothing.
///
/// If the file has another dtype, the elements are converted while they are read, by the rules of
/// [`convert`]. Each value is rounded once. A conversion to integers is an error if a value is not
/// an integer or does not fit. A BF16 file that is loaded as an F32 model needs the memory of the
/// F32 tensors, and a small buffer per thread. C64 becomes F32 first, with a last dimension of 2:
/// real, imaginary.
///
/// [`convert`]: safetensors_core::convert
///
/// # Errors
///
/// - `CannotFindTensor` for a missing tensor, as from candle's own backends.
/// - `UnexpectedShape` for another shape, also as from candle's. It names the tensor and the file.
/// - Any other error is a [`safetensors_core::Error`] that names the tensor and the file, converted
///   by [`into_candle_error`].
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::VarBuilder;
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
/// let backend = CheckpointBackend::new(Checkpoint::open(&path)?).load_options(exact);
/// let builder = VarBuilder::from_backend(Box::new(backend), DType::U8, Device::Cpu);
/// assert!(builder.contains_tensor("mask"));
/// assert!(builder.get(2, "mask").unwrap_err().to_string().contains("BOOL"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CheckpointBackend<S = FileSource> {
    checkpoint: Checkpoint<S>,
    load_options: LoadOptions,
}

impl<S> CheckpointBackend<S> {
    /// Makes a backend over this checkpoint. It widens dtypes that candle lacks, and reads a large
    /// tensor with one thread per core, at most eight.
    pub fn new(checkpoint: Checkpoint<S>) -> Self {
        Self { checkpoint, load_options: LoadOptions::new().for_framework::<Candle>() }
    }

    /// Sets the options for loading each tensor: the number of threads for a large tensor, whether
    /// dtypes that candle lacks may be widened, what happens to numbers that are too large, and
    /// who receives the progress of each tensor. A dtype in the options has no effect, because the
    /// model asks for its own.
    #[must_use]
    pub fn load_options(mut self, options: LoadOptions) -> Self {
        self.load_options = options.for_framework::<Candle>();
        self
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint<S> {
        &self.checkpoint
    }

    fn find(&self, name: &str) -> candle_core::Result<LazyTensor<'_, S>> {
        let missing = || candle_core::Error::CannotFindTensor { path: name.into() }.bt();
        self.checkpoint.get(name).ok_or_else(missing)
    }
}

impl<S: ReadAt> CheckpointBackend<S> {
    /// The shape that a tensor of the file has in candle.
    fn loaded_shape(&self, tensor: &LazyTensor<'_, S>) -> Result<Shape> {
        // The shape is needed even if widening is refused. The refusal comes when the tensor is
        // read.
        let options = self.load_options.clone().widening(Widening::Lossless);
        let loaded = options.loaded(tensor.dtype()).map_err(|error| tensor.locate(error))?;
        Ok(loaded.shape(tensor.shape()).into())
    }

    fn load(
        &self,
        tensor: LazyTensor<'_, S>,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let load = || {
            let options = self.load_options.clone().all_as(from_candle_dtype(dtype)?);
            let buf = self.checkpoint.read_part(tensor.name(), TensorPart::Whole, &options)?;
            Candle::from_exact(buf, device)
        };
        load().map_err(|error| into_candle_error(tensor.locate(error)))
    }
}

impl<S: ReadAt> SimpleBackend for CheckpointBackend<S> {
    fn get(
        &self,
        expected: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let tensor = self.find(name)?;
        let got = self.loaded_shape(&tensor).map_err(into_candle_error)?;
        if got != expected {
            let file =
                tensor.file().map(|file| format!(" in {}", file.display())).unwrap_or_default();
            let msg = format!("shape mismatch for {name}{file}");
            return Err(candle_core::Error::UnexpectedShape { msg, expected, got }.bt());
        }
        self.load(tensor, dtype, device)
    }

    fn get_unchecked(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        self.load(self.find(name)?, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.checkpoint.get(name).is_some()
    }
}
