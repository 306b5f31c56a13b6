//! [`ConvertOptions`]: what a conversion does with what does not fit.

/// What a conversion to a floating-point dtype does with a number that is too large for it.
///
/// Whether a number is too large is decided after rounding: 464 becomes 448, the largest `F8_E4M3`,
/// because the tie between it and the next number, 480, goes to it; all above 464 is too large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// It becomes infinity, or NaN in a dtype without infinity. That is what IEEE 754 says, and
    /// what PyTorch and ml_dtypes do.
    #[default]
    Ieee,
    /// It becomes the largest finite number of its sign. So does infinity: none comes out of a
    /// conversion to another dtype.
    Saturate,
    /// It is an error, [`ErrorKind::DoesNotFit`](crate::ErrorKind::DoesNotFit). So is infinity if
    /// the dtype has none.
    Error,
}

/// How elements are converted.
///
/// ```
/// use safetensors_core::ConvertOptions;
/// use safetensors_core::convert::Overflow;
///
/// let options = ConvertOptions::new().overflow(Overflow::Saturate);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvertOptions {
    pub(super) overflow: Overflow,
    #[cfg(feature = "std")]
    pub(crate) threads: usize,
}

impl ConvertOptions {
    /// Numbers that are too large become infinity, or NaN in a dtype without it, as in PyTorch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says what becomes of numbers that are too large for a floating-point dtype.
    #[must_use]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// How many threads convert a large tensor that is in memory, or
    /// [read it and convert it](crate::LazyTensor::read_as); 0, the default, for as many as the
    /// environment variable `SAFETENSORS_THREADS` says, or else one a core, eight at most. As part
    /// of [`LoadOptions`](crate::LoadOptions::convert_options) it says nothing: they have
    /// [threads](crate::LoadOptions::threads) of their own.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
}
