//! [`Names`]: finds the tensors of a checkpoint that an adapter changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::kinds::Kind;
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
    /// How the tensor is changed; `None` if it is replaced.
    pub(super) kind: Option<Kind>,
    /// The group of the name. All names of a group are changed in the same way.
    pub(super) group: String,
}

/// The tensors of the checkpoint for a wanted one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    At(Vec<&'a str>, Spelling),
    /// The checkpoint does not have it.
    New,
    /// It belongs to another model of the pipeline, which this checkpoint is not.
    Left,
}

/// How the tensors of a checkpoint make a wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    Same,
    /// It is this one of so many parts of the tensor.
    Fused(usize, usize),
    /// They are its parts.
    Parts,
}

/// Modules that are one in some models, and several in others. The rows of one are the rows of
/// these, in this order.
const FUSED: &[(&str, &[&str])] = &[
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("gate_up_proj", &["gate_proj", "up_proj"]),
    ("to_qkv", &["to_q", "to_k", "to_v"]),
    ("qkv", &["q", "k", "v"]),
];

/// The models of a pipeline in files of diffusers, of which one adapter may change several.
const MODELS: &[&str] =
    &["unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3"];

/// The first parts of names that versions of transformers have in another order or not at all, as
/// in `language_model.model.layers` and `model.language_model.layers`.
const PREFIXES: &[&str] = &["model", "language_model"];

/// The names of a checkpoint's tensors, and their other names.
pub(super) struct Names<'a> {
    all: BTreeSet<&'a str>,
    /// The names with `_` instead of `.`; two names may become one.
    flattened: Spellings<'a>,
    /// The names without the prefixes of versions of transformers.
    plain: Spellings<'a>,
}

