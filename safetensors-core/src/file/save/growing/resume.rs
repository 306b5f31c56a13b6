//! [`GrowingWriter::resume`]: continues an earlier run.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io;
use std::path::Path;

use super::finished::{age, continues, is_damage};
use super::sync::Synced;
use super::synced::{Growth, Listed, file_name, is_of_steps, open};
use super::{GrowingTensor, GrowingWriter};
use crate::file::io::{FileSource, SafeTensors};
use crate::file::load::LazyTensor;
use crate::file::save::SaveOptions;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::rename_attributes;
use crate::format::parallel::lock;
use crate::format::slice::Index;

impl GrowingWriter {
    /// Continues the file at a path, however an earlier run ended, or begins it.
    ///
    /// - After a killed run, the file first gets all tensors and steps of its last
    ///   [sync](Self::sync).
    /// - A file is appended to, and keeps its tensors and metadata. [`grow`](Self::grow) continues
    ///   a tensor, with [`steps`](super::GrowingTensor::steps) so far, and [`add`](Self::add) adds
    ///   others.
    /// - Without a file, one begins, as with [`create`](Self::create).
    ///
    /// The path keeps the old file until [`finish`](Self::finish). That writes the entire file
    /// again, as does a recovery of synced steps, and needs space for both, unless the file system
    /// shares blocks.
    ///
    /// ```
    /// use safetensors_core::save::GrowingWriter;
    /// use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("run.safetensors");
    /// let open = || GrowingWriter::resume(&path, &SaveOptions::new());
    /// let writer = open()?; // This run begins the file.
    /// let time = writer.grow("time", Dtype::F64, 0, &[])?;
    /// time.extend(&TensorView::from_slice(&[2], &[0.0_f64, 0.5])?)?;
    /// writer.sync()?;
    /// time.append(&TensorView::from_slice(&[], &[1.0_f64])?)?;
    /// drop(writer); // It is killed before it finishes.
    ///
    /// let writer = open()?; // The next run has what was synced.
    /// let time = writer.grow("time", Dtype::F64, 0, &[])?;
    /// assert_eq!(time.steps(), 2);
    /// time.append(&TensorView::from_slice(&[], &[1.0_f64])?)?;
    /// writer.finish()?;
    ///
    /// let time = Checkpoint::open(&path)?.tensor("time")?.read()?;
    /// assert_eq!(time.into_vec::<f64>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Metadata in the options replaces entries of the file. Recorded [digests](crate::digest) of
    /// tensors are renewed, but a SHA-256 of all data is dropped: call
    /// [`Edit::record_digests`](crate::edit::Edit::record_digests). No new tensor gets the name of
    /// an [alias](crate::Checkpoint::aliases). The index of a sharded checkpoint is unchanged.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create), except [`ErrorKind::SyncedStepsLeft`], and for
    /// [`Header::parse`](crate::header::Header::parse).
    ///
    /// Synced steps are never lost. [`ErrorKind::WrongDtype`], [`ErrorKind::WrongShape`] and
    /// [`ErrorKind::DuplicateTensor`]: they do not continue the file. [`ErrorKind::Io`] names their
    /// directory if a file was written after them, or if some are missing or damaged; then it has
    /// that new name, and the next call continues without it.
    pub fn resume(path: impl AsRef<Path>, options: &SaveOptions) -> Result<Self> {
        let path = path.as_ref();
        let mut synced = Synced::new(path).map_err(|error| error.in_path(path))?;
        if let Some(listed) = synced.find()? {
            synced = recover(path, options, synced, &listed)?;
        }
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::create_with(path, options, synced)
            }
            // The finished file replaces this one. Steps behind the old data would need a new
            // header at the same moment, and no file system changes both at once: after a kill in
            // between, readers refuse the file. Room for later steps would be a hole, which the
            // format forbids.
            _ => Self::append_to(path, options, synced),
        }
    }
}

/// Makes one file of the synced steps of a killed run.
fn recover(
    path: &Path,
    options: &SaveOptions,
    mut synced: Synced,
    listed: &Listed,
) -> Result<Synced> {
    let directory = synced.directory().to_owned();
    check_files(&synced, listed)?;
    synced.take_over();
    let writer = if continues(&directory, listed)? {
        GrowingWriter::append_to(path, options, synced)?
    } else if age(path, &directory, listed).is_some_and(Ordering::is_gt) {
        let problem = format!(
            "it was written after the synced steps in {}, and lacks them: move one of the two away",
            directory.display()
        );
        return Err(Error::io(io::Error::new(io::ErrorKind::AlreadyExists, problem), path));
    } else {
        GrowingWriter::create_with(path, options, synced)?
    };
    let mut growing = HashMap::new();
    for number in 1..=listed.last {
        let file = open(&directory, number)?;
        add_file(&writer, &file, &mut growing)
            .map_err(|error| error.in_path(directory.join(file_name(number))))?;
    }
    let mut tensors = lock(&writer.shared.tensors);
    let mut metadata = std::mem::take(&mut tensors.metadata);
    // A tensor with an attribute may have been added after the last sync.
    rename_attributes(&mut metadata, &mut |name| tensors.has(name).then(|| name.to_owned()));
    metadata.extend(options.metadata.clone());
    tensors.metadata = metadata;
    drop(tensors);
    match writer.finish_and_keep_lock()? {
        Some(synced) => Ok(synced),
        None => Err(ErrorKind::AlreadyFinished.into()),
    }
}

/// Fails if a file is missing or damaged, and sets the directory aside so that no later start
/// fails.
fn check_files(synced: &Synced, listed: &Listed) -> Result<()> {
    let problem = match (1..=listed.last).find_map(|number| open(synced.directory(), number).err())
    {
        Some(error) if !is_damage(&error) => return Err(error),
        Some(error) => error.to_string(),
        None if listed.has_gap() => "the last ones are missing".to_owned(),
        None => return Ok(()),
    };
    let aside = synced.set_aside()?;
    let problem = format!(
        "the synced steps of a killed run are incomplete ({problem}). Those that are left are in {} \
         now, each file is complete. The next start goes on without them",
        aside.display()
    );
    Err(Error::io(io::Error::new(io::ErrorKind::InvalidData, problem), synced.directory()))
}

fn add_file(
    writer: &GrowingWriter,
    file: &SafeTensors<FileSource>,
    growing: &mut HashMap<String, GrowingTensor>,
) -> Result<()> {
    for tensor in file.tensors() {
        match Growth::read(file, &tensor)? {
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

fn add_steps(
    writer: &GrowingWriter,
    tensor: &LazyTensor<'_, FileSource>,
    Growth { axis, kept }: Growth,
    growing: &mut HashMap<String, GrowingTensor>,
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
