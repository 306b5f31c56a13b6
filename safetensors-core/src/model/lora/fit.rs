//! [`Names`]: finds the tensors of a checkpoint that an adapter changes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::checkpoint::Checkpoint;
use crate::format::error::{AdapterProblem, Error};

/// A name that an adapter has for a tensor of the checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The position of the adapter's tensor.
    pub(super) position: usize,
    pub(super) name: String,
    /// Whether `_` replaces `.`.
    pub(super) is_flattened: bool,
    /// Whether it may be new.
    pub(super) may_be_new: bool,
    /// The group of the name. All names of a group are changed in the same way.
    pub(super) group: String,
}

/// The names of a checkpoint's tensors, and their other names.
pub(super) struct Names<'a> {
    all: BTreeSet<&'a str>,
    /// The names with `_` instead of `.`; two names may become one.
    flattened: BTreeMap<String, Vec<&'a str>>,
}

/// The difference between the names of an adapter and of the checkpoint.
#[derive(Clone, Debug)]
struct Change {
    /// The start that the checkpoint's names lack.
    drop: String,
    /// The start that they have instead.
    add: String,
}

/// The most changes of names that are compared for the text of an error.
const MOST: usize = 8;

/// The wanted name that was not found, and why.
pub(super) type Failure = (usize, Error);

impl<'a> Names<'a> {
    /// Returns the names of a checkpoint, and these others.
    pub(super) fn of<S>(
        checkpoint: &'a Checkpoint<S>,
        others: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let names = checkpoint.tensors().map(|tensor| tensor.name());
        let aliases = checkpoint.aliases().map(|(alias, _)| alias);
        Self { all: names.chain(aliases).chain(others).collect(), flattened: BTreeMap::new() }
    }

    /// Finds the names of the checkpoint for these names of an adapter: equal names, or, for all
    /// missing names of a group, names with one prefix more or less. `None` for a tensor that is
    /// new, which is possible only where no other name is changed.
    pub(super) fn find(&mut self, wanted: &[Wanted]) -> Result<Vec<Option<&'a str>>, Failure> {
        if self.flattened.is_empty() && wanted.iter().any(|wanted| wanted.is_flattened) {
            for &name in &self.all {
                self.flattened.entry(name.replace('.', "_")).or_default().push(name);
            }
        }
        let mut found = Vec::new();
        let mut changes = HashMap::<&str, Option<Change>>::new();
        for (number, one) in wanted.iter().enumerate() {
            if let Some(name) = self.get(one, None).map_err(|error| (number, error))? {
                found.push(Some(name));
                continue;
            }
            if one.may_be_new {
                found.push(None);
                continue;
            }
            if !changes.contains_key(&*one.group) {
                changes.insert(&one.group, self.change_for(wanted, number)?);
            }
            let change = changes.get(&*one.group).and_then(Option::as_ref);
            let name = change.map(|change| self.get(one, Some(change))).transpose();
            let name = name.map_err(|error| (number, error))?.flatten();
            found.push(Some(name.ok_or_else(|| (number, self.unmatched(one)))?));
        }
        if let Some(new) = found.iter().position(Option::is_none)
            && !changes.is_empty()
        {
            return Err((new, self.unmatched(&wanted[new])));
        }
        Ok(found)
    }

    /// Returns the tensor for a name that is changed.
    fn get(&self, wanted: &Wanted, change: Option<&Change>) -> Result<Option<&'a str>, Error> {
        let mut name = Cow::from(&*wanted.name);
        if let Some(Change { drop, add }) = change {
            let Some(rest) = name.strip_prefix(&**drop) else { return Ok(None) };
            name = format!("{add}{rest}").into();
        }
        if !wanted.is_flattened {
            return Ok(self.all.get(&*name).copied());
        }
        // kohya's names have `_` where the model has `.` or `_`, so two weights may have the same
        // one.
        match self.flattened.get(&*name).map(Vec::as_slice) {
            None | Some([]) => Ok(None),
            Some([name]) => Ok(Some(name)),
            Some([one, other, ..]) => Err(ambiguous(one.min(other), one.max(other))),
        }
    }

    /// Finds the one change of names that finds all missing names of a group. `first` is the first
    /// of them.
    fn change_for(&self, wanted: &[Wanted], first: usize) -> Result<Option<Change>, Failure> {
        let number = first;
        let first = &wanted[first];
        // One change must fit all of them. The end of a single name may fit a weight of another
        // part of the model, and the result would be wrong without an error.
        let missing: Vec<_> = wanted
            .iter()
            .filter(|one| one.group == first.group && !one.may_be_new)
            .filter(|one| !matches!(self.get(one, None), Ok(Some(_))))
            .collect();
        let mut candidates = Vec::new();
        if first.is_flattened {
            let ending = format!("_{}", first.name);
            let longer = self.flattened.keys().filter_map(|name| name.strip_suffix(&*ending));
            candidates
                .extend(longer.map(|prefix| Change { drop: "".into(), add: format!("{prefix}_") }));
        } else {
            let ending = format!(".{}", first.name);
            let longer = self.all.iter().filter_map(|name| name.strip_suffix(&*ending));
            candidates
                .extend(longer.map(|prefix| Change { drop: "".into(), add: format!("{prefix}.") }));
            let dots = first.name.match_indices('.').map(|(dot, _)| &first.name[..=dot]);
            let shorter = dots.filter(|prefix| self.all.contains(&first.name[prefix.len()..]));
            candidates.extend(shorter.map(|prefix| Change { drop: prefix.into(), add: "".into() }));
        }
        let is_found =
            |one: &Wanted, change: &Change| matches!(self.get(one, Some(change)), Ok(Some(_)));
        let mut fitting =
            candidates.iter().filter(|&change| missing.iter().all(|one| is_found(one, change)));
        match (fitting.next(), fitting.next()) {
            (Some(one), Some(other)) => {
                let [one, other] = [one, other].map(|it| self.get(first, Some(it)).ok().flatten());
                let one = one.unwrap_or_default();
                let other = other.unwrap_or_default();
                Err((number, ambiguous(one.min(other), one.max(other))))
            }
            (Some(change), None) => Ok(Some(change.clone())),
            // The error is about the first name that even the best change does not find.
            (None, _) => Ok(candidates
                .into_iter()
                .take(MOST)
                .max_by_key(|change| missing.iter().filter(|one| is_found(one, change)).count())),
        }
    }

    fn unmatched(&self, wanted: &Wanted) -> Error {
        let expected = wanted.name.clone();
        let error = Error::from(AdapterProblem::Unmatched { expected });
        if !wanted.is_flattened {
            return error.with_similar(&wanted.name, self.all.iter().copied());
        }
        let error = error.with_similar(&wanted.name, self.flattened.keys().map(String::as_str));
        let similar = error.similar().iter().filter_map(|name| self.flattened.get(name));
        let similar: Vec<_> = similar.flatten().map(|&name| name.to_owned()).collect();
        error.with_names(similar)
    }
}

