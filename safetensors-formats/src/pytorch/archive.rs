//! The zip archives of PyTorch 1.6 and later.

use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use safetensors_core::ReadAt;

use super::bytes::Bytes;
use super::values::Values;
use super::{Members, build, pickle, root_of};
use crate::error::{ErrorKind, Result};
use crate::input::stem;
use crate::tensor_file::{Container, Place, Scratch, TensorFile};
use crate::zipped::{self, Zipped};
use crate::{Format, Options};

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
    let root_value = zipped.member(index, |member| {
        let mut bytes = Bytes::new(BufReader::new(member), limits.directory_bytes);
        pickle::read(&mut bytes, &mut values)
    })?;
    let place = |storage: usize| {
        let key = &values.storages[storage].key;
        let index = member(&format!("data/{key}"))
            .ok_or_else(|| ErrorKind::NoStorage { storage: key.clone() })?;
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
