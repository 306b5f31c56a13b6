//! [`LoadOptions`]: threads, conversion, progress.

use std::ops::ControlFlow;

use crate::convert::{Conversion, ConvertOptions, Support, Widening, can_convert};
use crate::dtype::Dtype;
use crate::error::{ErrorKind, Result};
use crate::parallel::{Meter, Progress};

/// How tensors are loaded.
///
/// ```
/// use safetensors_core::{LoadOptions, Widening};
///
/// let options = LoadOptions::new().threads(2).widening(Widening::Refuse);
/// ```
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub(super) threads: usize,
    pub(crate) aliases: bool,
    pub(crate) widening: Widening,
    pub(super) progress: Meter,
    floats: Option<Dtype>,
    integers: Option<Dtype>,
    /// The dtype table of the framework that the tensors are for.
    support: Option<fn(Dtype) -> Support>,
    convert: ConvertOptions,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            threads: 0,
            aliases: true,
            widening: Widening::default(),
            progress: Meter::default(),
            floats: None,
            integers: None,
            support: None,
            convert: ConvertOptions::default(),
        }
    }
}

impl LoadOptions {
    /// As many threads as the environment variable `SAFETENSORS_THREADS` says, or else one a core,
    /// eight at most; dtypes that the framework lacks are widened losslessly.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads with this many threads; 0 for the default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Has `callback` called about once a MiB that is read, and at the end, by the thread that read
    /// it. If it returns [`ControlFlow::Break`], the rest is not read and the load fails with
    /// [`ErrorKind::Cancelled`].
    ///
    /// ```
    /// use safetensors_core::{
    ///     Checkpoint, ErrorKind, LoadOptions, SaveOptions, TensorView, save,
    /// };
    /// use std::ops::ControlFlow;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("model.safetensors");
    /// save(&path, [("w", TensorView::from_slice(&[2], &[1.0_f32, 2.0])?)], &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let options = LoadOptions::new().progress(|progress| {
    ///     println!(
    ///         "{} of {} bytes, {}",
    ///         progress.bytes_done, progress.bytes_total, progress.tensor
    ///     );
    ///     ControlFlow::Continue(())
    /// });
    /// checkpoint.read_all(&options)?;
    ///
    /// let cancelled =
    ///     checkpoint.read_all(&LoadOptions::new().progress(|_| ControlFlow::Break(())));
    /// assert!(matches!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn progress(
        mut self,
        callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.progress = Meter::new(callback);
        self
    }

    /// Says whether dtypes that the framework lacks may be widened.
    #[must_use]
    pub fn widening(mut self, widening: Widening) -> Self {
        self.widening = widening;
        self
    }

    /// Whether [`framework::load`](crate::framework::load) gives a tensor under the names too that
    /// were [dropped](crate::Checkpoint::aliases) when it was saved, as a clone. On by default. A
    /// clone shares the elements in candle; in ndarray and burn it is a copy.
    #[must_use]
    pub fn aliases(mut self, aliases: bool) -> Self {
        self.aliases = aliases;
        self
    }

    /// Converts every tensor of a floating-point dtype to this one while it is read, for example
    /// BF16 to F32.
    ///
    /// ```
    /// use half::bf16;
    /// use safetensors_core::{Checkpoint, Dtype, LoadOptions, SaveOptions, TensorView, save};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("model.safetensors");
    /// save(&path, [("w", TensorView::from_slice(&[1], &[bf16::ONE])?)], &SaveOptions::new())?;
    /// let bufs = Checkpoint::open(&path)?.read_all(&LoadOptions::new().floats_as(Dtype::F32))?;
    /// assert_eq!(bufs[0].as_slice::<f32>()?, [1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn floats_as(mut self, to: Dtype) -> Self {
        self.floats = Some(to);
        self
    }

    /// Converts every tensor of integers to this dtype while it is read. BOOL tensors stay as they
    /// are.
    #[must_use]
    pub fn integers_as(mut self, to: Dtype) -> Self {
        self.integers = Some(to);
        self
    }

    /// Says how elements are converted, where they are.
    #[must_use]
    pub fn convert_options(mut self, options: ConvertOptions) -> Self {
        self.convert = options;
        self
    }

    /// The dtype that a tensor has after reading, given its dtype in the file.
    pub fn dtype_of(&self, dtype: Dtype) -> Dtype {
        use Dtype::{I8, I16, I32, I64, U8, U16, U32, U64};
        let to = match dtype {
            _ if dtype.is_float() => self.floats,
            I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 => self.integers,
            _ => None,
        };
        // What is to be converted to something else is rounded to that first, and only then
        // widened.
        to.filter(|&to| to != dtype).unwrap_or_else(|| self.widened(dtype))
    }

    /// The dtype that a tensor of `dtype` is widened to while it is read.
    fn widened(&self, dtype: Dtype) -> Dtype {
        match self.support.map(|support| support(dtype)) {
            Some(Support::Widened(to)) if to.bits() != dtype.bits() && can_convert(dtype, to) => to,
            _ => dtype,
        }
    }

    /// Widens the dtypes that a framework lacks while they are read, given the framework's dtype
    /// table. For adapters that read in a way of their own.
    ///
    /// Widening after the read would need memory for both dtypes. What needs no other memory, such
    /// as BOOL as U8, is left to [`Framework::from_buf`](crate::framework::Framework::from_buf).
    /// Whether a dtype may be widened at all is for [`dtype_in`](crate::framework::dtype_in) to say.
    #[must_use]
    pub fn widened_for(mut self, support: fn(Dtype) -> Support) -> Self {
        self.support = Some(support);
        self
    }

    /// Whether dtypes that the framework lacks may be widened, for adapters that read in a way of
    /// their own.
    pub fn get_widening(&self) -> Widening {
        self.widening
    }

    /// How elements are converted, by as many threads as read, for adapters that read in a way of
    /// their own.
    pub fn get_convert_options(&self) -> ConvertOptions {
        self.convert.threads(self.threads)
    }

    /// What happens to the elements of a dtype, if anything does.
    pub(super) fn conversion(&self, dtype: Dtype) -> Result<Option<Conversion>, ErrorKind> {
        let to = self.dtype_of(dtype);
        if to == dtype { Ok(None) } else { Conversion::new(dtype, to, &self.convert).map(Some) }
    }
}
