//! [`resolve`]: finds tensors that share storage, and the name to keep.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use super::{Storage, Tied, Views};
use crate::format::error::{Error, ErrorKind, Result, TieProblem};
use crate::format::header::METADATA_KEY;
use crate::format::tensor::{Named, TensorSource, shape};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// The positions of the tensors to save, ascending.
    pub(crate) keep: Vec<usize>,
    /// The kept name for each dropped one.
    pub(crate) aliases: BTreeMap<String, String>,
}

struct Member<'a> {
    position: usize,
    name: &'a str,
    tensor: &'a dyn TensorSource,
    storage: Storage,
    byte_len: u64,
}

/// Decides by the rules and errors of [`Tied`].
pub(crate) fn resolve(tensors: &[Named<'_>], options: &Tied) -> Result<Resolved> {
    let mut storages: BTreeMap<(u64, u64), Vec<Member<'_>>> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (position, &(name, tensor)) in tensors.iter().enumerate() {
        // The header checks names too, but a dropped name never gets there.
        if name == METADATA_KEY {
            return Err(Error::from(ErrorKind::ReservedName).in_tensor(name));
        }
        if !names.insert(name) {
            return Err(Error::from(ErrorKind::DuplicateTensor).in_tensor(name));
        }
        let Some(storage) = tensor.storage() else { continue };
        let byte_len = shape::byte_len(tensor.dtype(), tensor.shape());
        let byte_len = byte_len.map_err(|kind| Error::from(kind).in_tensor(name))?;
        // A source that numbers its storages gives an empty tensor a storage of a byte, so that it
        // can be shared.
        let byte_len = if options.empty { byte_len.max(1) } else { byte_len };
        if byte_len > 0 && storage.byte_len > 0 {
            let member = Member { position, name, tensor, storage, byte_len };
            storages.entry((member.storage.id, member.storage.byte_len)).or_default().push(member);
        }
    }
    let mut dropped = BTreeSet::new();
    let mut aliases = BTreeMap::new();
    for members in storages.into_values() {
        for group in groups(members, options.views) {
            let kept = choose(&group, options)?;
            for member in group.iter().filter(|member| member.position != kept.position) {
                if options.views != Views::Drop && !same(member, kept) {
                    return Err(Error::from(TieProblem::PartlyTied { kept: kept.name.into() })
                        .in_tensor(member.name));
                }
                dropped.insert(member.position);
                aliases.insert(member.name.into(), kept.name.into());
            }
        }
    }
    Ok(Resolved {
        keep: (0..tensors.len()).filter(|position| !dropped.contains(position)).collect(),
        aliases,
    })
}

// Much faster than `resolve` for thousands of small tensors.
pub(crate) fn nothing_is_shared(tensors: &[Named<'_>]) -> bool {
    let mut ids = Vec::with_capacity(tensors.len());
    for (_, tensor) in tensors {
        let Some(storage) = tensor.storage() else { continue };
        let fills = storage.range == (0..storage.byte_len)
            && shape::byte_len(tensor.dtype(), tensor.shape())
                .is_ok_and(|len| len == storage.byte_len);
        if !fills {
            return false;
        }
        ids.push((storage.id, storage.byte_len));
    }
    ids.sort_unstable();
    ids.windows(2).all(|pair| pair[0] != pair[1])
}

/// Divides the tensors in a storage into groups that are tied.
fn groups(mut members: Vec<Member<'_>>, views: Views) -> Vec<Vec<Member<'_>>> {
    members.sort_by(|a, b| {
        let key = |member: &Member<'_>| (member.storage.range.start, member.storage.range.end);
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(b.name))
    });
    let mut groups: Vec<Vec<Member<'_>>> = Vec::new();
    for member in members {
        let group = match views {
            Views::Save => groups.iter_mut().find(|group| same(&group[0], &member)),
            // Each tensor is compared only with the one before it, as in the Python library, so
            // that the outcome is the same. If two narrow tensors follow a wide one, this can split
            // tensors that overlap. But then a group has no tensor that fills the storage, and is
            // refused.
            Views::Refuse | Views::Drop => groups.last_mut().filter(|group| {
                group
                    .last()
                    .is_some_and(|before| member.storage.range.start < before.storage.range.end)
            }),
        };
        match group {
            Some(group) => group.push(member),
            None => groups.push(Vec::from([member])),
        }
    }
    groups
}

fn choose<'a, 'b>(group: &'b [Member<'a>], options: &Tied) -> Result<&'b Member<'a>> {
    let complete = |member: &&Member<'_>| {
        // The tensor must span the storage and have the same number of bytes. A broadcast tensor
        // can have that number without spanning it.
        let filled = member.storage.range == (0..member.storage.byte_len)
            && member.byte_len == member.storage.byte_len;
        // If views are saved, all members of a group are the same tensor, and any of them may be
        // kept.
        options.views == Views::Save || filled
    };
    group
        .iter()
        .filter(complete)
        .min_by_key(|member| (!options.prefer.contains(member.name), member.name))
        .ok_or_else(|| {
            let mut names: Vec<_> = group.iter().map(|member| String::from(member.name)).collect();
            names.sort_unstable();
            let error = Error::from(TieProblem::NotCovered { names });
            group.iter().map(|member| member.name).min().into_iter().fold(error, Error::in_tensor)
        })
}

fn same(a: &Member<'_>, b: &Member<'_>) -> bool {
    a.storage.contiguous
        && b.storage.contiguous
        && a.storage.range == b.storage.range
        && a.tensor.dtype() == b.tensor.dtype()
        && a.tensor.shape() == b.tensor.shape()
}
