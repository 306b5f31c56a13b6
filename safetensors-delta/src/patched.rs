//! [`Patched`]: the tensors of a base as they are after the deltas of a chain.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use safetensors_core::framework::default_threads;
use safetensors_core::save::Sink;
use safetensors_core::{Checkpoint, Dtype, LazyTensor, ReadAt, TensorSource};

use crate::chain::Chain;
use crate::delta::Delta;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::patch::Patch;
use crate::sums::{Sums, digest_of};

/// The bytes of a tensor that are changed at a time: they stay in the processor's cache.
pub(crate) const PIECE: usize = 256 << 10;

/// The most frames that are decompressed at a time, by all threads, unless one tensor has more.
const FRAMES: usize = 64;

/// The tensors of a base as they are after the deltas of a chain. They are computed while they are
/// read, and checked then; [`check`](Patched::check) compares what concerns all of them together.
pub(crate) struct Patched<'a, B, S> {
    chain: &'a Chain<S>,
    tensors: Vec<PatchedTensor<'a, B, S>>,
}

/// One of them.
pub(crate) struct PatchedTensor<'a, B, S> {
    base: LazyTensor<'a, B>,
    /// The deltas that change it, by their numbers in the chain, with their differences.
    links: Vec<(usize, LazyTensor<'a, S>)>,
    chain: &'a Chain<S>,
    options: &'a Options,
    /// Whether the chain has digests of whole checkpoints.
    has_digests: bool,
    /// The BLAKE3 of the base and of what it is after each link, once it is read.
    hashes: Mutex<Vec<blake3::Hash>>,
}

impl<'a, B: ReadAt, S: ReadAt> Patched<'a, B, S> {
    /// Finds the tensors that each delta changes. No data is read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotInBase`].
    pub(crate) fn new(
        base: &'a Checkpoint<B>,
        chain: &'a Chain<S>,
        options: &'a Options,
    ) -> Result<Self> {
        let mut links: HashMap<&str, Vec<_>> = HashMap::new();
        for (number, delta) in chain.deltas().iter().enumerate() {
            for difference in delta.tensors() {
                // An alias is no name that a delta can change.
                if base.get(difference.name()).is_none_or(|it| it.name() != difference.name()) {
                    let kind = ErrorKind::NotInBase { version: delta.version().into() };
                    return Err(difference.locate(kind.into()));
                }
                links.entry(difference.name()).or_default().push((number, difference));
            }
        }
        let has_digests = chain.deltas().iter().any(|it| it.digests() != [None; 2]);
        let patched = |base: LazyTensor<'a, B>| PatchedTensor {
            base,
            links: links.remove(base.name()).unwrap_or_default(),
            chain,
            options,
            has_digests,
            hashes: Mutex::default(),
        };
        Ok(Self { chain, tensors: base.tensors().map(patched).collect() })
    }

    /// The tensors, in the order of those of the base.
    pub(crate) fn tensors(&self) -> &[PatchedTensor<'a, B, S>] {
        &self.tensors
    }

    /// The number of threads that may read tensors at a time: fewer for a long chain, because each
    /// delta that changes a tensor takes memory while that is read.
    pub(crate) fn threads(&self) -> usize {
        threads(self.tensors.iter().map(|tensor| tensor.links.len()).max().unwrap_or_default())
    }

    /// Compares the digests of the base and of each result with those in the chain. All tensors
    /// have been read.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongBase`], [`ErrorKind::WrongResult`].
    pub(crate) fn check(&self) -> Result<()> {
        let deltas = self.chain.deltas();
        (0..=deltas.len()).try_for_each(|stage| {
            let before = stage.checked_sub(1).and_then(|number| deltas.get(number));
            self.check_stage(stage, before, deltas.get(stage))
        })
    }

    /// Compares the digest after so many deltas with that of the last one's result, and with that
    /// of the next one's base.
    fn check_stage(
        &self,
        stage: usize,
        before: Option<&Delta<S>>,
        next: Option<&Delta<S>>,
    ) -> Result<()> {
        let result = before.and_then(|delta| Some((delta, delta.digests()[1]?)));
        let base = next.and_then(|delta| Some((delta, delta.digests()[0]?)));
        if result.is_none() && base.is_none() {
            return Ok(());
        }
        let found = digest_of(self.tensors.iter().filter_map(|tensor| {
            let (name, dtype, shape) = (tensor.base.name(), tensor.dtype(), tensor.shape());
            Some((name, dtype, shape, tensor.hash_after(stage)?))
        }));
        let hex = |digest: blake3::Hash| digest.to_hex().to_string();
        let compare = |(delta, expected): (&Delta<S>, blake3::Hash), is_base: bool| {
            if found == expected {
                return Ok(());
            }
            let (version, expected) = (delta.version().into(), hex(expected));
            let kind = match is_base {
                true => ErrorKind::WrongBase { version, expected, found: hex(found) },
                false => ErrorKind::WrongResult { version, expected, found: hex(found) },
            };
            Err(Error::from(kind).in_path(delta.path()))
        };
        result.map_or(Ok(()), |result| compare(result, false))?;
        base.map_or(Ok(()), |base| compare(base, true))
    }
}

