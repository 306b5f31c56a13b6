//! [`Model`]: the tensors and settings that schemes look at.

use std::cell::OnceCell;
use std::fmt::Display;

use serde_json::Value;

use super::config::Config;
use super::facts::{Companions, LookedAt, TensorFacts};
use super::matrix::{LONGEST, Stored};
use super::panel::Panels;
use super::tensors::Tensors;
use super::weight::Grouped;
use crate::format::convert::{ConvertOptions, can_convert};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, QuantizationProblem, Result, Shape};
use crate::format::header::Metadata;
use crate::format::tensor::shape::memory_count;
use crate::format::tensor::{Element, TensorBuf};

/// A matrix of codes in C order.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) scheme: &'static str,
    /// The shape to the user of the weight.
    pub(crate) shape: Vec<usize>,
    /// The codes come first.
    pub(crate) tensors: Vec<Stored>,
    pub(super) numbers: Grouped,
    pub(super) panels: Panels,
}

impl Weight {
    // Codes must not be taken for numbers.
    pub(crate) fn codes(self) -> Error {
        error(QuantizationProblem::Codes { scheme: self.scheme, weight: self.name })
    }
}

pub(super) struct Model<'a> {
    pub(super) config: &'a Config,
    pub(super) metadata: &'a Metadata,
    /// The rows and columns that share a scale, if not set elsewhere.
    pub(super) block: [usize; 2],
    facts: &'a TensorFacts,
    pub(super) tensors: &'a dyn Tensors,
    failed: OnceCell<Error>,
}

/// The ends of names of tensors that describe others.
const NOTES: &[&str] = &[
    "_shape",
    ".quant_map",
    ".nested_quant_map",
    ".quant_state.bitsandbytes__nf4",
    ".quant_state.bitsandbytes__fp4",
    ".weight_format",
    ".comfy_quant",
    ".nbits",
    ".group_size",
    ".axis",
    ".shape",
    ".packing",
    ".view_as_float",
];

const MOST: u64 = 1 << 16;

impl<'a> Model<'a> {
    pub(super) fn new(facts: &'a TensorFacts, tensors: &'a dyn Tensors) -> Self {
        let block = facts.config.block().unwrap_or([128, 128]);
        let config = &facts.config;
        let metadata = tensors.metadata();
        let failed = OnceCell::new();
        Self { config, metadata, block, facts, tensors, failed }
    }

    pub(super) fn checked<T>(self, found: Result<T>) -> Result<T> {
        self.failed.into_inner().map_or(found, Err)
    }

    // Fewer requests than one for each description.
    pub(super) fn read_notes(&self) -> Result<()> {
        let all = (0..self.tensors.count()).filter_map(|position| {
            let stored = self.tensors.at(position)?;
            if stored.byte_len > MOST || !NOTES.iter().any(|end| stored.name.ends_with(end)) {
                return None;
            }
            self.facts.get(self.tensors, position)?.note.get().is_none().then_some(position)
        });
        let positions: Vec<_> = all.collect();
        for (&position, note) in positions.iter().zip(self.tensors.read(&positions)?) {
            if let Some(looked_at) = self.facts.get(self.tensors, position) {
                _ = looked_at.note.set(note);
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Stored> {
        Some(&self.looked_at(name)?.stored)
    }

    fn looked_at(&self, name: &str) -> Option<&'a LookedAt> {
        self.facts.get(self.tensors, self.tensors.position(name)?)
    }

    pub(super) fn companions(&self, make: impl FnOnce() -> Companions) -> &'a Companions {
        self.facts.companions.get_or_init(make)
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = Stored> {
        (0..self.tensors.count()).filter_map(|position| self.tensors.at(position))
    }

    pub(super) fn first<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Option<&Stored> {
        names.into_iter().find_map(|name| self.get(name.as_ref()))
    }

    /// Reads a small tensor. A failure fails the entire search.
    fn described(&self, name: &str) -> Option<&'a TensorBuf> {
        let position = self.tensors.position(name)?;
        let LookedAt { stored, note, .. } = self.facts.get(self.tensors, position)?;
        if note.get().is_none() && stored.byte_len <= MOST {
            match self.tensors.read(&[position]) {
                Ok(read) => read.into_iter().for_each(|read| _ = note.set(read)),
                Err(error) => _ = self.failed.set(error),
            }
        }
        note.get()
    }

    pub(super) fn values<T: Element>(&self, name: &str) -> Option<Vec<T>> {
        let numbers = self.described(name)?.clone();
        numbers.convert(T::DTYPE, &ConvertOptions::new()).ok()?.into_vec().ok()
    }

    pub(super) fn dims(&self, name: &str) -> Vec<usize> {
        let dims = self.values::<i64>(name).unwrap_or_default().into_iter();
        let dim = |dim| usize::try_from(dim).ok().filter(|dim| *dim as u64 <= LONGEST);
        dims.map(dim).collect::<Option<_>>().unwrap_or_default()
    }

    pub(super) fn json(&self, name: &str) -> Option<Value> {
        serde_json::from_slice(self.described(name)?.bytes()).ok()
    }
}

fn error(problem: QuantizationProblem) -> Error {
    ErrorKind::Quantization { problem }.into()
}

pub(super) fn unsupported(scheme: impl Into<String>, reason: impl Into<String>) -> Error {
    error(QuantizationProblem::Unsupported { scheme: scheme.into(), reason: reason.into() })
}

pub(super) fn not_explained(scheme: &'static str, companion: &str) -> Error {
    error(QuantizationProblem::Unexplained { scheme, companion: companion.into() })
}

pub(super) fn ambiguous(tensor: &Stored, one: &'static str, other: &'static str) -> Error {
    error(QuantizationProblem::Ambiguous { one, other }).in_tensor(&tensor.name)
}

#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) scheme: &'static str,
    pub(super) model: &'a Model<'a>,
    pub(super) tensor: &'a Stored,
}

