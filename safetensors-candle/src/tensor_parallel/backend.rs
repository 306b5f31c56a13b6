//! [`TensorParallelBackend`]: candle's models read one rank's parts of a checkpoint.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::{Backend, Shard, VarBuilderArgs};
use safetensors_core::framework::Framework;
use safetensors_core::slice::TensorPart;
use safetensors_core::{Checkpoint, LazyTensor, LoadOptions, ReadAt, Result};

use super::prefetched::{Key, Prefetched};
use super::{PartHint, TensorParallelVarBuilder};
use crate::Candle;
use crate::error::into_candle_error;
use crate::var_builder::Names;
use crate::weights::{Source, Weights, unexpected_shape};

/// An open checkpoint as a backend of candle's
/// [`VarBuilderArgs`](candle_nn::var_builder::VarBuilderArgs), from which each rank reads its parts
/// of the tensors. `H` is the type of the hints, see [`tensor_parallel`](crate::tensor_parallel).
///
/// A part has the requested dtype and is on the requested device, as from
/// [`CheckpointBackend`](crate::CheckpointBackend). A clone shares the open files, so one backend
/// serves all ranks of a process.
///
/// ```
/// use candle_core::{DType, Device};
/// use safetensors_candle::TensorParallelBackend;
/// use safetensors_core::slice::TensorPart;
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// // Two heads of queries, then one of keys and one of values, of 2 rows each.
/// let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
/// let fused = TensorView::from_slice(&[8, 2], &values)?;
/// save(&path, [("attn.qkv.weight", fused)], &SaveOptions::new())?;
///
/// let backend = TensorParallelBackend::new(Checkpoint::open(&path)?).hints::<TensorPart>();
/// let rank_1 = backend.var_builder(DType::F32, &Device::Cpu).pp("attn");
/// // Rank 1 of 2 has the second head of queries, and the keys that it shares with rank 0.
/// let queries = rank_1.get_with_hints((2, 2), "qkv.weight", TensorPart::span(0, 2, 2))?;
/// let keys = rank_1.get_with_hints((2, 2), "qkv.weight", TensorPart::span(0, 4, 2))?;
/// assert_eq!(queries.to_vec2::<f32>()?, [[4., 5.], [6., 7.]]);
/// assert_eq!(keys.to_vec2::<f32>()?, [[8., 9.], [10., 11.]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// candle's `CannotFindTensor`, with similar names, and `UnexpectedShape`; any other error is a
/// [`safetensors_core::Error`] that [`IntoCandle`](crate::IntoCandle) converted. For a part these
/// are [`NoSuchDim`], [`NoSuchRank`], [`UnevenParts`] and [`IndexOutOfBounds`]; for a [quantised
/// weight](crate#quantised-weights) [`Quantization`].
///
/// [`Quantization`]: safetensors_core::ErrorKind::Quantization
/// [`NoSuchDim`]: safetensors_core::ErrorKind::NoSuchDim
/// [`NoSuchRank`]: safetensors_core::ErrorKind::NoSuchRank
/// [`UnevenParts`]: safetensors_core::ErrorKind::UnevenParts
/// [`IndexOutOfBounds`]: safetensors_core::ErrorKind::IndexOutOfBounds
pub struct TensorParallelBackend<'a, H = Shard> {
    weights: Weights<'a>,
    prefetched: Arc<Prefetched>,
    /// This form is `Send` and `Sync` for every `H`.
    hints: PhantomData<fn() -> H>,
}

impl<'a> TensorParallelBackend<'a> {
    /// Makes a backend with candle's hints, which widens dtypes that candle lacks, and reads with
    /// one thread per core, at most eight.
    pub fn new(checkpoint: Checkpoint<impl ReadAt + 'a>) -> Self {
        Self::over(Weights::new(checkpoint, &LoadOptions::new()))
    }

    /// Makes a backend like [`new`](TensorParallelBackend::new), with options. Their dtypes have no
    /// effect, because the model asks for its own. If they ask for the numbers of [quantised
    /// weights](crate#quantised-weights), the backend has the tensors of
    /// [`Checkpoint::dequantized`].
    ///
    /// Progress is counted for each read; a [`prefetch`](TensorParallelBackend::prefetch) is one.
    pub fn new_with(
        checkpoint: Checkpoint<impl ReadAt + 'a>,
        options: &LoadOptions,
    ) -> Result<Self> {
        Ok(Self::over(Weights::prepare(checkpoint, options)?))
    }

    fn over(weights: Weights<'a>) -> Self {
        Self { weights, prefetched: Arc::default(), hints: PhantomData }
    }
}

