//! [`Builder`]: makes a safetensors header of tensors of another format.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use safetensors_core::audit::Finding;
use safetensors_core::framework::most_expanded;
use safetensors_core::{self as core, Dtype, shape};

use super::single::Single;
use super::{Container, Content, Data, Reason, Span, Split, Stored, TensorFile};
use crate::Format;
use crate::budget::{Budget, ENTRY};
use crate::error::{Error, ErrorKind, Result};

#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Data,
    pub(crate) stored: Option<Stored>,
}

impl Tensor {
    /// Lists a tensor of unknown elements as one byte, so that reading it is an error.
    pub(crate) fn unread(name: String, kind: String, why: Reason) -> Self {
        let stored = Some(Stored::unreadable(kind, vec![0], 0));
        Self { name, dtype: Dtype::U8, shape: vec![1], data: Data::Refused(why), stored }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Builder {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Other names of tied tensors, with the name that has the bytes.
    pub(crate) aliases: Vec<(String, Arc<str>)>,
    /// Tensors that the file's index does not place in it.
    pub(crate) unindexed: Vec<String>,
    pub(crate) notes: Vec<String>,
    pub(crate) split: Option<Split>,
}

impl Builder {
    /// The length of the files bounds the tensors' expanded size.
    pub(crate) fn build(
        mut self,
        format: Format,
        container: Container,
        budget: &Budget,
    ) -> Result<TensorFile> {
        let file_len = container.input().source.byte_len();
        let mut names = HashSet::with_capacity(self.tensors.len());
        let mut metadata: BTreeMap<&str, &str> = BTreeMap::new();
        metadata.extend(self.metadata.iter().map(|(key, text)| (&**key, &**text)));
        for (alias, kept) in &self.aliases {
            if !names.insert(alias.clone()) {
                return Err(twice(alias));
            }
            metadata.insert(alias, kept);
        }
        let mut header = HeaderText::new(&metadata, budget)?;
        let mut spans = Vec::new();
        let mut stored = BTreeMap::new();
        let mut start = 0_u64;
        for tensor in std::mem::take(&mut self.tensors) {
            let name = tensor.name.as_str();
            let in_tensor = |kind: core::ErrorKind| core::Error::from(kind).in_tensor(name);
            if name == "__metadata__" {
                return Err(in_tensor(core::ErrorKind::ReservedName));
            }
            if !names.insert(name.to_owned()) {
                return Err(twice(name));
            }
            let len = shape::byte_len(tensor.dtype, &tensor.shape).map_err(in_tensor)?;
            let end = start.saturating_add(len);
            check_expansion(file_len, end).map_err(|error| error.in_tensor(name))?;
            header.add(&tensor, start..end)?;
            if end > start {
                spans.push(Span { end, data: tensor.data });
            }
            if let Some(how) = tensor.stored {
                stored.insert(tensor.name, how);
            }
            start = end;
        }
        let header = header.finish();
        let byte_len = header.len() as u64 + start;
        let findings = self.findings(&container);
        let content = Content::File(Single { header, spans, byte_len, container });
        let Self { notes, split, .. } = self;
        let with = TensorFile::with(format, content, names);
        TensorFile { stored, findings, notes, split, ..with }.unchanged()
    }

    fn findings(&self, container: &Container) -> Vec<Finding> {
        let Some((tensor, others)) = self.unindexed.split_first() else { return Vec::new() };
        let file = container.input().file.clone().into();
        let others = others.len() as u64;
        vec![Finding::UnindexedTensors { file, tensor: tensor.clone(), others }]
    }
}

/// Fails if tensors come from too few bytes: a deflated archive can become many times as long, and
/// tensors can repeat a small storage.
pub(super) fn check_expansion(file_len: u64, found: u64) -> Result<()> {
    let limit = most_expanded(file_len, 0);
    if found <= limit && found < u64::MAX {
        Ok(())
    } else {
        Err(ErrorKind::TooExpanded { file_len, limit, found }.into())
    }
}

struct HeaderText<'a> {
    json: Vec<u8>,
    budget: &'a Budget,
}

const BEFORE: usize = size_of::<u64>();

impl<'a> HeaderText<'a> {
    fn new(metadata: &BTreeMap<&str, &str>, budget: &'a Budget) -> Result<Self> {
        let mut text = Self { json: vec![0; BEFORE], budget };
        text.json.push(b'{');
        if metadata.is_empty() {
            return Ok(text);
        }
        text.json.extend(b"\"__metadata__\":{");
        for (number, (key, value)) in metadata.iter().enumerate() {
            let start = text.json.len();
            text.json.extend((number > 0).then_some(b','));
            text.quote(key)?;
            text.json.push(b':');
            text.quote(value)?;
            text.count_from(start)?;
        }
        text.json.push(b'}');
        Ok(text)
    }

    fn add(&mut self, tensor: &Tensor, Range { start, end }: Range<u64>) -> Result<()> {
        let Tensor { name, dtype, shape, .. } = tensor;
        let before = self.json.len();
        if before > BEFORE + 1 {
            self.json.push(b',');
        }
        self.quote(name)?;
        write!(
            self.json,
            ":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        )?;
        self.count_from(before)
    }

    fn quote(&mut self, text: &str) -> Result<()> {
        Ok(serde_json::to_writer(&mut self.json, text).map_err(io::Error::from)?)
    }

    /// Counts an entry from byte `start` on: here, as a name, and where the header is read.
    fn count_from(&mut self, start: usize) -> Result<()> {
        self.budget.keep(2 * (self.json.len() - start) + ENTRY)?;
        let limit = self.budget.limits().directory_bytes;
        if self.json.len() as u64 > limit {
            return Err(ErrorKind::DirectoryTooLong { limit }.into());
        }
        Ok(())
    }

    fn finish(mut self) -> Vec<u8> {
        self.json.push(b'}');
        self.json.resize(self.json.len().next_multiple_of(BEFORE), b' ');
        let len = (self.json.len() - BEFORE) as u64;
        self.json[..BEFORE].copy_from_slice(&len.to_le_bytes());
        self.json
    }
}

fn twice(name: &str) -> Error {
    core::Error::from(core::ErrorKind::DuplicateTensor).in_tensor(name)
}
