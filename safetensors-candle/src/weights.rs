//! [`Weights`]: a checkpoint that a model asks for its weights by their names.

use std::sync::Arc;

use candle_core::{DType, Error, Shape};
use safetensors_core::framework::into_view;
use safetensors_core::quantized::QuantizedWeight;
use safetensors_core::{Checkpoint, LazyTensor, LoadOptions, ReadAt, Result, Widening};

use crate::{Candle, from_candle_dtype};

pub(crate) type Source<'a> = Box<dyn ReadAt + 'a>;

#[derive(Clone, Debug)]
pub(crate) struct Weights<'a> {
    pub(crate) checkpoint: Arc<Checkpoint<Source<'a>>>,
    pub(crate) options: LoadOptions,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(checkpoint: Checkpoint<impl ReadAt + 'a>, options: &LoadOptions) -> Self {
        let options = options.clone().for_framework::<Candle>();
        Self { checkpoint: Arc::new(checkpoint.into_boxed()), options }
    }

    /// Returns a checkpoint with quantised weights as numbers, if the options ask for them.
    pub(crate) fn prepare(
        checkpoint: Checkpoint<impl ReadAt + 'a>,
        options: &LoadOptions,
    ) -> Result<Self> {
        Ok(Self::new(into_view(checkpoint, options)?, options))
    }

    pub(crate) fn options_for(&self, dtype: DType) -> Result<LoadOptions> {
        Ok(self.options.clone().all_as(from_candle_dtype(dtype)?))
    }

    /// Fails for refused codes, which have another shape than the weight.
    pub(crate) fn check(&self, tensor: &LazyTensor<'_, Source<'a>>) -> Result<()> {
        if self.options.reads_codes() { Ok(()) } else { tensor.refuse_codes() }
    }

    /// Returns the shape in candle.
    pub(crate) fn loaded_shape(
        &self,
        tensor: &LazyTensor<'_, Source<'a>>,
        shape: &[usize],
    ) -> Result<Shape> {
        // The shape is needed even if widening is refused. The refusal comes when the tensor is
        // read.
        let options = self.options.clone().widening(Widening::Lossless);
        let loaded = options.dtype_plan(tensor.dtype()).map_err(|error| tensor.locate(error))?;
        Ok(loaded.shape(shape).into())
    }
}

/// Makes candle's own error, with the tensor and its file.
pub(crate) fn unexpected_shape(
    tensor: &LazyTensor<'_, Source<'_>>,
    name: &str,
    (expected, got): (Shape, Shape),
    advice: &str,
) -> Error {
    let file = tensor.file().map(|file| format!(" in {}", file.display())).unwrap_or_default();
    let msg = format!("shape mismatch for {name}{file}{advice}");
    Error::UnexpectedShape { msg, expected, got }.bt()
}

/// Returns the first of these names that is a quantised weight, stored as tensors of other names.
pub(crate) fn stored_otherwise(
    checkpoint: &Checkpoint<impl ReadAt>,
    wants: impl Fn(&str) -> bool,
    options: &LoadOptions,
) -> Option<QuantizedWeight> {
    if options.reads_codes() {
        return None;
    }
    // A checkpoint that cannot be understood has errors for the tensors that it does have.
    let weights = checkpoint.quantized_weights().unwrap_or_default();
    weights.into_iter().find(|it| wants(&it.name) && checkpoint.get(&it.name).is_none())
}
