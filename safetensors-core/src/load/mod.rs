//! Tensors of open files: described when a file is opened, read when asked for.
//!
//! [`LazyTensor`] and [`LazySlice`] are one tensor and a part of one. [`read_tensors`] and
//! [`read_slices`] read many at once: a plan of jobs, and threads that read them into place.

mod fused;
mod lazy;
mod options;
mod pieces;
mod plan;
pub(crate) mod slice;

use std::slice::from_ref;

pub use lazy::LazyTensor;
pub use options::LoadOptions;
pub use pieces::Piece;
use plan::{Job, Scratch, Wanted};
pub use slice::LazySlice;

use crate::convert::{Conversion, ConvertOptions};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::io::ReadAt;
use crate::parallel::in_parallel;
use crate::tensor::{TensorBuf, hugepage};

/// Reads tensors in parallel, each into a buffer of its own, and returns them in the order given.
///
/// Large tensors are read in pieces, small ones that are neighbours in a file together. Tensors
/// that `options` converts are converted while they are read: the file's bytes pass through a small
/// buffer of each thread. Beside the tensors themselves this takes a few MiB, and some hundred
/// bytes a tensor.
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
/// [`ErrorKind::NoConversion`] and the errors of allocation come before anything is read;
/// [`ErrorKind::Io`] if a file has changed since it was opened; [`ErrorKind::Cancelled`].
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

/// Reads slices in parallel, each into a buffer of its own, and returns them in the order given:
/// the parts of all tensors that one rank holds, for example. Only their bytes are read, and those
/// in [gaps](LazySlice::gap) that are not worth another call.
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

/// [`read_tensor`] that converts whatever dtype the tensor has.
pub(crate) fn read_tensor_as<S: ReadAt>(
    tensor: &LazyTensor<'_, S>,
    to: Dtype,
    options: &ConvertOptions,
) -> Result<TensorBuf> {
    let from = tensor.dtype();
    let conversion =
        if from == to { Ok(None) } else { Conversion::new(from, to, options).map(Some) };
    let conversion = conversion.map_err(|kind| tensor.locate(kind.into()))?;
    let options = LoadOptions::new().threads(options.threads);
    read_one_as(&Wanted::whole(tensor), conversion, &options)
}

fn read_one<S: ReadAt>(wanted: &Wanted<'_, '_, S>, options: &LoadOptions) -> Result<TensorBuf> {
    let conversion = options.conversion(wanted.tensor.dtype());
    let conversion = conversion.map_err(|kind| wanted.tensor.locate(kind.into()))?;
    read_one_as(wanted, conversion, options)
}

/// [`read_one`] by a conversion that need not be the one of the options.
fn read_one_as<S: ReadAt>(
    wanted: &Wanted<'_, '_, S>,
    conversion: Option<Conversion>,
    options: &LoadOptions,
) -> Result<TensorBuf> {
    let mut bufs = [(wanted.reserve(conversion)?, conversion)];
    fill(from_ref(wanted), &mut bufs, options)?;
    let [(buf, _)] = bufs;
    Ok(buf)
}

/// Reads tensors, or parts of them, each into a buffer of its own.
fn read<S: ReadAt>(wanted: &[Wanted<'_, '_, S>], options: &LoadOptions) -> Result<Vec<TensorBuf>> {
    let reserve = |wanted: &Wanted<'_, '_, S>| {
        let tensor = wanted.tensor;
        let conversion =
            options.conversion(tensor.dtype()).map_err(|kind| tensor.locate(kind.into()))?;
        Ok((wanted.reserve(conversion)?, conversion))
    };
    let mut bufs = wanted.iter().map(reserve).collect::<Result<Vec<_>>>()?;
    fill(wanted, &mut bufs, options)?;
    Ok(bufs.into_iter().map(|(buf, _)| buf).collect())
}

/// Fills each buffer, which is only reserved, with what is wanted there, by the conversion on the
/// way into it.
fn fill<S: ReadAt>(
    wanted: &[Wanted<'_, '_, S>],
    bufs: &mut [(TensorBuf, Option<Conversion>)],
    options: &LoadOptions,
) -> Result<()> {
    hugepage::advise(bufs.iter().map(|(buf, _)| buf.room()));
    let bytes_total = bufs.iter().map(|(buf, _)| buf.byte_len() as u64).sum();
    let jobs = plan::jobs(wanted, bufs);
    let progress = options.progress.for_total(bytes_total);
    in_parallel(jobs, options.threads, |job: Job<'_, '_, '_, S>, scratch: &mut Scratch| {
        let (tensor, bytes) = (job.tensor(), job.byte_len());
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

/// A tensor of each file, for what is to be done once a file.
fn one_a_file<'t, 'a, S>(
    wanted: &'t [Wanted<'t, 'a, S>],
) -> impl Iterator<Item = &'t LazyTensor<'a, S>> {
    // Tensors come file by file, or nearly so: doing it twice does no harm.
    let mut before: Option<*const S> = None;
    let tensors = wanted.iter().map(|wanted| wanted.tensor);
    tensors.filter(move |tensor| before.replace(tensor.source()) != Some(tensor.source()))
}
