//! Checkpoints of training: variables of a model, state of its optimizer, or both as one unit.
//!
//! | to | use |
//! |---|---|
//! | save variables, an optimizer, or both as one unit, with your own metadata | [`save`], [`save_sharded`] |
//! | save while the training goes on | [`save_in_background`], [`save_sharded_in_background`] |
//! | save the difference from an earlier checkpoint | `save_delta`, with the feature `delta` |
//! | train with an optimizer that can be saved | [`AdamW`] |
//! | load variables, resume an optimizer, or both | [`load`] |
//! | cast, or allow missing or extra tensors | [`StateOptions::load`] |
//! | load from an open checkpoint, for example with limits or in memory | [`StateOptions::load_from`] |
//! | continue a training that began in PyTorch | [`StateOptions::pytorch`] |
//!
//! A resumed run ends with the same bits as an uninterrupted one, if the program restores
//! everything else that it depends on, such as the position in the data and the seed of its random
//! numbers. The metadata has room for these:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};
//! use safetensors_candle::train::{self, AdamW};
//! use safetensors_core::SaveOptions;
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("checkpoint.safetensors");
//!
//! // A model, its variables and its optimizer.
//! let build = || -> Result<_, Box<dyn std::error::Error>> {
//!     let var_map = VarMap::new();
//!     let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
//!     let model = candle_nn::linear(2, 1, builder.pp("head"))?;
//!     let optimizer = AdamW::from_var_map(&var_map, ParamsAdamW::default())?;
//!     Ok((var_map, model, optimizer))
//! };
//! let x = Tensor::new(&[[1_f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
//!
//! let (var_map, model, mut optimizer) = build()?;
//! for epoch in 0..3 {
//!     optimizer.backward_step(&model.forward(&x)?.sqr()?.mean_all()?)?;
//!     let options = SaveOptions::new().metadata([("epoch", epoch.to_string())]);
//!     train::save(&path, (&var_map, &optimizer), &options)?;
//! }
//!
//! // Another process begins with other weights, and goes on where the first one stopped.
//! let (resumed_map, resumed, mut resumed_optimizer) = build()?;
//! let loaded = train::load(&path, (&resumed_map, &mut resumed_optimizer))?;
//! assert_eq!(loaded.metadata["epoch"], "2");
//! optimizer.backward_step(&model.forward(&x)?.sqr()?.mean_all()?)?;
//! resumed_optimizer.backward_step(&resumed.forward(&x)?.sqr()?.mean_all()?)?;
//! assert_eq!(model.weight().to_vec2::<f32>()?, resumed.weight().to_vec2::<f32>()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is loaded
//!
//! Tensors and variables are matched by name. By default every variable needs a tensor of its shape
//! and dtype, and every tensor needs a variable. A dtype that candle lacks may be
//! [widened](crate#dtypes) to the variable's. One error,
//! [`ErrorKind::Mismatches`](safetensors_core::ErrorKind::Mismatches), lists all differences, and
//! names the options that allow them. To load only the variables, use
//! [`StateOptions::allow_extra`].
//!
//! A variable with several names in the `VarMap` needs a tensor for only one of them. If there are
//! several, they must have the same values.
//!
//! If the load fails, all variables and the optimizer are unchanged, unless a GPU fails while
//! variables are copied on it. Memory holds the variables and all tensors that are read: at most
//! twice the variables and optimizer state.
//!
//! # What is saved
//!
//! A save replaces the earlier checkpoint completely or not at all, even if the process is killed.
//! Equal states give equal bytes. No thread should train while [`save`] runs: the file could have
//! variables of two steps. [`save_in_background`] and [`save_sharded_in_background`] save a copy.
//!
//! The variables have their own names, so [`load()`](crate::load()) and
//! [`var_builder()`](crate::var_builder()) read the model.
//!
//! # To PyTorch and back
//!
//! [`StateOptions::pytorch`] loads the model and the AdamW of a training checkpoint of PyTorch. The
//! training goes on as it would there, except for the rounding of the last bits.
//!
//! [`save`] writes PyTorch's names and shapes, so Python loads the file:
//!
//! ```python
//! with safe_open("checkpoint.safetensors", "pt") as file:
//!     model.load_state_dict({name: file.get_tensor(name) for name in model.state_dict()})
//!     prefix = "safetensors_bridge.adamw."
//!     saved = {k: float(v) for k, v in file.metadata().items() if k.startswith(prefix)}
//!     names = [name for name, _ in model.named_parameters()]  # the optimizer's order
//!     state = {
//!         name: {
//!             "step": torch.tensor(saved[prefix + "step"]),
//!             "exp_avg": file.get_tensor(name + ".exp_avg"),
//!             "exp_avg_sq": file.get_tensor(name + ".exp_avg_sq"),
//!         }
//!         for name in names
//!     }
//! [group] = optimizer.state_dict()["param_groups"]
//! group |= {key: saved[prefix + key] for key in ("lr", "eps", "weight_decay")}
//! group |= {"betas": (saved[prefix + "beta1"], saved[prefix + "beta2"]), "params": names}
//! optimizer.load_state_dict({"state": state, "param_groups": [group]})
//! ```

mod adamw;
mod background;
mod checkpoint;
#[cfg(feature = "delta")]
mod deltas;
#[cfg(feature = "delta")]
mod linked;
mod loaded;
mod options;
mod pytorch;
mod settings;
mod slots;
mod state;
mod values;
mod variables;

pub use adamw::AdamW;
pub use background::{save_in_background, save_sharded_in_background};
pub use checkpoint::{StateMut, StateRef, load, save, save_sharded};
#[cfg(feature = "delta")]
#[cfg_attr(docsrs, doc(cfg(feature = "delta")))]
pub use deltas::save_delta;
pub use loaded::Loaded;
pub use options::StateOptions;
