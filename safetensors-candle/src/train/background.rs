//! Saves a copy of the state in a thread, while the training goes on.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use candle_core::{Device, Tensor};
use safetensors_core::framework::{Framework, in_parallel, write_exactly};
use safetensors_core::save::BackgroundSaver;
use safetensors_core::{Error, ErrorKind, Result, SaveOptions, TensorBuf, TensorSource};

use super::StateRef;
use super::variables::{distinct, named};
use crate::Candle;

/// Like [`save`](super::save), in a thread: takes a snapshot of the state, and returns while it is
/// being saved.
///
/// The file has the state of the moment of the call, whatever the training does meanwhile, and the
/// bytes that [`save`](super::save) would have written then. [`BackgroundSaver`] says what happens
/// to a second save, an error, a cancelled save and a process that is killed.
///
/// The snapshot is a copy of the variables in main memory. The state of an optimizer on the CPU is
/// not copied, because [`AdamW`](super::AdamW) never changes it in place; that of another device is
/// copied to main memory. So until the save has ended, the process needs at most as much memory as
/// the saved tensors take. There is one snapshot at a time: this function first waits for the
/// saver's earlier save.
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
/// The error of the saver's earlier save, in place of a new one; [`ErrorKind::Framework`] if the
/// snapshot cannot be taken; [`ErrorKind::DuplicateTensor`] if a variable has the name of a tensor
/// of the optimizer. The errors of the new save are those of [`save`](super::save), and come from
/// [`BackgroundSaver::wait`].
pub fn save_in_background<'a>(
    saver: &mut BackgroundSaver,
    path: impl AsRef<Path>,
    state: impl Into<StateRef<'a>>,
    options: &SaveOptions,
) -> Result<()> {
    saver.wait()?;
    let (path, state) = (path.as_ref().to_owned(), state.into());
    let tensors = state.snapshot().map_err(|error| error.in_path(&path))?;
    let options = options.clone().metadata(state.metadata());
    saver.start(&options, move |options| crate::save(path, &tensors, options))
}

impl StateRef<'_> {
    /// All tensors by name, as they are now. No later step changes them.
    fn snapshot(self) -> Result<BTreeMap<String, Tensor>> {
        let variables = self.var_map.map(|var_map| distinct(named(var_map))).unwrap_or_default();
        let mut entries: Vec<(Vec<String>, &Tensor)> = variables
            .iter()
            .map(|variable| (variable.names.clone(), variable.var.as_tensor()))
            .collect();
        let mut tensors = BTreeMap::new();
        if let Some(optimizer) = self.optimizer {
            for (name, tensor) in optimizer.tensors()? {
                if tensor.device().is_cpu() {
                    insert(&mut tensors, name, tensor.clone())?;
                } else {
                    entries.push((vec![name], tensor));
                }
            }
        }
        let copies = copy_all(&entries)?;
        for ((names, _), copy) in entries.into_iter().zip(copies) {
            for name in names {
                insert(&mut tensors, name, copy.clone())?;
            }
        }
        Ok(tensors)
    }
}

/// Adds a tensor to a snapshot. Fails if a variable has the name of a tensor of the optimizer.
fn insert(tensors: &mut BTreeMap<String, Tensor>, name: String, tensor: Tensor) -> Result<()> {
    match tensors.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(tensor);
            Ok(())
        }
        Entry::Occupied(entry) => {
            Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(entry.key()))
        }
    }
}

/// Copies tensors, each with its names, to main memory, several at a time.
fn copy_all(tensors: &[(Vec<String>, &Tensor)]) -> Result<Vec<Tensor>> {
    let located = |error: Error, names: &[String]| {
        names.first().into_iter().fold(error, |error, name| error.in_tensor(name))
    };
    // A source waits for the work that the calling thread gave the device. So the sources are made
    // here, and not in the threads that copy.
    let sources = tensors.iter().map(|(names, tensor)| {
        Ok((names, Candle::source(tensor).map_err(|error| located(error, names))?))
    });
    in_parallel(sources.collect::<Result<Vec<_>>>()?, 0, |(names, source), _: &mut ()| {
        copy(&source).map_err(|error| located(error, names))
    })
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
