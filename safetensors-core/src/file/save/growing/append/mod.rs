//! Appends to a finished file: a new file gets its tensors.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::body::{BodyPlace, Home};
use super::series::Series;
use super::sync::Synced;
use super::synced::is_of_steps;
use super::{GrowingEntry, GrowingWriter, Tensors, Whole, Writing};
use crate::file::io::{FileSource, ReadAt, SafeTensors};
use crate::file::load::catalog::alias_of;
use crate::file::save::SaveOptions;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{Header, Metadata};
use crate::format::parallel::lock;

/// The finished file, which is copied at the end.
#[derive(Debug)]
pub(super) struct Before {
    header: Header,
    /// `None` while the new file is put in place, on a system that does not replace an open file.
    file: Option<FileSource>,
}

impl GrowingWriter {
    pub(super) fn append_to(path: &Path, options: &SaveOptions, synced: Synced) -> Result<Self> {
        let before = Before::open(path).map_err(|error| error.in_path(path))?;
        let header = before.header.clone();
        let options = SaveOptions { overwrite: true, ..options.clone() };
        let writing = Writing::create(path, &options, synced, Some(before))?;
        let mut tensors = Tensors::default();
        for tensor in header.iter() {
            let place = BodyPlace { home: Home::Before, start: 0, len: tensor.byte_len() };
            let whole = Whole::new(tensor.name(), tensor.dtype(), tensor.shape(), place);
            let whole = Whole { written: true.into(), synced: true.into(), ..whole };
            tensors.enter(tensor.name(), || Ok(GrowingEntry::Whole(whole)))?;
        }
        let mut metadata = header.metadata().clone();
        metadata.extend(options.metadata.clone());
        let is_alias = |(key, value): &(&String, &String)| {
            alias_of(key, value, |name| header.position(name)).is_some()
        };
        tensors.aliases = metadata.iter().filter(is_alias).map(|(key, _)| key.clone()).collect();
        Ok(Self::new(path, options, writing, tensors))
    }

    /// Continues a tensor of the finished file, or begins one.
    pub(super) fn grow_on(&self, mut series: Series) -> Result<Arc<Series>> {
        let mut tensors = lock(&self.shared.tensors);
        let Tensors { list, names, .. } = &mut *tensors;
        let found = names.find(&series.name, |i| list[i].name());
        if let Some(entry) = found.and_then(|i| list.get_mut(i))
            && let GrowingEntry::Whole(whole) = &**entry
            && matches!(whole.place.home, Home::Before)
        {
            series.go_on(whole.dtype, &whole.shape)?;
            let series = Arc::new(series);
            *entry = Arc::new(GrowingEntry::Growing(series.clone()));
            return Ok(series);
        }
        let series = Arc::new(series);
        tensors.enter(&series.name, || Ok(GrowingEntry::Growing(series.clone())))?;
        Ok(series)
    }
}

impl Before {
    fn open(path: &Path) -> Result<Self> {
        let file = SafeTensors::from_source(FileSource::open(path)?)?;
        Ok(Self { header: file.header().clone(), file: Some(file.into_source()) })
    }

    pub(super) fn place(&self, name: &str) -> Option<(&File, u64)> {
        let offset = self.header.get(name)?.data_offsets().start;
        Some((self.file.as_ref()?.file(), self.header.data_start() + offset))
    }

    /// Opens a changed or replaced file again, and returns its metadata. Fails if its tensors have
    /// changed.
    pub(super) fn refresh(&mut self, path: &Path) -> Result<Metadata> {
        if self.check().is_err() {
            match Self::open(path) {
                // A file that was removed is still open.
                Err(error) if is_missing(&error) && self.file.is_some() => {}
                opened => {
                    let opened = opened?;
                    if !opened.has_tensors_of(&self.header) {
                        let problem = "it has other tensors than when it was opened to append to \
                                       it: sync the new steps, and resume with the file as it is";
                        return Err(ErrorKind::Io(std::io::Error::other(problem)).into());
                    }
                    *self = opened;
                }
            }
        }
        let mut metadata = self.header.metadata().clone();
        metadata.retain(|key, _| !is_of_steps(key));
        Ok(metadata)
    }

    fn has_tensors_of(&self, other: &Header) -> bool {
        self.header.len() == other.len()
            && self.header.iter().all(|tensor| {
                other.get(tensor.name()).is_some_and(|old| {
                    (old.dtype(), old.shape()) == (tensor.dtype(), tensor.shape())
                })
            })
    }

    // The new file would lose a change.
    fn check(&self) -> Result<()> {
        let Some(file) = &self.file else {
            return Err(ErrorKind::Io(std::io::ErrorKind::NotFound.into()).into());
        };
        file.check_unchanged()?;
        if file.is_replaced()? {
            let replaced = "another file replaced it at this moment: finish again";
            return Err(Error::from(ErrorKind::Io(std::io::Error::other(replaced))));
        }
        Ok(())
    }

    /// Lets the new file replace this one, unless this one has changed.
    pub(super) fn release(&mut self) -> Result<()> {
        self.check()?;
        // Other systems than Unix may not replace an open file.
        self.file.take_if(|_| !cfg!(unix));
        Ok(())
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io(error) if error.kind() == std::io::ErrorKind::NotFound)
}
