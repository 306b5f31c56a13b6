//! Appending to a finished file: its tensors are those of a new file, and each can grow on.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::body::{BodyPlace, Home};
use super::kept::Kept;
use super::series::Series;
use super::sync::Synced;
use super::synced::is_of_steps;
use super::{GrowingEntry, GrowingWriter, Whole};
use crate::error::{Error, ErrorKind, Result};
use crate::hash;
use crate::io::{FileSource, ReadAt, SafeTensors};
use crate::load::catalog::alias_of;
use crate::save::SaveOptions;

/// The finished file that is appended to.
#[derive(Debug)]
pub(super) struct Before {
    file: Arc<FileSource>,
    /// Whether the new file takes its place.
    is_replaced: bool,
    /// Other names of its tensors.
    aliases: BTreeSet<String>,
}

impl GrowingWriter {
    /// Opens a finished file to append to it. All of its tensors and metadata stay.
    /// [`grow`](Self::grow) goes on with a tensor of the file:
    /// [`steps`](super::GrowingTensor::steps) says how many steps it has already.
    /// [`add`](Self::add) adds other tensors.
    ///
    /// The path keeps the old file until [`finish`](Self::finish) puts the new one in its place, so
    /// every reader finds the one or the other, whenever the process is killed. Appending costs the
    /// time of the new steps only. `finish` copies what the file had, once for all steps that were
    /// appended, and the kernel does so where it can. [Synced](Self::sync) steps survive a killed
    /// process: [`recover_synced`](super::recover_synced) then appends them to the file.
    ///
    /// ```
    /// use safetensors_core::save::GrowingWriter;
    /// use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("run.safetensors");
    /// # let options = SaveOptions::new();
    /// let append = |writer: GrowingWriter, values: &[f64]| {
    ///     let time = writer.grow("time", Dtype::F64, 0, &[])?;
    ///     time.extend(&TensorView::from_slice(&[values.len()], values)?)?;
    ///     writer.finish()
    /// };
    /// append(GrowingWriter::create(&path, &options)?, &[0.0, 0.5])?;
    /// append(GrowingWriter::append_to(&path, &options)?, &[1.0])?;
    ///
    /// let time = Checkpoint::open(&path)?.tensor("time")?.read()?;
    /// assert_eq!(time.into_vec::<f64>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// Metadata in the options replaces entries of the file with the same keys. If the file has
    /// recorded [digests](crate::digest) of its tensors, the new one does, too. A recorded SHA-256
    /// of all data is removed; [`Edit::record_digests`](crate::edit::Edit::record_digests) makes a
    /// new one. A file is not appended to if a manifest names a digest of its header
    /// ([`ErrorKind::InManifest`]).
    ///
    /// No tensor gets the name of an [alias](crate::Checkpoint::aliases) of the file
    /// ([`ErrorKind::DuplicateTensor`]). If a tensor grows, its aliases are names of the grown one.
    ///
    /// Only the file is appended to, not the index of a sharded checkpoint that it may belong to.
    ///
    /// # Errors
    ///
    /// Those of [`create`](Self::create) and of [`Header::parse`](crate::header::Header::parse);
    /// [`ErrorKind::Io`] if there is no file. [`finish`](Self::finish) fails with
    /// [`ErrorKind::Io`] if the file was changed or replaced meanwhile.
    pub fn append_to(path: impl AsRef<Path>, options: &SaveOptions) -> Result<Self> {
        let path = path.as_ref();
        let synced = Synced::in_place_of(path).map_err(|error| error.in_path(path))?;
        Self::append_with(path, path, options, synced)
    }

    /// A writer of `to` that has what the file at `from` has.
    pub(super) fn append_with(
        from: &Path,
        to: &Path,
        options: &SaveOptions,
        synced: Synced,
    ) -> Result<Self> {
        let file = SafeTensors::from_source(FileSource::open(from)?);
        let file = file.map_err(|error| error.in_path(from))?;
        let mut metadata = file.metadata().clone();
        let is_replaced = is_same_path(from, to);
        let overwrite = options.overwrite || is_replaced;
        let mut options = SaveOptions { overwrite, ..options.clone() };
        options.digests |= metadata.contains_key(hash::KEY);
        metadata.retain(|key, _| !is_of_steps(key));
        metadata.extend(options.metadata);
        options.metadata = metadata;
        let mut writer = Self::create_with(to, &options, synced)?;
        let header = file.header().clone();
        let is_alias = |(key, value): &(&String, &String)| {
            alias_of(key, value, |name| header.position(name)).is_some()
        };
        let aliases = options.metadata.iter().filter(is_alias).map(|(key, _)| key.clone());
        let aliases = aliases.collect();
        let file = Arc::new(file.into_source());
        for tensor in header.iter() {
            writer.enter(tensor.name(), || {
                let start = header.data_start() + tensor.data_offsets().start;
                let home = Home::Before(file.clone());
                Ok(GrowingEntry::Whole(Whole {
                    name: tensor.name().into(),
                    dtype: tensor.dtype(),
                    shape: tensor.shape().into(),
                    place: BodyPlace { home, start, len: tensor.byte_len() },
                    written: AtomicBool::new(true),
                    synced: AtomicBool::new(true),
                }))
            })?;
        }
        writer.before = Some(Before { file, is_replaced, aliases });
        Ok(writer)
    }

    /// Whether the file that is appended to has a tensor of which this is another name.
    pub(super) fn is_alias(&self, name: &str) -> bool {
        self.before.as_ref().is_some_and(|before| before.aliases.contains(name))
    }

    /// Lets a tensor of the file that is appended to grow, or a new one.
    pub(super) fn grow_on(&self, mut series: Series) -> Result<Arc<Series>> {
        {
            let mut tensors = self.lock();
            let super::Tensors { list, names, .. } = &mut *tensors;
            let found = names.find(&series.name, |i| list[i].name());
            if let Some(entry) = found.and_then(|i| list.get_mut(i))
                && let GrowingEntry::Whole(whole) = &**entry
                && let Home::Before(file) = &whole.place.home
            {
                series.go_on(whole.dtype, &whole.shape, |steps| Kept {
                    file: file.clone(),
                    start: whole.place.start,
                    steps,
                })?;
                let series = Arc::new(series);
                *entry = Arc::new(GrowingEntry::Growing(series.clone()));
                return Ok(series);
            }
        }
        let name = series.name.clone();
        let series = Arc::new(series);
        self.enter(&name, || Ok(GrowingEntry::Growing(series.clone())))?;
        Ok(series)
    }
}

/// Whether two paths lead to one name in one directory, by whichever links.
fn is_same_path(a: &Path, b: &Path) -> bool {
    let canonical = [a, b].map(fs::canonicalize);
    a == b || matches!(&canonical, [Ok(a), Ok(b)] if a == b)
}

impl Before {
    /// Fails if the file has changed, or another has taken its place. The new file would lose that.
    pub(super) fn check(&self) -> Result<()> {
        self.file.check_unchanged().map_err(ErrorKind::Io)?;
        if self.is_replaced && self.file.is_replaced().map_err(ErrorKind::Io)? {
            let replaced = "the file has been replaced since it was opened to append to it";
            return Err(Error::from(ErrorKind::Io(std::io::Error::other(replaced))));
        }
        Ok(())
    }
}
