//! Training with burn: save and load modules, save complete epochs, and resume after a kill.
//!
//! ```toml
//! [dependencies]
//! safetensors-bridge = { version = "0.1", features = ["burn-train"] }
//! burn = { version = "0.22", features = ["autodiff", "flex", "train"] }
//! ```
//!
//! Without burn's training loop the feature `burn` is enough, and builds in less time.
//!
//! # Modules
//!
//! `CheckpointStore` is a `ModuleStore` with every option of burn-store's `SafetensorsStore`. The
//! path may be a file or, for loading, the directory of a sharded checkpoint.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::Device;
//! use safetensors_bridge::burn::{Checkpoint, CheckpointStore, ModuleSnapshot};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     encoder: Linear,
//!     head: Linear,
//! }
//!
//! impl Net {
//!     fn new(width: usize, device: &Device) -> Self {
//!         let linear = |from, to| LinearConfig::new(from, to).init(device);
//!         Self { encoder: linear(2, width), head: linear(width, 1) }
//!     }
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("net.safetensors");
//! let device = Device::default();
//! let trained = Net::new(8, &device);
//! trained.save_into(&mut CheckpointStore::from_file(&path).metadata("title", "a net"))?;
//! assert_eq!(Checkpoint::open(&path)?.metadata()["title"], "a net");
//!
//! let mut net = Net::new(8, &device);
//! let loaded = net.load_from(&mut CheckpointStore::from_file(&path))?;
//! assert_eq!(loaded.applied.len(), 4);
//! // Loads a part of a file into a separate module.
//! let mut encoder = LinearConfig::new(2, 8).init(&device);
//! encoder.load_from(&mut CheckpointStore::from_file(&path).prefix("encoder"))?;
//! assert_eq!(encoder.weight.to_data(), trained.encoder.weight.to_data());
//!
//! // An existing file is replaced only on request, then completely or not at all.
//! let error = net.save_into(&mut CheckpointStore::from_file(&path)).unwrap_err();
//! assert!(error.to_string().contains("overwrite(true) replaces it"), "{error}");
//! net.save_into(&mut CheckpointStore::from_file(&path).overwrite(true))?;
//!
//! // A file of another model is an error that names tensors and shapes.
//! let error = Net::new(9, &device).load_from(&mut CheckpointStore::from_file(&path)).unwrap_err();
//! assert!(error.to_string().contains("expected Shape { dims: [2, 9] }"), "{error}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | load a model of PyTorch, or save one for it | `.pytorch(true)`; the module [`pytorch`](crate::burn::pytorch) has recipes for names |
//! | load only some parameters, or rename them | `.with_regex(r"^encoder\.")`, `.with_key_remapping(pattern, name)` |
//! | allow missing parameters | `.allow_partial(true)`; a filter or prefix that matches nothing is an error all the same |
//! | load an F16 or BF16 file into a module with inputs of F32, where burn would panic: `dtype mismatch F32 F16` | `.load_options(LoadOptions::new().floats_as(Dtype::F32))`; by default a parameter gets the dtype of the file |
//! | load quantised weights, such as FP8 or GPTQ, as numbers | `.load_options(LoadOptions::new().quantized(QuantizedWeights::Numbers))` |
//! | save in several files | `.max_shard_size("5GB".parse()?)`: the path is then a directory |
//! | load a module that is larger than main memory onto a device | `.max_extra_memory(bytes)` |
//!
//! # A training that survives
//!
//! burn's own checkpointers write three files an epoch, one by one. Here an epoch is a directory
//! `epoch-12` with the model, the optimizer, the scheduler and a manifest of digests. It appears
//! complete or not at all. Only the lines with `epochs`, `with_custom_checkpointers` and
//! `checkpoint(newest)` differ from a program with burn's checkpointers.
//!
//! Keep epochs in a separate directory, here `RUN/checkpoints`: burn's metrics are in
//! `RUN/train/epoch-12`. A directory without the manifest of an epoch is never replaced.
//!
#![cfg_attr(feature = "burn-train", doc = "```")]
#![cfg_attr(not(feature = "burn-train"), doc = "```ignore")]
//! use std::path::Path;
//!
//! use burn::data::dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher};
//! use burn::data::dataset::InMemDataset;
//! use burn::lr_scheduler::constant::ConstantLr;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::module::Module;
//! use burn::optim::AdamWConfig;
//! use burn::tensor::{Device, Tensor, TensorData};
//! use burn::train::metric::LossMetric;
//! use burn::train::{
//!     InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
//! };
//! use safetensors_bridge::burn::train::Epochs;
//!
//! /// A point, and its target.
//! type Item = ([f32; 2], f32);
//!
//! struct Batches;
//!
//! impl Batcher<Item, (Tensor<2>, Tensor<2>)> for Batches {
//!     fn batch(&self, items: Vec<Item>, device: &Device) -> (Tensor<2>, Tensor<2>) {
//!         let (points, targets): (Vec<_>, Vec<_>) = items.into_iter().unzip();
//!         let (len, data) = (targets.len(), TensorData::new(points.concat(), [targets.len(), 2]));
//!         let targets = TensorData::new(targets, [len, 1]);
//!         (Tensor::from_data(data, device), Tensor::from_data(targets, device))
//!     }
//! }
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     head: Linear,
//! }
//!
//! impl TrainStep for Net {
//!     type Input = (Tensor<2>, Tensor<2>);
//!     type Output = RegressionOutput;
//!
//!     fn step(&self, batch: Self::Input) -> TrainOutput<RegressionOutput> {
//!         let output = InferenceStep::step(self, batch);
//!         TrainOutput::new(self, output.loss.backward(), output)
//!     }
//! }
//!
//! impl InferenceStep for Net {
//!     type Input = (Tensor<2>, Tensor<2>);
//!     type Output = RegressionOutput;
//!
//!     fn step(&self, (points, targets): Self::Input) -> RegressionOutput {
//!         let output = self.head.forward(points);
//!         let loss = (output.clone() - targets.clone()).powi_scalar(2).mean();
//!         RegressionOutput::new(loss, output, targets)
//!     }
//! }
//!
//! fn loader(device: &Device) -> std::sync::Arc<dyn DataLoader<(Tensor<2>, Tensor<2>)>> {
//!     let points = (0..16).map(|i| ([i as f32, 1.0], 2.0 * i as f32 + 3.0)).collect();
//!     let batches = DataLoaderBuilder::new(Batches).batch_size(8).set_device(device.clone());
//!     batches.build(InMemDataset::new(points))
//! }
//!
//! fn train(run: &Path, last_epoch: usize) -> Result<Net, Box<dyn std::error::Error>> {
//!     let device = Device::default().autodiff();
//!     let net = Net { head: LinearConfig::new(2, 1).init(&device) };
//!
//!     let epochs = Epochs::new(run.join("checkpoints"));
//!     let (model, optimizer, scheduler) = epochs.checkpointers(&net);
//!     let mut training = SupervisedTraining::new(run, loader(&device), loader(&device))
//!         .num_epochs(last_epoch)
//!         .metric_train_numeric(LossMetric::new())
//!         .with_application_logger(None)
//!         .with_custom_checkpointers(model, optimizer, scheduler)
//!         .with_checkpointing_strategy(epochs.keep_last(2));
//!     for epoch in epochs.passed_over()? {
//!         // For example an epoch that was copied in part. The run repeats it.
//!         let problem = epoch.problem().map(ToString::to_string).unwrap_or_default();
//!         eprintln!("epoch {} is passed over: {problem}", epoch.number());
//!     }
//!     if let Some(newest) = epochs.newest()? {
//!         epochs.check(newest, &net)?; // an error here, where burn would panic
//!         training = training.checkpoint(newest); // goes on after this epoch
//!     }
//!     let learner = Learner::new(net, AdamWConfig::new().init(), ConstantLr::new(0.1));
//!     let result = training.launch(learner);
//!     match result.error {
//!         Some(error) => Err(error.to_string().into()),
//!         None => Ok(result.model),
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let dir = tempfile::tempdir()?;
//!     train(dir.path(), 3)?; // ends here, as if it had been killed
//!     let net = train(dir.path(), 6)?; // epochs 4, 5 and 6
//!     let epochs = Epochs::new(dir.path().join("checkpoints"));
//!     assert_eq!(epochs.list()?.iter().map(|epoch| epoch.number()).collect::<Vec<_>>(), [5, 6]);
//!     epochs.verify(6)?; // every tensor has its digest
//!
//!     // The model of an epoch is a file like any other: Python and candle read it, too.
//!     let model = safetensors_bridge::burn::load(epochs.path(6).join("model.safetensors"))?;
//!     assert_eq!(model["head.weight"], net.head.weight.to_data());
//!     Ok(())
//! }
//! ```
//!
//! A resumed run repeats the steps after the newest complete epoch. It ends with the same bits as a
//! run that was never stopped, if the order of the data and the random numbers depend only on the
//! number of the epoch. burn's shuffle depends on earlier epochs;
//! `examples/models/examples/burn_train.rs` has a loader that seeds each epoch.
//!
//! `safetensors inspect run` lists the epochs of a run, with their sizes and burn's metrics.
//! `safetensors verify run` names the epochs that are not complete.
//!
//! # What goes wrong
//!
//! | problem | result |
//! |---|---|
//! | the process is killed, or the power fails, while an epoch is saved | the earlier epochs stay; the next save removes the hidden directory that is left |
//! | the disk is full | the epoch is missing, the older ones stay, and burn ends the training with the error |
//! | an epoch belongs to another model | `epochs.check` is an error, and nothing is changed: `the checkpoint does not match: "bias" should have shape [4], found [3]`. Without it burn panics with these words |
//! | a byte of an epoch has changed | burn panics with the tensor and its digest. `Epochs::new(directory).digests(true)` checks the newest epoch first, and skips it; `epochs.verify(6)` and `safetensors verify --digests run` find it |
//! | `keep_best` of a metric that is not registered for its split | no epoch is deleted; at the second epoch, a warning in burn's `experiment.log` names `metric_valid_numeric` |
//! | an epoch was copied in part, or another program has changed its metadata | [`newest`](#a-training-that-survives) skips it, and the run repeats it; `passed_over` returns the reason |
//! | a link replaces an epoch that was moved away | it is skipped; saving the epoch again replaces only the link |
//! | `epoch-3` exists, but is no epoch, such as burn's `train/epoch-3` | saving epoch 3 is an error, and it stays: `this should be an epoch with its manifest.json, found a directory with "Loss.log"` |
//! | the run should go back to an earlier epoch | `epochs.delete_after(4)?` first: the newest is the one with the highest number |
//! | records are from an earlier burn (0.14 to 0.21) | burn 0.22 does not read them; `safetensors convert net.mpk net.safetensors` does |
//!
//! # More
//!
//! The module `burn::train` describes the files, and optimizers of PyTorch.
//! [`framework::Samples`](crate::framework::Samples) and `SampleDataset` read directories of
//! samples. [`migration`](crate::burn::migration) lists burn-store's options and the differences.
