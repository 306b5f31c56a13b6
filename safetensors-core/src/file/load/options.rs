//! [`LoadOptions`]: threads, conversion, progress.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use super::{ExpertLayout, ExpertOptions};
use crate::file::io::ReadAt;
use crate::file::io::page_cache::fills_memory;
use crate::format::convert::{ConvertOptions, DtypeTable, Widening};
use crate::format::dtype::Dtype;
use crate::format::parallel::{Meter, Progress, Work, default_threads};

/// How [quantised weights](crate::quantized) are read: their codes are numbers only together with
/// scales in other tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QuantizedWeights {
    /// Fails, unless a tensor is read in the file's dtype and without a
    /// [framework](LoadOptions::for_framework).
    #[default]
    Refuse,
    /// Makes each weight a tensor of numbers with the model's name and shape. They are computed as
    /// F32, and rounded to the dtype of the load.
    ///
    /// Applies to a path or a checkpoint. For a single tensor, use
    /// [`Checkpoint::dequantized`](crate::Checkpoint::dequantized).
    Numbers,
    /// Reads codes and scales as stored. A dtype of the load applies to both.
    Stored,
}

/// How tensors are loaded.
///
/// ```
/// use safetensors_core::{LoadOptions, Widening};
///
/// let options = LoadOptions::new().threads(2).widening(Widening::Refuse);
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub(crate) work: Work,
    pub(crate) aliases: bool,
    pub(super) widening: Widening,
    floats: Option<Dtype>,
    pub(super) all: Option<Dtype>,
    /// Of the framework that the tensors are for.
    pub(super) table: Option<DtypeTable>,
    pub(crate) convert: ConvertOptions,
    pub(super) quantized: QuantizedWeights,
    experts: Option<(ExpertLayout, ExpertOptions)>,
    /// `None` lets the load decide.
    drop_page_cache: Option<bool>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            work: Work::default(),
            aliases: true,
            widening: Widening::default(),
            floats: None,
            all: None,
            table: None,
            convert: ConvertOptions::default(),
            quantized: QuantizedWeights::default(),
            experts: None,
            drop_page_cache: None,
        }
    }
}

impl LoadOptions {
    /// Makes the default options. The environment variable `SAFETENSORS_THREADS` sets the number of
    /// threads; otherwise there is one per core, at most eight. Dtypes that the framework lacks are
    /// widened without loss.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of threads; 0 for the default.
    pub fn threads(mut self, threads: usize) -> Self {
        self.work = self.work.threads(threads);
        self
    }

    /// Calls `callback` about once per MiB that is read, and at the end, from any thread.
    /// [`ControlFlow::Break`] stops the load with
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
    pub fn progress(
        mut self,
        callback: impl Fn(Progress<'_>) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.work = self.work.progress(callback);
        self
    }

    /// Sets whether dtypes that the framework lacks may be widened.
    pub fn widening(mut self, widening: Widening) -> Self {
        self.widening = widening;
        self
    }

    /// Sets whether [`framework::load`](crate::framework::load) also returns a clone of a tensor
    /// for every [alias](crate::Checkpoint::aliases). On by default. A clone shares its elements in
    /// candle; elsewhere it is a copy.
    pub fn aliases(mut self, aliases: bool) -> Self {
        self.aliases = aliases;
        self
    }

    /// Converts every float to this dtype while it is read.
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
    pub fn floats_as(mut self, to: Dtype) -> Self {
        self.floats = Some(to);
        self
    }

    /// Sets how elements are converted, such as numbers that are too large.
    pub fn convert_options(mut self, options: ConvertOptions) -> Self {
        self.convert = options;
        self
    }

    /// Converts every tensor, also BOOL, to this dtype while it is read. Overrides
    /// [`floats_as`](LoadOptions::floats_as).
    ///
    /// For a [framework](LoadOptions::for_framework) that holds C64 as pairs of F32, converts the
    /// pairs. [`Widening::Refuse`] still refuses a tensor that has a dtype in the file that the
    /// framework lacks.
    pub fn all_as(mut self, to: Dtype) -> Self {
        self.all = Some(to);
        self
    }

    /// Sets how [quantised weights](crate::quantized) are read. Refused by default.
    ///
    /// ```
    /// use safetensors_core::load::QuantizedWeights;
    /// use safetensors_core::{Checkpoint, Dtype, LoadOptions, SaveOptions, TensorView, serialize};
    ///
    /// // The codes of 1 and 2. The weight is 0.5 and 1.
    /// let codes = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40])?;
    /// let scales = TensorView::from_slice(&[1], &[0.5_f32])?;
    /// let tensors = [("up.weight", codes), ("up.weight_scale", scales)];
    /// let bytes = serialize(tensors, &SaveOptions::new())?;
    ///
    /// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?;
    /// let options = LoadOptions::new().floats_as(Dtype::F32);
    /// let error = checkpoint.tensor("up.weight")?.read_with(&options).unwrap_err();
    /// assert!(error.to_string().contains("QuantizedWeights::Numbers"));
    ///
    /// let stored = options.clone().quantized(QuantizedWeights::Stored);
    /// let codes = checkpoint.tensor("up.weight")?.read_with(&stored)?;
    /// assert_eq!(codes.as_slice::<f32>()?, [1.0, 2.0]);
    /// let numbers = checkpoint.dequantized()?.tensor("up.weight")?.read_with(&options)?;
    /// assert_eq!(numbers.as_slice::<f32>()?, [0.5, 1.0]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn quantized(mut self, quantized: QuantizedWeights) -> Self {
        self.quantized = quantized;
        self
    }