impl<'a, H> TensorParallelBackend<'a, H> {
    /// Sets the type of the hints.
    #[must_use]
    pub fn hints<I: PartHint>(self) -> TensorParallelBackend<'a, I> {
        TensorParallelBackend {
            weights: self.weights,
            prefetched: self.prefetched,
            hints: PhantomData,
        }
    }

    fn find(&self, name: &str) -> candle_core::Result<LazyTensor<'_, Source<'a>>> {
        if self.weights.checkpoint.get(name).is_none() {
            return Err(Names::default().missing(&self.weights, name));
        }
        self.tensor(name).map_err(into_candle_error)
    }

    fn tensor(&self, name: &str) -> Result<LazyTensor<'_, Source<'a>>> {
        let tensor = self.weights.checkpoint.tensor(name)?;
        self.weights.check(&tensor)?;
        Ok(tensor)
    }

    fn check_shape(
        &self,
        tensor: &LazyTensor<'_, Source<'a>>,
        part: TensorPart,
        expected: Shape,
    ) -> candle_core::Result<()> {
        if part != TensorPart::Whole && expected.rank() == 0 {
            return Ok(());
        }
        let loaded =
            |shape: &[usize]| self.weights.loaded_shape(tensor, shape).map_err(into_candle_error);
        let whole = loaded(tensor.shape())?;
        let is_span = matches!(part, TensorPart::Span { .. });
        if !is_span && expected == whole {
            return Ok(());
        }
        let shape = part.shape(tensor.shape());
        let shape = shape.map_err(|kind| into_candle_error(tensor.locate(kind.into())))?;
        let of_part = loaded(&shape)?;
        if expected == of_part {
            return Ok(());
        }
        let (got, asked) = match part {
            TensorPart::Whole => (whole, "; without a part, ask for the whole shape".into()),
            TensorPart::Span { .. } => (of_part, "; ask for the shape of the part".into()),
            TensorPart::Rank(_) => (
                whole,
                format!("; ask for the whole shape, or for the part's, {:?}", of_part.dims()),
            ),
        };
        Err(unexpected_shape(tensor, tensor.name(), (expected, got), &asked))
    }

    fn key(
        &self,
        tensor: &LazyTensor<'_, Source<'a>>,
        part: TensorPart,
        dtype: DType,
    ) -> Result<Key> {
        let ranges = part.ranges(tensor.shape()).map_err(|kind| tensor.locate(kind.into()))?;
        Ok((tensor.name().into(), ranges, dtype))
    }
}

impl<'a, H: PartHint> TensorParallelBackend<'a, H> {
    /// Returns a builder that shares this backend. The parts have this `dtype` and `device`, unless
    /// the model asks for others.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> TensorParallelVarBuilder<'a, H> {
        VarBuilderArgs::new_with_args(self.clone(), dtype, device)
    }

    /// Reads many parts in one go, in parallel, and keeps each until a model asks for it.
    ///
    /// A part is found by its name, positions, dtype and device, and is handed out once. Later
    /// requests read it again. Clones share the prefetched parts.
    ///
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::var_builder::Shard;
    /// # use safetensors_candle::TensorParallelBackend;
    /// # use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// # let values = [1_f32, 2., 3., 4.];
    /// # save(&path, [("up", TensorView::from_slice(&[2, 2], &values)?)], &SaveOptions::new())?;
    /// let backend = TensorParallelBackend::new(Checkpoint::open(&path)?);
    /// let rows = Shard { dim: 0, rank: 1, world_size: 2 };
    /// backend.prefetch([("up", rows)], DType::F32, &Device::Cpu)?;
    /// let builder = backend.var_builder(DType::F32, &Device::Cpu);
    /// let part = builder.get_with_hints((2, 2), "up", rows)?; // reads nothing
    /// # assert_eq!(part.to_vec2::<f32>()?, [[3., 4.]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`Checkpoint::read_parts`], and
    /// [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework) if candle fails. Nothing is
    /// kept then.
    pub fn prefetch<N: AsRef<str>>(
        &self,
        parts: impl IntoIterator<Item = (N, H)>,
        dtype: DType,
        device: &Device,
    ) -> Result<()> {
        let mut keys = Vec::new();
        let mut wanted = HashSet::new();
        let mut missing = Vec::new();
        for (name, hint) in parts {
            let tensor = self.tensor(name.as_ref())?;
            let part = hint.part();
            let key = self.key(&tensor, part, dtype)?;
            if !self.prefetched.contains(&key, device) && wanted.insert(key.clone()) {
                keys.push(key);
                missing.push((tensor, part));
            }
        }
        let named = missing.iter().map(|(tensor, part)| (tensor.name(), *part));
        let bufs = self.weights.checkpoint.read_parts(named, &self.weights.options_for(dtype)?)?;
        let tensors = missing.iter().zip(bufs).map(|((tensor, _), buf)| {
            Candle::from_exact(buf, device).map_err(|error| tensor.locate(error))
        });
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        self.prefetched.insert(keys.into_iter().zip(tensors));
        Ok(())
    }

    fn load(
        &self,
        tensor: LazyTensor<'_, Source<'a>>,
        part: TensorPart,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let read = self.read(&tensor, part, dtype, device);
        read.map_err(|error| into_candle_error(tensor.locate(error)))
    }

    fn read(
        &self,
        tensor: &LazyTensor<'_, Source<'a>>,
        part: TensorPart,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        if !self.prefetched.is_empty()
            && let Some(part) = self.prefetched.take(&self.key(tensor, part, dtype)?, device)
        {
            return Ok(part);
        }
        let options = self.weights.options_for(dtype)?;
        Candle::from_exact(tensor.slice(part)?.read_with(&options)?, device)
    }
}

impl<H: PartHint> Backend for TensorParallelBackend<'_, H> {
    type Hints = H;

    fn get(
        &self,
        expected: Shape,
        name: &str,
        hint: H,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let tensor = self.find(name)?;
        let part = hint.part();
        self.check_shape(&tensor, part, expected)?;
        self.load(tensor, part, dtype, device)
    }

    /// Loads the entire tensor, because this request has no hint.
    fn get_unchecked(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        self.load(self.find(name)?, TensorPart::Whole, dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.weights.checkpoint.get(name).is_some()
            || Names::default().is_refused(&self.weights, name)
    }
}

impl<H> Clone for TensorParallelBackend<'_, H> {
    fn clone(&self) -> Self {
        Self {
            weights: self.weights.clone(),
            prefetched: Arc::clone(&self.prefetched),
            hints: PhantomData,
        }
    }
}

impl<H> fmt::Debug for TensorParallelBackend<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorParallelBackend")
            .field("weights", &self.weights)
            .finish_non_exhaustive()
    }
}
