//! Arrangements of quantised weights: codes and scales are arranged in the same way.

mod part;

use std::collections::{BTreeMap, HashMap};

use crate::checkpoint::{Arranged, Checkpoint, Computed, Form};
use crate::file::io::ReadAt;
use crate::format::error::{Error, ErrorKind, QuantizationProblem, Result};
use crate::format::slice::TakenDim;
use crate::weights::Weight;
use part::{Part, Role, parts_of};

type Weights<'a> = HashMap<&'a str, Stored<'a>>;

impl<S: ReadAt> Checkpoint<S> {
    /// Makes tensors of others, like [`arranged`](Checkpoint::arranged), where the name of a
    /// [quantised weight](Checkpoint::quantized_weights) stands for all tensors that store it: its
    /// codes, scales and zero points are arranged in the same way. So a stack of FP8 experts
    /// becomes experts, each with its own scales.
    ///
    /// The tensors of `b.weight` have the names of those of `a.weight`, with `b` for `a`. Those of
    /// a weight `b` are `b`, `b_scale` and so on.
    ///
    /// # Errors
    ///
    /// As for [`arranged`](Checkpoint::arranged), and [`ErrorKind::Quantization`] if the scheme has
    /// no such form: a slice that begins inside a block, a row of weights that have one scale each,
    /// packed codes that are transposed, or tensors that would not be read as this weight.
    pub fn arranged_weights<N: Into<String>>(
        self,
        weights: impl IntoIterator<Item = (N, Arranged)>,
    ) -> Result<Checkpoint<Computed<S>>> {
        let found = self.find_weights(&mut |_| false)?;
        let known = found.iter().map(|(_, it)| Stored { weight: it, parts: parts_of(it) });
        let known: Weights<'_> = known.map(|it| (&*it.weight.name, it)).collect();
        let mut tensors = Vec::new();
        let mut expected = Vec::new();
        for (name, arranged) in weights {
            let name = name.into();
            let names = arranged.0.names();
            let Some(first) = names.iter().find_map(|name| known.get(name)) else {
                for name in names {
                    self.tensor(name)?.refuse_codes()?;
                }
                tensors.push((name, arranged));
                continue;
            };
            let parts = first.parts.as_ref();
            let parts = parts.ok_or_else(|| first.refused("this form of it is not known"))?;
            let mut shape = Vec::new();
            for role in parts.keys() {
                let part = first.arranged(role, &arranged.0, &known)?;
                tensors.push((part.role.name(&name), part.form));
                shape = part.shape;
            }
            expected.push((name, first.weight.scheme, shape));
        }
        let arranged = self.arranged(tensors)?;
        if !expected.is_empty() {
            arranged.check_weights(&expected)?;
        }
        Ok(arranged)
    }

    /// Checks that weights of these schemes and shapes are stored.
    fn check_weights(&self, expected: &[(String, &'static str, Vec<usize>)]) -> Result<()> {
        let found = self.quantized_weights()?;
        let found: HashMap<_, _> = found.iter().map(|it| (&*it.name, it)).collect();
        let is_found = |(name, scheme, shape): &(String, &str, Vec<usize>)| {
            found.get(&**name).is_some_and(|it| it.scheme == *scheme && it.shape == *shape)
        };
        let missing = expected.iter().find(|it| !is_found(it));
        missing.map_or(Ok(()), |(name, scheme, _)| {
            Err(refused(scheme, "its tensors would not be taken for this weight", name))
        })
    }
}

fn refused(scheme: &'static str, problem: &str, name: &str) -> Error {
    let problem = QuantizationProblem::Arrangement { scheme, problem: problem.into() };
    Error::from(ErrorKind::Quantization { problem }).in_tensor(name)
}

/// A stored weight, with its tensors if their form is known.
struct Stored<'a> {
    weight: &'a Weight,
    parts: Option<BTreeMap<Role, Part>>,
}

impl Stored<'_> {
    fn refused(&self, problem: &str) -> Error {
        refused(self.weight.scheme, problem, &self.weight.name)
    }

    /// Arranges the tensors with this role as their weights are. This is the first weight.
    fn arranged(&self, role: &Role, form: &Form, known: &Weights<'_>) -> Result<Part> {
        let (part, problem) = match form {
            Form::Tensor(name) => {
                let parts = known.get(&**name).and_then(|it| it.parts.as_ref());
                let count = self.parts.as_ref().map(BTreeMap::len);
                let alike = parts.filter(|parts| Some(parts.len()) == count);
                let part = alike.and_then(|parts| parts.get(role).cloned());
                (part, "it is joined with one stored otherwise")
            }
            Form::Slice(form, dim, index) => {
                let part = self.arranged(role, form, known)?;
                let taken = TakenDim::new(&part.shape, *dim, *index);
                let taken = taken.map_err(|kind| Error::from(kind).in_tensor(&self.weight.name))?;
                (part.slice(*dim, taken), "the slice begins or ends inside a block with one scale")
            }
            Form::Transposed(form) => {
                (self.arranged(role, form, known)?.transposed(), "it would be transposed")
            }
            Form::Joined(join, dim, forms) => {
                let members = forms.iter().map(|form| self.arranged(role, form, known));
                let joined = Part::joined(*join, *dim, members.collect::<Result<_>>()?);
                (joined, "joined weights would have one scale for several of them")
            }
        };
        part.ok_or_else(|| self.refused(problem))
    }
}
