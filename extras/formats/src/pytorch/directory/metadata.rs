//! The file `.metadata` of a distributed checkpoint: a pickle, with classes only as names.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;

use super::settings::Setting;
use super::{MOST_FIELDS, bad};
use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Quoted, Result};
use crate::pytorch::bytes;
use crate::pytorch::kinds;
use crate::pytorch::pickle;
use crate::pytorch::values::{Kind, Node, Value, Values};

const METADATA: &str = "torch.distributed.checkpoint.metadata";
const FILESYSTEM: &str = "torch.distributed.checkpoint.filesystem";

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata {
    pub(super) tensors: Vec<TensorEntry>,
    pub(super) values: Vec<ValueEntry>,
}

/// Its bytes are an archive of any object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueEntry {
    pub(super) name: String,
    pub(super) item: Item,
    /// Its place in an optimizer's settings.
    pub(super) setting: Option<Setting>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorEntry {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) shape: Vec<usize>,
    pub(super) chunks: Vec<Chunk>,
    /// Megatron saved pieces of the flattened tensor, under another shape.
    pub(super) is_reshaped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) offsets: Vec<usize>,
    pub(super) sizes: Vec<usize>,
    /// `None` for a chunk without elements that was not written.
    pub(super) item: Option<Item>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Item {
    pub(super) file: Arc<str>,
    pub(super) start: u64,
    pub(super) len: u64,
}

pub(super) fn read(bytes: &mut dyn Read, budget: &Budget) -> Result<Metadata> {
    let mut values = Values::new(budget);
    let mut bytes = bytes::counted(bytes, budget);
    let root = pickle::read(&mut bytes, &mut values)?;
    MetadataReader { values: &values }.metadata(root)
}

struct MetadataReader<'a> {
    values: &'a Values,
}

/// By the name of a value and, for a chunk, its offsets.
type Items<'a> = HashMap<(&'a str, Option<Vec<usize>>), Item>;

impl<'a> MetadataReader<'a> {
    fn metadata(&self, root: Value) -> Result<Metadata> {
        // Megatron saves an object of a class that is derived from PyTorch's, with one more field.
        let state = self.state(root, |_, name| name == "Metadata" || name == "MCoreMetadata")?;
        let items = self.items(self.field(state, "storage_data")?)?;
        let reshaped = self.reshaped(state)?;
        let paths = self.paths(state)?;
        let entries = self.field(state, "state_dict_metadata")?;
        let entries = self.values.dict(entries).ok_or_else(|| bad("it lists no tensors"))?;
        let mut metadata = Metadata::default();
        let mut names = HashSet::new();
        for &(key, entry) in entries {
            let name = self.values.text(key).ok_or_else(|| bad("a name is not a text"))?;
            let located = |error: Error| error.in_tensor(name);
            self.values.budget.work_on(name)?;
            // The name, and a setting's copies of it.
            self.values.budget.keep(3 * name.len() + size_of::<TensorEntry>())?;
            if !names.insert(name) {
                return Err(located(ErrorKind::DuplicateDictKey.into()));
            }
            if self.values.class_of(entry) == Some((METADATA, "BytesStorageMetadata")) {
                let item = items.get(&(name, None)).cloned();
                let item = item.ok_or_else(|| located(bad("the place of its bytes is missing")))?;
                let path = paths.get(name);
                let setting = path.and_then(|&path| Setting::find(self.values, name, path));
                metadata.values.push(ValueEntry { name: name.to_owned(), item, setting });
                continue;
            }
            let mut tensor = self.tensor(name, entry, &items).map_err(located)?;
            tensor.is_reshaped = reshaped.contains(name);
            metadata.tensors.push(tensor);
        }
        Ok(metadata)
    }

