//! [`Checking`]: compares a file with a struct of arrays, before any elements are read.

use std::collections::{BTreeMap, BTreeSet};

use ndarray::Dimension;
use safetensors_core::error::Mismatch;
use safetensors_core::header::{attribute_key, attributes, dimensions};
use safetensors_core::{Error, ErrorKind, Metadata, Result};

use super::Names;
use super::names::MAX_DEPTH;
use super::saving::UNITS;
use crate::ArrayElement;

/// The most differences that are listed.
// A hostile file can make each of its names into one difference for each field of an item of a
// `Vec`.
const MAX_MISMATCHES: usize = 100_000;

/// The most bytes of a malformed value in an error.
const EXCERPT: usize = 120;

/// A file that is compared with a struct.
#[doc(hidden)]
#[derive(Debug)]
pub struct Checking<'r> {
    names: Names<'r>,
    /// The names of all fields so far, and one that two of them have.
    fields: BTreeSet<String>,
    duplicate: Option<String>,
    /// The structs that ignore other arrays, with the names of their fields.
    open: BTreeMap<String, &'static [&'static str]>,
    arrays: Vec<String>,
    pub(super) mismatches: Vec<Mismatch>,
}

impl<'r> Checking<'r> {
    pub(super) fn new(names: Names<'r>) -> Self {
        Self {
            names,
            fields: BTreeSet::new(),
            duplicate: None,
            open: BTreeMap::new(),
            arrays: Vec::new(),
            mismatches: Vec::new(),
        }
    }

    pub(super) fn names(&self) -> &Names<'r> {
        &self.names
    }

    /// Compares a tensor with an array of this type, and of the shape of `current`.
    pub(super) fn array<T: ArrayElement, D: Dimension>(
        &mut self,
        name: &str,
        current: Option<&[usize]>,
    ) {
        self.field(name);
        let file = self.names.file();
        let Some((_, dtype, shape)) = file.position(name).and_then(|at| file.describe(at)) else {
            return self.note(Mismatch::Missing { name: name.into() });
        };
        self.arrays.push(name.into());
        match (current, D::NDIM) {
            (Some(expected), _) => self.note(Mismatch::of_shapes(name, expected, shape)),
            (None, Some(expected)) if expected != shape.len() => {
                self.note(Mismatch::Ndim { name: name.into(), expected, found: shape.into() });
            }
            _ => {}
        }
        self.note(Mismatch::of_dtypes(name, T::DTYPE, dtype));
    }

    /// Lists an item that only the file has, unless its tensors are listed anyway.
    pub(super) fn extra_item(&mut self, name: &str) {
        if !self.names.has_arrays(name) {
            self.note(Mismatch::Extra { name: name.into() });
        }
    }

    pub(super) fn entry(
        &mut self,
        key: &str,
        expected: &'static str,
        is_valid: impl FnOnce(&str) -> bool,
    ) {
        self.field(key);
        if !self.names.entry(key).is_some_and(is_valid) {
            self.note_entry(key.into(), expected);
        }
    }

    fn note_entry(&mut self, key: String, expected: &'static str) {
        let found = self.names.entry(&key);
        let found = found.map(|text| text[..text.floor_char_boundary(EXCERPT)].into());
        self.note(Mismatch::Metadata { key, expected, found });
    }

    /// Compares the names of the axes of an array, if it is there.
    #[doc(hidden)]
    pub fn check_dimensions(&mut self, name: &str, names: &[&str], expected: &'static str) {
        let is_valid = |metadata: &Metadata| {
            let found = dimensions(metadata, name, names.len());
            found.is_ok_and(|found| found.is_some_and(|found| found == names))
        };
        self.attribute(name, "dimensions", expected, is_valid);
    }

    /// Compares the units of an array, if it is there.
    #[doc(hidden)]
    pub fn check_units(&mut self, name: &str, units: &'static str) {
        let is_valid = |metadata: &Metadata| {
            attributes(metadata, name).any(|attribute| attribute == (UNITS, units))
        };
        self.attribute(name, UNITS, units, is_valid);
    }

    fn attribute(
        &mut self,
        name: &str,
        attribute: &str,
        expected: &'static str,
        is_valid: impl FnOnce(&Metadata) -> bool,
    ) {
        if self.names.has_array(name)
            && !is_valid(self.names.metadata())
            && let Ok(key) = attribute_key(name, attribute)
        {
            self.note_entry(key, expected);
        }
    }

    /// Ignores the arrays below a struct that belong to none of its fields.
    #[doc(hidden)]
    pub fn ignore_others(&mut self, name: &str, fields: &'static [&'static str]) {
        self.open.insert(name.into(), fields);
    }

    fn is_ignored(&self, tensor: &str) -> bool {
        let dots = tensor.match_indices('.').take(MAX_DEPTH);
        let below = dots.map(|(dot, _)| (&tensor[..dot], &tensor[dot + 1..]));
        std::iter::once(("", tensor)).chain(below).any(|(structure, name)| {
            self.open.get(structure).is_some_and(|fields| {
                let mut rests = fields.iter().filter_map(|field| name.strip_prefix(field));
                !rests.any(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        })
    }

    fn field(&mut self, name: &str) {
        if !self.fields.insert(name.into()) {
            self.duplicate.get_or_insert_with(|| name.into());
        }
    }

    pub(super) fn note(&mut self, mismatch: impl Into<Option<Mismatch>>) {
        let rest = MAX_MISMATCHES - self.mismatches.len();
        self.mismatches.extend(mismatch.into().into_iter().take(rest));
    }

    /// Returns the names of the arrays to read. Fails if anything differs.
    pub(super) fn finish(mut self) -> Result<(Names<'r>, Vec<String>)> {
        let file = self.names.file();
        if let Some(name) = &self.duplicate {
            return Err(file.locate(name, ErrorKind::DuplicateTensor.into()));
        }
        let needed: BTreeSet<_> =
            self.arrays.iter().filter_map(|name| file.position(name)).collect();
        for position in 0.. {
            let Some((name, _, _)) = file.describe(position) else { break };
            if !needed.contains(&position) && !self.is_ignored(name) {
                self.note(Mismatch::Extra { name: name.into() });
            }
        }
        match self.mismatches {
            none if none.is_empty() => Ok((self.names, self.arrays)),
            mismatches => {
                file.refuse_codes(&self.fields)?;
                Err(file.locate_file(Error::from(ErrorKind::Mismatches { mismatches })))
            }
        }
    }
}
