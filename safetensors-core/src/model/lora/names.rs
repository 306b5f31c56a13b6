//! [`Names`]: finds the tensors of a checkpoint that an adapter changes.

use std::collections::{BTreeMap, BTreeSet};

use super::kinds::Kind;
use crate::checkpoint::Checkpoint;
use crate::format::error::{AdapterProblem, Error, Result, similar_names};
use crate::model::quantized::QuantizedWeight;

/// A name that an adapter has for a tensor of the checkpoint.
#[derive(Clone, Debug)]
pub(super) struct LoraName {
    /// The position of the adapter's tensor.
    pub(super) position: usize,
    pub(super) name: String,
    /// Whether `_` replaces `.`.
    pub(super) is_flattened: bool,
    /// Whether it may be new.
    pub(super) may_be_new: bool,
    /// How the tensor is changed; `None` if it is replaced.
    pub(super) kind: Option<Kind>,
}

/// The tensors of the checkpoint for a wanted one.
#[derive(Clone, Debug)]
pub(super) struct LoraTarget<'a> {
    pub(super) names: Vec<&'a str>,
    pub(super) spelling: Spelling,
}

/// How the tensors of a checkpoint make a wanted one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spelling {
    Same,
    /// It is the part of this number of the tensor.
    Fused(usize, &'static Fused),
    /// They are its parts.
    Parts,
}

/// A module that is one in some models, and several in others. Its rows are the rows of the parts,
/// in their order.
#[derive(Debug)]
pub(super) struct Fused {
    name: &'static str,
    pub(super) parts: &'static [&'static str],
    /// Whether there may be more heads in the first part than in each other.
    pub(super) has_heads: bool,
}

const FUSED: &[Fused] = &[
    Fused { name: "qkv_proj", parts: &["q_proj", "k_proj", "v_proj"], has_heads: true },
    Fused { name: "gate_up_proj", parts: &["gate_proj", "up_proj"], has_heads: false },
    Fused { name: "to_qkv", parts: &["to_q", "to_k", "to_v"], has_heads: false },
    Fused { name: "qkv", parts: &["q", "k", "v"], has_heads: false },
];

/// The first parts of names that versions of transformers have in another order or not at all, as
/// in `language_model.model.layers` and `model.language_model.layers`.
const PREFIXES: &[&str] = &["model", "language_model", "text_model"];

/// The names of a checkpoint's tensors, by the spellings of adapters; two may have one spelling.
pub(super) struct Names<'a> {
    /// Without the prefixes of versions of transformers.
    plain: Spellings<'a>,
    /// With `_` instead of `.`.
    flattened: Spellings<'a>,
}

type Spellings<'a> = BTreeMap<String, BTreeSet<&'a str>>;

/// The difference between the names of an adapter and of the checkpoint.
#[derive(Clone, Debug, Default)]
struct Prefix {
    /// The start that the checkpoint's names lack.
    drop: String,
    /// The start that they have instead.
    add: String,
}

/// The most prefixes that are compared for the text of an error.
const MOST: usize = 8;

/// The number of a wanted name that was not found, and why.
pub(super) type Failure = (usize, Error);

impl<'a> Names<'a> {
    /// Returns the names of a checkpoint and of its quantised weights.
    pub(super) fn new<S>(checkpoint: &'a Checkpoint<S>, quantized: &'a [QuantizedWeight]) -> Self {
        let names = checkpoint.tensors().map(|tensor| tensor.name());
        let names = names.chain(checkpoint.aliases().map(|(alias, _)| alias));
        let mut all = Self { plain: Spellings::new(), flattened: Spellings::new() };
        for name in names.chain(quantized.iter().map(|weight| &*weight.name)) {
            all.plain.entry(spelled(name, false)).or_default().insert(name);
            all.flattened.entry(spelled(name, true)).or_default().insert(name);
        }
        all
    }

