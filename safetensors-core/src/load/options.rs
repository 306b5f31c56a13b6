//! [`LoadOptions`]: threads, conversion, progress.

use std::ops::ControlFlow;

use crate::convert::{ConvertOptions, DtypeTable, ScaledWeights, Widening};
use crate::dtype::Dtype;
use crate::parallel::{Meter, Progress, Work};

/// How tensors are loaded.
///
/// ```
/// use safetensors_core::{LoadOptions, Widening};
///
/// let options = LoadOptions::new().threads(2).widening(Widening::Refuse);
/// ```
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub(super) work: Work,
    pub(crate) aliases: bool,
    pub(super) widening: Widening,
    floats: Option<Dtype>,
    integers: Option<Dtype>,
    pub(super) all: Option<Dtype>,
    /// The dtype table of the framework that the tensors are for.
    pub(super) table: Option<DtypeTable>,
    convert: ConvertOptions,
    /// Goes before what the options of conversions say.
    scaled_weights: Option<ScaledWeights>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            work: Work::default(),
            aliases: true,
            widening: Widening::default(),
            floats: None,
            integers: None,
            all: None,
            table: None,
            convert: ConvertOptions::default(),
            scaled_weights: None,
        }
    }
}

impl LoadOptions {
    /// The default options. The number of threads comes from the environment variable
    /// `SAFETENSORS_THREADS`, or else one for each core, at most eight. Dtypes that the framework
    /// lacks are widened losslessly.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads with this many threads; 0 for the default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.work = self.work.threads(threads);
        self
    }

    /// Calls `callback` about once per MiB that is read, and at the end, in the thread that read
    /// it. If it returns [`ControlFlow::Break`], the rest is not read and the load fails with
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
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
        self.work = self.work.progress(callback);
        self
    }

    /// Sets whether dtypes that the framework lacks may be widened.
    #[must_use]
    pub fn widening(mut self, widening: Widening) -> Self {
        self.widening = widening;
        self
    }

    /// Sets whether [`framework::load`](crate::framework::load) also returns a clone of each tensor
    /// for every [alias](crate::Checkpoint::aliases): a name that was dropped when the tensor was
    /// saved. On by default. A clone shares the elements in candle; it is a copy in ndarray and
    /// burn.
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

    /// Sets how elements are converted, for every conversion of this load. The
    /// [threads](ConvertOptions::threads) of these options, if they set any, are those of the load.
    #[must_use]
    pub fn convert_options(mut self, options: ConvertOptions) -> Self {
        self.convert = options;
        if options.threads == 0 { self } else { self.threads(options.threads) }
    }

    /// Converts every tensor, also BOOL, to this dtype while it is read, such as the dtype of a
    /// model. This overrides [`floats_as`](LoadOptions::floats_as) and
    /// [`integers_as`](LoadOptions::integers_as).
    ///
    /// If a [framework](LoadOptions::for_framework) holds C64 as pairs of F32, the pairs are
    /// converted. [`Widening::Refuse`] still refuses a tensor whose dtype in the file the framework
    /// lacks.
    #[must_use]
    pub fn all_as(mut self, to: Dtype) -> Self {
        self.all = Some(to);
        self
    }

    /// Sets how quantised weights are converted that have scales in another tensor, such as
    /// block-scaled FP8. By default their conversion is an error, because without the scales the
    /// values would be wrong. [`LazyTensor::scales`](crate::LazyTensor::scales) says which weights
    /// these are, and [`read_tensors`](crate::load::read_tensors) how much memory the scales take.
    /// This overrides what the [options of conversions](LoadOptions::convert_options) say.
    ///
    /// A load by path reads the weights of every [scheme](crate::quantized) as numbers with
    /// [`Dequantize`](ScaledWeights::Dequantize). A checkpoint that is open already has them as
    /// numbers after [`Checkpoint::dequantized`](crate::Checkpoint::dequantized).
    #[must_use]
    pub fn scaled_weights(mut self, scaled: ScaledWeights) -> Self {
        self.scaled_weights = Some(scaled);
        self
    }

    /// The dtype that was requested for elements of `dtype` that are floats.
    pub(super) fn requested(&self, dtype: Dtype) -> Option<Dtype> {
        self.all.or(if dtype.is_float() { self.floats } else { None })
    }

    /// Whether floats of this dtype are multiplied by their scales, if they have any.
    pub(crate) fn dequantizes(&self, dtype: Dtype) -> bool {
        self.conversions().dequantizes() && self.requested(dtype) != Some(dtype)
    }

    /// Whether quantised weights of every scheme are read as numbers. A request for floats of 8 bits
    /// means the codes of the file.
    pub(crate) fn reads_numbers(&self) -> bool {
        self.dequantizes(Dtype::F8_E4M3)
            && self.requested(Dtype::F8_E4M3).is_none_or(|dtype| dtype.bits() > 8)
    }

    /// The rows and columns of a weight that share a scale, if they were set.
    pub(crate) fn block(&self) -> Option<[usize; 2]> {
        self.conversions().scale_block
    }

    /// The dtype to which these options convert elements of `dtype`; `dtype` itself if they do not.
    /// A framework may lack that dtype; [`dtype_plan`](LoadOptions::dtype_plan) takes this into
    /// account.
    pub fn dtype_of(&self, dtype: Dtype) -> Dtype {
        let kind = match dtype {
            _ if dtype.is_float() => self.floats,
            _ if dtype.is_integer() => self.integers,
            _ => None,
        };
        self.all.or(kind).unwrap_or(dtype)
    }

    /// The options for reading scales as F32: as many threads, and no report of progress, because
    /// the load reports the progress of its own tensors.
    pub(crate) fn for_scales(&self) -> Self {
        Self::new().threads(self.work.thread_count()).all_as(Dtype::F32)
    }

    /// Loads tensors for the framework with this dtype table.
    pub(crate) fn held_by(mut self, table: DtypeTable) -> Self {
        self.table = Some(table);
        self
    }

    /// Makes all loads with these options report progress together, of this many bytes.
    pub(crate) fn counting(mut self, bytes: u64) -> Self {
        self.work = self.work.counting(bytes);
        self
    }

    /// The same options without a report of progress.
    pub(crate) fn unwatched(&self) -> Self {
        let work = Work::default().threads(self.work.thread_count());
        Self { work, ..self.clone() }
    }

    /// Counts the progress of these options, to this many bytes.
    pub(crate) fn meter(&self, bytes: u64) -> Meter {
        self.work.meter(bytes)
    }

    /// The options of conversions, with the number of threads that read.
    pub(super) fn conversions(&self) -> ConvertOptions {
        let mut convert = self.convert.threads(self.work.thread_count());
        if let Some(scaled) = self.scaled_weights {
            convert = convert.scaled_weights(scaled);
        }
        convert
    }
}
