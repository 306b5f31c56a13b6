//! Readable names for state that burn names by the random ids of parameters.
//!
//! `"1337.momentum.moment_1"` is `"encoder.weight.momentum.moment_1"` in the file. The metadata has
//! the id of each path.

use std::collections::{BTreeMap, BTreeSet};

use safetensors_core::{Error, Result};

use super::EpochError;
use super::container::Content;

/// burn's scalar for the number of dimensions of a parameter.
pub(super) const RANK: &str = "__rank";

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ids {
    /// Ids by the names of tensors, as in a module's record.
    OfTensors(BTreeMap<String, u64>),
    /// Ids by the paths that names begin with, as in an optimizer's record. An unknown path is the
    /// id.
    OfPaths(BTreeMap<String, u64>),
}

impl Ids {
    /// Separates the ids, and replaces them by paths if `join` can restore them.
    pub(super) fn separate(content: &Content) -> (Self, Content) {
        if let Some(ids) = paths(content) {
            let ids = Self::OfPaths(ids);
            if let Some(named) = named_by_paths(content, &ids) {
                // The proof: a load of it gives the same content.
                if is_same(&ids.join(named.clone()), content) {
                    return (ids, named);
                }
            }
        }
        let ids = content.tensors.iter();
        let ids = ids.filter_map(|(name, tensor)| Some((name.clone(), tensor.param_id?)));
        let ids = Self::OfTensors(ids.collect());
        (ids, without_ids(content.clone()))
    }

    /// Reverses [`separate`](Ids::separate).
    pub(super) fn join(&self, content: Content) -> Content {
        let Content { tensors, scalars, mut metadata } = content;
        let tensors = tensors.into_iter().map(|(name, mut tensor)| {
            let (name, id) = self.in_record(&name);
            tensor.param_id = id;
            (name, tensor)
        });
        let tensors = tensors.collect();
        let scalars = scalars.into_iter();
        let scalars = match self {
            Self::OfTensors(_) => scalars.collect(),
            Self::OfPaths(_) => scalars.map(|(name, v)| (self.in_record(&name).0, v)).collect(),
        };
        if let Self::OfPaths(ids) = self {
            let known = ids.iter().filter(|(path, id)| **path != id.to_string());
            metadata.extend(known.map(|(path, id)| (id.to_string(), path.clone())));
        }
        Content { tensors, scalars, metadata }
    }

    pub(super) fn in_record(&self, name: &str) -> (String, Option<u64>) {
        match self {
            Self::OfTensors(ids) => (name.into(), ids.get(name).copied()),
            Self::OfPaths(ids) => match path_of(name, ids) {
                Some((path, id)) => (format!("{id}{}", &name[path.len()..]), Some(id)),
                None => (name.into(), None),
            },
        }
    }

    pub(super) fn all(&self) -> &BTreeMap<String, u64> {
        match self {
            Self::OfTensors(ids) | Self::OfPaths(ids) => ids,
        }
    }
}

/// New ids by saved ids. `None` drops a parameter; ids that are not listed stay.
#[derive(Debug, Default)]
pub(super) struct NewIds(BTreeMap<u64, Option<u64>>);

impl FromIterator<(u64, Option<u64>)> for NewIds {
    fn from_iter<I: IntoIterator<Item = (u64, Option<u64>)>>(ids: I) -> Self {
        Self(ids.into_iter().collect())
    }
}

impl NewIds {
    fn get(&self, id: u64) -> Option<u64> {
        self.0.get(&id).copied().unwrap_or(Some(id))
    }

    /// Returns `None` if the name is dropped.
    pub(super) fn rename(&self, name: &str) -> Option<String> {
        let Some((id, rest)) = split_id(name) else { return Some(name.into()) };
        Some(format!("{}.{rest}", self.get(id)?))
    }

    pub(super) fn apply(&self, content: Content) -> Content {
        let Content { tensors, scalars, metadata } = content;
        let tensors = tensors.into_iter().filter_map(|(name, mut tensor)| {
            tensor.param_id = tensor.param_id.and_then(|id| self.get(id));
            Some((self.rename(&name)?, tensor))
        });
        let scalars = scalars.into_iter().filter_map(|(name, v)| Some((self.rename(&name)?, v)));
        let metadata = metadata.into_iter().filter_map(|(key, value)| match parse_id(&key) {
            Some(id) => Some((self.get(id)?.to_string(), value)),
            None => Some((key, value)),
        });
        Content {
            tensors: tensors.collect(),
            scalars: scalars.collect(),
            metadata: metadata.collect(),
        }
    }
}

