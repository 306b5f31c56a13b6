//! [`commit_parts`]: names files with parts of tensors, without an index.

use std::path::Path;

use super::commit::{NewFiles, finish};
use super::destination::refuse_others;
use super::placed_files::PlacedFiles;
use crate::checkpoint::ShardOptions;
use crate::checkpoint::store::WritableDirectory;
use crate::file::io::{FileSource, SafeTensors};
use crate::format::error::Result;
use crate::format::header::ATTEMPT_KEY;

/// Gives the written files of all ranks their names. An attempt that is killed here can be
/// repeated.
// Each file records their number, so nothing opens until all are there. The last file goes first: it
// has the ends of divided tensors, so until their other parts follow, they have a gap, which PyTorch
// finds as well.
pub(crate) fn commit_parts<D: WritableDirectory>(
    directory: &mut D,
    options: &ShardOptions,
    new: &NewFiles,
) -> Result<()> {
    let files: Vec<String> = new.index.shards().map(|(file, _)| file.to_owned()).collect();
    let attempt = new.index.metadata.get(ATTEMPT_KEY).map_or("", String::as_str);
    check_alone(&directory.path(), &files, attempt)?;
    let mut others = PlacedFiles::default();
    let mut placed = Vec::new();
    let put = others.put(directory, options, &new.beside).and_then(|()| {
        for file in files.iter().rev() {
            placed.push((file, directory.place(file, &[])?));
        }
        Ok(())
    });
    if let Err(error) = put {
        // The error of the save is reported, not these.
        for (file, version) in &placed {
            _ = version.as_ref().map(|version| directory.take_back(file, version));
        }
        others.put_back(directory);
        return Err(error);
    }
    finish(directory)
}

/// Fails if a directory has other files of tensors: readers would take them for parts.
pub(crate) fn check_alone(directory: &Path, files: &[String], attempt: &str) -> Result<()> {
    if !directory.is_dir() {
        return Ok(());
    }
    let Some(file) = files.first() else { return Ok(()) };
    refuse_others(directory, file, |name| {
        files.iter().any(|own| own == name) && is_of(directory, name, attempt)
    })
}

fn is_of(directory: &Path, name: &str, attempt: &str) -> bool {
    let opened = FileSource::open(directory.join(name)).and_then(SafeTensors::from_source);
    opened.is_ok_and(|file| file.metadata().get(ATTEMPT_KEY).is_some_and(|it| it == attempt))
}
