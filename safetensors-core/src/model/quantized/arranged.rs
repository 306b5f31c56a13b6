//! Arrangements of quantised weights: codes and scales are arranged in the same way.

mod part;

use std::collections::{BTreeMap, HashMap};

use super::QuantizedWeight;
use crate::checkpoint::{Arranged, Checkpoint, Computed, Form, Join};
use crate::file::io::ReadAt;
use crate::format::error::{Error, ErrorKind, QuantizationProblem, Result};
use crate::format::slice::{Index, TakenDim};
use crate::weights::Weight;
use part::{Part, Role, parts_of};

type Weights = HashMap<String, (QuantizedWeight, Weight)>;

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
        let found = self.find_weights(&mut |_| false)?.into_iter();
        let known: Weights = found.map(|it| (it.0.name.clone(), it)).collect();
        let mut tensors = Vec::new();
        let mut expected = Vec::new();
        for (name, arranged) in weights {
            let name = name.into();
            let made = Made::new(&arranged.0, &self, &known)?;
            let of = |(role, part): (Role, Part)| (role.name(&name), part.form);
            tensors.extend(made.parts.into_iter().map(of));
            expected.extend(made.scheme.map(|scheme| (name, scheme, made.shape)));
        }
        let arranged = self.arranged(tensors)?;
        arranged.check_weights(expected)?;
        Ok(arranged)
    }

    /// Checks that weights of these schemes and shapes are stored.
    fn check_weights(&self, expected: Vec<(String, &'static str, Vec<usize>)>) -> Result<()> {
        if expected.is_empty() {
            return Ok(());
        }
        let found = self.quantized_weights()?;
        let found: HashMap<_, _> = found.iter().map(|it| (&*it.name, it)).collect();
        let is_found = |(name, scheme, shape): &(String, &str, Vec<usize>)| {
            found.get(&**name).is_some_and(|it| it.scheme == *scheme && it.shape == *shape)
        };
        match expected.iter().find(|it| !is_found(it)) {
            Some((name, scheme, _)) => {
                Err(refused(scheme, "its tensors would not be taken for this weight", name))
            }
            None => Ok(()),
        }
    }
}

fn refused(scheme: &'static str, problem: &str, name: &str) -> Error {
    let problem = QuantizationProblem::Arrangement { scheme, problem: problem.into() };
    Error::from(ErrorKind::Quantization { problem }).in_tensor(name)
}

/// A weight that is made of others: the tensors that store it.
struct Made {
    /// The first weight that it is made of.
    name: String,
    /// `None` for a plain tensor.
    scheme: Option<&'static str>,
    shape: Vec<usize>,
    parts: BTreeMap<Role, Part>,
}

impl Made {
    fn new<S: ReadAt>(form: &Form, checkpoint: &Checkpoint<S>, known: &Weights) -> Result<Self> {
        match form {
            Form::Tensor(name) => Self::stored(name, checkpoint, known),
            Form::Slice(form, dim, index) => {
                Self::new(form, checkpoint, known)?.slice(*dim, *index)
            }
            Form::Transposed(form) => Self::new(form, checkpoint, known)?.transposed(),
            Form::Joined(join, dim, forms) => {
                let members = forms.iter().map(|form| Self::new(form, checkpoint, known));
                Self::joined(*join, *dim, members.collect::<Result<_>>()?)
            }
        }
    }

    fn stored<S: ReadAt>(name: &str, checkpoint: &Checkpoint<S>, known: &Weights) -> Result<Self> {
        let name = name.to_owned();
        if let Some((about, weight)) = known.get(&name) {
            let parts = parts_of(weight)
                .ok_or_else(|| refused(about.scheme, "this form of it is not known", &name))?;
            return Ok(Self {
                name,
                scheme: Some(about.scheme),
                shape: about.shape.clone(),
                parts,
            });
        }
        let tensor = checkpoint.tensor(&name)?;
        tensor.refuse_codes()?;
        let shape = tensor.shape().to_vec();
        let parts = BTreeMap::from([(Role::default(), Part::plain(&name, shape.len()))]);
        Ok(Self { name, scheme: None, shape, parts })
    }

    fn refuse(&self, problem: &str) -> Error {
        refused(self.scheme.unwrap_or("a plain tensor"), problem, &self.name)
    }

    fn no_dim(&self, dim: usize) -> Error {
        let kind = ErrorKind::NoSuchDim { dim, ndim: self.shape.len() };
        Error::from(kind).in_tensor(&self.name)
    }

    fn slice(mut self, dim: usize, index: Index) -> Result<Self> {
        let &len = self.shape.get(dim).ok_or_else(|| self.no_dim(dim))?;
        let taken = TakenDim::new(dim, len, index);
        let taken = taken.map_err(|kind| Error::from(kind).in_tensor(&self.name))?;
        let is_done = self.parts.values_mut().all(|part| part.slice(dim, len, taken));
        if !is_done {
            return Err(self.refuse("the slice begins or ends inside a block with one scale"));
        }
        self.shape[dim] = taken.positions.count;
        if !taken.keeps_dim {
            self.shape.remove(dim);
        }
        Ok(self)
    }

    fn transposed(mut self) -> Result<Self> {
        let Some(dim) = self.shape.len().checked_sub(2) else { return Err(self.no_dim(1)) };
        self.shape.swap(dim, dim + 1);
        let mut parts = BTreeMap::new();
        for (role, mut part) in std::mem::take(&mut self.parts) {
            if !part.transpose(dim, role.is_of_blocks()) {
                return Err(self.refuse("it would be transposed"));
            }
            parts.insert(role.transposed(), part);
        }
        Ok(Self { parts, ..self })
    }

    fn joined(join: Join, dim: usize, members: Vec<Self>) -> Result<Self> {
        let Some(first) = members.first() else { return Err(ErrorKind::NoMembers.into()) };
        let mut made = Self {
            name: first.name.clone(),
            scheme: first.scheme,
            shape: first.shape.clone(),
            parts: BTreeMap::new(),
        };
        let ndim = made.shape.len();
        if let Some(other) = members.iter().find(|member| member.shape.len() != ndim) {
            let (expected, found) = (made.shape, other.shape.clone());
            let kind = ErrorKind::WrongShape { expected, found };
            return Err(Error::from(kind).in_tensor(&other.name));
        }
        let is_new = join == Join::Stacked;
        if !is_new && dim >= ndim {
            return Err(made.no_dim(dim));
        }
        if is_new {
            made.shape.insert(0, members.len());
        } else {
            // Where the shapes do not fit, arranging the tensors fails.
            let lens = members.iter().map(|member| member.shape.get(dim).copied().unwrap_or(0));
            made.shape[dim] = lens.fold(0, usize::saturating_add);
        }
        for role in first.parts.keys() {
            let parts = members.iter().filter(|it| it.parts.len() == first.parts.len());
            let parts: Vec<_> = parts
                .filter_map(|it| Some((it.parts.get(role)?, *it.shape.get(dim).unwrap_or(&0))))
                .collect();
            if parts.len() != members.len() {
                let other = members.iter().find(|it| !it.parts.keys().eq(first.parts.keys()));
                return Err(other
                    .unwrap_or(first)
                    .refuse("it is joined with one stored otherwise"));
            }
            let part = Part::joined(join, dim, &parts).ok_or_else(|| {
                first.refuse("joined weights would have one scale for several of them")
            })?;
            made.parts.insert(role.clone(), part);
        }
        Ok(made)
    }
}