    /// Shows the experts of a mixture in this [layout](crate::experts), by default as they are
    /// stored. A model then finds `experts.3.gate_proj.weight` in a file with
    /// `experts.gate_up_proj`, or the reverse.
    ///
    /// Applies to loads of a path or a checkpoint. For a single tensor, use
    /// [`Checkpoint::experts`](crate::Checkpoint::experts).
    pub fn experts(mut self, layout: ExpertLayout, options: ExpertOptions) -> Self {
        self.experts = Some((layout, options));
        self
    }

    /// Sets whether a load drops the pages of its files from the page cache of the system. Pages
    /// that were there before stay, and so do those that the system has read ahead in vain: after
    /// the last byte that is asked for, and of a load by several threads about 1 % where it reads
    /// 8 MiB ahead. By default only a load of more bytes than half of the available memory does
    /// this, so that the system need not swap; tensors that are read one by one count alone.
    ///
    /// Needs Linux 6.14, and a file system of a disk, such as ext4 or XFS; elsewhere it has no
    /// effect. The pages of a mapped file are its memory, so they stay.
    pub fn drop_page_cache(mut self, drops: bool) -> Self {
        self.drop_page_cache = Some(drops);
        self
    }

    /// Returns whether a load of so many bytes drops the pages that it reads.
    pub(crate) fn drops_page_cache(&self, bytes: u64) -> bool {
        self.drop_page_cache.unwrap_or_else(|| fills_memory(bytes))
    }

    /// Returns the layout of experts, if these options set one.
    pub(crate) fn expert_layout(&self) -> Option<(ExpertLayout, ExpertOptions)> {
        self.experts
    }

    #[doc(hidden)]
    pub fn reads_numbers(&self) -> bool {
        self.quantized == QuantizedWeights::Numbers
    }

    #[doc(hidden)]
    pub fn reads_codes(&self) -> bool {
        self.quantized == QuantizedWeights::Stored
    }

    /// Returns the dtype after the conversion, which a framework may lack. See
    /// [`dtype_plan`](LoadOptions::dtype_plan).
    #[doc(hidden)]
    pub fn dtype_of(&self, dtype: Dtype) -> Dtype {
        let of_float = self.floats.filter(|_| dtype.is_float());
        self.all.or(of_float).unwrap_or(dtype)
    }

    pub(crate) fn held_by(mut self, table: DtypeTable) -> Self {
        self.table = Some(table);
        self
    }

    /// Reports later loads as parts of an operation on `bytes` bytes.
    #[doc(hidden)]
    pub fn parts_of(mut self, bytes: u64) -> Self {
        self.drop_page_cache = Some(self.drops_page_cache(bytes));
        self.work = self.work.parts_of(bytes);
        self
    }

    /// Makes all loads count together, to this many bytes.
    pub(crate) fn counting(mut self, bytes: u64) -> Self {
        self.drop_page_cache = Some(self.drops_page_cache(bytes));
        self.work = self.work.counting(bytes);
        self
    }

    pub(crate) fn unwatched(&self) -> Self {
        let work = Work::default().threads(self.work.thread_count());
        Self { work, ..self.clone() }
    }

    #[doc(hidden)]
    pub fn meter(&self, bytes: u64) -> Meter {
        self.work.meter(bytes)
    }

    #[doc(hidden)]
    pub fn thread_count(&self) -> usize {
        self.work.thread_count()
    }

    /// Returns the number of threads to read from these sources. For a source with calls that wait,
    /// it is the number of its calls at once, at most `most`, unless these options or the
    /// environment set another.
    #[doc(hidden)]
    pub fn threads_for<'a, S: ReadAt + 'a>(
        &self,
        sources: impl IntoIterator<Item = &'a S>,
        most: usize,
    ) -> usize {
        let requests = sources.into_iter().filter_map(ReadAt::requests);
        let at_once = requests.map(|requests| requests.concurrency.min(most)).max();
        let threads = self.work.unless_set(at_once.unwrap_or_default()).thread_count();
        NonZeroUsize::new(threads).map_or_else(default_threads, usize::from)
    }
}
