//! [`Model::writer`]: the tensors of a model under their names in GGUF.

use safetensors_core::{TensorBuf, TensorSource};

use super::architecture::{Bias, Change, Part};
use super::arrange::Changed;
use super::fields::bad;
use super::{Model, ROPE_FACTORS};
use crate::error::{Error, ErrorKind, Result};
use crate::gguf::{Type, Writer};

/// The tensors that were not stored as asked.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Notes {
    /// Tensors that GGUF does not hold: not used, or computed.
    pub left_out: Vec<String>,
    /// The names in GGUF of matrices with rows that are not complete blocks: stored as F16.
    pub not_quantised: Vec<String>,
}

const FILE_TYPES: [(Type, u32); 5] =
    [(Type::F32, 0), (Type::F16, 1), (Type::Q4_0, 2), (Type::Q8_0, 7), (Type::BF16, 32)];

impl Model {
    /// Plans the file of this model. Tensors have their names in transformers.
    ///
    /// Matrices become `kind`: F32, F16, BF16, Q8_0 or Q4_0, or F16 if their rows are not complete
    /// blocks. Vectors, norms and the small embeddings of BERT are F32. Rows of Llama's queries and
    /// keys are reordered, and norms of Gemma get one added.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoGgufName`] for a tensor that the architecture lacks;
    /// [`ErrorKind::MissingTensors`]; [`ErrorKind::WrongShape`]; [`ErrorKind::BadTokenizer`] if the
    /// embedding lacks a row for a token; errors of [`Writer::add`].
    pub fn writer<'a, S: TensorSource + Send + 'a>(
        &self,
        tensors: impl IntoIterator<Item = (String, S)>,
        kind: Type,
    ) -> Result<(Writer<'a>, Notes)> {
        let number = FILE_TYPES.iter().find(|(other, _)| *other == kind);
        let &(_, number) = number.ok_or_else(|| ErrorKind::NotForGguf {
            problem: format!("tensors of {kind} cannot be written"),
        })?;
        let mut writer = Writer::new();
        let mut notes = Notes::default();
        for (name, source) in tensors {
            match self.find(&name) {
                // The model has the embedding in its place.
                Some(part) if part.row.is_head && self.is_tied => notes.left_out.push(name),
                Some(part) => self
                    .add(&mut writer, part, (&name, source), kind, &mut notes)
                    .map_err(|error| error.in_tensor(&name))?,
                None if self.is_unused(&name) => notes.left_out.push(name),
                None => {
                    let architecture = self.architecture.name;
                    return Err(
                        Error::from(ErrorKind::NoGgufName { architecture }).in_tensor(&name)
                    );
                }
            }
        }
        self.check_complete(&writer)?;
        // From here on, sizes come from tensors, so memory for them is bounded.
        if let Some(llama3) = &self.settings.llama3 {
            let factors = llama3.factors(self.sizes.head);
            let factors = TensorBuf::from_vec(vec![factors.len()], factors)?;
            writer.add(ROPE_FACTORS, Type::F32, factors)?;
        }
        for (key, value) in self.metadata(number) {
            writer.metadata(key, value);
        }
        match &self.tokenizer {
            Some(tokenizer) => {
                for (key, value) in tokenizer.metadata(self.sizes.vocabulary)? {
                    writer.metadata(key, value);
                }
            }
            None => writer.metadata("tokenizer.ggml.model", "none"),
        }
        Ok((writer, notes))
    }

    fn add<'a, S: TensorSource + Send + 'a>(
        &self,
        writer: &mut Writer<'a>,
        part: Part,
        (name, source): (&str, S),
        kind: Type,
        notes: &mut Notes,
    ) -> Result<()> {
        let Part { row, is_bias, .. } = part;
        let dims = if is_bias { &row.dims[..1] } else { row.dims };
        let expected: Vec<_> = dims.iter().map(|&dim| self.sizes.size(dim)).collect();
        if !source.shape().iter().map(|&dim| dim as u64).eq(expected.iter().copied()) {
            let found = source.shape().to_vec();
            return Err(ErrorKind::WrongShape { expected, found }.into());
        }
        if !source.dtype().is_float() {
            // A change would make floats of it.
            let problem = format!("its elements are {}, not floats", source.dtype());
            return Err(ErrorKind::NotForGguf { problem }.into());
        }
        let target = part.target();
        let is_matrix = dims.len() > 1 && !row.is_exact;
        let row_len = source.shape().last().copied().unwrap_or(1);
        let kind = match kind {
            _ if !is_matrix => Type::F32,
            kind if row_len.is_multiple_of(kind.block_len()) => kind,
            _ => {
                notes.not_quantised.push(target.clone());
                Type::F16
            }
        };
        match row.change {
            Change::Nothing => writer.add_from(name, target, kind, source),
            Change::AddOne => writer.add_from(name, target, kind, Changed::plus_one(source)?),
            Change::InterleaveQueries | Change::InterleaveKeys => {
                if !self.sizes.head.is_multiple_of(2) {
                    let head = self.sizes.head;
                    return Err(bad(format!("heads of {head} have no halves to interleave")));
                }
                let source = Changed::interleaved(source, self.sizes.head as usize)?;
                writer.add_from(name, target, kind, source)
            }
        }
    }

    fn find(&self, name: &str) -> Option<Part> {
        let architecture = self.architecture;
        let short = name.strip_prefix(architecture.prefix).unwrap_or(name);
        let part = architecture.part(short, architecture.layers, |row| row.source)?;
        part.layer.is_none_or(|layer| layer < self.sizes.layers).then_some(part)
    }

    fn is_unused(&self, name: &str) -> bool {
        let ends = |end: &&str| {
            name.strip_suffix(*end).is_some_and(|it| it.is_empty() || it.ends_with('.'))
        };
        self.architecture.unused.iter().any(ends)
    }

    /// Readers would refuse an incomplete file, or use another tensor as the head.
    fn check_complete(&self, writer: &Writer<'_>) -> Result<()> {
        // A few names are enough, and there may be any number of layers.
        const SHOWN: usize = 3;
        let outer = self.architecture.outer.iter().map(|row| (row, None));
        let outer = outer.filter(|(row, _)| !(row.is_head && self.is_tied));
        let layers = (0..self.sizes.layers)
            .flat_map(|layer| self.architecture.rows_of_layer().map(move |row| (row, Some(layer))));
        let parts = outer.chain(layers).flat_map(|(row, layer)| {
            let has_bias = row.bias == Bias::Always;
            let biases = if has_bias { &[false, true][..] } else { &[false] };
            biases.iter().map(move |&is_bias| Part { row, layer, is_bias })
        });
        let missing = parts.filter(|&part| !writer.has(&part.target()));
        let names: Vec<_> =
            missing.take(SHOWN).map(|part| part.source(self.architecture)).collect();
        if names.is_empty() { Ok(()) } else { Err(ErrorKind::MissingTensors { names }.into()) }
    }
}