    fn spellings(&self, is_flattened: bool) -> &Spellings<'a> {
        if is_flattened { &self.flattened } else { &self.plain }
    }

    /// Finds the tensors of the checkpoint for these names of an adapter: by equal names, by names
    /// with the prefixes of another version of transformers, or, for all missing names, by names
    /// with one prefix more or less. `None` for a new tensor, which is possible only where no
    /// other name is changed. Returns also whether names have a longer prefix here.
    pub(super) fn find(
        &self,
        all: &[LoraName],
    ) -> Result<(Vec<Option<LoraTarget<'a>>>, bool), Failure> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for (number, wanted) in all.iter().enumerate() {
            let it = self.get(wanted, &Prefix::default()).map_err(|error| (number, error))?;
            if it.is_none() && !wanted.may_be_new {
                missing.push(number);
            }
            found.push(it);
        }
        let prefix = self.prefix_for(all, &missing)?;
        for number in missing {
            found[number] = self.get(&all[number], &prefix).map_err(|error| (number, error))?;
        }
        let is_changed = |(wanted, found): (&LoraName, &Option<LoraTarget<'_>>)| match found {
            Some(LoraTarget { names, spelling: Spelling::Same }) => names[0] != wanted.name,
            _ => false,
        };
        match found.iter().position(Option::is_none) {
            Some(new) if all.iter().zip(&found).any(is_changed) => {
                Err((new, self.unmatched(&all[new])))
            }
            _ => Ok((found, !prefix.add.is_empty())),
        }
    }

    /// Returns the tensors for a name with another prefix.
    fn get(&self, wanted: &LoraName, prefix: &Prefix) -> Result<Option<LoraTarget<'a>>> {
        for (names, spelling) in wanted.spellings() {
            let names = names.iter().map(|name| match name.strip_prefix(&*prefix.drop) {
                Some(rest) => self.look_up(&format!("{}{rest}", prefix.add), wanted.is_flattened),
                None => Ok(None),
            });
            if let Some(names) = names.collect::<Result<Option<_>>>()? {
                return Ok(Some(LoraTarget { names, spelling }));
            }
        }
        Ok(None)
    }

    fn look_up(&self, name: &str, is_flattened: bool) -> Result<Option<&'a str>> {
        let names = self.spellings(is_flattened).get(&spelled(name, is_flattened));
        let Some(names) = names else { return Ok(None) };
        let mut all = names.iter();
        match (names.get(name), all.next(), all.next()) {
            (Some(name), ..) | (None, Some(name), None) => Ok(Some(name)),
            (None, Some(one), Some(other)) => Err(ambiguous(one, other)),
            (None, None, _) => Ok(None),
        }
    }

    /// Finds the one prefix more or less that finds all missing names.
    ///
    /// The end of a single name may fit a weight of another part of the model, and the result would
    /// be wrong without an error.
    fn prefix_for(&self, all: &[LoraName], missing: &[usize]) -> Result<Prefix, Failure> {
        let Some(&first) = missing.first() else { return Ok(Prefix::default()) };
        let get = |number: usize, prefix: &Prefix| self.get(&all[number], prefix).ok().flatten();
        let prefixes = self.prefixes(&all[first]);
        let fits = |prefix: &&Prefix| missing.iter().all(|&it| get(it, prefix).is_some());
        let mut fitting = prefixes.iter().filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(prefix), None) => Ok(prefix.clone()),
            (Some(one), Some(other)) => {
                let names = [one, other].map(|it| get(first, it).map_or("", |it| it.names[0]));
                Err((first, ambiguous(names[0], names[1])))
            }
            // The error is about the first name that even the best prefix does not find.
            (None, _) => {
                let is_missing = |prefix| missing.iter().position(|&it| get(it, prefix).is_none());
                let most = prefixes.iter().take(MOST).filter_map(is_missing).max();
                let number = missing[most.unwrap_or_default()];
                Err((number, self.unmatched(&all[number])))
            }
        }
    }

    /// Returns the prefixes that lead from a name to a tensor of the checkpoint.
    fn prefixes(&self, wanted: &LoraName) -> Vec<Prefix> {
        let dot = if wanted.is_flattened { '_' } else { '.' };
        let all = self.spellings(wanted.is_flattened);
        let mut prefixes = Vec::new();
        for (names, _) in wanted.spellings() {
            let ending = format!("{dot}{}", names[0]);
            for start in all.keys().filter_map(|name| name.strip_suffix(&*ending)) {
                prefixes.push(Prefix { drop: String::new(), add: format!("{start}{dot}") });
            }
            for (at, _) in names[0].match_indices(dot) {
                let (start, rest) = names[0].split_at(at + 1);
                if all.contains_key(rest) {
                    prefixes.push(Prefix { drop: start.to_owned(), add: String::new() });
                }
            }
        }
        prefixes
    }

    fn unmatched(&self, wanted: &LoraName) -> Error {
        let expected = wanted.name.clone();
        let kind = wanted.kind.map_or_else(|| "tensor".to_owned(), |kind| kind.to_string());
        let all = self.spellings(wanted.is_flattened);
        let name = spelled(&wanted.name, wanted.is_flattened);
        let similar = similar_names(&name, all.keys().map(String::as_str));
        let names = similar.iter().filter_map(|name| all.get(name)).flatten();
        let error = Error::from(AdapterProblem::Unmatched { kind, expected });
        error.with_names(names.map(|&name| name.to_owned()).collect())
    }
}