    fn items(&self, data: Value) -> Result<Items<'a>> {
        let data = self.values.dict(data).ok_or_else(|| bad("it says nothing of the files"))?;
        let mut items = Items::new();
        let mut files = HashMap::new();
        for &(index, info) in data {
            let index =
                self.state(index, |module, name| module == METADATA && name == "MetadataIndex")?;
            let name = self.values.text(self.field(index, "fqn")?);
            let name = name.ok_or_else(|| bad("a name is not a text"))?;
            let located = |error: Error| error.in_tensor(name);
            self.values.budget.work_on(name)?;
            self.values.budget.keep_all::<Item>(2)?;
            // A field that has the value None by default may be absent.
            let offset = match self.values.get(index, "offset") {
                None | Some(Value::None) => None,
                Some(offset) => Some(self.numbers(offset, "an offset").map_err(located)?),
            };
            let item = self.item(info, &mut files).map_err(located)?;
            if items.insert((name, offset), item).is_some() {
                return Err(located(bad("two places have the same piece")));
            }
        }
        Ok(items)
    }

    fn item(&self, info: Value, files: &mut HashMap<&'a str, Arc<str>>) -> Result<Item> {
        let info =
            self.state(info, |module, name| module == FILESYSTEM && name == "_StorageInfo")?;
        let transforms = self.values.get(info, "transform_descriptors").unwrap_or(Value::None);
        let has_transforms = self.values.items(transforms).is_none_or(|list| !list.is_empty());
        if transforms != Value::None && has_transforms {
            let problem = "its bytes are transformed, such as compressed";
            return Err(ErrorKind::NotRead { problem: problem.into() }.into());
        }
        let file = self.values.text(self.field(info, "relative_path")?);
        let file = file.ok_or_else(|| bad("the name of a file is not a text"))?;
        if !super::is_plain(file) {
            return Err(bad(format!(
                "expected the plain name of a file in the directory, found {}",
                Quoted(file)
            )));
        }
        let number = |name| match self.field(info, name)? {
            Value::Int(number) => u64::try_from(number).map_err(|_| bad("a place is negative")),
            _ => Err(bad("a place is not a number")),
        };
        let start = number("offset")?;
        let len = number("length")?;
        Ok(Item { file: Arc::clone(files.entry(file).or_insert_with(|| file.into())), start, len })
    }

    fn tensor(&self, name: &'a str, entry: Value, items: &Items<'a>) -> Result<TensorEntry> {
        let state = self
            .state(entry, |module, name| module == METADATA && name == "TensorStorageMetadata")?;
        let shape = self.numbers(self.field(state, "size")?, "its shape")?;
        let kind = self.kind(self.field(state, "properties")?)?;
        let list = self.values.items(self.field(state, "chunks")?);
        let list = list.ok_or_else(|| bad("it has no list of chunks"))?;
        self.values.copy(list.len())?;
        let mut chunks = Vec::new();
        for &chunk in list {
            // A list can have one chunk any number of times.
            self.values.budget.work_on(name)?;
            self.values.budget.keep_all::<Chunk>(2)?;
            let chunk = self.state(chunk, |module, name| {
                module == METADATA && name == "ChunkStorageMetadata"
            })?;
            let offsets = self.numbers(self.field(chunk, "offsets")?, "an offset")?;
            let sizes = self.numbers(self.field(chunk, "sizes")?, "the size of a chunk")?;
            let mut item = items.get(&(name, Some(offsets.clone())));
            if item.is_none() && list.len() == 1 {
                item = items.get(&(name, None));
            }
            // All chunks without elements may have the same offset, and so one place.
            let item = item.cloned().filter(|_| !sizes.contains(&0));
            if item.is_none() && !sizes.contains(&0) {
                return Err(bad(format!("the place of its chunk at {offsets:?} is missing")));
            }
            chunks.push(Chunk { offsets, sizes, item });
        }
        Ok(TensorEntry { name: name.to_owned(), kind, shape, chunks, is_reshaped: false })
    }

    /// The state of `TensorProperties` is a tuple.
    fn kind(&self, properties: Value) -> Result<Kind> {
        let is_known = self.values.class_of(properties) == Some((METADATA, "TensorProperties"));
        let state = self.values.fields(properties).filter(|_| is_known);
        let dtype = state.and_then(|state| self.values.class(*self.values.items(state)?.first()?));
        let (_, name) = dtype.ok_or_else(|| bad("it has no type of elements"))?;
        kinds::of_name(name).ok_or_else(|| bad(format!("the type torch.{name} is unknown")))
    }

    /// Names of tensors that Megatron saved flattened.
    fn reshaped(&self, state: Value) -> Result<HashSet<&'a str>> {
        let data = self.values.get(state, "mcore_data");
        let entries = data.and_then(|data| self.values.dict(data)).unwrap_or_default();
        let mut reshaped = HashSet::new();
        for &(name, entry) in entries {
            // Many tensors can have the same fields.
            self.values.step(self.values.node(entry).map_or(0, Node::len))?;
            let shape = self.values.get(entry, "nd_reformulated_orig_global_shape");
            let Some(name) = self.values.text(name) else { continue };
            if shape.is_some_and(|shape| shape != Value::None) {
                self.values.budget.work_on(name)?;
                reshaped.insert(name);
            }
        }
        Ok(reshaped)
    }

    /// Returns the keys to each value, by its name. Only PyTorch writes them.
    fn paths(&self, state: Value) -> Result<HashMap<&'a str, Value>> {
        let paths = self.values.get(state, "planner_data");
        let paths = paths.and_then(|paths| self.values.dict(paths)).unwrap_or_default().iter();
        let paths = paths.filter_map(|&(name, path)| Some((self.values.text(name)?, path)));
        paths.map(|(name, path)| self.values.budget.work_on(name).map(|()| (name, path))).collect()
    }

    fn state(&self, value: Value, is_known: impl Fn(&str, &str) -> bool) -> Result<Value> {
        match self.values.class_of(value) {
            Some((module, name)) if is_known(module, name) => {}
            Some((module, name)) => {
                let class = format!("{module}.{name}");
                return Err(bad(format!(
                    "an object has the class {}, which is not known here",
                    Quoted(&class)
                )));
            }
            None => return Err(bad("a value is not an object of PyTorch's classes")),
        }
        // Many objects could share a dictionary of many fields, and each search would pass all.
        let is_state = |&state: &Value| {
            self.values.dict(state).is_some_and(|fields| fields.len() <= MOST_FIELDS)
        };
        let state = self.values.fields(value).filter(is_state);
        state.ok_or_else(|| bad("an object has no fields"))
    }

    fn field(&self, state: Value, name: &str) -> Result<Value> {
        self.values.get(state, name).ok_or_else(|| bad(format!("the field {name} is missing")))
    }

    fn numbers(&self, value: Value, what: &str) -> Result<Vec<usize>> {
        let numbers = self.values.sizes(value);
        self.values.copy(numbers.as_ref().map_or(0, Vec::len))?;
        numbers.ok_or_else(|| bad(format!("{what} is not a list of numbers")))
    }
}
