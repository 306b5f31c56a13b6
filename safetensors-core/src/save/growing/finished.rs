//! Whether a run that has left synced steps has finished its file.
//!
//! A process can be killed when the file is in its place and the synced steps are not removed yet.
//! So a run that is about to put the file in place first writes a mark to the directory of synced
//! steps. From then on the values decide: a file that has all that was synced has nothing to gain
//! from it. Its header says nothing, because the file may have been edited since, and an earlier
//! run may have had the same one.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::synced::{Growth, continues, file_name, last_file};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::{Digest, Hasher};
use crate::io::remove::unless_missing;
use crate::io::{FileSource, ReadAt, SafeTensors, failpoint};
use crate::load::LazyTensor;
use crate::save::{AtomicFile, SaveOptions};
use crate::slice::TensorPart;
use crate::tensor::TensorSource;

/// The name of the mark. It has the number of synced files.
const MARK: &str = "finishing";

/// Says that the file that has what these synced files have is about to be put in place.
pub(super) fn mark(directory: &Path, files: u32, durable: bool) -> Result<()> {
    let path = directory.join(MARK);
    let mut file = AtomicFile::create(&path, &SaveOptions::new().durable(durable))?;
    write!(file, "{files}").map_err(ErrorKind::Io)?;
    file.commit()
}

/// The number of synced files that the mark says; `None` if there is no mark. Fewer are left after
/// a removal that was interrupted.
pub(super) fn marked_files(directory: &Path) -> Result<Option<u32>> {
    match fs::read_to_string(directory.join(MARK)) {
        Ok(mark) => Ok(mark.parse().ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(error, directory)),
    }
}

/// Whether the file at a path is the one that the run with these synced steps has finished.
pub(super) fn is_finished(path: &Path, directory: &Path) -> Result<bool> {
    // A file that was appended to has the new steps only if the run, or a recovery, has put it
    // there.
    if marked_files(directory)?.is_none() && !continues(directory)? {
        return Ok(false);
    }
    match FileSource::open(path).and_then(SafeTensors::from_source) {
        Ok(file) => has_all(&file, directory).map_err(|error| error.in_path(path)),
        // A missing file and one of another format have nothing.
        Err(error) if !may_be_finished(&error) => Ok(false),
        Err(error) => Err(error.in_path(path)),
    }
}

/// Whether a file that fails to be opened like this can still be the finished one.
fn may_be_finished(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Io(error) => error.kind() != io::ErrorKind::NotFound,
        kind => matches!(kind, ErrorKind::TornHeader),
    }
}

/// Removes the synced files, counted from 1, and their directory. What is missing is no error.
///
/// The last file goes first, and the mark goes last. So if this is interrupted, the rest is still
/// recognised.
pub(super) fn remove(directory: &Path, files: u32) -> io::Result<()> {
    remove_files(directory, files)?;
    step(|| fs::remove_file(directory.join(MARK)))?;
    step(|| fs::remove_dir(directory))
}

/// Removes the synced files, counted from 1.
pub(super) fn remove_files(directory: &Path, files: u32) -> io::Result<()> {
    let remove = |number| step(|| fs::remove_file(directory.join(file_name(number))));
    (1..=files).rev().try_for_each(remove)
}

fn step(remove: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    failpoint::hit("remove synced steps")?;
    unless_missing(remove())
}

/// Whether a file has all tensors and steps that were synced, with the same values.
fn has_all(finished: &SafeTensors<FileSource>, directory: &Path) -> Result<bool> {
    let mut steps: HashMap<String, usize> = HashMap::new();
    for number in 1..=last_file(directory)?.unwrap_or(0) {
        let path = directory.join(file_name(number));
        let part = SafeTensors::from_source(FileSource::open(&path)?);
        let part = part.map_err(|error| error.in_path(&path))?;
        for tensor in part.tensors() {
            let Some(whole) = finished.get(tensor.name()) else { return Ok(false) };
            let growth = Growth::of(&part, &tensor).map_err(|error| error.in_path(&path))?;
            let first = growth.map(|Growth { axis, kept }| {
                let kept = usize::try_from(kept).unwrap_or(usize::MAX);
                let first = steps.entry(tensor.name().into()).or_insert(kept);
                let next = first.saturating_add(tensor.shape()[axis]);
                (axis, std::mem::replace(first, next))
            });
            if !has(&whole, &tensor, first)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether a tensor is the same as another or, given the axis and the first position, has the steps
/// of the other there.
fn has<S: ReadAt>(
    whole: &LazyTensor<'_, S>,
    tensor: &LazyTensor<'_, S>,
    first: Option<(usize, usize)>,
) -> Result<bool> {
    let Some((axis, first)) = first else { return is_same(whole, tensor) };
    let steps = tensor.shape()[axis];
    let most = whole.shape().get(axis).and_then(|len| len.checked_sub(first));
    match most {
        Some(most) if steps <= most => {
            is_same(&whole.slice(TensorPart::span(axis, first, steps))?, tensor)
        }
        _ => Ok(false),
    }
}

fn is_same(a: &impl TensorSource, b: &impl TensorSource) -> Result<bool> {
    Ok(a.dtype() == b.dtype() && a.shape() == b.shape() && digest(a)? == digest(b)?)
}

fn digest(tensor: &impl TensorSource) -> Result<Digest> {
    let mut hasher = Hasher::default();
    tensor.write_to(&mut |bytes| {
        hasher.update(bytes);
        Ok(())
    })?;
    Ok(hasher.finish())
}
