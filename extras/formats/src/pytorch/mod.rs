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
//! [`open`](crate::open) opens all of them, [`TensorFile::open`](crate::TensorFile::open) one file.
//! The pickle is read by a machine that knows the opcodes and the few functions with which PyTorch
//! rebuilds tensors. **No code of a pickle is ever run**: a class is only a name here.
//!
//! # Tensors
//!
//! Every tensor in the dictionaries, lists and tuples of the file is read. Its name is the keys on
//! the way to it, joined by dots: a training checkpoint has `model.embed.weight` and
//! `optimizer.state.0.exp_avg`. A module that was saved as an object has the names of its
//! `state_dict()`.
//!
//! Arrays and numbers of NumPy are tensors, too, in C or Fortran order, little- or big-endian. So
//! are bytes, as U8. They are in the pickle; [`Limits`](crate::Limits) bounds its size.
//!
//! An object of another class that holds tensors or arrays is listed under its name, and reading it
//! is an error that names the class; so is an array of objects. [`Stored`] has its class as type. A
//! tensor that PyTorch marks as conjugate or negative is listed so, too: `resolve_conj` or
//! `resolve_neg` before saving removes the mark. If such an object is all that the file has,
//! opening it is the error. Numbers, texts and other objects are skipped;
//! [`TensorFile::notes`](crate::TensorFile::notes) counts them.
//!
//! The settings of an optimizer are kept: the `param_groups` next to a `state` are an entry of the
//! metadata, as JSON, under the name that they would have as a tensor, such as
//! `optimizer.param_groups`. Values in them that JSON cannot hold are skipped; an infinity or a NaN
//! is a text. [`PyTorchTraining`](safetensors_core::optimizer::PyTorchTraining) reads them.
//!
//! # TorchScript
//!
//! Scripted and traced modules have the names of their `state_dict()`: the tensors that the classes
//! in the archive's code list as parameters and buffers. Only these lists are read from the code.
//! Other attributes with tensors are counted as skipped, as `state_dict()` skips them.
//!
//! Tensors that are constants of the code are `CONSTANTS.c0` and so on, as the code calls them. A
//! frozen module (`torch.jit.freeze`) has all its weights there, and no file has their former
//! names. Packed weights of quantised modules are listed, and not read. An archive of
//! `torch.export` (`.pt2`) is an error.
//!
//! A dictionary in which one key has two values is an error that names the tensor. PyTorch keeps
//! the last value, and never writes such a dictionary. Two tensors with names that become equal,
//! such as for the keys `0` and `"0"`, are an error, too.
//!
//! # Directories of trainers
//!
//! A trainer on several ranks saves parts of tensors. [`open`](crate::open) takes the directory,
//! and joins the tensors, which are read from the files that have parts of them.
//!
//! - Distributed checkpoints (DCP) have a file `.metadata`, which lists the tensors, or one for
//!   each rank, and files `__RANK_NUMBER.distcp`. Names come from `.metadata`. FSDP and Megatron
//!   (`torch_dist`) save so. The settings of optimizers become metadata as for a file.
//!   [`notes`](crate::TensorFile::notes) name the other values that are no tensors.
//! - DCP in safetensors files (`HuggingFaceStorageWriter`), as
//!   [`open`](safetensors_core::Checkpoint::open) of core reads them.
//! - DeepSpeed saves a directory for each step, and a file `latest` next to it. With the stages 1,
//!   2 and 3 of ZeRO, the F32 weights are read, and the optimizer's state and settings on
//!   [request](crate::Options::optimizer_state). Frozen parameters, and buffers, have the dtype in
//!   which they are stored.
//! - Ranks may save a file each, such as `model_world_size_4_rank_0.pt`, with `DTensor`s. They are
//!   joined if a mesh with one dimension divides them, by `Shard` or `Replicate`.
//!
//! Files of ranks without a common `.metadata` do not show which step they are from. Different
//! shapes are an error, different numbers are not found.
//!
//! A file that is missing, parts that do not make up a tensor, and layouts that are not read are
//! errors when the directory is opened. A single part is refused
//! ([`PartOfDirectory`](crate::ErrorKind::PartOfDirectory)).
//!
//! # Dtypes
//!
//! Every type that safetensors has is read: floats of 8 to 64 bits, also the kinds of `float8`,
//! `float4_e2m1fn_x2` as two F4, integers, booleans and `complex64`. A tensor of another type, such
//! as `complex128`, is listed as bytes, also if it is empty. [`Stored`] has its type and its shape,
//! and reading it is an error that names its type.
//!
//! # Tied tensors
//!
//! Two names with the same storage, offset, shape, strides and type are one tensor here. The first
//! name in sorted order has the bytes, the others are
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

/// The note about a file with constants.
const CONSTANTS: &str = "CONSTANTS.c0 and so on are constants of its code; a frozen module has no \
                         names for its weights";

/// Makes tensors of the values in a pickle. `place` returns the start of a storage and its bytes in
/// the file.
fn build(
    values: &Values,
    found: Collected,
    options: &Options,
    mut place: impl FnMut(usize) -> Result<(Place, u64)>,
) -> Result<Builder> {
    let Collected { tensors: mut found, bytes, unreadable, left_out, settings } = found;
    let mut builder = Builder::default();
    builder.metadata.extend(settings);
    if !left_out.is_empty() {
        builder.notes.push(format!("left out: {left_out}"));
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

/// Takes out the tensors that an index does not place in this file.
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

/// Returns `true` if a key of metadata has a fixed meaning, and so cannot be the other name of a
/// tensor.
fn is_reserved(name: &str) -> bool {
    name == "format"
        || ["safetensors_bridge.", "modelspec.", "attribute:"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// The properties that names of a tensor share.
type Key<'a> = (u32, u64, &'static str, &'a [usize], &'a [u64]);

fn key(tensor: &TensorRef) -> Key<'_> {
    (tensor.storage, tensor.offset, tensor.kind.name, &tensor.shape, &tensor.strides)
}

/// Returns the first name, in sorted order, of each tensor that has several. All others refer to
/// it.
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

/// Returns a tensor in its storage, which begins at a place and has this many bytes.
fn one(
    values: &Values,
    name: &str,
    tensor: &TensorRef,
    (place, stored_len): &(Place, u64),
) -> Result<Tensor> {
    let TensorRef { kind, offset, shape, strides, .. } = tensor;
    values.budget.keep(name.len() + size_of::<Tensor>())?;
    values.budget.keep_all::<[u64; 4]>(shape.len())?;
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
    let data = Data::placed(place.clone(), placement, width, swapped);
    Ok(Tensor { name, dtype, shape, data, stored: None })
}

/// Returns the shape that a tensor of this type has as a safetensors tensor.
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

/// Makes a tensor with elements that have no dtype. It is listed as the bytes of its elements.
/// Reading them is an error.
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

/// Bytes, as the numbers that they are.
fn of_bytes(name: String, bytes: Arc<[u8]>) -> Tensor {
    let shape = vec![bytes.len()];
    Tensor { name, dtype: Dtype::U8, shape, data: Data::Plain(Place::Held(bytes)), stored: None }
}

/// Makes an object of an unknown class that holds tensors with unknown elements.
fn unread(name: String, class: String) -> Tensor {
    Tensor::unread(name, class.clone(), Reason::UnknownObject(class.into()))
}

/// The members of an archive by name.
type Members = BTreeMap<String, usize>;