impl LoraName {
    /// Returns the names that the tensors of a checkpoint may have for this one.
    fn spellings(&self) -> Vec<(Vec<String>, Spelling)> {
        let mut all = vec![(vec![self.name.clone()], Spelling::Same)];
        if self.is_flattened || self.kind.is_none() {
            return all;
        }
        for fused in FUSED {
            let with = |part: &&str| with_module(&self.name, fused.name, part);
            let names: Option<Vec<_>> = fused.parts.iter().map(with).collect();
            all.extend(names.map(|names| (names, Spelling::Parts)));
            for (number, part) in fused.parts.iter().enumerate() {
                let name = with_module(&self.name, part, fused.name);
                all.extend(name.map(|name| (vec![name], Spelling::Fused(number, fused))));
            }
        }
        all
    }
}

/// Returns a name with `_` instead of `.`, or without the prefixes that versions of transformers
/// move or drop.
fn spelled(name: &str, is_flattened: bool) -> String {
    if is_flattened {
        let name = name.replace('.', "_");
        // Text encoders of transformers 5 do not have it.
        return name.strip_prefix("text_model_").unwrap_or(&name).to_owned();
    }
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
    let [one, other] = [one.min(other), one.max(other)].map(str::to_owned);
    AdapterProblem::Ambiguous { one, other }.into()
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
            .map(|(name, is_flattened)| LoraName {
                position: 0,
                name: (*name).to_owned(),
                is_flattened: *is_flattened,
                may_be_new: name.starts_with("new"),
                kind: None,
            })
            .collect();
        let found = Names::new(&checkpoint, &[]).find(&wanted);
        let name =
            |it: &Option<LoraTarget<'_>>| it.as_ref().map_or("none", |it| it.names[0]).to_owned();
        found
            .map(|(found, _)| found.iter().map(name).collect())
            .map_err(|(at, error)| format!("{at} {error}"))
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
        assert!(error.starts_with("1 the tensor changes \"7.q.w\""), "{error}");
        let error = find(&base, &[("model.1.p.w", false)]).unwrap_err();
        assert!(error.ends_with("did you mean \"model.1.q.w\"?"), "{error}");
        let new = [("model.1.q.w", false), ("new.w", false)];
        assert_eq!(find(&base, &new).unwrap(), ["model.1.q.w", "none"]);
        let error = find(&base, &[("1.q.w", false), ("new.w", false)]).unwrap_err();
        assert!(error.starts_with("1 the tensor changes \"new.w\""), "{error}");
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
