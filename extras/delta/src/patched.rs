//! [`Patched`]: the tensors that the deltas of a chain make of a base.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use safetensors_core::framework::{default_threads, in_parallel, most_expanded};
use safetensors_core::save::Sink;
use safetensors_core::{
    Checkpoint, Dtype, LazyTensor, Metadata, ReadAt, TensorSource, lock, shape,
};

use crate::chain::Chain;
use crate::delta::Delta;
use crate::error::{Error, ErrorKind, Result};
use crate::extra::{Change, Form};
use crate::frame::whole;
use crate::options::Options;
use crate::passes::{Bytes, FRAMES, Link, Pass};
use crate::sums::{Line, digest_of};

/// The tensors of a base, and the tensors that deltas add, as they are after the deltas of a chain.
/// They are computed and checked while they are read. [`check`](Patched::check) compares the
/// digests of all tensors together.
pub(crate) struct Patched<'a, B, S> {
    chain: &'a Chain<S>,
    tensors: Vec<PatchedTensor<'a, B, S>>,
}

/// One of them, or one that a delta removes.
pub(crate) struct PatchedTensor<'a, B, S> {
    name: &'a str,
    base: Option<LazyTensor<'a, B>>,
    /// The deltas that change it, by their numbers in the chain.
    links: Vec<Link<'a, S>>,
    /// Its dtype and shape after the deltas, or before it was removed.
    form: Form<'a>,
    chain: &'a Chain<S>,
    options: &'a Options,
    /// The directory of files without names.
    directory: PathBuf,
    /// Whether the chain has digests of whole checkpoints.
    has_digests: bool,
    /// The BLAKE3 of the base and of the tensor after each link, once it is read; `None` where
    /// there is no such tensor.
    hashes: Mutex<Vec<Option<blake3::Hash>>>,
}

impl<'a, B: ReadAt, S: ReadAt> Patched<'a, B, S> {
    /// Finds the tensors that each delta changes, adds and removes. Reads only the sizes of the
    /// tensors that a delta has whole. A file that takes a tensor between two passes over a long
    /// chain has no name, and is next to the files that are written, if any are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotInBase`], [`ErrorKind::InBase`], [`ErrorKind::ContentSize`],
    /// [`ErrorKind::TooExpanded`].
    pub(crate) fn new(
        base: &'a Checkpoint<B>,
        chain: &'a Chain<S>,
        options: &'a Options,
        directory: Option<&Path>,
    ) -> Result<Self> {
        let directory = directory.map_or_else(std::env::temp_dir, Path::to_owned);
        let has_digests = chain.names_digest();
        let tensor = |name, base, form| PatchedTensor {
            name,
            base,
            links: Vec::new(),
            form,
            chain,
            options,
            directory: directory.clone(),
            has_digests,
            hashes: Mutex::default(),
        };
        let stored = base.tensors();
        let mut tensors: Vec<_> =
            stored.map(|it| tensor(it.name(), Some(it), (it.dtype(), it.shape()))).collect();
        let mut by_name: HashMap<_, _> =
            tensors.iter().enumerate().map(|(number, it)| (it.name, number)).collect();
        for (number, delta) in chain.deltas().iter().enumerate() {
            let before = tensors.iter().filter(|it| !it.is_removed());
            let before = before.map(|it| byte_len(it.form)).fold(0, u64::saturating_add);
            let mut compressed = 0_u64;
            let mut expanded = 0_u64;
            for (name, change) in delta.changes() {
                let bytes = delta.bytes_of(name);
                let found = by_name.get(name).copied();
                let is_there = found.is_some_and(|found| !tensors[found].is_removed());
                check_change(delta, name, change, is_there)?;
                if let (Some(bytes), Some(form)) = (bytes, change.whole()) {
                    compressed = compressed.saturating_add(bytes.byte_len());
                    expanded = expanded.saturating_add(whole(bytes, form)?.1);
                }
                let found = found.unwrap_or_else(|| {
                    by_name.insert(name, tensors.len());
                    tensors.push(tensor(name, None, (Dtype::U8, &[])));
                    tensors.len() - 1
                });
                let tensor = &mut tensors[found];
                tensor.form = change.whole().unwrap_or(tensor.form);
                tensor.links.push(Link { number, change, bytes });
            }
            check_expansion(before, compressed, expanded)
                .map_err(|error| error.in_path(delta.path()))?;
        }
        Ok(Self { chain, tensors })
    }

