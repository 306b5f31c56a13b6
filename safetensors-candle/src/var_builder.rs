//! [`CheckpointBackend`]: the tensors of a checkpoint, for candle's models.

use std::path::Path;

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use safetensors_core::convert::widen;
use safetensors_core::framework::{Framework, Support, widened_shape};
use safetensors_core::io::FileSource;
use safetensors_core::{
    Checkpoint, Dtype, LazyTensor, LoadOptions, ReadAt, Result, TensorBuf, framework,
};

use crate::Candle;
use crate::dtype::from_candle_dtype;
use crate::error::into_candle_error;

/// A [`VarBuilder`] over a checkpoint: a file, an index of shards, or the directory that holds
/// either.
///
/// Every model of candle-transformers loads through it. Only headers are read here; each tensor is
/// read when the model asks for it, and then has the asked shape, the asked dtype and the asked
/// device. A tensor that was saved once for several names is found under all of them (see
/// [`Checkpoint::aliases`]).
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
/// Those of [`Checkpoint::open`]. For what the builder itself fails with see [`CheckpointBackend`].
pub fn var_builder(
    path: impl AsRef<Path>,
    dtype: DType,
    device: &Device,
) -> Result<VarBuilder<'static>> {
    Ok(var_builder_from(Checkpoint::open(path)?, dtype, device))
}

/// [`var_builder()`] over a checkpoint that is already open: with limits, or mapped.
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
/// A tensor comes on the asked device, in the asked dtype, and of exactly the asked shape. The
/// shape is compared with the header before a byte of data is read, and asking whether there is a
/// tensor reads nothing.
///
/// If the file has another dtype, the elements are converted while they are read, by the rules of
/// [`convert`]: rounded once, and an error where integers are asked for and a value is none, or
/// does not fit. A BF16 file as an F32 model needs the memory of the F32 tensors, and a small
/// buffer a thread. C64 becomes F32 first, with a last dimension of 2.
///
/// [`convert`]: safetensors_core::convert
///
/// # Errors
///
/// As candle's own backends: `CannotFindTensor`, and `UnexpectedShape`, which names the tensor and
/// the file. Everything else is a [`safetensors_core::Error`], which names them too, passed through
/// [`into_candle_error`].
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
    /// A backend over this checkpoint, which widens dtypes that candle lacks and reads large
    /// tensors with one thread a core, eight at most.
    pub fn new(checkpoint: Checkpoint<S>) -> Self {
        Self { checkpoint, load_options: LoadOptions::new() }
    }

    /// Loads each tensor with these options: the threads of a large one, whether dtypes that candle
    /// lacks may be widened, what becomes of numbers that are too large, and who is told of the
    /// progress of each tensor. The dtype is not theirs to say: the model asks for one.
    #[must_use]
    pub fn load_options(mut self, options: LoadOptions) -> Self {
        self.load_options = options;
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
    /// Reads one tensor as `to`, in several threads if it is large.
    fn read(&self, tensor: LazyTensor<'_, S>, to: Dtype) -> Result<TensorBuf> {
        let mut buf = tensor.read_with(&self.load_options.clone().floats_as(to).integers_as(to))?;
        // What these options leave as it is: booleans, and complex numbers.
        if buf.dtype() == Dtype::C64 {
            buf = widen(buf, Dtype::F32)?;
        }
        buf.convert(to, &self.load_options.get_convert_options())
    }

    fn load(
        &self,
        tensor: LazyTensor<'_, S>,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let load = || {
            framework::dtype_in::<Candle>(tensor.dtype(), self.load_options.get_widening())?;
            let to = from_candle_dtype(dtype)?;
            Candle::from_exact(self.read(tensor, to)?, device)
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
        let got = loaded_shape(&tensor);
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

/// The shape that a tensor of the file has in candle.
fn loaded_shape<S>(tensor: &LazyTensor<'_, S>) -> Shape {
    match Candle::support(tensor.dtype()) {
        Support::Widened(to) => widened_shape(tensor.dtype(), to, tensor.shape()).into(),
        Support::Exact | Support::Unsupported => tensor.shape().into(),
    }
}
