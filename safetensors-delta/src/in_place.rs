//! Applying deltas to their base in place.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::digest::KEY;
use safetensors_core::edit::InPlace;
use safetensors_core::framework::{in_parallel, refuse_cached};
use safetensors_core::io::FileSource;
use safetensors_core::{Checkpoint, ErrorKind as CoreKind, LazyTensor, ReadAt, TensorSource};

use crate::chain::Chain;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::Journal;
use crate::options::Options;
use crate::patched::Patched;
use crate::sums::{Sums, digest_of};

impl<S: ReadAt> Chain<S> {
    /// Applies the deltas to a base on the local disk in place: of its files, the bytes that differ
    /// are written, and no copy is made. Whatever interrupts it, the base is the old checkpoint,
    /// the new one, or refused by every reader until the next call completes it.
    ///
    /// First everything is checked as [`apply`](Chain::apply) does it, and what is to be written is
    /// saved as a journal, a hidden directory beside the index or the file of the base:
    /// `.NAME.delta-journal`. Then a mark in each header makes readers refuse the files
    /// ([`TornData`](CoreKind::TornData)), the bytes are written, the marks are removed, and then
    /// the journal is. Each step is on the disk before the next begins, unless
    /// [`Options::durable`] is off. A call that finds marked files and their journal writes it
    /// again and completes that change, before it applies its own deltas, if these are others. If
    /// the base already has the digest that they lead to, or for deltas without digests the
    /// checksums of all tensors that they change, nothing is done.
    ///
    /// Files are changed under all their names (hard links). Programs that have the files open or
    /// mapped see the bytes change, so there should be none. The journal takes space: about that of
    /// the positions and values of the bytes that differ, compressed, and never more than the
    /// compressed tensors.
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
    /// use safetensors_delta::{Chain, Options, make};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// # let old = [1.0_f32, 2.0];
    /// # save(&path, [("w", TensorView::from_slice(&[2], &old)?)], &SaveOptions::new())?;
    /// let base = Checkpoint::open(&path)?;
    /// let new = [("w", TensorView::from_slice(&[2], &[1.0_f32, 2.5])?)];
    /// let delta = make(&base, new, dir.path().join("delta"), &Options::new())?;
    /// drop(base);
    /// Chain::new([delta])?.apply_in_place(&path, &Options::new())?;
    /// let base = Checkpoint::open(&path)?;
    /// assert_eq!(base.tensor("w")?.read()?.as_slice::<f32>()?, [1.0, 2.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Before a byte changes, the errors of [`apply`](Chain::apply) about the deltas and their base;
    /// [`ErrorKind::NotInPlace`] if the result has other tensors or metadata, or the base has
    /// recorded [digests](safetensors_core::digest), which would become wrong;
    /// [`ErrorKind::FileElsewhere`], also if a link leads there; [`ErrorKind::OtherJournal`];
    /// [`InHubCache`](CoreKind::InHubCache);
    /// [`Io`](CoreKind::Io), also if an edit has locked a file. If writing fails, the base stays
    /// marked until the next call.
    pub fn apply_in_place(&self, base: impl AsRef<Path>, options: &Options) -> Result<()> {
        let place = place_of(base.as_ref())?;
        let journal = Journal::beside(&place);
        if let Some(result) = journal.complete(options)?
            && self.result_digest() == Some(result)
        {
            return Ok(());
        }
        let base = Checkpoint::open(&place)?;
        let files = base.files().iter().map(|file| InPlace::open(file.path(), options.durable));
        let mut files = files.collect::<Result<Vec<_>>>()?;
        if files.iter().any(|file| file.number().is_some()) {
            // Another process has begun since, and ended. Its journal is not to be replaced.
            return Err(base.in_first_path(CoreKind::TornData.into()));
        }
        match self.write_journal(&base, &journal, &files, options) {
            Err(error) if is_other_base(&error) && self.is_applied(&base)? => return Ok(()),
            written => written?,
        }
        let unchanged = check_unchanged(&base).and_then(|()| journal.begin(&mut files));
        if let Err(error) = unchanged {
            // Nothing is written yet. What stays is completed or removed by the next call.
            return files
                .iter_mut()
                .try_for_each(end)
                .and_then(|()| journal.remove())
                .and(Err(error));
        }
        drop(base);
        journal.write(&mut files, options)?;
        journal.remove()
    }

