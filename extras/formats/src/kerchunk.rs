//! Manifests of Zarr: the places of tensors in safetensors files.
//!
//! They are [kerchunk references](https://fsspec.github.io/kerchunk/spec.html) of version 1.
//!
//! fsspec's `ReferenceFileSystem` shows one as a Zarr store of version 2. So Zarr, xarray and
//! VirtualiZarr read tensors and parts of them in place, also from a bucket, without this library.
//!
//! | in the file | in the store |
//! |---|---|
//! | a tensor `u` | an array `u`; one named `grid/x` is in the group `grid` |
//! | an [alias](Checkpoint::aliases) of it | an array of the same bytes |
//! | its names of dimensions ([`dimensions`](safetensors_core::header::dimensions())) | `_ARRAY_DIMENSIONS`, which xarray needs; the coordinate of a dimension has its name; other tensors without names have `u.dim0`, `u.dim1` and so on |
//! | its other [attributes](safetensors_core::header::attributes()), such as units | attributes of the array |
//! | metadata of the file | attributes of the root |
//! | BF16, floats of 8 bits | unsigned integers of the same bits, with the attribute `safetensors_dtype` |
//! | packed dtypes (F4, F6_E2M3, F6_E3M2) | their bytes in one dimension, with the attributes `safetensors_dtype` and `safetensors_shape` |
//!
//! Large arrays are cut into equal chunks along the first dimension, so their number divides it.

use std::collections::BTreeSet;
use std::path::Path;

use safetensors_core::header::{TensorInfo, attributes, dimensions};
use safetensors_core::{Checkpoint, Metadata};
use serde_json::{Map, Value, json};

use crate::Limits;
use crate::budget::{Budget, ENTRY, escaped};
use crate::error::{ErrorKind, Result};
use crate::npy::{ByteOrder, encode};

const GROUP: &str = r#"{"zarr_format":2}"#;

/// Bytes of a dimension's name, without the tensor's.
const DIM_BYTES: usize = 32;

/// Bytes of a chunk for each byte of its reference.
const PAID: u64 = 16;

const MOST_CHUNKS: usize = 4096;

/// Returns the manifest of safetensors files, as JSON. `location` returns the path or address for
/// fsspec. Chunks have at most `chunk_bytes` bytes, if the first dimension can be divided so.
///
/// ```
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
/// use safetensors_formats::kerchunk::manifest;
///
/// let u = TensorView::from_slice(&[4], &[1.0_f32, 2.0, 3.0, 4.0])?;
/// let file = serialize([("u", u)], &SaveOptions::new())?;
/// let checkpoint = Checkpoint::from_source(file, "u.safetensors")?;
/// let text = manifest(&checkpoint, 8, |_| Ok("s3://bucket/u.safetensors".to_owned()))?;
/// let start = checkpoint.tensor("u")?.file_offset();
/// assert!(text.contains(&format!(r#""u/1":["s3://bucket/u.safetensors",{},8]"#, start + 8)));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::NotForZarr`] for a name that Zarr does not allow; [`ErrorKind::OutOfProportion`]
/// for a manifest far longer than the headers;
/// [`BadAttribute`](safetensors_core::ErrorKind::BadAttribute); errors of `location`.
pub fn manifest<S>(
    checkpoint: &Checkpoint<S>,
    chunk_bytes: u64,
    location: impl Fn(&Path) -> Result<String>,
) -> Result<String> {
    let named = || checkpoint.tensors().map(|it| (it.name(), it)).chain(checkpoint.aliases());
    let names: BTreeSet<&str> = named().map(|(name, _)| name).collect();
    let files = checkpoint
        .stored_files()?
        .iter()
        .map(|file| location(file.path()).map_err(|error| error.in_path(file.path())));
    let files = files.collect::<Result<Vec<_>>>()?;
    let budget = Budget::new(&Limits::default());
    for file in checkpoint.files() {
        let header = file.safetensors().header();
        budget.grow(header.data_start());
    }
    let mut arrays = Arrays {
        refs: Map::new(),
        metadata: checkpoint.metadata(),
        dims: BTreeSet::new(),
        chunk_bytes,
        budget,
    };
    for (name, tensor) in named() {
        arrays.add_dims(name, tensor.shape()).map_err(|error| tensor.locate(error))?;
    }
    arrays.refs.insert(".zgroup".into(), GROUP.into());
    let root = root_attributes(checkpoint.metadata(), &names).to_string();
    arrays.refs.insert(".zattrs".into(), root.into());
    for (name, tensor) in named() {
        let mut add = || -> Result<()> {
            arrays.add_groups(name, &names)?;
            let chunks = arrays.add(name, tensor.info())?;
            let file = files.get(tensor.file_index()).map_or("", String::as_str);
            let dims = array_shape(tensor.info()).len().max(1);
            for (number, (offset, len)) in chunks.enumerate() {
                // The data is there once, under any number of names.
                let paid = if name == tensor.name() { len / PAID } else { 0 };
                arrays.keep_unpaid(escaped(name) + 2 * dims + file.len(), paid)?;
                let key = format!("{name}/{number}{}", ".0".repeat(dims - 1));
                arrays.refs.insert(key, json!([file, tensor.file_offset() + offset, len]));
            }
            Ok(())
        };
        add().map_err(|error| tensor.locate(error.in_tensor(name)))?;
    }
    Ok(json!({ "version": 1, "refs": arrays.refs }).to_string())
}

