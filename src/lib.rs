//! Moves tensors between safetensors files and candle, burn or ndarray.
//!
//! ```toml
//! safetensors-bridge = { version = "0.1", features = ["candle"] }
//! ```
//!
//! With candle (feature `candle`):
//!
//! ```
//! # #[cfg(feature = "candle")] {
//! use candle_core::{DType, Device, Tensor};
//! use safetensors_bridge::candle::{SaveOptions, load, save, var_builder};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.safetensors");
//! let weight = Tensor::ones((32, 384), DType::BF16, &Device::Cpu)?;
//! save(&path, [("head.weight", &weight)], &SaveOptions::new())?;
//! // `path` is a file, a directory, or an index of shards.
//! let tensors = load(&path, &Device::Cpu)?; // name -> tensor
//! let weights = var_builder(&path, DType::F32, &Device::Cpu)?; // for models of candle
//! # assert_eq!(tensors["head.weight"].dims(), [32, 384]);
//! # assert!(weights.contains_tensor("head.weight"));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With burn (feature `burn`):
//!
//! ```
//! # #[cfg(feature = "burn")] {
//! use burn::{nn::LinearConfig, tensor::Device};
//! use safetensors_bridge::burn::{CheckpointStore, ModuleSnapshot};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.safetensors");
//! let mut model = LinearConfig::new(4, 2).init(&Device::default());
//! model.save_into(&mut CheckpointStore::from_file(&path))?;
//! model.load_from(&mut CheckpointStore::from_file(&path))?; // or the directory of a model
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With ndarray (feature `ndarray`, which is on by default):
//!
//! ```
//! # #[cfg(feature = "ndarray")] {
//! use ndarray::{Ix2, array, s};
//! use safetensors_bridge::ndarray::{Reader, Writer};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("arrays.safetensors");
//! let writer = Writer::create(&path)?;
//! writer.add("weight", &array![[1.0_f32, 2.0], [3.0, 4.0]])?;
//! writer.finish()?;
//! let reader = Reader::open(&path)?; // a file, a directory, or an index of shards
//! assert_eq!(reader.read::<f32, Ix2>("weight")?, array![[1.0, 2.0], [3.0, 4.0]]);
//! assert_eq!(reader.slice::<f32, _>("weight", s![.., 1])?, array![2.0, 4.0]);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With this crate alone:
//!
//! ```
//! use safetensors_bridge::{Checkpoint, SaveOptions, TensorView, save};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! save(
//!     &path,
//!     [("bias", TensorView::from_slice(&[2], &[0.5_f32, 1.5])?)],
//!     &SaveOptions::new(),
//! )?;
//!
//! // A file, a directory, or an index of shards.
//! let checkpoint = Checkpoint::open(&path)?;
//! for tensor in checkpoint.tensors() {
//!     println!("{} {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
//! }
//! let bias = checkpoint.tensor("bias")?.read()?;
//! assert_eq!(bias.into_vec::<f32>()?, [0.5, 1.5]);
//! // Reads only the bytes of these elements.
//! let last = checkpoint.tensor("bias")?.slice((1..,))?.read()?;
//! assert_eq!(last.into_vec::<f32>()?, [1.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start with the `load` and `save` of your library's module, with [`Checkpoint`], or with
//! [`SafeTensors`] for a file in memory. The [`guide`](mod@guide) takes four jobs from start to
//! end: a server with candle, a training with burn, a simulation with ndarray, and managing files
//! with the command.
//!
//! Your program also depends on the tensor library. A release works with one version of each; the
//! README has a table.
//!
//! # Features
//!
//! `full` is `ndarray`, `candle`, `burn`, `derive` and `sha256`: no network clients, zstd or GPUs.
//!
//! | feature | module | for |
//! |---|---|---|
//! | `ndarray` (default) | [`ndarray`] | array views and owned arrays |
//! | `derive` | [`ndarray`] | `#[derive(NamedArrays)]` for structs of arrays |
//! | `npz`, `rayon` | [`ndarray`] | NumPy's `.npy` and `.npz` as arrays; threads that save arrays in another order than C |
//! | `candle` | [`candle`] | candle tensors, and a `VarBuilder` |
//! | `gguf` | `candle::gguf` | quantised tensors of GGUF files |
//! | `cuda`, `metal` | [`candle`] | candle's GPU support: loads onto these devices in bounded memory |
//! | `burn` | [`burn`] | burn tensor data, and a `ModuleStore` |
//! | `burn-train` | `burn::train` | checkpoints of burn's training loop |
//! | `hub`, `remote` | `hub`, `remote` | downloads from the Hub; checkpoints in buckets, on web servers and on the Hub, read by ranges |
//! | `delta` | `delta` | differences between checkpoints, also in trainings with candle or `burn-train`; needs a C compiler, for zstd |
//! | `sign` | `sign` | signatures of the files of a model, made and verified offline |
//! | `sha256`, `tracing` | [`digest`], [`framework::Span`] | the SHA-256 of a file's data; spans of opening, reading, converting, writing and requests, for the crate `tracing` |
//!
//! # Modules
//!
//! This crate re-exports all of `safetensors-core`, and each adapter behind a feature. The items
//! that most users need are at the root.
//!
//! | module | for |
//! |---|---|
//! | [`checkpoint`] | checkpoints of several files: how they are found, divided and named |
//! | [`load`], [`slice`](mod@slice) | many tensors, or parts of them, read at once; which parts |
//! | [`save`](mod@save), [`tied`] | writing piece by piece, or any file atomically; tensors that share storage |
//! | [`ranks`], [`glob`] | the processes of a job, and their parts of a model; patterns of names |
//! | [`rewrite`], [`edit`] | the plan of a [`Rewrite`]; changes to an existing file |
//! | [`convert`], [`element`], [`shape`] | conversion between dtypes; the Rust types of elements; sizes |
//! | [`digest`], [`audit`] | data that has changed; oddities of a file |
//! | [`header`], [`io`], [`error`] | a file's header; sources of bytes; the parts of errors |
//! | [`framework`] | adapters of other tensor libraries, and tools |
//!
//! # What each library holds
//!
//! A dtype that a library lacks is widened to another that keeps every value, such as *as U8* for
//! BOOL in candle. [`Widening::Refuse`] makes it an error instead.
//!
//! | dtype | ndarray | candle | burn |
//! |---|---|---|---|
//! | BOOL | ✓ | as U8 | ✓ |
//! | I8 | ✓ | as I16 | ✓ |
//! | U16 | ✓ | as U32 | ✓ |
//! | U64 | ✓ | as I64, if it fits | ✓ |
//! | U8, U32, I16, I32, I64, BF16, F16, F32, F64 | ✓ | ✓ | ✓ |
//! | F8_E4M3 | ✓ | ✓ | as F16 |
//! | F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ | ✓ | as F16 | as F16 |
//! | F8_E8M0 | ✓ | ✓ (stored) | as F32 |
//! | F4, F6_E2M3, F6_E3M2 | ✓ (packed) | ✓ (stored) | as F16 |
//! | C64 | ✓ | as F32 pairs | as F32 pairs |
//!
//! # What the core does for all of them
//!
//! | | |
//! |---|---|
//! | strict parsing, [`Limits`], zero-copy views, mapping (`unsafe fn`: the file must not change) | [`SafeTensors`], [`Checkpoint`] |
//! | parallel loading with conversion, progress and cancellation | [`Checkpoint::read_all`], [`LoadOptions`] |
//! | slices, rows and parts of ranks: only their bytes are read | [`LazyTensor::slice`], [`LazyTensor::rows`], [`load::read_slices`], [`ranks`] |
//! | conversion between all floats and integers, rounded once | [`TensorBuf::convert`] |
//! | atomic, durable, deterministic saving; streaming; to any writer | [`save()`], [`save::StreamWriter`], [`serialize`], [`save::write_to`] |
//! | sharded saving as `huggingface_hub` splits, tied weights | [`save_sharded`], [`SaveOptions::tied`] |
//! | merge, select, rename, cast, quantise, re-shard in bounded memory | [`Rewrite`] |
//! | quantised weights as numbers; LoRA adapters merged, while tensors are read | [`Checkpoint::dequantized`], [`Checkpoint::merged`] |
//! | an existing file changed atomically, or in place | [`edit::Edit`] |
//! | digests of tensors and of the file | [`digest`] |
//! | files in memory, or in your own store | [`checkpoint::store::Store`], [`Checkpoint::open_in`] |
//! | files read asynchronously, on servers and in browsers | [`checkpoint::store::AsyncStore`], [`Checkpoint::open_async`] |
//! | files of PyTorch, GGUF and NumPy as checkpoints; no code of a pickle is run | `safetensors_formats::open`, another package |
//! | buckets, web servers and the Hub, read by ranges; saving to buckets | `remote::open`, `RemoteOptions::save`, feature `remote` |
//! | `no_std` with `alloc` | the package `safetensors-core` with `default-features = false` |
//! | verified downloads from the Hub into Python's cache | `hub::download`, feature `hub` |
//!
//! Buckets are tested with the S3 servers moto and s3s-fs, and with a web server and a Hub that
//! misbehave on purpose. Azure was tried by hand with Azurite. For Google Cloud Storage, only
//! requests for ranges are tested.
//!
//! # I want to …
//!
//! Paths are in the repository.
//!
//! ## Files, without writing code
//!
//! | I want to … | look at |
//! |---|---|
//! | see the content of a file | [`guide::operator`]; the command `safetensors inspect`, with the manual `safetensors-cli/MANUAL.md` |
//! | look through a file in a terminal, or in a browser | `safetensors browse`, `safetensors map` |
//! | see the values of a tensor | `safetensors show` |
//! | check that a download is complete and well-formed | `safetensors verify`; *What is promised* in `SECURITY.md` |
//! | find NaN, or compare two checkpoints | `safetensors stats`, `safetensors diff` |
//! | cast, rename, merge or split a checkpoint | `safetensors convert`, [`Rewrite`] |
//! | call the command from a program | exit codes and a schema for each JSON document: *What stays the same* in its manual |
//! | read tensors with Zarr and xarray | `safetensors manifest` |
//! | sign a model, or check its signature | `safetensors sign`, `safetensors verify --signature`; the module `sign` |
//!
//! ## candle
//!
//! | I want to … | look at |
//! |---|---|
//! | load a model into candle | [`candle`], `examples/models/examples/candle_bert.rs` |
//! | serve a model with candle, and load new versions | [`guide::candle_server`] |
//! | replace candle's own loaders | the module `candle::migration` |
//! | load a quantised model of GGUF into candle | the module `candle::gguf`, `examples/models/examples/candle_gguf.rs` |
//! | quantise plain weights while candle loads them | the module `candle::quantize` |
//! | load a model into candle in a browser, by ranges | `examples/browser` |
//! | train with candle, and resume after a crash | the module `candle::train`, `examples/models/examples/candle_train.rs` |
//!
//! ## burn
//!
//! | I want to … | look at |
//! |---|---|
//! | load or save a burn module | [`burn`], `examples/burn_save.rs` |
//! | replace burn-store's own store | the module `burn::migration` |
//! | load a model of PyTorch into burn | the module `burn::pytorch`, `examples/models/examples/burn_bert.rs` |
//! | train with burn, and resume after a crash | [`guide::burn_training`], the module `burn::train`, `examples/models/examples/burn_train.rs` |
//!
//! ## ndarray
//!
//! | I want to … | look at |
//! |---|---|
//! | keep arrays as in `.npz`, and slice them | [`ndarray`], `examples/ndarray_inspect.rs` |
//! | save a struct of arrays | `safetensors-ndarray/examples/ndarray_struct.rs`, [`safetensors_derive`](https://docs.rs/safetensors-derive) |
//! | append the steps of a simulation | the module `guide::science`, `safetensors-ndarray/examples/ndarray_science.rs` |
//! | convert NumPy's `.npy` and `.npz` | `safetensors-ndarray/examples/ndarray_npz.rs`, [`safetensors_formats`](https://docs.rs/safetensors-formats) |
//!
//! ## Any library
//!
//! | I want to … | look at |
//! |---|---|
//! | see all three libraries in one program | `examples/quickstart.rs` |
//! | use the format without any library, or without `std` | [`safetensors_core`](https://docs.rs/safetensors-core) |
//! | read a directory of samples in shuffled batches | [`framework::Samples`], `safetensors-ndarray/examples/ndarray_samples.rs` |
//! | save in the background | [`save::BackgroundSaver`], the function `candle::train::save_in_background` |
//! | continue a training of PyTorch: model and optimizer | [`optimizer`], the modules `candle::train` and `burn::train` |
//! | save the epochs of a training as deltas | `burn::train::Epochs::whole_every`, `candle::train::save_delta`, feature `delta` |
//!
//! ## Quantised weights, adapters, experts
//!
//! | I want to … | look at |
//! |---|---|
//! | read GPTQ, AWQ, FP8, NF4 and other quantised weights as numbers | [`LoadOptions::quantized`], [`Checkpoint::dequantized`], [`quantized`] |
//! | quantise weights: FP8, I8, NVFP4, MXFP4; Q8_0 and Q4_0 of GGUF | [`Rewrite::quantize`]; `safetensors convert --quantize` |
//! | write a model as GGUF | `examples/models/examples/gguf_to_candle.rs`, [`safetensors_formats`](https://docs.rs/safetensors-formats) |
//! | merge LoRA adapters into a model while it is loaded, or on the disk | [`Checkpoint::merged`], [`lora`]; `safetensors convert --lora` |
//! | load single experts from a file that stacks them in one tensor, or the reverse | [`LoadOptions::experts`], [`experts`]; `safetensors convert --experts` |
//! | keep experts, rows or layers within a budget of memory | [`framework::TensorCache`], `examples/models/examples/candle_experts.rs` |
//!
//! ## Other machines
//!
//! | I want to … | look at |
//! |---|---|
//! | get a model from the Hub | [`safetensors_hub`](https://docs.rs/safetensors-hub), `extras/hub/examples/hub_download.rs`, `examples/models/examples/hub_to_candle.rs` |
//! | read a slice of a tensor in a bucket | `extras/hub/examples/remote_slice.rs` |
//! | load each rank's part of a model | [`ranks`], `examples/distributed/README.md`, `examples/models/examples/candle_tensor_parallel.rs` |
//! | open files that ranks have saved, on any number of ranks | [`Checkpoint::open`] |
//! | load a model on MPI ranks, or process many checkpoints with Ray | `examples/distributed/README.md` |
//! | publish the changes since the last version, and apply them | the module `delta`; `safetensors delta` |
//! | serve the newest version that a trainer publishes | `delta::Follower`; `safetensors delta follow` |
//!
//! ## This project
//!
//! | I want to … | look at |
//! |---|---|
//! | know the speed, and measure it myself | `docs/BENCHMARKS.md` |
//! | change the code, or add a dtype or a framework | `CONTRIBUTING.md`, `docs/ARCHITECTURE.md` |
//! | make a release | `docs/RELEASING.md` |
//!
//! `candle_train` and `burn_train` kill their own training at random and resume it, and end with
//! the same bits as an uninterrupted run. `CONTRIBUTING.md` explains how to get the weights of
//! `candle_bert` and `burn_bert`.
//!
#![cfg_attr(feature = "candle", doc = "[`candle`]: safetensors_candle")]
#![cfg_attr(not(feature = "candle"), doc = "[`candle`]: #features")]
#![cfg_attr(not(feature = "candle"), doc = "[`guide::candle_server`]: #features")]
#![cfg_attr(feature = "burn", doc = "[`burn`]: safetensors_burn")]
#![cfg_attr(not(feature = "burn"), doc = "[`burn`]: #features")]
#![cfg_attr(not(feature = "burn"), doc = "[`guide::burn_training`]: #features")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(doc)]
pub mod guide;

#[cfg(feature = "burn")]
pub use safetensors_burn as burn;
#[cfg(feature = "candle")]
pub use safetensors_candle as candle;
pub use safetensors_core::*;
#[cfg(feature = "delta")]
pub use safetensors_delta as delta;
#[cfg(any(feature = "hub", feature = "remote"))]
pub use safetensors_hub as hub;
#[cfg(feature = "remote")]
pub use safetensors_hub::remote;
#[cfg(feature = "sign")]
pub use safetensors_sign as sign;

/// The ndarray adapter. It is a module, so that the compiler proposes paths that lead here.
#[cfg(feature = "ndarray")]
pub mod ndarray {
    pub use safetensors_ndarray::*;
}

/// The README with its examples, which are tested.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../README.md")]
mod readme {}

/// The page about ranks and many machines with its example, which is tested.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../examples/distributed/README.md")]
mod distributed {}