type Spellings<'a> = BTreeMap<String, Vec<&'a str>>;

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
    pub(super) fn new<S>(
        checkpoint: &'a Checkpoint<S>,
        others: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let names = checkpoint.tensors().map(|tensor| tensor.name());
        let aliases = checkpoint.aliases().map(|(alias, _)| alias);
        let mut names = Self {
            all: names.chain(aliases).chain(others).collect(),
            flattened: Spellings::new(),
            plain: Spellings::new(),
        };
        for &name in &names.all {
            names.flattened.entry(name.replace('.', "_")).or_default().push(name);
            names.plain.entry(plain(name)).or_default().push(name);
        }
        names
    }

    /// Finds the tensors of the checkpoint for these names of an adapter: by equal names, by names
    /// with the prefixes of another version of transformers, or, for all missing names of a group,
    /// by names with one prefix more or less. A new tensor is possible only where no other name is
    /// changed.
    pub(super) fn find(&self, wanted: &[Wanted]) -> Result<Vec<Found<'a>>, Failure> {
        let mut found = Vec::new();
        let mut changes = HashMap::<&str, Option<Change>>::new();
        for (number, one) in wanted.iter().enumerate() {
            if let Some(it) = self.get(one, None).map_err(|error| (number, error))? {
                found.push(it);
                continue;
            }
            if one.may_be_new {
                found.push(Found::New);
                continue;
            }
            if !changes.contains_key(&*one.group) {
                changes.insert(&one.group, self.change_for(wanted, number)?);
            }
            let change = changes.get(&*one.group).and_then(Option::as_ref);
            let it = change.map(|change| self.get(one, Some(change))).transpose();
            found.push(match it.map_err(|error| (number, error))?.flatten() {
                Some(it) => it,
                None if one.is_flattened || MODELS.contains(&&*one.group) => Found::Left,
                None => return Err((number, self.unmatched(one))),
            });
        }
        let is_changed = |(one, it): (&Wanted, &Found<'_>)| matches!(it, Found::At(names, Spelling::Same) if names[0] != one.name);
        if let Some(new) = found.iter().position(|it| *it == Found::New)
            && wanted.iter().zip(&found).any(is_changed)
        {
            return Err((new, self.unmatched(&wanted[new])));
        }
        self.check_left(wanted, &found, &changes)?;
        Ok(found)
    }

    /// Checks that all names of a group are left or none, and that something is not left. If a
    /// group has a longer prefix here, the checkpoint is a whole pipeline, and nothing is left.
    fn check_left(
        &self,
        wanted: &[Wanted],
        found: &[Found<'a>],
        changes: &HashMap<&str, Option<Change>>,
    ) -> Result<(), Failure> {
        let all = wanted.iter().zip(found).enumerate();
        let is_met = |it: &Found<'_>| !matches!(it, Found::Left | Found::New);
        let met: BTreeSet<_> = all
            .clone()
            .filter(|(_, (_, it))| is_met(it))
            .map(|(_, (one, _))| &*one.group)
            .collect();
        let is_longer = |change: &Change| !change.add.is_empty();
        let is_pipeline =
            met.iter().any(|it| changes.get(it).and_then(Option::as_ref).is_some_and(is_longer));
        let must_be_met = |group| met.is_empty() || is_pipeline || met.contains(group);
        let mut left = all.filter(|(_, (_, it))| **it == Found::Left);
        match left.find(|(_, (one, _))| must_be_met(&*one.group)) {
            Some((number, (one, _))) => Err((number, self.unmatched(one))),
            None => Ok(()),
        }
    }

    /// Returns the tensors for a name that is changed.
    fn get(&self, wanted: &Wanted, change: Option<&Change>) -> Result<Option<Found<'a>>, Error> {
        for (names, spelling) in wanted.spellings() {
            let names = names.iter().map(|name| match change {
                None => self.look_up(name, wanted.is_flattened),
                Some(Change { drop, add }) => match name.strip_prefix(&**drop) {
                    Some(rest) => self.look_up(&format!("{add}{rest}"), wanted.is_flattened),
                    None => Ok(None),
                },
            });
            if let Some(names) = names.collect::<Result<Option<_>, _>>()? {
                return Ok(Some(Found::At(names, spelling)));
            }
        }
        Ok(None)
    }

    /// Returns the tensor of the checkpoint for a name, or for one that is `_` instead of `.`.
    fn look_up(&self, name: &str, is_flattened: bool) -> Result<Option<&'a str>, Error> {
        if !is_flattened && let Some(name) = self.all.get(name) {
            return Ok(Some(name));
        }
        // kohya's names have `_` where the model has `.` or `_`, so two weights may have the same
        // one.
        let found = match is_flattened {
            true => self.flattened.get(name),
            false => self.plain.get(&plain(name)),
        };
        match found.map(Vec::as_slice) {
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
        let candidates = self.candidates(first);
        let is_found =
            |one: &Wanted, change: &Change| matches!(self.get(one, Some(change)), Ok(Some(_)));
        let mut fitting =
            candidates.iter().filter(|&change| missing.iter().all(|one| is_found(one, change)));
        match (fitting.next(), fitting.next()) {
            (Some(one), Some(other)) => {
                let [one, other] = [one, other].map(|it| match self.get(first, Some(it)) {
                    Ok(Some(Found::At(names, _))) => names[0],
                    _ => "",
                });
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

    /// Returns the changes that lead from a name to a tensor of the checkpoint.
    fn candidates(&self, first: &Wanted) -> Vec<Change> {
        let dot = if first.is_flattened { '_' } else { '.' };
        let all: Vec<&str> = match first.is_flattened {
            true => self.flattened.keys().map(String::as_str).collect(),
            false => self.all.iter().copied().collect(),
        };
        let mut candidates = Vec::new();
        for (names, _) in first.spellings() {
            let name = &names[0];
            let ending = format!("{dot}{name}");
            let longer = all.iter().filter_map(|name| name.strip_suffix(&*ending));
            candidates.extend(
                longer.map(|prefix| Change { drop: "".into(), add: format!("{prefix}{dot}") }),
            );
            let dots = name.match_indices(dot).map(|(at, _)| &name[..=at]);
            let shorter = dots.filter(|prefix| all.binary_search(&&name[prefix.len()..]).is_ok());
            candidates.extend(shorter.map(|prefix| Change { drop: prefix.into(), add: "".into() }));
        }
        candidates
    }

    fn unmatched(&self, wanted: &Wanted) -> Error {
        let expected = wanted.name.clone();
        let kind = wanted.kind.map_or_else(|| "tensor".to_owned(), |kind| kind.to_string());
        let error = Error::from(AdapterProblem::Unmatched { kind, expected });
        if !wanted.is_flattened {
            return error.with_similar(&wanted.name, self.all.iter().copied());
        }
        let error = error.with_similar(&wanted.name, self.flattened.keys().map(String::as_str));
        let similar = error.similar().iter().filter_map(|name| self.flattened.get(name));
        let similar: Vec<_> = similar.flatten().map(|&name| name.to_owned()).collect();
        error.with_names(similar)
    }
}

impl Wanted {
    /// Returns the names that the tensors of a checkpoint may have for this one.
    fn spellings(&self) -> Vec<(Vec<String>, Spelling)> {
        let mut all = vec![(vec![self.name.clone()], Spelling::Same)];
        if self.is_flattened || self.kind.is_none() {
            return all;
        }
        for (fused, parts) in FUSED {
            let with = |part: &&str| with_module(&self.name, fused, part);
            let names: Option<Vec<_>> = parts.iter().map(with).collect();
            all.extend(names.map(|names| (names, Spelling::Parts)));
            for (number, part) in parts.iter().enumerate() {
                let name = with_module(&self.name, part, fused);
                let spelling = Spelling::Fused(number, parts.len());
                all.extend(name.map(|name| (vec![name], spelling)));
            }
        }
        all
    }
}

/// Returns a name without the prefixes that versions of transformers move or drop.
fn plain(name: &str) -> String {
    let mut rest = name;
    while let Some((first, more)) = rest.split_once('.')
        && PREFIXES.contains(&first)
    {
        rest = more;
    }
    rest.replacen("vision_tower.vision_model.", "vision_tower.", 1)
}

/// Returns the name of a tensor of `module` with another module instead.
fn with_module(tensor: &str, module: &str, other: &str) -> Option<String> {
    let (path, end) = tensor.rsplit_once('.')?;
    let start = path.strip_suffix(module)?;
    let is_module = start.is_empty() || start.ends_with('.');
    is_module.then(|| format!("{start}{other}.{end}"))
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
                kind: None,
                group: String::new(),
            })
            .collect();
        let found = Names::new(&checkpoint, []).find(&wanted);
        let owned = |found: Vec<Found<'_>>| {
            found
                .iter()
                .map(|it| if let Found::At(names, _) = it { names[0] } else { "none" }.to_owned())
                .collect()
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
        assert!(error.starts_with("1 its tensor changes \"7.q.w\""), "{error}");
        let error = find(&base, &[("model.1.p.w", false)]).unwrap_err();
        assert!(error.ends_with("did you mean \"model.1.q.w\"?"), "{error}");
        let new = [("model.1.q.w", false), ("new.w", false)];
        assert_eq!(find(&base, &new).unwrap(), ["model.1.q.w", "none"]);
        let error = find(&base, &[("1.q.w", false), ("new.w", false)]).unwrap_err();
        assert!(error.starts_with("1 its tensor changes \"new.w\""), "{error}");
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
