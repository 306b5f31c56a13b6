//! [`ConvertOptions`]: options of a conversion, such as what becomes of numbers that are too large.

/// What a conversion to a floating-point dtype does with a number that is too large for it.
///
/// Whether a number is too large is decided after rounding. For example, the largest `F8_E4M3` is
/// 448, and the next number would be 480. Their tie, 464, rounds to 448. All numbers above 464 are
/// too large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// It becomes infinity, or NaN in a dtype without infinity, as in IEEE 754, PyTorch and
    /// ml_dtypes.
    #[default]
    Ieee,
    /// It becomes the largest finite number with its sign. So does infinity. A tensor that has the
    /// dtype already is not changed.
    Saturate,
    /// It is an error, [`ErrorKind::DoesNotFit`](crate::ErrorKind::DoesNotFit). So is infinity if
    /// the dtype has none.
    Error,
}

/// What a conversion does with a quantised weight that has a tensor of scales beside it, such as
/// block-scaled FP8. [`LazyTensor::scales`](crate::LazyTensor::scales) says which weights these
/// are. Their values are the elements, multiplied by the scales.
///
/// A weight that is read in the dtype of its file is not converted: its elements and its scales are
/// then two tensors, as in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaledWeights {
    /// The conversion is an error, [`ErrorKind::NeedsScales`](crate::ErrorKind::NeedsScales),
    /// because without the scales the values would be wrong. That includes a framework that lacks
    /// the dtype and would hold the elements as a wider one.
    #[default]
    Refuse,
    /// Each element is multiplied by its scale. The product is rounded to F32, as DeepSeek's own
    /// conversion does, and then to the requested dtype. A load that requests none gives F32. A
    /// request for the dtype of the file itself gives the elements without scales.
    Dequantize,
    /// The elements are converted without their scales.
    Raw,
}

/// The options of a conversion.
///
/// ```
/// use safetensors_core::ConvertOptions;
/// use safetensors_core::convert::{Overflow, ScaledWeights};
///
/// let options = ConvertOptions::new()
///     .overflow(Overflow::Saturate)
///     .scaled_weights(ScaledWeights::Dequantize);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvertOptions {
    pub(super) overflow: Overflow,
    pub(super) scaled_weights: ScaledWeights,
    /// The rows and columns that share a scale; `None` for the default.
    pub(crate) scale_block: Option<[usize; 2]>,
    #[cfg(feature = "std")]
    pub(crate) threads: usize,
}

impl ConvertOptions {
    /// The default options: [`Overflow::Ieee`], and the default number of threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what becomes of numbers that are too large for a floating-point dtype.
    #[must_use]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Sets how quantised weights are converted that have scales in another tensor. A tensor in
    /// memory is converted by itself, because its scales are not known.
    #[must_use]
    pub fn scaled_weights(mut self, scaled: ScaledWeights) -> Self {
        self.scaled_weights = scaled;
        self
    }

    /// Sets how many rows and columns of a weight share a scale, if the checkpoint has scales of
    /// blocks. The default is 128 rows and 128 columns. The `config.json` of a model calls it
    /// `quantization_config.weight_block_size`.
    #[must_use]
    pub fn scale_block(mut self, rows: usize, columns: usize) -> Self {
        self.scale_block = Some([rows, columns]);
        self
    }

    /// Whether quantised weights are multiplied by their scales.
    #[cfg(feature = "std")]
    pub(crate) fn dequantizes(&self) -> bool {
        self.scaled_weights == ScaledWeights::Dequantize
    }

    /// The rows and columns that share a scale of blocks.
    pub(super) fn block(&self) -> [usize; 2] {
        self.scale_block.unwrap_or([128, 128])
    }

    /// Sets how many threads convert a large tensor. 0, the default, means the number in the
    /// environment variable `SAFETENSORS_THREADS`, or else one for each core, at most eight.
    /// Another number is that of the [threads](crate::LoadOptions::threads) of a load, too, if it
    /// is given these [options](crate::LoadOptions::convert_options).
    #[cfg(feature = "std")]
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
}