impl<B: ReadAt, S: ReadAt> PatchedTensor<'_, B, S> {
    /// The name.
    pub(crate) fn name(&self) -> &str {
        self.base.name()
    }

    /// The number of the base's file that has it.
    pub(crate) fn file_index(&self) -> usize {
        self.base.file_index()
    }

    /// The BLAKE3 after so many deltas of the chain.
    fn hash_after(&self, stage: usize) -> Option<blake3::Hash> {
        let hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        hashes.get(self.links.partition_point(|(number, _)| *number < stage)).copied()
    }

    fn read(&self, sink: &mut Sink<'_>) -> Result<()> {
        let len = self.base.byte_len();
        let mut steps = self.links.iter().map(|link| Step::new(self, link, len));
        let mut steps = steps.by_ref().collect::<Result<Vec<_>>>()?;
        let mut sums = Sums::new(None, self.has_digests);
        let (mut offset, mut changed, mut scratch) = (0, Vec::new(), Vec::new());
        self.base.write_to(&mut |bytes| {
            for piece in bytes.chunks(PIECE) {
                sums.update(piece);
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
                self.options.advance(piece.len());
            }
            Ok(())
        })?;
        let mut hashes = Vec::from_iter(sums.blake3());
        for step in &mut steps {
            step.patch.finish()?;
            step.check()?;
            hashes.extend(step.sums.blake3().filter(|_| self.has_digests));
        }
        *self.hashes.lock().unwrap_or_else(PoisonError::into_inner) = hashes;
        Ok(())
    }
}

fn threads(links: usize) -> usize {
    default_threads().min(FRAMES / links.clamp(1, FRAMES))
}

/// One delta, while a tensor is read.
struct Step<'t, 'a, S> {
    delta: &'t Delta<S>,
    difference: &'t LazyTensor<'a, S>,
    patch: Patch<'a, S>,
    /// What the tensor is after it.
    sums: Sums,
}

impl<'t, 'a, S: ReadAt> Step<'t, 'a, S> {
    fn new<B>(
        tensor: &'t PatchedTensor<'a, B, S>,
        (number, difference): &'t (usize, LazyTensor<'a, S>),
        len: u64,
    ) -> Result<Self> {
        let delta = &tensor.chain.deltas()[*number];
        let patch = Patch::open(delta.encoding(), *difference, len)?;
        let sums = Sums::new(Some(delta.checksum_format()), tensor.has_digests);
        Ok(Self { delta, difference, patch, sums })
    }

    fn check(&self) -> Result<()> {
        let expected = self.delta.stored_checksum(self.difference).unwrap_or_default();
        let found = self.sums.checksum();
        if expected == found {
            return Ok(());
        }
        let kind = ErrorKind::WrongTensor {
            version: self.delta.version().into(),
            algorithm: self.delta.checksum_format().name(),
            expected: expected.into(),
            found,
        };
        Err(self.difference.locate(kind.into()))
    }
}

impl<B: ReadAt, S: ReadAt> TensorSource for PatchedTensor<'_, B, S> {
    fn dtype(&self) -> Dtype {
        self.base.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.base.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        self.read(sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_chain_the_fewer_threads() {
        for links in [0, 1, 2, 9, 33, 64, 65, 10_000] {
            let threads = threads(links);
            assert!((1..=default_threads()).contains(&threads));
            assert!(threads == 1 || threads * links <= FRAMES, "{links}: {threads}");
        }
        assert_eq!((threads(0), threads(64)), (default_threads().min(FRAMES), 1));
    }
}