    /// Returns the tensors of the result: the base's in their order, then the added ones.
    pub(crate) fn result(&self) -> impl Iterator<Item = &PatchedTensor<'a, B, S>> {
        self.tensors.iter().filter(|tensor| !tensor.is_removed())
    }

    /// Returns the metadata of the result, if a delta has it.
    pub(crate) fn metadata(&self) -> Option<&'a Metadata> {
        self.chain.deltas().iter().rev().find_map(Delta::metadata)
    }

    /// Returns `true` if the result has the names, the dtypes, the shapes and the metadata of the
    /// base.
    pub(crate) fn is_like_base(&self) -> bool {
        self.metadata().is_none()
            && self.tensors.iter().all(|tensor| match &tensor.base {
                Some(base) => !tensor.is_removed() && tensor.form == (base.dtype(), base.shape()),
                None => tensor.is_removed(),
            })
    }

    /// Returns the number of threads that may read tensors at a time: fewer for a long chain,
    /// because each delta that changes a tensor takes memory while it is read.
    pub(crate) fn threads(&self) -> usize {
        threads(self.tensors.iter().map(|tensor| tensor.links.len()).max().unwrap_or_default())
    }

    /// Reads tensors that do not become part of the result, so that they are checked.
    pub(crate) fn read_removed(&self) -> Result<()> {
        self.read(self.tensors.iter().filter(|tensor| tensor.is_removed()))
    }

    /// Reads all tensors, so that they are checked.
    pub(crate) fn read_all(&self) -> Result<()> {
        self.read(self.tensors.iter())
    }

    fn read<'t>(&'t self, tensors: impl Iterator<Item = &'t PatchedTensor<'a, B, S>>) -> Result<()>
    where
        'a: 't,
    {
        let tensors: Vec<_> = tensors.collect();
        let read = |tensor: &PatchedTensor<'a, B, S>, _: &mut ()| tensor.write_to(&mut |_| Ok(()));
        in_parallel(tensors, self.threads(), read).map(drop)
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

    /// Compares the digest after this many deltas with the result digest of the last one, and with
    /// the base digest of the next one.
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
        let found = digest_of(self.tensors.iter().filter_map(|tensor| tensor.line_after(stage)));
        let hex = |digest: blake3::Hash| digest.to_hex().to_string();
        let compare = |(delta, expected): (&Delta<S>, blake3::Hash), is_base: bool| {
            if found == expected {
                return Ok(());
            }
            let version = delta.version().into();
            let expected = hex(expected);
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

/// Returns the bytes of a tensor.
fn byte_len((dtype, shape): Form<'_>) -> u64 {
    shape::byte_len(dtype, shape).unwrap_or(u64::MAX)
}

/// Fails if tensors of `expanded` bytes come from too few compressed ones, and from a base of too
/// few bytes.
pub(crate) fn check_expansion(base: u64, compressed: u64, expanded: u64) -> Result<()> {
    let limit = most_expanded(compressed, base);
    if expanded <= limit {
        return Ok(());
    }
    Err(ErrorKind::TooExpanded { limit, found: expanded }.into())
}

/// Fails if a delta changes or removes a tensor that is not there, or adds one that is.
fn check_change<S: ReadAt>(
    delta: &Delta<S>,
    name: &str,
    change: Change<'_>,
    is_there: bool,
) -> Result<()> {
    let version = || delta.version().into();
    let kind = match (change, is_there) {
        (Change::Added { .. }, true) => ErrorKind::InBase { version: version() },
        (Change::Added { .. }, false) | (_, true) => return Ok(()),
        (_, false) => ErrorKind::NotInBase { version: version() },
    };
    Err(match delta.bytes_of(name) {
        Some(bytes) => bytes.locate(kind.into()),
        None => Error::from(kind).in_tensor(name).in_path(delta.path()),
    })
}

impl<'a, B: ReadAt, S: ReadAt> PatchedTensor<'a, B, S> {
    pub(crate) fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the number of the base's file that has it; `None` if none has.
    pub(crate) fn file_index(&self) -> Option<usize> {
        self.base.as_ref().map(LazyTensor::file_index)
    }

    /// Returns `true` if the result does not have it.
    fn is_removed(&self) -> bool {
        self.links.last().map_or(self.base.is_none(), |link| link.change == Change::Removed)
    }

    /// Returns the line of the digest after this many deltas of the chain.
    fn line_after(&self, stage: usize) -> Option<Line<'_>> {
        let hashes = lock(&self.hashes);
        let count = self.links.partition_point(|link| link.number < stage);
        let hash = hashes.get(count).copied()??;
        let whole = self.links[..count].iter().rev().find_map(|link| link.change.whole());
        let base = || self.base.as_ref().map(|base| (base.dtype(), base.shape()));
        let (dtype, shape) = whole.or_else(base)?;
        Some((self.name, dtype, shape, hash))
    }

    /// Passes the result of the tensor to the sink. Up to the last link that has the tensor whole,
    /// bytes are only checked.
    fn read(&self, sink: &mut Sink<'_>) -> Result<()> {
        let is_difference = |link: &Link<'a, S>| link.change == Change::Changed;
        let pass = Pass {
            deltas: self.chain.deltas(),
            options: self.options,
            directory: &self.directory,
            has_digests: self.has_digests,
        };
        let mut hashes = Vec::with_capacity(self.links.len() + 1);
        let mut links = &self.links[..];
        let mut bytes = self.base.map(Bytes::Base);
        if bytes.is_none() {
            hashes.push(None);
        }
        loop {
            let len = links.iter().position(|link| !is_difference(link)).unwrap_or(links.len());
            let (differences, rest) = links.split_at(len);
            let is_result = rest.iter().all(|link| link.bytes.is_none());
            let mut nowhere = |_: &[u8]| Ok(());
            let sink: &mut Sink<'_> = if is_result { &mut *sink } else { &mut nowhere };
            if let Some(bytes) = bytes.take() {
                pass.run(bytes, differences, sink, &mut hashes)?;
            }
            let Some((link, rest)) = rest.split_first() else { break };
            bytes = link
                .change
                .whole()
                .and_then(|form| Some(Bytes::Whole(link.number, link.bytes?, form)));
            if bytes.is_none() {
                hashes.push(None);
            }
            links = rest;
        }
        *lock(&self.hashes) = hashes;
        Ok(())
    }
}

fn threads(links: usize) -> usize {
    default_threads().min(FRAMES / links.clamp(1, FRAMES))
}

impl<B: ReadAt, S: ReadAt> TensorSource for PatchedTensor<'_, B, S> {
    fn dtype(&self) -> Dtype {
        self.form.0
    }

    fn shape(&self) -> &[usize] {
        self.form.1
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
