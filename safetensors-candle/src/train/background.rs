//! Saves a copy of the state in a thread, while the training goes on.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use candle_core::{Device, Tensor, TensorId};
use safetensors_core::framework::{Framework, in_parallel, write_exactly};
use safetensors_core::save::BackgroundSaver;
use safetensors_core::{
    Error, ErrorKind, Result, SaveOptions, ShardOptions, TensorBuf, TensorSource,
};

use super::StateRef;
use crate::Candle;

/// Saves like [`save`](super::save), in a thread: takes a snapshot of the state, and returns while
/// it is being saved.
///
/// The snapshot is a copy of the variables, and of an optimizer's state on another device, in main
/// memory. The state of an [`AdamW`](super::AdamW) on the CPU is not copied.
///
/// This function first waits for the saver's earlier save. [`BackgroundSaver`] describes errors,
/// cancelling and killed processes.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};
/// use safetensors_candle::train::{self, AdamW};
/// use safetensors_core::save::BackgroundSaver;
/// use safetensors_core::{Checkpoint, SaveOptions};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("checkpoint.safetensors");
/// let var_map = VarMap::new();
/// let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
/// let model = candle_nn::linear(2, 1, builder.pp("head"))?;
/// let mut optimizer = AdamW::from_var_map(&var_map, ParamsAdamW::default())?;
/// let x = Tensor::new(&[[1_f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
///
/// let mut saver = BackgroundSaver::new();
/// for epoch in 0..3 {
///     optimizer.backward_step(&model.forward(&x)?.sqr()?.mean_all()?)?;
///     let options = SaveOptions::new().metadata([("epoch", epoch.to_string())]);
///     train::save_in_background(&mut saver, &path, (&var_map, &optimizer), &options)?;
/// }
/// saver.wait()?;
/// assert_eq!(Checkpoint::open(&path)?.metadata()["epoch"], "2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The error of the saver's earlier save, instead of a new one; [`ErrorKind::Framework`] if the
/// snapshot cannot be taken; [`ErrorKind::DuplicateTensor`] if a variable has the name of a tensor
/// of the optimizer. [`BackgroundSaver::wait`] returns the errors of the new save.
pub fn save_in_background<'a>(
    saver: &mut BackgroundSaver,
    path: impl AsRef<Path>,
    state: impl Into<StateRef<'a>>,
    options: &SaveOptions,
) -> Result<()> {
    let path = path.as_ref().to_owned();
    let state = state.into();
    let tensors = state.snapshot_after(saver, &path)?;
    let options = options.clone().metadata(state.metadata());
    saver.start(&options, move |options| crate::save(path, named(&tensors), options))
}

/// Saves like [`save_in_background`], to a directory like [`save_sharded`](super::save_sharded).
/// The saver knows the progress of all files together.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap};
/// use safetensors_candle::train;
/// use safetensors_core::save::BackgroundSaver;
/// use safetensors_core::{Checkpoint, ShardOptions};
///
/// let dir = tempfile::tempdir()?;
/// let var_map = VarMap::new();
/// let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
/// candle_nn::linear(2, 3, builder.pp("head"))?;
///
/// let mut saver = BackgroundSaver::new();
/// let options = ShardOptions::new().max_shard_size(24.into());
/// train::save_sharded_in_background(&mut saver, dir.path(), &var_map, &options)?;
/// saver.wait()?;
/// assert_eq!(Checkpoint::open(dir.path())?.files().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_sharded_in_background<'a>(
    saver: &mut BackgroundSaver,
    directory: impl AsRef<Path>,
    state: impl Into<StateRef<'a>>,
    options: &ShardOptions,
) -> Result<()> {
    let directory = directory.as_ref().to_owned();
    let state = state.into();
    let tensors = state.snapshot_after(saver, &directory)?;
    let options = options.clone().metadata(state.metadata());
    saver.start(&options, move |options| {
        crate::save_sharded(directory, named(&tensors), options).map(drop)
    })
}

fn named(tensors: &[(String, Tensor)]) -> impl Iterator<Item = (&String, &Tensor)> {
    tensors.iter().map(|(name, tensor)| (name, tensor))
}

impl StateRef<'_> {
    /// Waits until the saver's earlier save has ended.
    fn snapshot_after(
        self,
        saver: &mut BackgroundSaver,
        path: &Path,
    ) -> Result<Vec<(String, Tensor)>> {
        saver.wait()?;
        self.snapshot().map_err(|error| error.in_path(path))
    }

    /// Returns tensors that no later step changes.
    fn snapshot(self) -> Result<Vec<(String, Tensor)>> {
        let tensors = self.tensors()?;
        // An optimizer's tensors on the CPU are never changed in place. A tied variable is copied
        // once.
        let mut ids = HashSet::new();
        let changing = tensors.iter().filter(|(_, tensor)| {
            (tensor.is_variable() || !tensor.device().is_cpu()) && ids.insert(tensor.id())
        });
        // A source waits for the work that the calling thread gave the device. So the sources are
        // made here, and not in the threads that copy.
        let sources = changing.map(|(name, tensor)| {
            let source = Candle::source(tensor).map_err(|error| error.in_tensor(name))?;
            Ok((name, tensor.id(), source))
        });
        let copy = |(name, id, source): (&String, TensorId, _), _: &mut ()| {
            Ok((id, copy(&source).map_err(|error| error.in_tensor(name))?))
        };
        let copies = in_parallel(sources.collect::<Result<Vec<_>>>()?, 0, copy)?;
        let copies: HashMap<TensorId, Tensor> = copies.into_iter().collect();
        let mut names = HashSet::new();
        if let Some(name) = tensors.iter().map(|it| &it.0).find(|&name| !names.insert(name)) {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(name));
        }
        // In the same order, which divides them among shards.
        let snapshot = tensors.iter().map(|(name, tensor)| {
            (name.clone(), copies.get(&tensor.id()).unwrap_or(tensor).clone())
        });
        Ok(snapshot.collect())
    }
}

fn copy(source: &impl TensorSource) -> Result<Tensor> {
    let buf = TensorBuf::filled_by(source.dtype(), source.shape().to_vec(), |mut rest| {
        write_exactly(source, rest.len() as u64, &mut |bytes| {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = after;
            Ok(())
        })
    })?;
    Candle::from_exact(buf, &Device::Cpu)
}