/// Returns `None` unless all names begin with ids.
fn paths(content: &Content) -> Option<BTreeMap<String, u64>> {
    // Weights that are loaded in the middle of a training may give a parameter another id. burn
    // keeps the state of the old id, so both ids have the path of the parameter.
    let mut ids_of_path: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (key, path) in &content.metadata {
        if let Some(id) = parse_id(key) {
            ids_of_path.entry(path).or_default().push(id);
        }
    }
    let mut paths = BTreeMap::new();
    for (path, ids) in ids_of_path {
        if let ([id], false) = (&ids[..], path.is_empty()) {
            paths.insert(path.to_owned(), *id);
        }
    }
    let mut known: BTreeSet<u64> = paths.values().copied().collect();
    for (name, tensor) in &content.tensors {
        let (id, _) = split_id(name).filter(|(id, _)| tensor.param_id == Some(*id))?;
        if known.insert(id) && paths.insert(id.to_string(), id).is_some() {
            return None;
        }
    }
    (!paths.is_empty()).then_some(paths)
}

/// Returns `None` if two names would become one.
fn named_by_paths(content: &Content, ids: &Ids) -> Option<Content> {
    let paths: BTreeMap<u64, &str> =
        ids.all().iter().map(|(path, id)| (*id, path.as_str())).collect();
    let renamed = |name: &str| {
        let found = split_id(name).and_then(|(id, rest)| Some((paths.get(&id)?, rest)));
        found.map_or_else(|| name.to_owned(), |(path, rest)| format!("{path}.{rest}"))
    };
    // The ids have the other paths, which `join` puts back.
    let metadata = content.metadata.iter().filter(|&(key, path)| {
        parse_id(key).is_none_or(|id| path == key || paths.get(&id) != Some(&path.as_str()))
    });
    let named = Content {
        tensors: content.tensors.iter().map(|(name, t)| (renamed(name), t.clone())).collect(),
        scalars: content.scalars.iter().map(|(name, value)| (renamed(name), *value)).collect(),
        metadata: metadata.map(|(key, value)| (key.clone(), value.clone())).collect(),
    };
    let all_there = named.tensors.len() == content.tensors.len()
        && named.scalars.len() == content.scalars.len();
    all_there.then(|| without_ids(named))
}

/// Compares all bits of floats.
fn is_same(a: &Content, b: &Content) -> bool {
    let mut bytes = [Vec::new(), Vec::new()];
    ciborium::into_writer(a, &mut bytes[0]).is_ok()
        && ciborium::into_writer(b, &mut bytes[1]).is_ok()
        && bytes[0] == bytes[1]
}

fn without_ids(mut content: Content) -> Content {
    content.tensors.values_mut().for_each(|tensor| tensor.param_id = None);
    content
}

/// Returns the longest path that a name begins with, and its id.
fn path_of<'a>(name: &'a str, ids: &BTreeMap<String, u64>) -> Option<(&'a str, u64)> {
    let ends = name.rmatch_indices('.').map(|(end, _)| &name[..end]);
    ends.filter_map(|path| Some((path, *ids.get(path)?))).next()
}

/// Splits a name into its id and the rest.
pub(super) fn split_id(name: &str) -> Option<(u64, &str)> {
    let (id, rest) = name.split_once('.')?;
    Some((parse_id(id)?, rest))
}

/// Accepts only the form in which burn writes an id.
pub(super) fn parse_id(text: &str) -> Option<u64> {
    text.parse().ok().filter(|id: &u64| id.to_string() == text)
}

/// Refuses a record that has the state of parameters, and a tensor without a parameter.
// burn would panic. L-BFGS has only tensors without a parameter.
pub(super) fn check_owners(optimizer: &Content) -> Result<()> {
    let mut tensors = optimizer.tensors.iter();
    let Some((name, _)) = tensors.find(|(_, tensor)| tensor.param_id.is_none()) else {
        return Ok(());
    };
    if owners(optimizer).is_empty() {
        return Ok(());
    }
    let problem = "the tensor belongs to no parameter, and others do";
    Err(Error::from(EpochError::Record(problem.into())).in_tensor(name))
}

