//! PyTorch's files: `.pt`, `.pth`, `.bin` and others that `torch.save` writes.
//!
//! | read | how |
//! |---|---|
//! | archives, as PyTorch 1.6 and later write | a zip archive of a pickle and storages of tensors |
//! | legacy files, as PyTorch 0.1.10 to 1.5 write | several pickles, then the storages |
//! | an index, such as `pytorch_model.bin.index.json` | JSON that names the shards |
//! | TorchScript (`torch.jit.save`) | the archive above, with code that lists parameters and buffers |
//! | directories of trainers | [below](#directories-of-trainers) |
//!
//! [`open`](crate::open) opens all, [`TensorFile::open`](crate::TensorFile::open) one file. **No
//! code of a pickle is ever run**: a machine knows the opcodes and PyTorch's few functions, and a
//! class is only a name.
//!
//! # Tensors
//!
//! Every tensor in dictionaries, lists and tuples is read, named by the joined keys to it, such as
//! `model.embed.weight` and `optimizer.state.0.exp_avg`. A module saved as an object has the names
//! of its `state_dict()`.
//!
//! Arrays and numbers of NumPy are tensors, too, and bytes are U8. They are in the pickle;
//! [`Limits`](crate::Limits) bounds its size.
//!
//! An object of another class with tensors, or an array of objects, is listed, with its class in
//! [`Stored`]. Reading it is an error, and opening if it is all that the file has. So are tensors
//! marked as conjugate or negative: call `resolve_conj` or `resolve_neg` before saving. Other
//! values are skipped, and counted in [`TensorFile::notes`](crate::TensorFile::notes).
//!
//! Settings of an optimizer, `param_groups` next to a `state`, become metadata as JSON, such as
//! `optimizer.param_groups`. Values that JSON cannot hold are skipped; infinity and NaN are texts.
//! [`PyTorchTraining`](safetensors_core::optimizer::PyTorchTraining) reads them.
//!
//! Duplicate keys in a dictionary are an error, and so are equal names of two tensors, such as for
//! the keys `0` and `"0"`.
//!
//! # TorchScript
//!
//! Scripted and traced modules have the names of their `state_dict()`, from lists of parameters and
//! buffers in the archive's code. Other attributes with tensors are skipped and counted.
//!
//! Constants of the code are `CONSTANTS.c0` and so on. All weights of a frozen module
//! (`torch.jit.freeze`) are constants, without their former names. Packed weights of quantised
//! modules are listed, not read. An archive of `torch.export` (`.pt2`) is an error.
//!
//! # Directories of trainers
//!
//! A trainer on several ranks saves parts of tensors. [`open`](crate::open) takes the directory and
//! joins them.
//!
//! - Distributed checkpoints (DCP), of FSDP and Megatron (`torch_dist`), have `.metadata` with
//!   the names, or one for each rank, and files `__RANK_NUMBER.distcp`. Settings of optimizers
//!   become metadata. [`notes`](crate::TensorFile::notes) name other values.
//! - DCP in safetensors files (`HuggingFaceStorageWriter`) opens like with core's
//!   [`open`](safetensors_core::Checkpoint::open).
//! - DeepSpeed has a directory for each step, and a file `latest` next to them. For stages 1, 2
//!   and 3 of ZeRO, F32 weights are read, and the optimizer's state and settings on
//!   [request](crate::Options::optimizer_state). Frozen parameters and buffers keep their dtype.
//! - Files of each rank, such as `model_world_size_4_rank_0.pt`, with `DTensor`s that a mesh with
//!   one dimension divides, by `Shard` or `Replicate`.
//!
//! Files of ranks without a common `.metadata` do not show their step. Different shapes are an
//! error, different numbers are not found.
//!
//! Missing files, incomplete tensors, and unsupported layouts are errors when the directory is
//! opened. A single part is [`PartOfDirectory`](crate::ErrorKind::PartOfDirectory).
//!
//! # Dtypes
//!
//! Every type of safetensors is read, with `float4_e2m1fn_x2` as two F4. A tensor of another type,
//! such as `complex128`, is listed as bytes, with type and shape in [`Stored`], and reading it is
//! an error.
//!
//! # Tied tensors
//!
//! Names with the same storage, offset, shape, strides and type are one tensor. The first sorted
//! name has the bytes, others are [aliases](safetensors_core::Checkpoint::aliases). Tensors that
//! only overlap are read separately.
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
//! Rewrite::from_checkpoint(&checkpoint).save(&out, &SaveOptions::new())?;
//! assert_eq!(Checkpoint::open(&out)?.tensor("model.embed.weight")?.shape(), [4, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// The crate `pytorch-reader` (compared at 0.23.0-pre.1) reads a tensor only as a whole, loses ties
// and order, refuses a file with one tensor of `float8` or `complex64`, and of two tensors with one
// name keeps one.
mod archive;
mod bytes;
mod call;
mod directory;
mod index;
mod kinds;
mod legacy;
mod names;
mod numpy;
mod pickle;
mod rebuild;
mod script;
mod settings;
mod text;
mod values;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