fn ambiguous(one: &str, other: &str) -> Error {
    AdapterProblem::Ambiguous { one: one.to_owned(), other: other.to_owned() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tensor::TensorView;

    fn find(names: &[&str], wanted: &[(&str, bool)]) -> Result<Vec<String>, String> {
        let tensors =
            names.iter().map(|name| (*name, TensorView::new(crate::Dtype::U8, &[0], &[])));
        let tensors = tensors.map(|(name, view)| (name, view.unwrap()));
        let bytes = crate::serialize(tensors, &crate::SaveOptions::new()).unwrap();
        let checkpoint = Checkpoint::from_source(bytes, "base").unwrap();
        let wanted: Vec<_> = wanted
            .iter()
            .map(|(name, is_flattened)| Wanted {
                position: 0,
                name: (*name).to_owned(),
                is_flattened: *is_flattened,
                may_be_new: name.starts_with("new"),
                group: String::new(),
            })
            .collect();
        let found = Names::of(&checkpoint, []).find(&wanted);
        let owned = |found: Vec<Option<&str>>| {
            found.into_iter().map(|name| name.unwrap_or("none").to_owned()).collect()
        };
        found.map(owned).map_err(|(at, error)| format!("{at} {error}"))
    }

    #[test]
    fn names_are_the_same_or_have_one_prefix_more_or_less() {
        let base = ["model.0.q.w", "model.1.q.w", "head.w"];
        assert_eq!(find(&base, &[("model.1.q.w", false)]).unwrap(), ["model.1.q.w"]);
        let all = [("0.q.w", false), ("1.q.w", false), ("head.w", false)];
        assert_eq!(find(&base, &all).unwrap(), base);
        let all = [("m.model.0.q.w", false), ("m.model.1.q.w", false), ("head.w", false)];
        assert_eq!(find(&base, &all).unwrap(), base);
        // One of them would need another change than the others.
        let error = find(&base, &[("0.q.w", false), ("7.q.w", false)]).unwrap_err();
        assert!(error.starts_with("1 it changes \"7.q.w\""), "{error}");
        let error = find(&base, &[("model.1.p.w", false)]).unwrap_err();
        assert!(error.ends_with("did you mean \"model.1.q.w\"?"), "{error}");
        let new = [("model.1.q.w", false), ("new.w", false)];
        assert_eq!(find(&base, &new).unwrap(), ["model.1.q.w", "none"]);
        let error = find(&base, &[("1.q.w", false), ("new.w", false)]).unwrap_err();
        assert!(error.starts_with("1 it changes \"new.w\""), "{error}");
        let error = find(&["a.x.w", "b.x.w"], &[("x.w", false)]).unwrap_err();
        assert!(error.contains("\"a.x.w\" or \"b.x.w\""), "{error}");
    }

    #[test]
    fn flattened_names() {
        let base = ["net.a.b_c.w", "net.d.w"];
        assert_eq!(find(&base, &[("net_a_b_c_w", true), ("net_d_w", true)]).unwrap(), base);
        assert_eq!(find(&base, &[("a_b_c_w", true), ("d_w", true)]).unwrap(), base);
        let error = find(&["a.b.w", "a_b.w"], &[("a_b_w", true)]).unwrap_err();
        assert!(error.contains("\"a.b.w\" or \"a_b.w\""), "{error}");
        let error = find(&base, &[("net_a_b_d_w", true)]).unwrap_err();
        assert!(error.ends_with("did you mean \"net.a.b_c.w\"?"), "{error}");
    }
}