impl<'a> Candidate<'a> {
    pub(super) fn need(&self, name: &str) -> Result<&'a Stored> {
        self.model.get(name).ok_or_else(|| {
            let problem =
                QuantizationProblem::Missing { scheme: self.scheme, expected: name.into() };
            error(problem).in_tensor(&self.tensor.name)
        })
    }

    /// Makes a weight of `tensors`: its codes come first.
    pub(super) fn weight(
        &self,
        name: impl Into<String>,
        shape: &[usize],
        tensors: &[&Stored],
        numbers: Grouped,
    ) -> Weight {
        Weight {
            name: name.into(),
            scheme: self.scheme,
            shape: shape.to_vec(),
            tensors: tensors.iter().map(|&tensor| tensor.clone()).collect(),
            numbers,
            panels: Panels::default(),
        }
    }

    pub(super) fn mismatch(
        &self,
        tensor: &Stored,
        expected: impl Display,
        found: impl Display,
    ) -> Error {
        let scheme = self.scheme;
        let expected = expected.to_string();
        let found = found.to_string();
        let problem = QuantizationProblem::Mismatch { scheme, expected, found };
        error(problem).in_tensor(&tensor.name)
    }

    pub(super) fn unsupported(&self, reason: impl Into<String>) -> Error {
        unsupported(self.scheme, reason).in_tensor(&self.tensor.name)
    }

    pub(super) fn wrong_shape(&self, tensor: &Stored, expected: impl Display) -> Error {
        self.mismatch(tensor, expected, format_args!("shape {}", Shape(&tensor.shape)))
    }

    pub(super) fn check_dtype(&self, tensor: &Stored, dtypes: &[Dtype]) -> Result<()> {
        if dtypes.contains(&tensor.dtype) {
            return Ok(());
        }
        let names: Vec<_> = dtypes.iter().map(|dtype| dtype.name()).collect();
        Err(self.mismatch(tensor, format_args!("dtype {}", names.join(" or ")), tensor.dtype))
    }

    pub(super) fn check_shape(&self, tensor: &Stored, shape: &[usize]) -> Result<()> {
        if tensor.shape == shape {
            return Ok(());
        }
        Err(self.wrong_shape(tensor, format_args!("shape {}", Shape(shape))))
    }

    pub(super) fn count(&self, shape: &[usize]) -> Result<usize> {
        memory_count(shape).map_err(|kind| Error::from(kind).in_tensor(&self.tensor.name))
    }

    pub(super) fn check_len(&self, tensor: &Stored, shape: [usize; 2]) -> Result<()> {
        // The product of the file's numbers may exceed 64 bits.
        let [len, expected] =
            [[tensor.len(), 1], shape].map(|[rows, columns]| rows as u128 * columns as u128);
        if len == expected {
            return Ok(());
        }
        Err(self.wrong_shape(tensor, format_args!("{expected} elements")))
    }

    pub(super) fn check_groups(
        &self,
        indices: &Stored,
        columns: usize,
        groups: usize,
    ) -> Result<()> {
        self.check_dtype(indices, &[Dtype::I32])?;
        self.check_len(indices, [columns, 1])?;
        if groups <= columns {
            return Ok(());
        }
        let expected = format_args!("at most {columns} groups");
        Err(self.mismatch(indices, expected, format_args!("{groups} scales")))
    }

    /// Fails unless each of `rows` has `columns` words of `word` bytes.
    pub(super) fn check_bytes(&self, [rows, columns, word]: [usize; 3]) -> Result<()> {
        let expected = rows as u128 * columns as u128 * word as u128;
        let found = self.tensor.byte_len;
        if u128::from(found) == expected {
            return Ok(());
        }
        let expected = format_args!("{expected} bytes");
        Err(self.mismatch(self.tensor, expected, format_args!("{found} bytes")))
    }

    /// Fails for codes, and for numbers that F32 may not hold.
    pub(super) fn check_numbers(&self, tensor: &Stored) -> Result<()> {
        if tensor.dtype.bits() >= 8 && can_convert(tensor.dtype, Dtype::F32) {
            return Ok(());
        }
        Err(self.mismatch(tensor, "numbers of at least 8 bits", tensor.dtype))
    }
}