pub(super) fn owners(optimizer: &Content) -> BTreeSet<u64> {
    let of_tensors = optimizer.tensors.values().filter_map(|tensor| tensor.param_id);
    let of_scalars = optimizer.scalars.keys().filter_map(|name| split_id(name));
    let of_scalars = of_scalars.filter(|(_, rest)| *rest == RANK).map(|(id, _)| id);
    of_tensors.chain(of_scalars).collect()
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;
    use burn_store::burn_pack::Scalar;

    use super::super::container::Described;
    use super::*;

    fn content(
        tensors: &[(&str, Option<u64>)],
        scalars: &[&str],
        metadata: &[(&str, &str)],
    ) -> Content {
        let tensors = tensors.iter();
        let tensors =
            tensors.map(|(name, id)| ((*name).into(), Described::new(DType::F32, &[2], *id)));
        Content {
            tensors: tensors.collect(),
            scalars: scalars.iter().map(|name| ((*name).into(), Scalar::UInt(1))).collect(),
            metadata: metadata.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
        }
    }

    fn names(content: &Content) -> Vec<&str> {
        content.tensors.keys().chain(content.scalars.keys()).map(String::as_str).collect()
    }

    fn round_trip(content: &Content) -> (Ids, Vec<String>) {
        let (ids, named) = Ids::separate(content);
        assert!(named.tensors.values().all(|tensor| tensor.param_id.is_none()));
        assert_eq!(ids.join(named.clone()), *content);
        (ids, names(&named).into_iter().map(Into::into).collect())
    }

    #[test]
    fn an_optimizer_is_named_by_paths() {
        let (ids, names) = round_trip(&content(
            &[("7.m", Some(7)), ("7.v.0", Some(7)), ("18446744073709551615.m", Some(u64::MAX))],
            &["7.time", "9.time", "lr"],
            &[("7", "enc.weight"), ("9", "enc.bias"), ("note", "kept")],
        ));
        let expected = [
            "18446744073709551615.m",
            "enc.weight.m",
            "enc.weight.v.0",
            "enc.bias.time",
            "enc.weight.time",
            "lr",
        ];
        assert_eq!(names, expected);
        let Ids::OfPaths(ids) = ids else { panic!("{ids:?}") };
        assert_eq!(ids["enc.weight"], 7);
        assert_eq!(ids["enc.bias"], 9);
        assert_eq!(ids["18446744073709551615"], u64::MAX);
    }

    #[test]
    fn a_module_keeps_its_names() {
        let module =
            content(&[("a.weight", Some(7)), ("b.weight", Some(7)), ("c", None)], &[], &[]);
        let (ids, names) = round_trip(&module);
        assert_eq!(names, ["a.weight", "b.weight", "c"]);
        assert!(matches!(ids, Ids::OfTensors(ids) if ids.len() == 2));
    }

    /// Ambiguous names stay unchanged.
    #[test]
    fn every_other_content_comes_back() {
        for content in [
            content(&[], &[], &[]),
            content(&[], &["0.current_iter", "1.current_iter"], &[]),
            content(&[("history_s.0", None)], &["k"], &[]),
            // One path for two ids, no path, a path that is an id.
            content(&[("7.m", Some(7)), ("9.m", Some(9))], &[], &[("7", "w"), ("9", "w")]),
            content(&[("7.m", Some(7))], &[], &[("7", "")]),
            content(&[("7.m", Some(7)), ("9.m", Some(9))], &[], &[("7", "9")]),
            content(&[("7.m", Some(7)), ("9.m", Some(9))], &[], &[("7", "9"), ("9", "7")]),
            content(&[("7.m", Some(7))], &[], &[("7", "7")]),
            // One path begins with the other.
            content(&[("7.b.m", Some(7)), ("9.m", Some(9))], &[], &[("7", "a"), ("9", "a.b")]),
            content(&[("7.b.m", Some(7)), ("9.x", Some(9))], &[], &[("7", "a"), ("9", "a.b")]),
            // An id of another name, no id, a name that is only an id.
            content(&[("7.m", Some(8))], &[], &[("7", "w")]),
            content(&[("7.m", None)], &[], &[("7", "w")]),
            content(&[("7", Some(7))], &["7"], &[("7", "w")]),
            // A number in another form.
            content(&[("007.m", Some(7))], &["+7.time"], &[("007", "w")]),
            // A scalar has the name that another would get.
            content(&[("7.m", Some(7))], &["7.time", "w.time"], &[("7", "w")]),
        ] {
            round_trip(&content);
        }
    }
}
