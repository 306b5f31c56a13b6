//! Reading many tensors at once: a plan of jobs, and threads that read them into place.

mod options;
mod plan;

pub use options::LoadOptions;

use crate::convert::Conversion;
use crate::parallel::in_parallel;
use crate::slice::{LazySlice, Runs};
use crate::{LazyTensor, ReadAt, Result, TensorBuf, hugepage};
use plan::{Job, Scratch, Wanted};

/// Reads tensors in parallel, each into a buffer of its own, and returns them in the order given.
///
/// Large tensors are read in pieces, small ones that are neighbours in a file together. Tensors that `options` converts are
/// converted while they are read: the file's bytes pass through a small buffer of each thread. Beside the tensors themselves
/// this takes a few MiB, and some hundred bytes a tensor.
///
/// ```
/// use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, read_tensors, save};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("model.safetensors");
/// let values = [1.0_f32, 2.0];
/// let tensors = ["encoder.w", "encoder.b", "head"].map(|name| (name, TensorView::from_slice(&[2], &values).unwrap()));
/// save(&path, tensors, &SaveOptions::new())?;
/// let checkpoint = Checkpoint::open(&path)?;
/// let encoder: Vec<_> = checkpoint.tensors().filter(|tensor| tensor.name().starts_with("encoder.")).collect();
/// assert_eq!(read_tensors(&encoder, &LoadOptions::new())?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The first failure stops all threads. It names the tensor and the file. [`ErrorKind::NoConversion`] and the errors of
/// allocation come before anything is read; [`ErrorKind::Io`] if a file has changed since it was opened;
/// [`ErrorKind::Cancelled`].
pub fn read_tensors<S: ReadAt>(tensors: &[LazyTensor<'_, S>], options: &LoadOptions) -> Result<Vec<TensorBuf>> {
    let whole = |tensor| Wanted { tensor, shape: tensor.shape(), runs: Runs::whole(tensor.byte_len()), gap: 0 };
    read(&tensors.iter().map(whole).collect::<Vec<_>>(), options)
}

/// Reads slices in parallel, each into a buffer of its own, and returns them in the order given: the parts of all tensors that one
/// rank holds, for example. Only their bytes are read, and those in [gaps](LazySlice::gap) that are not worth another call.
///
/// ```
/// use safetensors_core::slice::Shard;
/// use safetensors_core::{Checkpoint, LoadOptions, Result, SaveOptions, TensorView, read_slices, save};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("model.safetensors");
/// let values = [1_u8, 2, 3, 4];
/// let tensors = ["q", "k"].map(|name| (name, TensorView::from_slice(&[2, 2], &values).unwrap()));
/// save(&path, tensors, &SaveOptions::new())?;
/// let checkpoint = Checkpoint::open(&path)?;
/// let columns = checkpoint.tensors().map(|tensor| tensor.shard(Shard::new(1, 0, 2))).collect::<Result<Vec<_>>>()?;
/// let of_rank_0 = read_slices(&columns, &LoadOptions::new())?;
/// assert_eq!(of_rank_0[1].as_slice::<u8>()?, [1, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Those of [`read_tensors`].
pub fn read_slices<S: ReadAt>(slices: &[LazySlice<'_, S>], options: &LoadOptions) -> Result<Vec<TensorBuf>> {
    let wanted = slices.iter().map(|slice| Wanted {
        tensor: slice.tensor(),
        shape: slice.shape(),
        runs: slice.runs(),
        gap: slice.gap_len(),
    });
    read(&wanted.collect::<Vec<_>>(), options)
}

/// What both do.
fn read<S: ReadAt>(wanted: &[Wanted<'_, '_, S>], options: &LoadOptions) -> Result<Vec<TensorBuf>> {
    let mut bufs = wanted
        .iter()
        .map(|Wanted { tensor, shape, .. }| {
            let conversion = options.conversion(tensor.dtype()).map_err(|kind| tensor.locate(kind.into()))?;
            let buf = TensorBuf::reserved(options.dtype_of(tensor.dtype()), shape.to_vec());
            Ok((buf.map_err(|error| tensor.locate(error))?, conversion))
        })
        .collect::<Result<Vec<_>>>()?;
    hugepage::advise(bufs.iter().map(|(buf, _)| buf.room()));
    let bytes_total = bufs.iter().map(|(buf, _)| buf.byte_len() as u64).sum();
    let jobs = plan::jobs(wanted, &mut bufs);
    let progress = options.progress.for_total(bytes_total);
    in_parallel(jobs, options.threads, |job: Job<'_, '_, '_, S>, scratch: &mut Scratch| {
        let (tensor, bytes) = (job.tensor(), job.byte_len());
        job.read(scratch)?;
        progress.add(bytes, tensor.name())
    })?;
    for tensor in one_a_file(wanted) {
        tensor.check_unchanged()?;
    }
    let finish = |(wanted, (mut buf, conversion)): (&Wanted<'_, '_, S>, (TensorBuf, Option<Conversion>))| {
        if conversion.is_none() {
            buf.finish_reading().map_err(|error| wanted.tensor.locate(error))?;
        }
        Ok(buf)
    };
    wanted.iter().zip(bufs).map(finish).collect()
}

/// A tensor of each file, for what is to be done once a file.
fn one_a_file<'t, 'a, S>(wanted: &'t [Wanted<'t, 'a, S>]) -> impl Iterator<Item = &'t LazyTensor<'a, S>> {
    // Tensors come file by file, or nearly so: doing it twice does no harm.
    let mut before: Option<*const S> = None;
    let tensors = wanted.iter().map(|wanted| wanted.tensor);
    tensors.filter(move |tensor| before.replace(tensor.source()) != Some(tensor.source()))
}