fn root_attributes(metadata: &Metadata, names: &BTreeSet<&str>) -> Value {
    let of_file = metadata
        .iter()
        .filter(|(key, _)| !key.starts_with("attribute:") && !names.contains(key.as_str()));
    of_file
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect::<Map<_, _>>()
        .into()
}

fn array_shape(tensor: TensorInfo<'_>) -> Vec<u64> {
    if tensor.dtype().is_sub_byte() {
        return vec![tensor.byte_len()];
    }
    tensor.shape().iter().map(|&dim| dim as u64).collect()
}

struct Arrays<'m> {
    refs: Map<String, Value>,
    metadata: &'m Metadata,
    dims: BTreeSet<(String, usize)>,
    chunk_bytes: u64,
    // A few long names with many parts, dimensions or aliases could make gigabytes.
    budget: Budget,
}

impl Arrays<'_> {
    fn keep(&self, bytes: usize) -> Result<()> {
        self.keep_unpaid(bytes, 0)
    }

    /// Counts an entry, minus the bytes that data has paid.
    fn keep_unpaid(&self, bytes: usize, paid: u64) -> Result<()> {
        let bytes = bytes.saturating_mul(2).saturating_add(ENTRY);
        self.budget.keep(bytes.saturating_sub(usize::try_from(paid).unwrap_or(usize::MAX)))
    }

    fn add_groups(&mut self, name: &str, names: &BTreeSet<&str>) -> Result<()> {
        let refuse = |problem| Err(ErrorKind::NotForZarr { problem }.into());
        if name.split('/').any(|part| matches!(part, "" | "." | "..") || part.starts_with(".z")) {
            return refuse("a part of it is empty, . or .., or begins with .z");
        }
        for (at, _) in name.rmatch_indices('/') {
            let group = &name[..at];
            self.keep(escaped(group) + GROUP.len())?;
            if names.contains(group) {
                return refuse("it is below another tensor");
            }
            // The groups around one that is there are there, too.
            if self.refs.insert(format!("{group}/.zgroup"), GROUP.into()).is_some() {
                break;
            }
        }
        Ok(())
    }

    fn add_dims(&mut self, name: &str, shape: &[usize]) -> Result<()> {
        let named = dimensions(self.metadata, name, shape.len())?;
        self.dims.extend(named.into_iter().flatten().zip(shape.iter().copied()));
        Ok(())
    }

    /// A coordinate needs no attribute: its one dimension has its name.
    fn dims_of(&self, name: &str, tensor: TensorInfo<'_>) -> Result<Vec<String>> {
        if !tensor.dtype().is_sub_byte() {
            if let Some(named) = dimensions(self.metadata, name, tensor.shape().len())? {
                return Ok(named);
            }
            if let [len] = tensor.shape()
                && self.dims.contains(&(name.to_owned(), *len))
            {
                return Ok(vec![name.to_owned()]);
            }
        }
        Ok((0..array_shape(tensor).len()).map(|dim| format!("{name}.dim{dim}")).collect())
    }

    fn add(
        &mut self,
        name: &str,
        tensor: TensorInfo<'_>,
    ) -> Result<impl Iterator<Item = (u64, u64)> + use<>> {
        let dtype = tensor.dtype();
        let len = tensor.byte_len();
        let shape = array_shape(tensor);
        let count = chunk_count(shape.first().copied().unwrap_or(1), len, self.chunk_bytes);
        let mut chunks: Vec<u64> = shape.iter().map(|&dim| dim.max(1)).collect();
        if let Some(first) = chunks.first_mut() {
            *first /= count;
        }
        let codes = if dtype.bits() == 16 { "<u2" } else { "|u1" };
        let known = encode(dtype, ByteOrder::Little);
        let array = json!({
            "zarr_format": 2, "shape": shape, "chunks": chunks, "order": "C", "fill_value": null,
            "dtype": known.as_deref().unwrap_or(codes), "compressor": null, "filters": null,
        });
        let array = array.to_string();
        self.keep(escaped(name) + escaped(&array))?;
        self.refs.insert(format!("{name}/.zarray"), array.into());

        let dims = shape.len() * (escaped(name) + DIM_BYTES);
        self.keep(dims)?;
        let mut attrs: Map<String, Value> = attributes(self.metadata, name)
            .filter(|(key, _)| *key != "dimensions")
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect();
        attrs.insert("_ARRAY_DIMENSIONS".into(), self.dims_of(name, tensor)?.into());
        if known.is_none() {
            attrs.insert("safetensors_dtype".into(), dtype.name().into());
        }
        if dtype.is_sub_byte() {
            attrs.insert("safetensors_shape".into(), tensor.shape().into());
        }
        let attrs = Value::from(attrs).to_string();
        self.keep((escaped(name) + escaped(&attrs)).saturating_sub(dims))?;
        self.refs.insert(format!("{name}/.zattrs"), attrs.into());
        let chunk = len / count;
        // An array without elements has no chunks.
        let count = if len == 0 { 0 } else { count };
        Ok((0..count).map(move |number| (number * chunk, chunk)))
    }
}

/// The number divides the first dimension.
fn chunk_count(first: u64, len: u64, chunk_bytes: u64) -> u64 {
    let wanted = len.div_ceil(chunk_bytes.max(1)).max(1);
    let most = first.min(MOST_CHUNKS as u64);
    // The next larger divisor, or otherwise the largest one.
    let larger = (wanted..=most).find(|count| first.is_multiple_of(*count));
    let largest = || (1..=most).rev().find(|count| first.is_multiple_of(*count));
    larger.or_else(largest).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_cut_where_its_first_dimension_can_be_divided() {
        for (first, len, chunk, expected) in [
            (10, 80, 100, 1),
            (10, 80, 40, 2),
            (10, 80, 30, 5),
            (10, 80, 1, 10),
            (7, 70, 20, 7),
            (0, 0, 20, 1),
            (1, 1000, 20, 1),
            (10_007, 10_007, 20, 1),
            (8192, 8192, 1, 4096),
            (10, 80, 0, 10),
        ] {
            assert_eq!(chunk_count(first, len, chunk), expected, "{first} {len} {chunk}");
        }
    }
}
