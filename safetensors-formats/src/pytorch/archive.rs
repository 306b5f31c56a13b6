//! The zip archives of PyTorch 1.6 and later.

use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use safetensors_core::ReadAt;

use super::bytes::Bytes;
use super::values::{Value, Values};
use super::{Members, build, pickle, root_of, script};
use crate::error::{ErrorKind, Result};
use crate::input::stem;
use crate::open::is_exported;
use crate::tensor_file::{Container, Place, Scratch, TensorFile};
use crate::zipped::{self, Zipped};
use crate::{Format, Limits, Options};

/// The longest text that says in which order the bytes of numbers are.
const LONGEST_TEXT: u64 = 64;

/// Opens the tensors of an archive whose members are listed.
pub(crate) fn open<S: ReadAt>(
    zipped: Zipped<S>,
    path: &Path,
    options: &Options,
) -> Result<TensorFile<S>> {
    let (zipped, file) = (Arc::new(zipped), crate::error::label(path));
    let opened = open_listed(&zipped, path, options);
    opened.map_err(|error| error.in_file(&file))
}

fn open_listed<S: ReadAt>(
    zipped: &Arc<Zipped<S>>,
    path: &Path,
    options: &Options,
) -> Result<TensorFile<S>> {
    let limits = &options.limits;
    zipped.check_overlap()?;
    let members: Members =
        zipped.names()?.into_iter().enumerate().map(|(i, name)| (name, i)).collect();
    if members.keys().any(|name| is_exported(name)) {
        return Err(ErrorKind::Exported.into());
    }
    let roots = members.keys().filter_map(|name| root_of(name));
    let root = roots.min_by_key(|root| root.len()).ok_or(ErrorKind::NoPickle)?.to_owned();
    let member = |name: &str| members.get(&format!("{root}{name}")).copied();
    if let Some(index) = member("byteorder") {
        let mut order = String::new();
        zipped.member(index, |member| {
            Ok(member.take(LONGEST_TEXT).read_to_string(&mut order).map(drop)?)
        })?;
        match order.trim() {
            "little" => {}
            "big" => return Err(ErrorKind::BigEndian.into()),
            other => return Err(ErrorKind::UnknownByteOrder { found: other.into() }.into()),
        }
    }
    let index = member("data.pkl").ok_or(ErrorKind::NoPickle)?;
    zipped.check_size(index)?;
    let mut values = Values::new(limits.objects);
    values.folder = "data/";
    let root_value = read_pickle(zipped, index, &mut values, limits)?;
    if values.modules().any(script::is_of_code) {
        script::read_classes(zipped, &members, &root, &mut values, limits)?;
        if let Some(index) = member("constants.pkl") {
            values.folder = "constants/";
            zipped.check_size(index)?;
            values.constants = read_pickle(zipped, index, &mut values, limits)?;
        }
    }
    let place = |storage: usize| {
        let key = &values.storages[storage].key;
        let index = member(key).ok_or_else(|| ErrorKind::NoStorage { storage: key.clone() })?;
        zipped.check_size(index)?;
        let len = zipped.member(index, |member| Ok(member.size()))?;
        let place = match zipped.place(index)? {
            zipped::Place::Stored(start) => Place::At(start),
            zipped::Place::Compressed => Place::Unpacked { member: index, skipped: 0 },
        };
        Ok((place, len))
    };
    let builder = build(&values, root_value, &stem(path), options, place)?;
    let built = builder.build(zipped.input.source.byte_len(), limits)?;
    let container = Container::Zip(Arc::clone(zipped), Scratch::default());
    TensorFile::new(Format::Pytorch, built, container)
}

/// Reads the pickle of a member. Returns its root.
fn read_pickle<S: ReadAt>(
    zipped: &Zipped<S>,
    member: usize,
    values: &mut Values,
    limits: &Limits,
) -> Result<Value> {
    zipped.member(member, |member| {
        let mut bytes = Bytes::new(BufReader::new(member), limits.directory_bytes);
        pickle::read(&mut bytes, values)
    })
}
