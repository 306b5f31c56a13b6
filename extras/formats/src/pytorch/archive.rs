//! The zip archives of PyTorch 1.6 and later.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::bytes;
use super::values::{Node, Value, Values};
use super::{Members, build, names, pickle, script};
use crate::budget::Budget;
use crate::error::{ErrorKind, Result};
use crate::format::{is_exported, root_of};
use crate::input::stem;
use crate::tensor_file::{Container, Place, Scratch, TensorFile};
use crate::zipped::Zipped;
use crate::{Format, Options};

const LONGEST_TEXT: u64 = 64;

pub(crate) fn open(
    zipped: Zipped<'static>,
    path: &Path,
    options: &Options,
    budget: &Budget,
) -> Result<TensorFile> {
    let archive = Archive::read(zipped, budget)?;
    let found = names::collect(&archive.values, archive.object, &stem(path), "")?;
    let builder = build(&archive.values, found, options, &mut |storage| archive.place(storage))?;
    let container = Container::Zip(archive.zipped, Scratch::default());
    builder.build(Format::Pytorch, container, budget)
}

pub(super) struct Archive {
    zipped: Arc<Zipped<'static>>,
    members: Members,
    root: String,
    pub(super) values: Values,
    pub(super) object: Value,
}

impl Archive {
    /// Errors do not name the file yet.
    pub(super) fn read(zipped: Zipped<'static>, budget: &Budget) -> Result<Self> {
        zipped.count_list(budget)?;
        zipped.check_overlap()?;
        let members: Members =
            zipped.names()?.into_iter().enumerate().map(|(i, name)| (name, i)).collect();
        if members.keys().any(|name| is_exported(name)) {
            return Err(ErrorKind::Exported.into());
        }
        let roots = members.keys().filter_map(|name| root_of(name));
        let root = roots.min_by_key(|root| root.len()).ok_or(ErrorKind::NoPickle)?.to_owned();
        let mut values = Values::new(budget);
        let member = |name: &str| members.get(&format!("{root}{name}")).copied();
        if let Some(index) = member("byteorder") {
            check_order(&zipped, index)?;
        }
        let index = member("data.pkl").ok_or(ErrorKind::NoPickle)?;
        zipped.check_size(index)?;
        values.folder = "data/";
        let object = read_pickle(&zipped, index, &mut values)?;
        if values.modules().any(script::is_of_code) {
            script::read_classes(&zipped, &members, &root, &mut values)?;
            if let Some(index) = member("constants.pkl") {
                values.folder = "constants/";
                zipped.check_size(index)?;
                values.constants = read_pickle(&zipped, index, &mut values)?;
            }
        }
        Ok(Self { zipped: Arc::new(zipped), members, root, values, object })
    }

    /// Returns the bytes of a number, or of a tensor with one element. `None` for other values.
    pub(super) fn number(&self, value: Value) -> Result<Option<Vec<u8>>> {
        let position = match (value, self.values.node(value)) {
            (Value::Int(number), _) => return Ok(Some(number.to_le_bytes().to_vec())),
            (_, Some(Node::Tensor(position))) => *position as usize,
            _ => return Ok(None),
        };
        let tensor = &self.values.tensors[position];
        if self.values.storages[tensor.storage as usize].held.is_some() {
            return Ok(None);
        }
        let width = u64::from(tensor.kind.width);
        let (place, len) = self.place(tensor.storage as usize)?;
        let start = tensor.offset.saturating_mul(width);
        let is_inside = start.saturating_add(width) <= len;
        match place {
            Place::At(place) if is_inside && tensor.shape.iter().all(|&dim| dim == 1) => {
                let mut bytes = vec![0; width as usize];
                self.zipped.input.source.read_exact_at(&mut bytes, place + start)?;
                Ok(Some(bytes))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn place(&self, storage: usize) -> Result<(Place, u64)> {
        let key = &self.values.storages[storage].key;
        self.values.budget.work_on(&self.root)?;
        let index = self.members.get(&format!("{}{key}", self.root)).copied();
        let index = index.ok_or_else(|| ErrorKind::NoStorage { storage: key.to_string() })?;
        self.zipped.check_size(index)?;
        let len = self.zipped.member(index, |member| Ok(member.size()))?;
        Ok((self.zipped.place(index)?, len))
    }
}

fn check_order(zipped: &Zipped<'_>, member: usize) -> Result<()> {
    let mut order = String::new();
    zipped.member(member, |member| {
        Ok(member.take(LONGEST_TEXT).read_to_string(&mut order).map(drop)?)
    })?;
    match order.trim() {
        "little" => Ok(()),
        "big" => Err(ErrorKind::BigEndian.into()),
        other => Err(ErrorKind::UnknownByteOrder { found: other.into() }.into()),
    }
}

fn read_pickle(zipped: &Zipped<'_>, member: usize, values: &mut Values) -> Result<Value> {
    zipped.member(member, |member| {
        let mut bytes = bytes::counted(member, &values.budget);
        pickle::read(&mut bytes, values)
    })
}
