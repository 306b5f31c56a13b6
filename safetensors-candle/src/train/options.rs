//! [`StateOptions`]: how a checkpoint is loaded into variables and optimizers.

use safetensors_core::optimizer::PyTorchTraining;
use safetensors_core::{Dtype, LoadOptions};

use crate::Candle;

/// How a checkpoint is loaded into variables and into the state of an optimizer.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap};
/// use half::bf16;
/// use safetensors_candle::train::StateOptions;
/// use safetensors_core::{SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("pretrained.safetensors");
/// let values = [bf16::ONE, bf16::NEG_ONE];
/// let weight = TensorView::from_slice(&[1, 2], &values)?;
/// save(&path, [("encoder.weight", weight), ("old_head.weight", weight)], &SaveOptions::new())?;
///
/// let var_map = VarMap::new();
/// let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
/// let encoder = candle_nn::linear_no_bias(2, 1, builder.pp("encoder"))?;
/// candle_nn::linear_no_bias(1, 5, builder.pp("new_head"))?;
///
/// // The file has BF16, lacks the new head, and has an old one.
/// let options = StateOptions::new().cast(true).allow_missing(true).allow_extra(true);
/// let loaded = options.load(&path, &var_map)?;
/// assert_eq!(loaded.missing, ["new_head.weight"]);
/// assert_eq!(loaded.extra, ["old_head.weight"]);
/// assert_eq!(encoder.weight().to_vec2::<f32>()?, [[1.0, -1.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StateOptions {
    pub(super) load_options: LoadOptions,
    cast: bool,
    pub(super) allow_missing: bool,
    pub(super) allow_extra: bool,
    pub(super) pytorch: Option<PyTorchTraining>,
}

impl StateOptions {
    /// Returns strict options: every variable needs a tensor of its shape and dtype, and every
    /// tensor a variable.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether tensors are converted to the dtype of their variable. Off by default: another
    /// dtype is then an error, unless it widens to the variable's.
    ///
    /// Values are rounded by the rules of [`convert`](safetensors_core::convert). A value that does
    /// not fit an integer dtype is an error. One that is too large for a float dtype becomes
    /// infinity, unless the [`ConvertOptions`](safetensors_core::LoadOptions::convert_options) say
    /// otherwise.
    #[must_use]
    pub fn cast(mut self, cast: bool) -> Self {
        self.cast = cast;
        self
    }

    /// Sets whether the checkpoint may lack tensors, and the step and hyperparameters of an
    /// optimizer. They then keep their values. Off by default.
    #[must_use]
    pub fn allow_missing(mut self, allow_missing: bool) -> Self {
        self.allow_missing = allow_missing;
        self
    }

    /// Sets whether the checkpoint may have tensors that nothing needs. They are not read. Off by
    /// default.
    #[must_use]
    pub fn allow_extra(mut self, allow_extra: bool) -> Self {
        self.allow_extra = allow_extra;
        self
    }

    /// Sets how tensors are read: threads, widening, the handling of numbers that are too large,
    /// and progress.
    ///
    /// [Quantised weights](crate#quantised-weights) are an error, unless [`LoadOptions::quantized`]
    /// asks for their codes, or for their numbers, which are F32 without a cast. Then scales need
    /// no variable.
    ///
    /// Tensors of each dtype are read together, and their progress is counted separately. A cast
    /// overrides a dtype in the options.
    #[must_use]
    pub fn load_options(mut self, options: LoadOptions) -> Self {
        self.load_options = options;
        self
    }

    /// Loads a checkpoint of PyTorch's training with this layout: the variables of the model, and
    /// the state, number of steps and recorded hyperparameters of its `AdamW`, or of an `Adam`
    /// without weight decay.
    ///
    /// Before PyTorch 2.7, checkpoints do not record whether the optimizer is `Adam` or `AdamW`.
    /// With weight decay, [`PyTorchTraining::decoupled_weight_decay`] must select `AdamW`.
    ///
    /// All parameters must have made the same number of steps. Groups with different
    /// hyperparameters, and AMSGrad, are errors. Parameters that never got a gradient have no
    /// state: their variables need [`allow_missing`](Self::allow_missing). Buffers without a
    /// variable need [`allow_extra`](Self::allow_extra).
    ///
    /// The checkpoint may be one that `safetensors_formats::open` opens:
    ///
    /// ```no_run
    /// use candle_nn::VarMap;
    /// use safetensors_candle::train::{AdamW, StateOptions};
    /// use safetensors_core::optimizer::PyTorchTraining;
    /// use safetensors_core::{Checkpoint, ReadAt};
    ///
    /// fn go_on(
    ///     checkpoint: &Checkpoint<impl ReadAt>,
    ///     var_map: &VarMap,
    ///     optimizer: &mut AdamW,
    /// ) -> safetensors_core::Result<()> {
    ///     // `[name for name, _ in model.named_parameters()]`, for AdamW(model.parameters()).
    ///     let names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];
    ///     let training = PyTorchTraining::new().parameters(names);
    ///     StateOptions::new().pytorch(training).load_from(checkpoint, (var_map, optimizer))?;
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn pytorch(mut self, training: PyTorchTraining) -> Self {
        self.pytorch = Some(training);
        self
    }

    pub(super) fn cast_to(&self, dtype: Dtype) -> Option<Dtype> {
        self.cast.then_some(dtype)
    }

    pub(super) fn for_cast(&self, dtype: Option<Dtype>) -> LoadOptions {
        let options = self.load_options.clone().for_framework::<Candle>();
        match dtype {
            Some(dtype) => options.all_as(dtype),
            None => options,
        }
    }
}
