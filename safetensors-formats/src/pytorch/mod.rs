//! PyTorch's files: `.pt`, `.pth`, `.bin` and others that `torch.save` writes.
//!
//! | read | how |
//! |---|---|
//! | archives, as PyTorch 1.6 and later write | a zip archive of a pickle and storages of tensors |
//! | legacy files, as PyTorch 0.1.10 to 1.5 write | several pickles, then the storages |
//! | an index, such as `pytorch_model.bin.index.json` | JSON that names the shards |
//!
//! [`TensorFile::open`](crate::TensorFile::open) opens one file, [`open_index`] an index. The
//! pickle is read by a machine that knows the opcodes and the few functions with which PyTorch
//! rebuilds tensors. **No code of a pickle is ever run**: a class is only a name here.
//!
//! # Which tensors there are
//!
//! Every tensor in the dictionaries, lists and tuples of the file is read. Its name is the keys on
//! the way to it, joined by dots: a training checkpoint has `model.embed.weight` and
//! `optimizer.state.0.exp_avg`. A module that was saved as an object has the names of its
//! `state_dict()`. Other objects are read if no tensor is in them; with one, the file is an error
//! that names the class. A tensor that PyTorch marks as conjugate or negative is such an error too:
//! `resolve_conj` or `resolve_neg` before saving removes the mark. Values that are not tensors are
//! left out, but for the settings of an optimizer: the `param_groups` beside a `state` are an entry
//! of the metadata, as JSON, under the name that they would have as a tensor, such as
//! `optimizer.param_groups`. What JSON cannot hold in them is left out; an infinity or a NaN is a
//! text. [`PyTorchTraining`](safetensors_core::optimizer::PyTorchTraining) reads them.
//!
//! A dictionary in which one key has two values is an error that names the tensor. PyTorch keeps
//! the last value, and never writes such a dictionary. Two tensors whose names become the same,
//! such as those of the keys `0` and `"0"`, are an error, too.
//!
//! # Dtypes
//!
//! Every type that safetensors has is read: floats of 8 to 64 bits, also the kinds of `float8`,
//! `float4_e2m1fn_x2` as two F4, integers, booleans and `complex64`. A tensor of another type, such
//! as `complex128`, is listed as bytes, also if it is empty. [`Stored`] has its type
//! and its shape, and to read it is an error that names its type.
//!
//! # Tied tensors
//!
//! Two names of one tensor, by storage, offset, shape, strides and type, are one tensor here. The
//! first name in sorted order has the bytes, the others are
//! [aliases](safetensors_core::Checkpoint::aliases). Tensors that only overlap are read separately.
//!
//! ```
//! use safetensors_core::{Checkpoint, Rewrite, SaveOptions};
//! use safetensors_formats::Options;
//!
//! # let dir = tempfile::tempdir()?;
//! # let out = dir.path().join("model.safetensors");
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/pytorch/tied.pt");
//! // `path` is that of a file which `torch.save(model.state_dict(), path)` has written.
//! let checkpoint = safetensors_formats::open(path, &Options::new())?;
//! assert_eq!(checkpoint.tensor("lm_head.weight")?.shape(), [4, 3]);
//! assert!(checkpoint.aliases().any(|(alias, _)| alias == "model.embed.weight"));
//!
//! // Tensor by tensor, however large the model is. Tied weights stay tied.
//! Rewrite::of(&checkpoint).save(&out, &SaveOptions::new())?;
//! assert_eq!(Checkpoint::open(&out)?.tensor("model.embed.weight")?.shape(), [4, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod archive;
mod bytes;
mod index;
mod kinds;
mod legacy;
mod names;
mod pickle;
mod rebuild;
mod settings;
mod text;
mod values;

use std::collections::{BTreeMap, HashMap};

pub(crate) use archive::open as open_archive;
pub use index::open_index;
pub(crate) use legacy::open as open_legacy;
use names::Found;
use safetensors_core::Dtype;
use values::{Kind, TensorRef, Value, Values};

use crate::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor_file::{Builder, Data, Place, Placement, Reason, Stored, Tensor};

/// Whether the name of a member of an archive is that of PyTorch's pickle. If so, what comes before
/// it, which every other member has too.
pub(crate) fn root_of(member: &str) -> Option<&str> {
    member.strip_suffix("data.pkl").filter(|root| root.is_empty() || root.ends_with('/'))
}

