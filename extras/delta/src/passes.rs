//! [`Pass`]: deltas applied to the bytes of a tensor in pieces, at most [`FRAMES`] at a time.

use std::io::Write;
use std::path::Path;

use safetensors_core::save::Sink;
use safetensors_core::{LazyTensor, ReadAt, TensorSource, shape};

use crate::delta::Delta;
use crate::error::Result;
use crate::extra::{Change, Form};
use crate::frame::{PIECE, pour};
use crate::options::Options;
use crate::patch::Patch;
use crate::spool::{Spool, Spooled};
use crate::sums::Sums;

/// Decompressed at a time, by all threads.
pub(crate) const FRAMES: usize = 64;

pub(crate) struct Link<'a, S> {
    pub(crate) number: usize,
    pub(crate) change: Change<'a>,
    /// `None` if the tensor is removed.
    pub(crate) bytes: Option<LazyTensor<'a, S>>,
}

pub(crate) enum Bytes<'a, B, S> {
    Base(LazyTensor<'a, B>),
    /// Stored entirely in the delta of this number.
    Whole(usize, LazyTensor<'a, S>, Form<'a>),
    Spooled(Spooled),
}

pub(crate) struct Pass<'p, S> {
    pub(crate) deltas: &'p [Delta<S>],
    pub(crate) options: &'p Options,
    pub(crate) directory: &'p Path,
    pub(crate) has_digests: bool,
}

impl<S: ReadAt> Pass<'_, S> {
    /// `hashes` gets the hash of the bytes and one after each difference.
    ///
    /// Each difference takes memory, so of more than [`FRAMES`], the first ones go to an unnamed
    /// file.
    pub(crate) fn run<B: ReadAt>(
        &self,
        mut bytes: Bytes<'_, B, S>,
        mut differences: &[Link<'_, S>],
        sink: &mut Sink<'_>,
        hashes: &mut Vec<Option<blake3::Hash>>,
    ) -> Result<()> {
        while let Some((first, rest)) = differences.split_at_checked(FRAMES)
            && !rest.is_empty()
        {
            let mut spool = Spool::create_in(self.directory)?;
            self.once(bytes, first, &mut |piece| Ok(spool.write_all(piece)?), hashes)?;
            (bytes, differences) = (Bytes::Spooled(spool.since(0)?), rest);
        }
        self.once(bytes, differences, sink, hashes)
    }

    fn once<B: ReadAt>(
        &self,
        bytes: Bytes<'_, B, S>,
        differences: &[Link<'_, S>],
        sink: &mut Sink<'_>,
        hashes: &mut Vec<Option<blake3::Hash>>,
    ) -> Result<()> {
        let len = bytes.len()?;
        let steps = differences.iter().filter_map(|it| Some((it.number, it.bytes?)));
        let steps = steps.map(|(number, difference)| {
            let patch = Patch::open(self.deltas[number].encoding(), difference, len)?;
            Ok(Step { number, difference, patch, sums: self.sums(number) })
        });
        let mut steps: Vec<_> = steps.collect::<Result<_>>()?;
        let mut sums = match bytes {
            Bytes::Base(_) => Some(Sums::new(None, self.has_digests)),
            Bytes::Whole(number, ..) => Some(self.sums(number)),
            Bytes::Spooled(_) => None,
        };
        let mut offset = 0;
        let mut changed = Vec::new();
        let mut scratch = Vec::new();
        bytes.write_to(&mut |taken| {
            for piece in taken.chunks(PIECE) {
                if let Some(sums) = &mut sums {
                    sums.update(piece);
                }
                if steps.is_empty() {
                    sink(piece)?;
                } else {
                    changed.clear();
                    changed.extend_from_slice(piece);
                    for step in &mut steps {
                        step.patch.apply(offset, &mut changed, &mut scratch)?;
                        step.sums.update(&changed);
                    }
                    sink(&changed)?;
                }
                offset += piece.len() as u64;
                if matches!(bytes, Bytes::Base(_)) {
                    self.options.advance(piece.len());
                }
            }
            Ok(())
        })?;
        if let (Some(sums), Bytes::Whole(number, whole, _)) = (&sums, &bytes) {
            self.deltas[*number].check_sums(whole, sums)?;
        }
        hashes.extend(sums.map(|sums| sums.blake3()));
        for step in &mut steps {
            step.patch.finish()?;
            self.deltas[step.number].check_sums(&step.difference, &step.sums)?;
            hashes.push(step.sums.blake3());
        }
        Ok(())
    }

    fn sums(&self, number: usize) -> Sums {
        Sums::new(Some(self.deltas[number].checksum_format()), self.has_digests)
    }
}

struct Step<'a, S> {
    number: usize,
    difference: LazyTensor<'a, S>,
    patch: Patch<'a, S>,
    sums: Sums,
}

impl<B: ReadAt, S: ReadAt> Bytes<'_, B, S> {
    fn len(&self) -> Result<u64> {
        match self {
            Self::Base(tensor) => Ok(tensor.byte_len()),
            Self::Whole(_, whole, (dtype, shape)) => {
                shape::byte_len(*dtype, shape).map_err(|kind| whole.locate(kind.into()))
            }
            Self::Spooled(spooled) => Ok(spooled.len()),
        }
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        match self {
            Self::Base(tensor) => tensor.write_to(sink),
            Self::Whole(_, whole, form) => pour(*whole, *form, sink),
            Self::Spooled(spooled) => spooled.write_to(sink),
        }
    }
}
