//! Serves a model with candle: loads a sharded checkpoint, answers requests from it, and loads a
//! new version while requests come.
//!
//! ```toml
//! [dependencies]
//! safetensors-bridge = { version = "0.1", features = ["candle"] }
//! candle-core = "0.11"
//! candle-nn = "0.11"
//! tempfile = "3" # for these examples
//! ```
//!
//! # Loading
//!
//! A model of candle or candle-transformers takes its weights from a `VarBuilder`. `var_builder`
//! makes one from a file, the index of a sharded checkpoint (`model.safetensors.index.json`), or
//! the directory of either.
//!
//! ```
//! use candle_core::{DType, Device, Result, Tensor};
//! use candle_nn::{Embedding, Linear, Module, VarBuilder};
//! use safetensors_bridge::ShardOptions;
//! use safetensors_bridge::candle::{IntoCandle, save_sharded, var_builder};
//!
//! /// Scores the tokens that may follow some tokens.
//! struct Model {
//!     embedding: Embedding,
//!     head: Linear,
//! }
//!
//! impl Model {
//!     fn new(weights: VarBuilder) -> Result<Self> {
//!         Ok(Self {
//!             embedding: candle_nn::embedding(100, 8, weights.pp("embed"))?,
//!             head: candle_nn::linear_no_bias(8, 100, weights.pp("head"))?,
//!         })
//!     }
//!
//!     fn answer(&self, tokens: &[u32]) -> Result<Vec<f32>> {
//!         let tokens = Tensor::new(tokens, &Device::Cpu)?;
//!         self.head.forward(&self.embedding.forward(&tokens)?.mean_keepdim(0)?)?.get(0)?.to_vec1()
//!     }
//! }
//!
//! fn main() -> Result<()> {
//!     // A checkpoint to try: two tensors in files with at most 4000 bytes of tensors
//!     // each, and an index.
//!     let dir = tempfile::tempdir()?;
//!     let table = Tensor::ones((100, 8), DType::F32, &Device::Cpu)?;
//!     let tensors = [("embed.weight", &table), ("head.weight", &table)];
//!     let shards = ShardOptions::new().max_shard_size(4000.into());
//!     save_sharded(dir.path(), tensors, &shards).into_candle()?;
//!
//!     let weights = var_builder(dir.path(), DType::F32, &Device::Cpu).into_candle()?;
//!     let model = Model::new(weights)?;
//!     assert_eq!(model.answer(&[1, 2, 3])?[0], 8.0);
//!     Ok(())
//! }
//! ```
//!
//! Files are not mapped, so no `unsafe` is needed, and a file that shrinks cannot end the process.
//! Tensors are read into the memory that they then own. While the model is built, at most 256 MiB
//! more are read ahead. Elements of another `DType` than the model's are converted while they are
//! read.
//!
//! [`into_candle`](crate::candle::IntoCandle) converts this library's errors to candle's, for `?`.
//!
//! # From Python
//!
//! | Python | here |
//! |---|---|
//! | `safetensors.torch.load_file(path)` | [`load(path, &device)`](crate::candle::load()), also of a directory or an index |
//! | `safe_open(path)` | [`Checkpoint::open(path)`](crate::Checkpoint::open), which reads the headers |
//! | `f.keys()`, `f.metadata()` | `checkpoint.tensors()`, `checkpoint.metadata()` |
//! | `f.get_tensor(name)` | `checkpoint.tensor(name)?.read_tensor(&device)?`, with [`ReadTensorExt`](crate::candle::ReadTensorExt) |
//! | `f.get_slice(name)[:, 8:]` | `checkpoint.tensor(name)?.slice((.., 8..))?.read_tensor(&device)?` |
//! | `save_file(tensors, path, metadata)` | [`save`](crate::candle::save()), with [`SaveOptions::metadata`](crate::SaveOptions::metadata) |
//! | `save_model`, which saves tied weights once | `save`, with [`SaveOptions::tied`](crate::SaveOptions::tied) |
//! | `huggingface_hub.save_torch_state_dict` | [`save_sharded`](crate::candle::save_sharded), with the same shards |
//! | `hf_hub_download`, `snapshot_download` | `hub::download`, into the same cache: feature `hub` |
//! | `HfFileSystem` | `remote::open("hf://OWNER/NAME")`, which reads ranges: feature `remote` |
//!
//! # The server
//!
//! An HTTP handler would call `answer`, from any number of threads. A request takes an `Arc` of the
//! current model, and finishes with it, even if a new one replaces it.
//!
//! `reload` compares the version of the index, or of the only file. If it has changed, the new
//! model is built next to the old one, so memory holds both until the last request of the old one
//! ends. If the reload fails, the old model stays.
//!
//! ```
//! use std::path::{Path, PathBuf};
//! use std::sync::{Arc, PoisonError, RwLock};
//!
//! use candle_core::{DType, Device, Result, Tensor};
//! use candle_nn::{Linear, Module};
//! use safetensors_bridge::candle::{Checkpoint, CheckpointBackend, IntoCandle};
//! use safetensors_bridge::checkpoint::CheckpointPath;
//! use safetensors_bridge::checkpoint::store::{LocalStore, Store, Version};
//!
//! struct Loaded {
//!     head: Linear,
//!     version: Option<Version>,
//! }
//!
//! fn version(directory: &Path) -> Result<Option<Version>> {
//!     let (CheckpointPath::Index(path) | CheckpointPath::File(path)) =
//!         CheckpointPath::find(directory).into_candle()?;
//!     LocalStore.version(&path).into_candle()
//! }
//!
//! fn load(directory: &Path) -> Result<Loaded> {
//!     // Taken before the files are opened: a save in between is then loaded at the next reload.
//!     let version = version(directory)?;
//!     // `digest::verify(&checkpoint, &DigestOptions::new())` would find flipped bits here, if the
//!     // checkpoint was saved with `digests(true)`.
//!     let backend = CheckpointBackend::new(Checkpoint::open(directory).into_candle()?);
//!     let weights = backend.var_builder(DType::F32, &Device::Cpu);
//!     let head = candle_nn::linear_no_bias(2, 2, weights.pp("head"))?;
//!     for tensor in backend.unused() {
//!         eprintln!("{}: the model does not use {}", directory.display(), tensor.name());
//!     }
//!     Ok(Loaded { head, version })
//! }
//!
//! struct Server {
//!     directory: PathBuf,
//!     loaded: RwLock<Arc<Loaded>>,
//! }
//!
//! impl Server {
//!     fn start(directory: &Path) -> Result<Self> {
//!         let loaded = RwLock::new(Arc::new(load(directory)?));
//!         Ok(Self { directory: directory.into(), loaded })
//!     }
//!
//!     fn current(&self) -> Arc<Loaded> {
//!         self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone()
//!     }
//!
//!     fn answer(&self, request: [f32; 2]) -> Result<Vec<f32>> {
//!         let request = Tensor::new(&[request], &Device::Cpu)?;
//!         self.current().head.forward(&request)?.get(0)?.to_vec1()
//!     }
//!
//!     /// Call it every few seconds, or on a signal or a request.
//!     fn reload(&self) -> Result<bool> {
//!         if version(&self.directory)? == self.current().version {
//!             return Ok(false);
//!         }
//!         let loaded = Arc::new(load(&self.directory)?);
//!         *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
//!         Ok(true)
//!     }
//! }
//!
//! # use safetensors_bridge::{ShardOptions, candle::save_sharded};
//! # fn save(directory: &Path, name: &str, value: f64) -> Result<()> {
//! #     let weight = (Tensor::ones((2, 2), DType::F32, &Device::Cpu)? * value)?;
//! #     let bias = Tensor::ones(2, DType::F32, &Device::Cpu)?;
//! #     let options = ShardOptions::new().max_shard_size(16.into());
//! #     save_sharded(directory, [(name, &weight), ("other", &bias)], &options).into_candle()?;
//! #     Ok(())
//! # }
//! fn main() -> Result<()> {
//!     let dir = tempfile::tempdir()?;
//!     // Not shown: `save` calls `save_sharded` with a weight of this name, full of this value.
//!     save(dir.path(), "head.weight", 1.0)?;
//!     let server = Server::start(dir.path())?;
//!     assert_eq!(server.answer([1.0, 2.0])?, [3.0, 3.0]);
//!     assert!(!server.reload()?);
//!
//!     save(dir.path(), "head.weight", 10.0)?; // another process, say a training
//!     assert!(server.reload()?);
//!     assert_eq!(server.answer([1.0, 2.0])?, [30.0, 30.0]);
//!
//!     save(dir.path(), "Head.weight", 0.0)?; // not this model
//!     let error = server.reload().unwrap_err().to_string();
//!     assert!(error.contains("head.weight") && error.contains("Head.weight"), "{error}");
//!     assert_eq!(server.answer([1.0, 2.0])?, [30.0, 30.0]);
//!     Ok(())
//! }
//! ```
//!
//! `save_sharded` and `safetensors convert` replace files in such an order that an opened
//! checkpoint is the old one or the new one, never a mixture. If a save turns one file into
//! several, or several into one, [`CheckpointPath::find`](crate::checkpoint::CheckpointPath::find)
//! may find neither for a moment. That reload fails, and the next one loads the new checkpoint.
//!
//! Python's `save_pretrained`, `cp` and `rsync` replace one file after the other, and digests do
//! not find such a mixture. Let them write to a new directory, and serve from a link that you
//! switch to it: `symlink("v2", "next")?`, then `rename("next", "current")?`. `ln -sfn` is not
//! enough, because it removes the old link first.
//!
//! A refused version is tried again at each reload, so a repair is found. Keep its `Version` to
//! report it once. A shard that is replaced without its index is not noticed.
//!
//! # Saving while it serves
//!
//! [`BackgroundSaver`](crate::save::BackgroundSaver) saves in a separate thread. Clones of candle's
//! tensors share their memory, so they cost nothing. `wait` returns the error of the save. To save
//! a `VarMap` during training, use `candle::train::save_in_background`, which copies it.
//!
//! ```
//! use candle_core::{DType, Device, Result, Tensor};
//! use safetensors_bridge::ShardOptions;
//! use safetensors_bridge::candle::{IntoCandle, load, save_sharded};
//! use safetensors_bridge::save::BackgroundSaver;
//!
//! fn main() -> Result<()> {
//!     let dir = tempfile::tempdir()?;
//!     let path = dir.path().to_owned();
//!     // Shards are filled in this order, so a `HashMap` would give other shards each time.
//!     let tensors = [("head.weight", Tensor::ones((2, 2), DType::F32, &Device::Cpu)?)];
//!     let mut saver = BackgroundSaver::new();
//!     let save = move |options: &ShardOptions| {
//!         save_sharded(path, tensors.iter().map(|(name, it)| (*name, it)), options).map(drop)
//!     };
//!     saver.start(&ShardOptions::new(), save).into_candle()?;
//!     // ... requests are answered ...
//!     saver.wait().into_candle()?;
//!     assert_eq!(load(dir.path(), &Device::Cpu).into_candle()?.len(), 1);
//!     Ok(())
//! }
//! ```
//!
//! # What goes wrong
//!
//! | problem | error |
//! |---|---|
//! | the model wants a tensor that is not there | `cannot find tensor fc.wieght in model.safetensors; did you mean "fc.weight"?` |
//! | it has another shape | `shape mismatch for fc.weight in model.safetensors, expected: [3, 2], got: [2, 3]`, before it is read |
//! | a full disk cut off a shard | `…-00002-of-00002.safetensors: tensor "fc.weight": cut off: 4 of 24 bytes of the tensors are missing`, when it is opened |
//! | a shard is missing | `…-00002-of-00002.safetensors: tensor "fc.weight": the shard is missing; the index needs it for 1 tensor`, when it is opened |
//! | bits flip on the disk | none, unless the file was saved with digests and is verified: `…-00002-of-00002.safetensors: tensor "fc.weight": the data has changed: …` |
//! | a file is overwritten while it is read | `the file has changed since it was opened: …` |
//! | the weights are quantised | `tensor "w": codes of the weight "w", stored as fp8: load its numbers with …`: see [below](#other-checkpoints) |
//! | the config belongs to other weights | shapes that do not match, and tensors that are [`unused`](crate::candle::CheckpointBackend::unused) |
//!
//! With `RUST_BACKTRACE`, candle's errors have a backtrace. For a log of one line, print the
//! `inner` of `Error::WithBacktrace`.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use safetensors_bridge::candle::{Checkpoint, SaveOptions, save, var_builder};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.safetensors");
//! let weight = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
//! save(&path, [("fc.weight", &weight)], &SaveOptions::new())?;
//! let weights = var_builder(&path, DType::F32, &Device::Cpu)?;
//! let error = weights.get((2, 3), "fc.wieght").unwrap_err().to_string();
//! assert!(error.contains(r#"did you mean "fc.weight"?"#), "{error}");
//! let error = weights.get((3, 2), "fc.weight").unwrap_err().to_string();
//! assert!(error.contains("expected: [3, 2], got: [2, 3]"), "{error}");
//!
//! let bytes = std::fs::read(&path)?;
//! std::fs::write(&path, &bytes[..bytes.len() - 4])?;
//! let error = Checkpoint::open(&path).unwrap_err().to_string();
//! assert!(error.ends_with("cut off: 4 of 24 bytes of the tensors are missing"), "{error}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Other checkpoints
//!
//! | checkpoint | get the weights with |
//! |---|---|
//! | quantised weights, as numbers | `var_builder_from(Checkpoint::open(path)?.dequantized()?, dtype, &device)` |
//! | LoRA adapters merged | `var_builder_from(Checkpoint::open(path)?.merged([Adapter::open(adapter)?])?, dtype, &device)` |
//! | GGUF, still quantised | `GgufFile` of the module `candle::gguf`, feature `gguf` |
//! | on the Hub | `hub::download(name, &options)?` returns a path, feature `hub` |
//! | in a bucket | `var_builder_from(remote::open("s3://bucket/model")?, dtype, &device)`, feature `remote` |
//! | in memory, or in your own store | `var_builder_from(Checkpoint::open_in(store, "", &Limits::default())?, dtype, &device)` |
//! | one rank's part of a model | the module [`tensor_parallel`](crate::candle::tensor_parallel) |
//!
//! An embedding table need not be in memory. `checkpoint.tensor("embed.weight")?.rows(&ids)?`
//! selects the rows of a request, and [`read_tensor`](crate::candle::ReadTensorExt) reads only
//! these. [`migration`](crate::candle::migration) has a replacement for each loader of candle.
