//! [`recover_synced`]: makes one file of the steps that a killed run had synced.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use super::finished::{is_finished, marked_files};
use super::sync::Synced;
use super::synced::{Growth, continues, file_name, is_of_steps, last_file, synced_directory};
use super::{GrowingTensor, GrowingWriter, Tensors};
use crate::error::{ErrorKind, Result};
use crate::header::rename_attributes;
use crate::io::{FileSource, SafeTensors};
use crate::load::LazyTensor;
use crate::save::{SaveOptions, save};
use crate::slice::Index;

/// Makes one file of the tensors and steps that a killed run had [synced](GrowingWriter::sync).
/// `path` is the path of that run's file, and `to` that of the new file. They can be the same.
///
/// The new file has the tensors that the run would have saved if it had finished at its last sync.
/// A tensor that had not grown yet has no steps. The new file replaces an old one whole or not at
/// all. The directory of synced steps stays. Remove it before another run writes to `path`. Metadata
/// in `options` replaces entries of the run with the same keys.
///
/// The steps of a run that [appended](GrowingWriter::append_to) to a file are appended to what is
/// at `path`, which must be that file.
///
/// A run may have been killed after it had put its file in place and before it had removed the
/// synced steps. If that file is at `to`, it has all of them and perhaps more, so it stays as it is.
/// If it is at `path` only, `to` gets a copy of its tensors and metadata.
///
/// A run that was killed in its first sync has left a directory without steps. Then nothing is
/// written.
///
/// If the run is alive, `path` and `to` must not be the same. Another `to` gets a copy of what it has
/// synced so far.
///
/// ```
/// use safetensors_core::save::{GrowingWriter, recover_synced, synced_directory};
/// use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.safetensors");
/// let writer = GrowingWriter::create(&path, &SaveOptions::new())?;
/// let time = writer.grow("time", Dtype::F64, 0, &[])?;
/// time.append(&TensorView::from_slice(&[], &[0.0_f64])?)?;
/// time.append(&TensorView::from_slice(&[], &[0.5_f64])?)?;
/// writer.sync()?;
/// time.append(&TensorView::from_slice(&[], &[1.0_f64])?)?;
/// drop(writer); // It never finished.
///
/// recover_synced(&path, &path, &SaveOptions::new())?;
/// std::fs::remove_dir_all(synced_directory(&path))?;
/// let time = Checkpoint::open(&path)?.tensor("time")?.read()?;
/// assert_eq!(time.into_vec::<f64>()?, [0.0, 0.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::FileBusy`] if a writer of `to` is alive;
/// [`ErrorKind::Io`] if there is no directory of synced steps, or if one of its files is missing,
/// also because a finished run had begun to remove them and its file is not at `path` any more;
/// [`ErrorKind::WrongDtype`], [`ErrorKind::WrongShape`] and [`ErrorKind::DuplicateTensor`] if the
/// files do not belong together; the errors of [`Header::parse`](crate::header::Header::parse), of
/// [`GrowingWriter::create`] and of [`GrowingWriter::finish`].
pub fn recover_synced(
    path: impl AsRef<Path>,
    to: impl AsRef<Path>,
    options: &SaveOptions,
) -> Result<()> {
    let (path, to) = (path.as_ref(), to.as_ref());
    // Before anything is looked at, because a run that is alive changes it.
    let synced = Synced::new(to).map_err(|error| error.in_path(to))?;
    let directory = synced_directory(path);
    if is_finished(to, &directory)? {
        return Ok(());
    }
    if is_finished(path, &directory)? {
        return copy(path, to, options);
    }
    let Some(last) = last_file(&directory)?.max(marked_files(&directory)?) else {
        // The run was killed in its first sync.
        return Ok(());
    };
    let writer = match continues(&directory)? {
        true => GrowingWriter::append_with(path, to, options, synced)?,
        false => GrowingWriter::create_with(to, options, synced)?,
    };
    let mut growing = HashMap::new();
    for number in 1..=last {
        let path = directory.join(file_name(number));
        add_file(&writer, &path, &mut growing).map_err(|error| error.in_path(&path))?;
    }
    drop(growing);
    let mut tensors = writer.lock();
    let Tensors { list, names, metadata } = &mut *tensors;
    // A tensor with an attribute may have been added after the last sync.
    rename_attributes(metadata, |name| {
        let exists = writer.is_alias(name) || names.find(name, |i| list[i].name()).is_some();
        exists.then(|| name.to_owned())
    });
    metadata.extend(options.metadata.clone());
    drop(tensors);
    writer.finish()
}

/// Saves the tensors of a finished file to another one.
fn copy(from: &Path, to: &Path, options: &SaveOptions) -> Result<()> {
    let open = || SafeTensors::from_source(FileSource::open(from)?);
    let file = open().map_err(|error| error.in_path(from))?;
    let mut metadata = file.metadata().clone();
    metadata.extend(options.metadata.clone());
    let options = SaveOptions { metadata, tied: None, ..options.clone() };
    let tensors: Vec<_> = file.tensors().collect();
    save(to, tensors.iter().map(|tensor| (tensor.name(), tensor)), &options)
}

/// Adds the whole tensors and the steps of one file.
fn add_file<'w>(
    writer: &'w GrowingWriter,
    path: &Path,
    growing: &mut HashMap<String, GrowingTensor<'w>>,
) -> Result<()> {
    let file = SafeTensors::from_source(FileSource::open(path)?)?;
    for tensor in file.tensors() {
        match Growth::of(&file, &tensor)? {
            None => writer.add(tensor.name(), &tensor)?,
            Some(growth) => {
                add_steps(writer, &tensor, growth, growing)
                    .map_err(|error| error.in_tensor(tensor.name()))?;
            }
        }
    }
    let metadata = file.metadata().iter().filter(|(key, _)| !is_of_steps(key));
    writer.metadata(metadata.map(|(key, value)| (key.clone(), value.clone())));
    Ok(())
}

fn add_steps<'w>(
    writer: &'w GrowingWriter,
    tensor: &LazyTensor<'_, FileSource>,
    Growth { axis, kept }: Growth,
    growing: &mut HashMap<String, GrowingTensor<'w>>,
) -> Result<()> {
    let mut step_shape = tensor.shape().to_vec();
    let steps = step_shape.remove(axis);
    let growing = match growing.entry(tensor.name().into()) {
        Entry::Occupied(growing) => growing.into_mut(),
        Entry::Vacant(place) => {
            let growing = writer.grow(tensor.name(), tensor.dtype(), axis, &step_shape)?;
            if growing.steps() != kept {
                let [expected, found] = [kept, growing.steps()].map(|n| growing.series.shape(n));
                return Err(ErrorKind::WrongShape { expected, found }.into());
            }
            place.insert(growing)
        }
    };
    if axis == 0 {
        return growing.extend(tensor);
    }
    (0..steps).try_for_each(|step| {
        let mut indices = vec![Index::ALL; axis];
        indices.push(Index::from(step));
        growing.append(&tensor.slice(indices)?)
    })
}
