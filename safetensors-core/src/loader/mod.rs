//! Reading many tensors at once: a plan of jobs, and threads that read them into place.

mod options;
mod plan;

pub use options::LoadOptions;

use crate::convert::{Conversion, ReadScratch};
use crate::parallel::in_parallel;
use crate::{LazyTensor, ReadAt, Result, TensorBuf, hugepage};
use plan::Job;

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
pub fn read<S: ReadAt>(tensors: &[LazyTensor<'_, S>], options: &LoadOptions) -> Result<Vec<TensorBuf>> {
    let mut bufs = tensors
        .iter()
        .map(|tensor| {
            let conversion = options.conversion(tensor.dtype()).map_err(|kind| tensor.locate(kind.into()))?;
            let buf = TensorBuf::reserved(options.dtype_of(tensor.dtype()), tensor.shape().to_vec());
            Ok((buf.map_err(|error| tensor.locate(error))?, conversion))
        })
        .collect::<Result<Vec<_>>>()?;
    hugepage::advise(bufs.iter().map(|(buf, _)| buf.room()));
    let bytes_total = bufs.iter().map(|(buf, _)| buf.byte_len() as u64).sum();
    let jobs = plan::jobs(tensors, &mut bufs);
    let progress = options.progress.for_total(bytes_total);
    in_parallel(jobs, options.threads, |job: Job<'_, '_, '_, S>, scratch: &mut ReadScratch| {
        let (tensor, bytes) = (job.tensor(), job.byte_len());
        job.read(scratch)?;
        progress.add(bytes, tensor.name())
    })?;
    for tensor in one_a_file(tensors) {
        tensor.check_unchanged()?;
    }
    let finish = |(tensor, (mut buf, conversion)): (&LazyTensor<'_, S>, (TensorBuf, Option<Conversion>))| {
        if conversion.is_none() {
            buf.finish_reading().map_err(|error| tensor.locate(error))?;
        }
        Ok(buf)
    };
    tensors.iter().zip(bufs).map(finish).collect()
}

/// A tensor of each file, for what is to be done once a file.
fn one_a_file<'t, 'a, S>(tensors: &'t [LazyTensor<'a, S>]) -> impl Iterator<Item = &'t LazyTensor<'a, S>> {
    // Tensors come file by file, or nearly so: doing it twice does no harm.
    let mut before: Option<*const S> = None;
    tensors.iter().filter(move |tensor| before.replace(tensor.source()) != Some(tensor.source()))
}
