//! [`ConvertOptions`]: options of a conversion.

/// How a conversion treats a number that is too large for a floating-point dtype.
///
/// Decided after rounding: the largest `F8_E4M3` is 448, and the next number would be 480. Their
/// tie, 464, rounds to 448, and larger numbers are too large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// Infinity, or NaN in a dtype without it, as in IEEE 754, PyTorch and ml_dtypes.
    #[default]
    Ieee,
    /// The largest finite number with its sign, also for infinity. A tensor of the same dtype is
    /// unchanged.
    Saturate,
    /// [`ErrorKind::DoesNotFit`](crate::ErrorKind::DoesNotFit), also for infinity if the dtype has
    /// none.
    Error,
}

/// The options of a conversion.
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
}

impl ConvertOptions {
    /// Makes the default options: [`Overflow::Ieee`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how to treat a number that is too large.
    #[must_use]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }
}