    /// Checks everything, and saves what is to be written.
    fn write_journal(
        &self,
        base: &Checkpoint<FileSource>,
        journal: &Journal,
        files: &[InPlace],
        options: &Options,
    ) -> Result<()> {
        let refused = |why| Err(base.in_first_path(ErrorKind::NotInPlace { why }.into()));
        if !Patched::new(base, self, options, None)?.is_like_base() {
            return refused("the result has other tensors or other metadata");
        }
        if base.files().iter().any(|file| file.safetensors().metadata().contains_key(KEY)) {
            return refused("recorded digests in it would become wrong");
        }
        self.squash_if(base, journal.path(), options.of_journal(), |new| {
            journal.add_files(new, base, files)
        })
    }

    fn result_digest(&self) -> Option<blake3::Hash> {
        self.deltas().last().and_then(|delta| delta.digests()[1])
    }

    /// Whether the base is what the deltas lead to: all of it, or without a digest each tensor that
    /// they change.
    fn is_applied(&self, base: &Checkpoint<FileSource>) -> Result<bool> {
        let Some(expected) = self.result_digest() else { return self.has_checksums_of(base) };
        let tensors: Vec<_> = base.tensors().collect();
        let hashes = in_parallel(&tensors, 0, |tensor, _: &mut ()| {
            Ok(sums_of(tensor, Sums::new(None, true))?.blake3())
        })?;
        let lines = tensors.iter().zip(hashes);
        let lines = lines.filter_map(|(it, hash)| Some((it.name(), it.dtype(), it.shape(), hash?)));
        Ok(digest_of(lines) == expected)
    }

    /// Whether each tensor has the checksum that the last delta says which changes it.
    fn has_checksums_of(&self, base: &Checkpoint<FileSource>) -> Result<bool> {
        let mut last = BTreeMap::new();
        for delta in self.deltas() {
            last.extend(delta.changes().map(|(name, _)| (name, delta)));
        }
        let are_right = in_parallel(last, 0, |(name, delta), _: &mut ()| {
            let (Some(tensor), Some(bytes)) = (base.get(name), delta.bytes_of(name)) else {
                return Ok(false);
            };
            let sums = sums_of(&tensor, Sums::new(Some(delta.checksum_format()), false))?;
            Ok(delta.check_sums(&bytes, &sums).is_ok())
        })?;
        Ok(!are_right.contains(&false))
    }
}

/// Adds the bytes of a tensor.
fn sums_of(tensor: &LazyTensor<'_, FileSource>, mut sums: Sums) -> Result<Sums> {
    tensor.write_to(&mut |bytes| {
        sums.update(bytes);
        Ok(())
    })?;
    Ok(sums)
}

/// The index or the file that a path means, under the name that the journal goes by. A link to an
/// index is not followed: the files lie beside the link.
fn place_of(base: &Path) -> Result<PathBuf> {
    match CheckpointPath::find(base)? {
        CheckpointPath::File(path) => {
            // Of where the links lead, the cache may not be known any more.
            refuse_cached(&path).map_err(|error| error.in_path(&path))?;
            path.canonicalize().map_err(|error| Error::from(error).in_path(&path))
        }
        CheckpointPath::Index(path) => {
            let home = path.parent().filter(|home| !home.as_os_str().is_empty());
            let home = home.unwrap_or(Path::new(".")).canonicalize();
            let home = home.map_err(|error| Error::from(error).in_path(&path))?;
            Ok(home.join(path.file_name().unwrap_or_default()))
        }
    }
}

/// Whether an error says that the base is another one than that of the deltas.
fn is_other_base(error: &Error) -> bool {
    let other = error.other::<ErrorKind>();
    matches!(other, Some(ErrorKind::WrongTensor { .. } | ErrorKind::WrongBase { .. }))
}

/// Fails if a file of the base was changed or replaced since it was opened.
fn check_unchanged(base: &Checkpoint<FileSource>) -> Result<()> {
    base.check_unchanged()?;
    for file in base.files() {
        let replaced = file.safetensors().source().is_replaced();
        let error = match replaced {
            Ok(false) => continue,
            Ok(true) => std::io::Error::other("the file has been replaced since it was opened"),
            Err(error) => error,
        };
        return Err(Error::from(CoreKind::Io(error)).in_path(file.path()));
    }
    Ok(())
}

fn end(file: &mut InPlace) -> Result<()> {
    if file.number().is_some() { file.end() } else { Ok(()) }
}
