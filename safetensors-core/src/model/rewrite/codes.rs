//! Codes with scales in another checkpoint.

use std::collections::HashMap;

use super::{PlannedTensor, Rewrite};
use crate::file::io::ReadAt;
use crate::format::error::{Error, ErrorKind, QuantizationProblem, Result};
use crate::format::header::Metadata;
use crate::format::tensor::shape::byte_len;
use crate::format::tensor::{TensorBuf, TensorView, write_exactly};
use crate::weights::{Stored, TensorFacts, Tensors, may_be_codes};

struct Together<'r, 'a, S> {
    rewrite: &'r Rewrite<'a, S>,
    positions: HashMap<&'r str, usize>,
}

impl<'a, S: ReadAt> Rewrite<'a, S> {
    pub(super) fn refuse_codes(&self, changed: &[usize]) -> Result<()> {
        let is_from_one = self.sources.len() < 2
            && self.tensors.iter().all(|(_, planned)| planned.tensor().is_some());
        let may_be = |(_, it): &(String, PlannedTensor<'a, S>)| may_be_codes(it.source_dtype());
        if is_from_one || !self.tensors.iter().any(may_be) {
            return Ok(());
        }
        let names = self.tensors.iter().map(|(name, _)| &**name).zip(0..);
        let together = Together { rewrite: self, positions: names.collect() };
        let facts = TensorFacts::new(&together)?;
        for &position in changed {
            let (name, planned) = &self.tensors[position];
            let Some(weight) = facts.of_tensor(&together, position)? else { continue };
            let problem = QuantizationProblem::Unsupported {
                scheme: weight.scheme.into(),
                reason: "its codes and its scales come from several checkpoints; put their files \
                         into one directory, with their config.json, and open that"
                    .into(),
            };
            let error = Error::from(ErrorKind::Quantization { problem }).in_tensor(name);
            return Err(planned.locate(error));
        }
        Ok(())
    }
}

impl<S: ReadAt> Tensors for Together<'_, '_, S> {
    fn count(&self) -> usize {
        self.rewrite.tensors.len()
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }

    fn at(&self, position: usize) -> Option<Stored> {
        let (name, planned) = self.rewrite.tensors.get(position)?;
        Stored::of_parts(name, planned.source_dtype(), planned.source_shape())
    }

    fn aliases(&self, name: &str) -> Vec<String> {
        let tensors = &self.rewrite.tensors;
        let tie = self.position(name).map(|position| tensors[position].1.tie);
        let others = tensors.iter().filter(|(other, it)| Some(it.tie) == tie && other != name);
        others.map(|(other, _)| other.clone()).collect()
    }

    fn metadata(&self) -> &Metadata {
        &self.rewrite.metadata
    }

    fn read(&self, positions: &[usize]) -> Result<Vec<TensorBuf>> {
        let read = |&position: &usize| {
            let (_, planned) = &self.rewrite.tensors[position];
            let dtype = planned.source_dtype();
            let shape = planned.source_shape();
            let mut bytes = Vec::new();
            let len = byte_len(dtype, shape)?;
            write_exactly(&planned.origin, len, &mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })?;
            TensorBuf::from_view(&TensorView::new(dtype, shape, &bytes)?)
        };
        positions.iter().map(read).collect()
    }
}
