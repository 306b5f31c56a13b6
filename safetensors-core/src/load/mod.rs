//! Tensors of open files: descriptions first, data on request.
//!
//! [`LazyTensor`] is one tensor, [`LazySlice`] a part of one. [`read_tensors`] and [`read_slices`]
//! read many at once: they plan jobs, and threads read each job directly into the buffers of its
//! tensors.

mod fused;
mod into;
mod lazy;
mod loaded;
mod options;
mod pieces;
mod plan;
mod size;
pub(crate) mod slice;
pub(crate) mod staged;
pub(crate) mod streaming;

use std::slice::from_ref;

pub use lazy::LazyTensor;
pub use loaded::LoadedDtype;
pub use options::LoadOptions;
pub use pieces::Piece;
use plan::{Job, Reserved, Scratch, Wanted};
pub use slice::LazySlice;

use crate::convert::Scales;
use crate::error::Result;
use crate::io::ReadAt;
use crate::tensor::TensorBuf;
use crate::tensor::hugepage::Pages;

/// Reads tensors in parallel, each into a buffer of its own, and returns them in the order given.
///
/// Large tensors are read in pieces. Small tensors that are neighbours in a file are read together.
/// Tensors that `options` converts are converted while they are read, through a small buffer in
/// each thread. Besides the tensors themselves this takes a few MiB, and a few hundred bytes for
/// each tensor.
///
/// ```
/// use safetensors_core::load::read_tensors;
/// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, save};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("model.safetensors");
/// let values = [1.0_f32, 2.0];
/// let tensors = ["encoder.w", "encoder.b", "head"]
///     .map(|name| (name, TensorView::from_slice(&[2], &values).unwrap()));
/// save(&path, tensors, &SaveOptions::new())?;
/// let checkpoint = Checkpoint::open(&path)?;
/// let encoder: Vec<_> =
///     checkpoint.tensors().filter(|tensor| tensor.name().starts_with("encoder.")).collect();
/// assert_eq!(read_tensors(&encoder, &LoadOptions::new())?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The first failure stops all threads. It names the tensor and the file.
/// [`ErrorKind::NoConversion`] and the errors of allocation are returned before anything is read.
/// [`ErrorKind::Io`] also means that a file has changed since it was opened.
/// [`ErrorKind::Cancelled`] means that the progress callback stopped the load.
///
/// [`ErrorKind::NoConversion`]: crate::ErrorKind::NoConversion
/// [`ErrorKind::Io`]: crate::ErrorKind::Io
/// [`ErrorKind::Cancelled`]: crate::ErrorKind::Cancelled
pub fn read_tensors<S: ReadAt>(
    tensors: &[LazyTensor<'_, S>],
    options: &LoadOptions,
) -> Result<Vec<TensorBuf>> {
    read(&tensors.iter().map(Wanted::whole).collect::<Vec<_>>(), options)
}

/// Reads slices in parallel, each into a buffer of its own, and returns them in the order given.
/// The slices can be the parts of all tensors that one rank holds, for example. Only the bytes of
/// the slices are read, and small [gaps](LazySlice::gap) between them.
///
/// ```
/// use safetensors_core::load::read_slices;
/// use safetensors_core::slice::RankPart;
/// use safetensors_core::{Checkpoint, LoadOptions, Result, SaveOptions, TensorView, save};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("model.safetensors");
/// let values = [1_u8, 2, 3, 4];
/// let tensors =
///     ["q", "k"].map(|name| (name, TensorView::from_slice(&[2, 2], &values).unwrap()));
/// save(&path, tensors, &SaveOptions::new())?;
/// let checkpoint = Checkpoint::open(&path)?;
/// let columns = checkpoint
///     .tensors()
///     .map(|tensor| tensor.rank_part(RankPart::new(1, 0, 2)))
///     .collect::<Result<Vec<_>>>()?;
/// let of_rank_0 = read_slices(&columns, &LoadOptions::new())?;
/// assert_eq!(of_rank_0[1].as_slice::<u8>()?, [1, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Those of [`read_tensors`].
pub fn read_slices<S: ReadAt>(
    slices: &[LazySlice<'_, S>],
    options: &LoadOptions,
) -> Result<Vec<TensorBuf>> {
    read(&slices.iter().map(Wanted::part).collect::<Vec<_>>(), options)
}

/// [`read_slices`] with the scales of each slice, if it has any. A slice with scales must be one
/// that the options convert.
pub(crate) fn read_scaled<'a, S: ReadAt>(
    slices: &[LazySlice<'a, S>],
    scales: Vec<Option<Scales>>,
    options: &LoadOptions,
) -> Result<Vec<TensorBuf>> {
    let each = slices.iter().zip(scales);
    read(&each.map(|(slice, scales)| Wanted::scaled(slice, scales)).collect::<Vec<_>>(), options)
}

/// Reads one tensor, in several threads if it is large.
pub(crate) fn read_tensor<S: ReadAt>(
    tensor: &LazyTensor<'_, S>,
    options: &LoadOptions,
) -> Result<TensorBuf> {
    read_one(&Wanted::whole(tensor), options)
}

/// Reads one slice, in several threads if it is large.
pub(crate) fn read_slice<S: ReadAt>(
    slice: &LazySlice<'_, S>,
    options: &LoadOptions,
) -> Result<TensorBuf> {
    read_one(&Wanted::part(slice), options)
}

fn read_one<S: ReadAt>(wanted: &Wanted<'_, '_, S>, options: &LoadOptions) -> Result<TensorBuf> {
    let loaded = wanted.decide(options)?;
    let mut bufs = [wanted.reserve(loaded, options)?];
    fill(from_ref(wanted), &mut bufs, options)?;
    let [(buf, _)] = bufs;
    wanted.finish(buf, loaded, options)
}

/// Reads tensors, or parts of them, each into a buffer of its own.
fn read<S: ReadAt>(wanted: &[Wanted<'_, '_, S>], options: &LoadOptions) -> Result<Vec<TensorBuf>> {
    let loaded = wanted.iter().map(|wanted| wanted.decide(options)).collect::<Result<Vec<_>>>()?;
    let each = || wanted.iter().zip(&loaded);
    let mut bufs = each()
        .map(|(wanted, loaded)| wanted.reserve(*loaded, options))
        .collect::<Result<Vec<_>>>()?;
    fill(wanted, &mut bufs, options)?;
    let finish = |((wanted, loaded), (buf, _)): ((&Wanted<'_, '_, S>, &LoadedDtype), _)| {
        wanted.finish(buf, *loaded, options)
    };
    each().zip(bufs).map(finish).collect()
}

/// Fills each reserved buffer with its tensor or slice, converted if it has a conversion.
fn fill<'t, S: ReadAt>(
    wanted: &'t [Wanted<'t, '_, S>],
    bufs: &mut [Reserved<'t>],
    options: &LoadOptions,
) -> Result<()> {
    let pages = Pages::of(bufs.iter().map(|(buf, _)| buf.room()));
    let bytes_total = bufs.iter().map(|(buf, _)| buf.byte_len() as u64).sum();
    let jobs = plan::jobs(wanted, bufs);
    let at_once = one_a_file(wanted).filter_map(|tensor| tensor.source().requests());
    let work = match at_once.map(|requests| requests.at_once()).max() {
        // Threads that wait for a source take no time of a core, so their number depends on it.
        Some(at_once) => &options.work.unless_set(at_once),
        None => &options.work,
    };
    let progress = work.meter(bytes_total);
    work.each(jobs, |job: Job<'_, '_, '_, S>, scratch: &mut Scratch| {
        let (tensor, bytes) = (job.tensor(), job.byte_len());
        job.rooms().for_each(|room| pages.prepare(room));
        job.read(scratch)?;
        progress.add(bytes, tensor.name())
    })?;
    for tensor in one_a_file(wanted) {
        tensor.check_unchanged()?;
    }
    for (wanted, (buf, conversion)) in wanted.iter().zip(bufs) {
        if conversion.is_none() {
            buf.finish_reading().map_err(|error| wanted.tensor.locate(error))?;
        }
    }
    Ok(())
}

/// One tensor of each file, for work that is done once for each file. A file can occur twice.
fn one_a_file<'t, 'a, S>(
    wanted: &'t [Wanted<'t, 'a, S>],
) -> impl Iterator<Item = &'t LazyTensor<'a, S>> {
    // Only neighbours are compared. Tensors usually come file by file, and checking a file twice
    // does no harm.
    let mut before: Option<*const S> = None;
    let tensors = wanted.iter().map(|wanted| wanted.tensor);
    tensors.filter(move |tensor| before.replace(tensor.source()) != Some(tensor.source()))
}