pub(crate) use archive::open as open_archive;
pub(crate) use directory::{Folder, open as open_directory};
pub(crate) use index::open_index;
pub(crate) use legacy::open as open_legacy;
use names::Collected;
use safetensors_core::Dtype;
use values::{Kind, TensorRef, Values};

use crate::Options;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor_file::{Builder, Data, Place, Placement, Reason, Stored, Tensor};

const CONSTANTS: &str = "CONSTANTS.c0 and so on are constants of its code; a frozen module has no \
                         names for its weights";

/// `place` returns the start of a storage, and its bytes in the file.
fn build(
    values: &Values,
    found: Collected,
    options: &Options,
    place: &mut dyn FnMut(usize) -> Result<(Place, u64)>,
) -> Result<Builder> {
    let Collected { tensors: mut found, bytes, unreadable, left_out, settings } = found;
    let mut builder = Builder::default();
    builder.metadata.extend(settings);
    if !left_out.is_empty() {
        builder.notes.push(format!("skipped: {left_out}"));
    }
    if values.items(values.constants).is_some_and(|constants| !constants.is_empty()) {
        builder.notes.push(CONSTANTS.into());
    }
    values.budget.keep_all::<Tensor>(bytes.len() + unreadable.len())?;
    let others = bytes.into_iter().map(|(name, bytes)| of_bytes(name, bytes));
    let others = others.chain(unreadable.into_iter().map(|(name, class)| unread(name, class)));
    builder.tensors.extend(others);
    if let Some(placed) = &options.placed {
        leave_unindexed(placed, &mut found, &mut builder);
    }
    let tied = tied(values, &found)?;
    // As the libraries of the Hub mark a file that PyTorch has written.
    builder.metadata.insert("format".into(), "pt".into());
    let mut places = HashMap::new();
    for (name, position) in found {
        let tensor = &values.tensors[position as usize];
        if let Some(kept) = tied.get(&key(tensor))
            && **kept != *name
            && !is_reserved(&name)
        {
            builder.aliases.push((name, Arc::clone(kept)));
            continue;
        }
        let located = |error: Error| error.in_tensor(&name);
        let storage = match places.get(&tensor.storage) {
            Some(known) => known,
            None => {
                let storage = &values.storages[tensor.storage as usize];
                let opened = match &storage.held {
                    Some(bytes) => (Place::Held(Arc::clone(bytes)), storage.byte_len),
                    None => place(tensor.storage as usize).map_err(located)?,
                };
                places.entry(tensor.storage).or_insert(opened)
            }
        };
        builder.tensors.push(one(values, &name, tensor, storage).map_err(located)?);
    }
    Ok(builder)
}

fn leave_unindexed(
    placed: &HashSet<String>,
    found: &mut Vec<(String, u32)>,
    builder: &mut Builder,
) {
    let unindexed = found.extract_if(.., |(name, _)| !placed.contains(name));
    builder.unindexed.extend(unindexed.map(|(name, _)| name));
    let unindexed = builder.tensors.extract_if(.., |tensor| !placed.contains(&tensor.name));
    builder.unindexed.extend(unindexed.map(|tensor| tensor.name));
}

