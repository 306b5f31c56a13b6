//! [`ConvertOptions`]: options of a conversion, such as how it treats numbers that are too large.

/// How a conversion to a floating-point dtype treats a number that is too large for it.
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

    /// Sets how a number that is too large for a floating-point dtype is converted.
    #[must_use]
    pub fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }
}
