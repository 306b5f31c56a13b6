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

/// Computed and checked while they are read. [`check`](Patched::check) then compares the digests of
/// all.
pub(crate) struct Patched<'a, B, S> {
    chain: &'a Chain<S>,
    tensors: Vec<PatchedTensor<'a, B, S>>,
}

pub(crate) struct PatchedTensor<'a, B, S> {
    name: &'a str,
    base: Option<LazyTensor<'a, B>>,
    links: Vec<Link<'a, S>>,
    /// After the deltas, or before its removal.
    form: Form<'a>,
    chain: &'a Chain<S>,
    options: &'a Options,
    directory: PathBuf,
    has_digests: bool,
    /// The BLAKE3 of the base and after each link, once read; `None` for an absent tensor.
    hashes: Mutex<Vec<Option<blake3::Hash>>>,
}

impl<'a, B: ReadAt, S: ReadAt> Patched<'a, B, S> {
    /// Reads only the sizes of entirely stored tensors. Unnamed files between passes are in
    /// `directory`.
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

    /// Returns the base's tensors in order, then the added ones.
    pub(crate) fn result(&self) -> impl Iterator<Item = &PatchedTensor<'a, B, S>> {
        self.tensors.iter().filter(|tensor| !tensor.is_removed())
    }

    pub(crate) fn metadata(&self) -> Option<&'a Metadata> {
        self.chain.deltas().iter().rev().find_map(Delta::metadata)
    }

    pub(crate) fn is_like_base(&self) -> bool {
        self.metadata().is_none()
            && self.tensors.iter().all(|tensor| match &tensor.base {
                Some(base) => !tensor.is_removed() && tensor.form == (base.dtype(), base.shape()),
                None => tensor.is_removed(),
            })
    }

    /// Fewer for a long chain: each delta that changes a tensor takes memory.
    pub(crate) fn threads(&self) -> usize {
        threads(self.tensors.iter().map(|tensor| tensor.links.len()).max().unwrap_or_default())
    }

    pub(crate) fn read_removed(&self) -> Result<()> {
        self.read(self.tensors.iter().filter(|tensor| tensor.is_removed()))
    }

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

    pub(crate) fn check(&self) -> Result<()> {
        let deltas = self.chain.deltas();
        (0..=deltas.len()).try_for_each(|stage| {
            let before = stage.checked_sub(1).and_then(|number| deltas.get(number));
            self.check_stage(stage, before, deltas.get(stage))
        })
    }

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

fn byte_len((dtype, shape): Form<'_>) -> u64 {
    shape::byte_len(dtype, shape).unwrap_or(u64::MAX)
}

/// Too few compressed bytes, and too small a base, are an error.
pub(crate) fn check_expansion(base: u64, compressed: u64, expanded: u64) -> Result<()> {
    let limit = most_expanded(compressed, base);
    if expanded <= limit {
        return Ok(());
    }
    Err(ErrorKind::TooExpanded { limit, found: expanded }.into())
}

/// A changed or removed tensor must be there, an added one must not.
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

    /// `None` if no file of the base has it.
    pub(crate) fn file_index(&self) -> Option<usize> {
        self.base.as_ref().map(LazyTensor::file_index)
    }

    fn is_removed(&self) -> bool {
        self.links.last().map_or(self.base.is_none(), |link| link.change == Change::Removed)
    }

    fn line_after(&self, stage: usize) -> Option<Line<'_>> {
        let hashes = lock(&self.hashes);
        let count = self.links.partition_point(|link| link.number < stage);
        let hash = hashes.get(count).copied()??;
        let whole = self.links[..count].iter().rev().find_map(|link| link.change.whole());
        let base = || self.base.as_ref().map(|base| (base.dtype(), base.shape()));
        let (dtype, shape) = whole.or_else(base)?;
        Some((self.name, dtype, shape, hash))
    }

    /// Up to the last entirely stored version, bytes are only checked.
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
    fn longer_chains_use_fewer_threads() {
        for links in [0, 1, 2, 9, 33, 64, 65, 10_000] {
            let threads = threads(links);
            assert!((1..=default_threads()).contains(&threads));
            assert!(threads == 1 || threads * links <= FRAMES, "{links}: {threads}");
        }
        assert_eq!((threads(0), threads(64)), (default_threads().min(FRAMES), 1));
    }
}