/// Makes tensors of what a pickle holds. `place` says where a storage begins and how many bytes it
/// has in the file.
fn build(
    values: &Values,
    root: Value,
    alone: &str,
    options: &Options,
    mut place: impl FnMut(usize) -> Result<(Place, u64)>,
) -> Result<Builder> {
    let Found { tensors: mut found, settings } =
        names::collect(values, root, alone, &options.limits)?;
    let mut builder = Builder::default();
    builder.metadata.extend(settings);
    if let Some(placed) = &options.placed {
        let unindexed = found.extract_if(.., |(name, _)| !placed.contains(name));
        builder.unindexed.extend(unindexed.map(|(name, _)| name));
    }
    let first_names = first_names(values, &found);
    // As the libraries of the Hub mark a file that PyTorch has written.
    builder.metadata.insert("format".into(), "pt".into());
    let mut places = HashMap::new();
    for (name, position) in &found {
        let tensor = &values.tensors[*position as usize];
        let kept = first_names[&key(tensor)];
        if kept != name && !is_reserved(name) {
            builder.aliases.push((name.clone(), kept.to_owned()));
            continue;
        }
        let located = |error: Error| error.in_tensor(name);
        let storage = match places.get(&tensor.storage) {
            Some(known) => known,
            None => {
                let opened = place(tensor.storage as usize).map_err(located)?;
                places.entry(tensor.storage).or_insert(opened)
            }
        };
        builder.tensors.push(one(values, name, tensor, storage).map_err(located)?);
    }
    Ok(builder)
}

/// Whether a key of metadata has a meaning of its own, and so cannot be the other name of a tensor.
fn is_reserved(name: &str) -> bool {
    name == "format"
        || ["safetensors_bridge.", "modelspec.", "attribute:"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// What two names of one tensor have in common.
type Key<'a> = (u32, u64, &'static str, &'a [usize], &'a [u64]);

fn key(tensor: &TensorRef) -> Key<'_> {
    (tensor.storage, tensor.offset, tensor.kind.name, &tensor.shape, &tensor.strides)
}

/// The first name of each tensor, in sorted order.
fn first_names<'a>(values: &'a Values, found: &'a [(String, u32)]) -> HashMap<Key<'a>, &'a str> {
    let mut names: HashMap<_, &str> = HashMap::new();
    for (name, position) in found {
        let tensor = &values.tensors[*position as usize];
        let first = names.entry(key(tensor)).or_insert(name);
        if name.as_str() < *first {
            *first = name;
        }
    }
    names
}

/// A tensor in its storage, which begins at a place and has this many bytes.
fn one(
    values: &Values,
    name: &str,
    tensor: &TensorRef,
    (place, stored_len): &(Place, u64),
) -> Result<Tensor> {
    let TensorRef { kind, offset, shape, strides, .. } = tensor;
    let storage = &values.storages[tensor.storage as usize];
    let width = usize::from(kind.width);
    let available = storage.byte_len.min(*stored_len) / u64::from(kind.width);
    let placement = Placement::new(shape, strides, *offset, width, available);
    let placement = placement.ok_or_else(|| ErrorKind::OutsideStorage {
        storage: storage.key.clone(),
        available,
        offset: *offset,
        shape: shape.clone(),
        strides: strides.clone(),
    })?;
    let (mut shape, name) = (shape.clone(), name.to_owned());
    let Some(dtype) = kind.dtype() else { return Ok(without_dtype(name, *kind, shape)) };
    if dtype == Dtype::F4 {
        match shape.last_mut() {
            Some(last) => *last = last.saturating_mul(2),
            None => shape.push(2),
        }
    }
    let data = Data::placed(place.clone(), placement, width, None);
    Ok(Tensor { name, dtype, shape, data, stored: None })
}

/// A tensor whose elements have no dtype. It is listed as the bytes of its elements. Reading them
/// is an error.
fn without_dtype(name: String, kind: Kind, shape: Vec<usize>) -> Tensor {
    let elements = shape.iter().fold(1_u64, |all, &dim| all.saturating_mul(dim as u64));
    let stored = Stored {
        type_name: kind.name.into(),
        shape: shape.clone(),
        byte_len: elements.saturating_mul(kind.width.into()),
        is_readable: false,
        is_quantised: false,
    };
    // An empty tensor is listed as one element: of no bytes at all, reading would not fail.
    let mut listed = if elements == 0 { Vec::new() } else { shape };
    listed.push(kind.width.into());
    let data = Data::Refused(Reason::NoDtype(kind.name));
    Tensor { name, dtype: Dtype::U8, shape: listed, data, stored: Some(stored) }
}

/// The members of an archive by name.
type Members = BTreeMap<String, usize>;
