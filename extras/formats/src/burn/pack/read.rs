//! The tensors of a burnpack file.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use safetensors_core::framework::{PARAM_IDS_KEY, SCALARS_KEY};
use safetensors_core::{Dtype, Metadata, ReadAt, shape};

use super::content::{Content, Described, Scalar};
use super::entries::{IDS, SCALARS, put};
use super::{HEADER, START, bad, data_start};
use crate::Limits;
use crate::budget::{Budget, ENTRY};
use crate::burn::dtype_of;
use crate::error::{Error, ErrorKind, Result};
use crate::input::Cursor;
use crate::pairs::Pairs;
use crate::tensor_file::{Builder, Data, Place, Tensor};

/// Memory per byte of a JSON text.
const PARSED: usize = 12;

pub(in crate::burn) fn read(cursor: Cursor<'static>, budget: &Budget) -> Result<Builder> {
    let limits = budget.limits();
    let file = &*cursor.input.source;
    let file_len = file.byte_len();
    let (content, start) = read_content(file, limits)?;
    let Content { tensors: Pairs(tensors), metadata: Pairs(metadata), scalars } = content;
    let limit = limits.members;
    if tensors.len() > limit {
        return Err(ErrorKind::TooManyMembers { limit, found: tensors.len() }.into());
    }
    let mut builder = Builder { metadata, ..Builder::default() };
    let mut places = Places::default();
    let mut ids = BTreeMap::new();
    for (name, described) in tensors {
        // Three tables keep the name.
        budget.keep(3 * (name.len() + size_of::<(String, Placed)>()))?;
        budget.keep_all::<[u64; 3]>(described.shape.0.len())?;
        let id = described.param_id;
        let tensor = Placed::new(described, start, file_len);
        let tensor = tensor.map_err(|error| error.in_tensor(&name))?;
        ids.extend(id.map(|id| (name.clone(), id)));
        match places.tied(&name, &tensor) {
            Some(kept) => builder.aliases.push((name, kept)),
            None => places.tensors.push((name, tensor)),
        }
    }
    if !ids.is_empty() {
        keep_entry(PARAM_IDS_KEY, &builder.metadata, ids.keys(), budget)?;
        put(&mut builder.metadata, IDS, ids)?;
    }
    if !scalars.is_empty() {
        keep_entry(SCALARS_KEY, &builder.metadata, scalars.0.keys(), budget)?;
        let scalars = scalars.0.into_iter().map(|(name, Scalar(scalar))| (name, scalar));
        put(&mut builder.metadata, SCALARS, scalars)?;
    }
    builder.tensors = places.into_tensors()?;
    Ok(builder)
}

fn keep_entry<'a>(
    key: &str,
    metadata: &Metadata,
    names: impl Iterator<Item = &'a String>,
    budget: &Budget,
) -> Result<()> {
    budget.keep(metadata.get(key).map_or(0, |text| text.len().saturating_mul(PARSED)))?;
    budget.keep(names.map(|name| 2 * name.len() + ENTRY).sum())
}

fn read_content(file: &dyn ReadAt, limits: &Limits) -> Result<(Content, u64)> {
    let file_len = file.byte_len();
    let mut header = [0; HEADER];
    if file_len < HEADER as u64 {
        return Err(bad(file_len, "the file ends here"));
    }
    file.read_exact_at(&mut header, 0)?;
    let [start @ .., a, b, c, d] = header;
    if start != START {
        let version = u16::from_le_bytes([header[4], header[5]]);
        let problem = format!("version {version} of burnpack, of which only 1 is known");
        return Err(ErrorKind::NotRead { problem }.into());
    }
    let len = u64::from(u32::from_le_bytes([a, b, c, d]));
    let limit = limits.directory_bytes;
    if len > limit {
        return Err(ErrorKind::DirectoryTooLong { limit }.into());
    }
    let left = file_len - HEADER as u64;
    if len > left {
        let problem = format!("a content of {len} bytes, but only {left} are left of the file");
        return Err(bad(HEADER as u64, problem));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, HEADER as u64)?;
    let mut rest = &*bytes;
    let content = ciborium::from_reader(&mut rest);
    let at = HEADER as u64 + len - rest.len() as u64;
    let content = content.map_err(|error| bad(at, error))?;
    match rest.len() {
        0 => Ok((content, data_start(len))),
        rest => Err(bad(at, format!("{rest} bytes after the content"))),
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Placed {
    begin: u64,
    end: u64,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Placed {
    fn new(described: Described, start: u64, file_len: u64) -> Result<Self> {
        let Described { dtype, shape, data_offsets, .. } = described;
        let dtype = dtype_of(&dtype.0).ok_or(ErrorKind::NoDtype { name: dtype.0 })?;
        let shape = shape.0.into_iter().map(|dim| {
            usize::try_from(dim)
                .map_err(|_| bad(start, format!("a dimension of {dim} does not fit the memory")))
        });
        let shape = shape.collect::<Result<Vec<_>>>()?;
        let expected = shape::byte_len(dtype, &shape)?;
        let [begin, end] =
            [data_offsets.0, data_offsets.1].map(|offset| start.saturating_add(offset));
        let found = data_offsets.1.checked_sub(data_offsets.0);
        if found != Some(expected) {
            let (from, to) = data_offsets;
            let problem = format!(
                "the tensor should have {expected} bytes, but spans bytes {from} to {to} of \
                 the data"
            );
            return Err(bad(start, problem));
        }
        if end > file_len {
            return Err(ErrorKind::PastEnd { expected: end, found: file_len }.into());
        }
        Ok(Self { begin, end, dtype, shape })
    }
}

#[derive(Default)]
struct Places {
    tensors: Vec<(String, Placed)>,
    names: HashMap<Placed, Arc<str>>,
}

impl Places {
    fn tied(&mut self, name: &str, tensor: &Placed) -> Option<Arc<str>> {
        if tensor.begin == tensor.end {
            return None;
        }
        let kept = self.names.get(tensor).filter(|kept| &***kept != name).cloned();
        if kept.is_none() {
            self.names.insert(tensor.clone(), name.into());
        }
        kept
    }

    /// In the order of the file, to read it front to back.
    fn into_tensors(mut self) -> Result<Vec<Tensor>> {
        self.tensors.sort_by_key(|(_, tensor)| (tensor.begin, tensor.end));
        let overlaps = self.tensors.windows(2).find(|pair| pair[0].1.end > pair[1].1.begin);
        if let Some([(other, _), (name, _)]) = overlaps {
            let kind = ErrorKind::TensorsOverlap { other: other.clone() };
            return Err(Error::from(kind).in_tensor(name));
        }
        let tensor = |(name, Placed { begin, dtype, shape, .. })| {
            let data = Data::Plain(Place::At(begin));
            Tensor { name, dtype, shape, data, stored: None }
        };
        Ok(self.tensors.into_iter().map(tensor).collect())
    }
}
