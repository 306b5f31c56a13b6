//! Tensors of open files, read on request.
//!
//! [`LazyTensor`] is a tensor, [`LazySlice`] a part. [`read_tensors`] and [`read_slices`]
//! read many.

pub(crate) mod catalog;
mod codes;
mod experts;
pub(crate) mod fused;
mod into;
mod lazy;
mod loaded;
mod options;
mod pieces;
mod plan;
mod size;
pub(crate) mod slice;
pub(crate) mod streaming;
pub(crate) mod tensor_read;

use std::slice::from_ref;

pub use experts::{ExpertLayout, ExpertOptions, GateUp};
pub use lazy::LazyTensor;
pub(crate) use lazy::TensorPlace;
pub use loaded::DtypePlan;
pub use options::{LoadOptions, QuantizedWeights};
pub use pieces::Piece;
use plan::{Job, Scratch};
pub use slice::LazySlice;
use streaming::Announced;
use tensor_read::{Reserved, TensorRead};

use crate::file::io::ReadAt;
use crate::file::io::page_cache::Unkept;
use crate::format::error::Result;
use crate::format::tensor::TensorBuf;
use crate::format::tensor::hugepage::Pages;
use crate::format::trace::Span;

/// Reads tensors in parallel, each into its own buffer, and returns them in the given order.
///
/// Large tensors are read in pieces, and small neighbours together. Conversions go through a small
/// buffer in each thread. Memory also holds a few MiB, and a few hundred bytes for each tensor.
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
/// The first failure stops all threads, and names the tensor and the file.
/// [`UnsupportedDtype`](crate::ErrorKind::UnsupportedDtype),
/// [`WouldWiden`](crate::ErrorKind::WouldWiden), [`Quantization`](crate::ErrorKind::Quantization),
/// [`NoConversion`](crate::ErrorKind::NoConversion) and failed allocations come before any read;
/// [`Io`](crate::ErrorKind::Io), also for a file that has changed since it was opened, and
/// [`Cancelled`](crate::ErrorKind::Cancelled) later.
pub fn read_tensors<S: ReadAt>(
    tensors: &[LazyTensor<'_, S>],
    options: &LoadOptions,
) -> Result<Vec<TensorBuf>> {
    let wanted = tensors.iter().map(|tensor| TensorRead::whole(tensor, options));
    read(&wanted.collect::<Result<Vec<_>>>()?, options)
}

/// Reads slices in parallel, such as a rank's parts of all tensors, and returns them in the given
/// order. Reads only their bytes, and small [gaps](LazySlice::max_gap) between them.
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
///     .map(|tensor| tensor.slice(RankPart::new(1, 0, 2)))
///     .collect::<Result<Vec<_>>>()?;
/// let of_rank_0 = read_slices(&columns, &LoadOptions::new())?;
/// assert_eq!(of_rank_0[1].as_slice::<u8>()?, [1, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`Io`](crate::ErrorKind::Io), also for a file that has changed since it was opened;
/// [`NoConversion`](crate::ErrorKind::NoConversion) to a dtype of the options;
/// [`Quantization`](crate::ErrorKind::Quantization) for codes that would become numbers.
pub fn read_slices<S: ReadAt>(
    slices: &[LazySlice<'_, S>],
    options: &LoadOptions,
) -> Result<Vec<TensorBuf>> {
    let wanted = slices.iter().map(|slice| TensorRead::part(slice, options));
    read(&wanted.collect::<Result<Vec<_>>>()?, options)
}

pub(crate) fn read_tensor<S: ReadAt>(
    tensor: &LazyTensor<'_, S>,
    options: &LoadOptions,
) -> Result<TensorBuf> {
    read_one(TensorRead::whole(tensor, options)?, options)
}

pub(crate) fn read_slice<S: ReadAt>(
    slice: &LazySlice<'_, S>,
    options: &LoadOptions,
) -> Result<TensorBuf> {
    read_one(TensorRead::part(slice, options)?, options)
}

fn read_one(wanted: TensorRead<'_>, options: &LoadOptions) -> Result<TensorBuf> {
    let mut bufs = [wanted.reserve(options)?];
    fill(from_ref(&wanted), &mut bufs, options)?;
    let [(buf, _)] = bufs;
    wanted.finish(buf, options)
}

fn read(wanted: &[TensorRead<'_>], options: &LoadOptions) -> Result<Vec<TensorBuf>> {
    let bufs = wanted.iter().map(|wanted| wanted.reserve(options));
    let mut bufs = bufs.collect::<Result<Vec<_>>>()?;
    fill(wanted, &mut bufs, options)?;
    wanted.iter().zip(bufs).map(|(wanted, (buf, _))| wanted.finish(buf, options)).collect()
}

fn fill<'t>(
    wanted: &'t [TensorRead<'t>],
    bufs: &mut [Reserved<'t>],
    options: &LoadOptions,
) -> Result<()> {
    let announce = |wanted: &TensorRead<'t>| {
        let base = wanted.tensor.offset;
        let mut runs = wanted.runs.iter().map(|run| base + run.start..base + run.end);
        Announced::new(wanted.tensor.source, &mut runs)
    };
    let _announced: Vec<_> = wanted.iter().map(announce).collect();
    let pages = Pages::behind(bufs.iter().map(|(buf, _)| buf.room()));
    let jobs = plan::jobs(wanted, bufs);
    let bytes_total = jobs.iter().map(Job::byte_len).sum();
    let span = Span::read(wanted.len(), bytes_total);
    let _read = span.enter();
    let at_once = one_a_file(wanted).filter_map(|tensor| tensor.source.requests());
    let work = match at_once.map(|requests| requests.concurrency).max() {
        // Threads that wait for a source take no time of a core, so their number depends on it.
        Some(at_once) => &options.work.unless_set(at_once),
        None => &options.work,
    };
    let progress = work.meter(bytes_total);
    let is_unkept = options.drops_page_cache(bytes_total);
    work.each(jobs, |job: Job<'_, '_>, scratch: &mut Scratch| {
        let tensor = job.tensor();
        let bytes = job.byte_len();
        job.rooms().for_each(|room| pages.prepare(room));
        let _unkept = Unkept::begin(is_unkept);
        job.read(scratch)?;
        progress.add(bytes, tensor.info.name())
    })?;
    for tensor in one_a_file(wanted) {
        tensor.check_unchanged()?;
    }
    for (wanted, (buf, conversion)) in wanted.iter().zip(bufs) {
        wanted.arrange(buf);
        if conversion.is_none() {
            buf.finish_reading().map_err(|error| wanted.tensor.locate(error))?;
        }
    }
    Ok(())
}

/// Returns a tensor of each file, which can occur twice.
pub(crate) fn one_a_file<'t>(
    wanted: &'t [TensorRead<'t>],
) -> impl Iterator<Item = TensorPlace<'t>> {
    // Only neighbours are compared. Tensors usually come file by file, and checking a file twice
    // does no harm.
    let mut before: Option<*const dyn ReadAt> = None;
    wanted.iter().map(|wanted| wanted.tensor).filter(move |tensor| {
        let before = before.replace(tensor.source);
        !before.is_some_and(|before| std::ptr::addr_eq(before, tensor.source))
    })
}