/// A key with a fixed meaning cannot be another name of a tensor.
fn is_reserved(name: &str) -> bool {
    name == "format"
        || ["safetensors_bridge.", "modelspec.", "attribute:"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

type Key<'a> = (u32, u64, &'static str, &'a [usize], &'a [u64]);

fn key(tensor: &TensorRef) -> Key<'_> {
    (tensor.storage, tensor.offset, tensor.kind.name, &tensor.shape, &tensor.strides)
}

fn tied<'a>(values: &'a Values, found: &[(String, u32)]) -> Result<HashMap<Key<'a>, Arc<str>>> {
    let mut names: HashMap<Key<'a>, (&str, bool)> = HashMap::new();
    for (name, position) in found {
        let tensor = &values.tensors[*position as usize];
        values.step(tensor.shape.len())?;
        match names.entry(key(tensor)) {
            Entry::Vacant(entry) => _ = entry.insert((name, false)),
            Entry::Occupied(mut entry) => {
                let first = entry.get().0;
                values.budget.work_on(first)?;
                entry.insert((first.min(name), true));
            }
        }
    }
    let tied = names.into_iter().filter(|(_, (_, is_tied))| *is_tied);
    tied.map(|(key, (name, _))| Ok((key, values.budget.text(name)?))).collect()
}

fn one(
    values: &Values,
    name: &str,
    tensor: &TensorRef,
    (place, stored_len): &(Place, u64),
) -> Result<Tensor> {
    let TensorRef { kind, offset, shape, strides, .. } = tensor;
    values.budget.keep(name.len() + size_of::<Tensor>())?;
    values.budget.keep_all::<[u64; 6]>(shape.len() + 4)?;
    let storage = &values.storages[tensor.storage as usize];
    // The size of data that only Python can read is checked where it is found.
    if storage.held.is_some() && kind.dtype().is_none() {
        return Ok(without_dtype(name.to_owned(), *kind, shape.clone()));
    }
    let width = usize::from(kind.width);
    let available = storage.byte_len.min(*stored_len) / u64::from(kind.width);
    let placement = Placement::new(shape, strides, *offset, width, available);
    let placement = placement.ok_or_else(|| ErrorKind::OutsideStorage {
        storage: storage.key.to_string(),
        available,
        offset: *offset,
        shape: shape.clone(),
        strides: strides.clone(),
    })?;
    let name = name.to_owned();
    let Some(dtype) = kind.dtype() else { return Ok(without_dtype(name, *kind, shape.clone())) };
    let shape = shape_of(*kind, shape);
    let swapped = tensor.is_swapped.then(|| dtype.alignment());
    let data = Data::placed(place.clone(), placement, swapped);
    Ok(Tensor { name, dtype, shape, data, stored: None })
}

fn shape_of(kind: Kind, shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if kind.dtype() == Some(Dtype::F4) {
        match shape.last_mut() {
            Some(last) => *last = last.saturating_mul(2),
            None => shape.push(2),
        }
    }
    shape
}

/// Lists the bytes of the elements. Reading them is an error.
fn without_dtype(name: String, kind: Kind, shape: Vec<usize>) -> Tensor {
    let elements = shape.iter().fold(1_u64, |all, &dim| all.saturating_mul(dim as u64));
    let byte_len = elements.saturating_mul(kind.width.into());
    let stored = Stored::unreadable(kind.name.into(), shape.clone(), byte_len);
    // An empty tensor is listed as one element: without any bytes, reading would not fail.
    let mut listed = if elements == 0 { Vec::new() } else { shape };
    listed.push(usize::from(kind.width).max(1));
    let data = Data::Refused(Reason::NoDtype(kind.name));
    Tensor { name, dtype: Dtype::U8, shape: listed, data, stored: Some(stored) }
}

fn of_bytes(name: String, bytes: Arc<[u8]>) -> Tensor {
    let shape = vec![bytes.len()];
    Tensor { name, dtype: Dtype::U8, shape, data: Data::Plain(Place::Held(bytes)), stored: None }
}

fn unread(name: String, class: String) -> Tensor {
    Tensor::unread(name, class.clone(), Reason::UnknownObject(class.into()))
}

type Members = BTreeMap<String, usize>;
