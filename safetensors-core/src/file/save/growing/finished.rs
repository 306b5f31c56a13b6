//! Finds out whether a run that has left synced steps has finished its file.
//!
//! A process can be killed before it removes the steps of a file in place. So it first writes a
//! mark. From then on the values decide: a file with all synced steps needs no directory. The
//! header cannot decide: it may have been edited, and an earlier run may have had an equal one.
//! Without a mark, a file that is newer than the steps is compared too.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use super::synced::{Growth, Listed, MARK, file_name, open};
use crate::file::hash::{Digest, Hasher};
use crate::file::io::{FileSource, ReadAt, SafeTensors};
use crate::file::load::LazyTensor;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::CONTINUES_KEY;
use crate::format::slice::TensorPart;
use crate::format::tensor::TensorSource;

/// Returns `true` if the run of the steps or a recovery has finished it.
pub(super) fn is_finished(path: &Path, directory: &Path, listed: &Listed) -> Result<bool> {
    let may_be_finished = listed.marked.is_some()
        || age(path, directory, listed).is_some_and(Ordering::is_ge)
        || continues(directory, listed)?;
    if !may_be_finished {
        return Ok(false);
    }
    match FileSource::open(path).and_then(SafeTensors::from_source) {
        Ok(file) => has_all(&file, directory, listed).map_err(|error| error.in_path(path)),
        // A missing file and one of another format have nothing.
        Err(error) => match error.kind() {
            ErrorKind::Io(io) if io.kind() != io::ErrorKind::NotFound => Err(error.in_path(path)),
            ErrorKind::TornHeader => Err(error.in_path(path)),
            _ => Ok(false),
        },
    }
}

/// Compares the file's time with the last of the synced steps.
pub(super) fn age(path: &Path, directory: &Path, listed: &Listed) -> Option<Ordering> {
    let written = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let steps = [file_name(listed.last), MARK.into()].map(|name| written(&directory.join(name)));
    Some(written(path)?.cmp(&steps.into_iter().flatten().max()?))
}

/// Returns `true` if the steps continue a finished file.
pub(super) fn continues(directory: &Path, listed: &Listed) -> Result<bool> {
    match open(directory, listed.last) {
        Ok(file) => Ok(file.metadata().contains_key(CONTINUES_KEY)),
        Err(error) if is_damage(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns `true` if a synced file is missing or damaged.
pub(super) fn is_damage(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => true,
    }
}

/// Returns `true` if a file has all synced tensors and steps, with equal values.
fn has_all(finished: &SafeTensors<FileSource>, directory: &Path, listed: &Listed) -> Result<bool> {
    let mut steps: HashMap<String, usize> = HashMap::new();
    for number in 1..=listed.last {
        let path = directory.join(file_name(number));
        let part = match open(directory, number) {
            // It has nothing that could be missing in the file.
            Err(error) if is_damage(&error) => continue,
            part => part?,
        };
        for tensor in part.tensors() {
            let Some(whole) = finished.get(tensor.name()) else { return Ok(false) };
            let growth = Growth::read(&part, &tensor).map_err(|error| error.in_path(&path))?;
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

/// Compares the entire tensor, or its steps from `first` on.
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

fn is_same(a: &dyn TensorSource, b: &dyn TensorSource) -> Result<bool> {
    Ok(a.dtype() == b.dtype() && a.shape() == b.shape() && digest(a)? == digest(b)?)
}

fn digest(tensor: &dyn TensorSource) -> Result<Digest> {
    let mut hasher = Hasher::default();
    tensor.write_to(&mut |bytes| {
        hasher.update(bytes);
        Ok(())
    })?;
    Ok(hasher.finish())
}
