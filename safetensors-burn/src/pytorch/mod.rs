//! Models of PyTorch: their files are loaded into burn's modules, and saved from them.
//!
//! With [`CheckpointStore::pytorch`](crate::CheckpointStore::pytorch) the file has the names,
//! shapes and values of PyTorch's `state_dict`, and the module has burn's.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig};
//! use burn::tensor::Device;
//! use safetensors_burn::{CheckpointStore, ModuleSnapshot, load};
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     rnn: Lstm,
//!     norm: LayerNorm,
//!     head: Linear,
//! }
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("model.safetensors");
//! let device = Device::default();
//! let model = || Model {
//!     rnn: LstmConfig::new(3, 5, true).init(&device),
//!     norm: LayerNormConfig::new(5).init(&device),
//!     head: LinearConfig::new(5, 2).init(&device),
//! };
//!
//! // PyTorch can load this file with `load_state_dict`.
//! let trained = model();
//! trained.save_into(&mut CheckpointStore::from_file(&path).pytorch(true))?;
//! let tensors = load(&path)?;
//! assert_eq!(tensors["rnn.weight_ih_l0"].shape()[..], [4 * 5, 3]);
//! assert_eq!(tensors["norm.weight"], trained.norm.gamma.to_data());
//! assert_eq!(tensors["head.weight"].shape()[..], [2, 5]);
//!
//! // And a file that PyTorch saved loads in the same way.
//! let mut other = model();
//! other.load_from(&mut CheckpointStore::from_file(&path).pytorch(true))?;
//! assert_eq!(other.head.weight.to_data(), trained.head.weight.to_data());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! | layer of burn | of PyTorch | differences |
//! |---|---|---|
//! | `Linear` | `Linear` | the weight is transposed, except for the layout `Col`, which is saved as in PyTorch |
//! | `Embedding` | `Embedding` | nothing |
//! | `Conv1d`, `Conv2d`, `Conv3d` | the same | nothing |
//! | `ConvTranspose1d`, `ConvTranspose2d`, `ConvTranspose3d` | the same | nothing |
//! | `BatchNorm` | `BatchNorm1d`, `BatchNorm2d`, `BatchNorm3d` | `gamma` is `weight`, `beta` is `bias`; `num_batches_tracked` is neither loaded nor saved |
//! | `LayerNorm`, `GroupNorm`, `InstanceNorm` | the same | `gamma` is `weight`, `beta` is `bias` |
//! | `RmsNorm` | `RMSNorm` | `gamma` is `weight` |
//! | `PRelu` | `PReLU` | `alpha` is `weight` |
//! | `Lstm`, `Gru`, `Rnn` | `LSTM`, `GRU`, `RNN` | the gates are parts of `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`; weights are transposed |
//! | `BiLstm`, `BiGru`, `BiRnn` | the same, `bidirectional=True` | in addition, names of the reverse direction end in `_reverse` |
//! | `MultiHeadAttention` | `MultiheadAttention` | query, key and value are parts of `in_proj_weight` and `in_proj_bias`; `output` is `out_proj`; weights are transposed |
//!
//! Every other parameter has the same name and shape in both. Layers are recognised by the names of
//! their types, so your own `Linear` or `LayerNorm` counts, too. Names of enum variants are not
//! part of paths.
//!
//! All are tested with weights, inputs and outputs of PyTorch. For the same outputs, a module also
//! needs settings that no file has: the epsilon of norms, the activation, and for `Gru` the default
//! `reset_after`.
//!
//! It is an error if the module has only some of the parameters in a tensor. So `Lstm` with
//! `input_forget` has no form in PyTorch, and neither has an attention with a bias in only some
//! projections, unless they are [separate](crate::CheckpointStore::fused_attention).
//!
//! Adapters see tensors in the layout of burn.
//! [`PyTorchToBurnAdapter`](crate::PyTorchToBurnAdapter) and
//! [`BurnToPyTorchAdapter`](crate::BurnToPyTorchAdapter) transpose linear layers too, so using them
//! here is an error.
//!
//! On loading, filters match the paths of the module. On saving, they match the names of PyTorch,
//! so that a tensor of several parameters is saved completely or not at all.
//!
//! # Recipes for names
//!
//! If the fields of a module have other names than in PyTorch, add rules with
//! [`with_key_remapping`](crate::CheckpointStore::with_key_remapping). Loading and saving need
//! separate rules.
//!
//! | file | on loading | on saving |
//! |---|---|---|
//! | a prefix: `model.`, `bert.`, `module.` of data parallel training, `_orig_mod.` of compiled models, `0.auto_model.` of sentence-transformers | `^model\.` → nothing | `^` → `model.` |
//! | `attention.self`, where `self` cannot be a field in Rust | `\.self\.` → `.self_attention.` | `\.self_attention\.` → `.self.` |
//! | `LayerNorm.gamma`, `LayerNorm.beta` of old BERT files | no rule: both names are found | saved as `weight` and `bias` |
//! | LSTM of several layers, a `Vec<Lstm>` in the field `rnn` | `^rnn\.(weight\|bias)_(ih\|hh)_l(\d+)` → `rnn.$3.${1}_${2}_l0` | `^rnn\.(\d+)\.(weight\|bias)_(ih\|hh)_l0` → `rnn.${2}_${3}_l$1` |
//!
//! ## Transformer layers
//!
//! The layers do not record the order of their norms, so this crate cannot choose these rules. For
//! `TransformerEncoder` on loading:
//!
//! - `\.self_attn\.` → `.mha.`, `\.linear1\.` → `.pwff.linear_inner.`, `\.linear2\.` →
//!   `.pwff.linear_outer.`
//! - `\.norm(\d)\.` → `.norm_$1.` with `norm_first=False`, which is the default.
//! - `\.norm1\.` → `.norm_2.`, `\.norm2\.` → `.norm_1.` with `norm_first=True`.
//!
//! For `TransformerDecoder`, PyTorch's `multihead_attn` is `cross_attn`, and `self_attn` is the
//! same. With `norm_first=True`, `norm1` is `norm_3`, `norm2` is `norm_1`, and `norm3` is `norm_2`.
//!
//! ## BERT and sentence-transformers
//!
//! Hugging Face's `transformers` save attention as separate layers. This loads them into
//! `MultiHeadAttention`, with the norms as fields of the layer:
//!
//! ```
//! use safetensors_burn::CheckpointStore;
//!
//! let store = CheckpointStore::from_file("bert.safetensors")
//!     .pytorch(true)
//!     .with_key_remapping(r"^bert\.", "")
//!     .with_key_remapping(r"\.attention\.self\.", ".attention.")
//!     .with_key_remapping(r"\.attention\.output\.dense\.", ".attention.output.")
//!     .with_key_remapping(r"\.attention\.output\.LayerNorm\.", ".attention_norm.")
//!     .with_key_remapping(r"\.intermediate\.dense\.", ".intermediate.")
//!     .with_key_remapping(r"\.output\.dense\.", ".output.")
//!     .with_key_remapping(r"\.output\.LayerNorm\.", ".output_norm.")
//!     .with_key_remapping(r"\.LayerNorm\.", ".norm.")
//!     .with_key_remapping(r"^encoder\.layer\.", "layers.");
//! ```
//!
//! And this saves them in the same layout, without the prefix:
//!
//! ```
//! # use safetensors_burn::CheckpointStore;
//! let store = CheckpointStore::from_file("bert.safetensors")
//!     .pytorch(true)
//!     .fused_attention(false)
//!     .with_key_remapping(r"^layers\.", "encoder.layer.")
//!     .with_key_remapping(r"\.norm\.", ".LayerNorm.")
//!     .with_key_remapping(r"\.output_norm\.", ".output.LayerNorm.")
//!     .with_key_remapping(r"\.output\.(weight|bias)", ".output.dense.$1")
//!     .with_key_remapping(r"\.intermediate\.", ".intermediate.dense.")
//!     .with_key_remapping(r"\.attention_norm\.", ".attention.output.LayerNorm.")
//!     .with_key_remapping(r"\.attention\.(query|key|value)\.", ".attention.self.$1.");
//! ```
//!
//! The example `burn_bert` of safetensors-bridge has the complete model.

mod layers;
mod layout;
mod stored;
mod values;

pub(crate) use layers::without_parameter;
pub(crate) use layout::{Layout, is_column};
pub(crate) use stored::StoredParameter;
pub(crate) use values::{put, take};
