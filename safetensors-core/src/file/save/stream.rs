//! [`StreamWriter`]: a file with declared tensors, written in any order.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::SaveOptions;
use super::atomic::AtomicFile;
use super::early::Early;
use super::layout::Layout;
use super::ranges::Ranges;
use super::sequential::prefix_with_digests;
use super::spec::Spec;
use crate::file::hash::RunningDigest;
use crate::file::io::positional::write_all_at;
use crate::file::io::reserve::reserve;
use crate::format::dtype::Dtype;
#[cfg(doc)]
use crate::format::error::ErrorKind;
use crate::format::error::{Error, Result};
use crate::format::header::NameTable;
use crate::format::parallel::{Meter, in_parallel, lock, progress};
use crate::format::trace::Span;

/// Writes a file of tensors that are declared at the start, and then written in any order, at once
/// or in pieces, by any number of threads.
///
/// The file equals the one of [`save`](super::save()). Until [`finish`](StreamWriter::finish), or
/// if the writer is dropped, the path keeps the old file.
///
/// ```
/// use safetensors_core::save::StreamWriter;
/// use safetensors_core::{Checkpoint, Dtype, SaveOptions};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let tensors = [("a", Dtype::U8, vec![4]), ("b", Dtype::U8, vec![2, 3])];
/// let writer = StreamWriter::create(&path, tensors, &SaveOptions::new())?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| writer.tensor("b")?.append(&[9_u8; 6]));
///     scope.spawn(|| writer.tensor("a")?.write_bytes_at(2, &[3, 4]));
///     scope.spawn(|| writer.tensor("a")?.write_bytes_at(0, &[1, 2]));
/// });
/// writer.finish()?;
/// assert_eq!(Checkpoint::open(&path)?.tensor("a")?.read()?.into_vec::<u8>()?, [1, 2, 3, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StreamWriter {
    pub(super) file: AtomicFile,
    pub(super) path: PathBuf,
    pub(super) progress: Meter,
    /// For a file that will be synchronised, unless it is short.
    early: Option<Early>,
    /// For the header with digests, if they are recorded.
    pub(super) digest_options: Option<SaveOptions>,
    /// In the order of declaration.
    pub(super) tensors: Vec<Declared>,
    pub(super) names: NameTable,
    /// The positions in `tensors`, in file order.
    pub(super) order: Vec<usize>,
    _span: Span,
}

#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// In the file.
    pub(super) place: Range<u64>,
    /// The bytes that were or are being written, in the tensor.
    pub(super) written: Mutex<Ranges>,
    /// Used if digests are recorded.
    pub(super) running: Mutex<RunningDigest>,
}

impl Declared {
    pub(super) fn byte_len(&self) -> u64 {
        self.place.end - self.place.start
    }

    fn spec(&self) -> Spec<'_> {
        Spec { name: &self.name, dtype: self.dtype, shape: &self.shape }
    }
}

impl StreamWriter {
    /// Plans a file of these names, dtypes and shapes, creates it under a temporary name, reserves
    /// its space where possible, and writes the header.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileExists`] and [`ErrorKind::ReadOnlyFile`], unless the options allow the
    /// replacement; [`ErrorKind::DuplicateTensor`]; [`ErrorKind::Io`]; others of
    /// [`save`](super::save()), except errors of a source.
    pub fn create<N: AsRef<str>, D: AsRef<[usize]>>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (N, Dtype, D)>,
        options: &SaveOptions,
    ) -> Result<Self> {
        let tensors: Vec<_> = tensors.into_iter().collect();
        let specs: Vec<_> = tensors
            .iter()
            .map(|(name, dtype, shape)| Spec {
                name: name.as_ref(),
                dtype: *dtype,
                shape: shape.as_ref(),
            })
            .collect();
        Self::create_for(path.as_ref(), &specs, options)
    }

    pub(super) fn create_for(
        path: &Path,
        specs: &[Spec<'_>],
        options: &SaveOptions,
    ) -> Result<Self> {
        let span = Span::write(path.display());
        let layout = Layout::plan(specs, options).map_err(|error| error.in_path(path))?;
        let file = AtomicFile::create(path, options)?;
        reserve(file.file(), layout.file_len())
            .and_then(|()| write_all_at(file.file(), &layout.prefix, 0))
            .map_err(|error| Error::io(error, path))?;
        span.record_bytes(layout.file_len());
        let declared = |spec: &Spec<'_>| Declared {
            name: spec.name.into(),
            dtype: spec.dtype,
            shape: spec.shape.into(),
            // Set below, in file order.
            place: 0..0,
            written: Mutex::default(),
            running: Mutex::default(),
        };
        let mut tensors: Vec<_> = specs.iter().map(declared).collect();
        let mut order = Vec::with_capacity(tensors.len());
        for (i, place) in layout.places {
            tensors[i].place = place;
            order.push(i);
        }
        let digest_options = options.digests.then(|| options.clone());
        let bytes = tensors.iter().map(Declared::byte_len).sum();
        let is_synced = options.durable || options.synced_later;
        let early = if is_synced { Early::for_file_of(bytes) } else { None };
        let progress = options.progress.for_total(bytes);
        let writer = Self {
            file,
            path: path.into(),
            progress,
            early,
            digest_options,
            tensors,
            names: layout.names,
            order,
            _span: span,
        };
        writer.note_written(0..layout.prefix.len() as u64);
        Ok(writer)
    }

    /// Checks that every byte has been written, gives the file its name, and replaces the old file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incomplete`]; [`ErrorKind::Io`]; [`ErrorKind::Cancelled`]. The path keeps the
    /// old file, and no temporary file stays. After [`ErrorKind::NotDurable`] it has the new file.
    pub fn finish(self) -> Result<()> {
        self.stage()?.commit()
    }

    /// Completes the file, before it gets its name.
    pub(super) fn stage(self) -> Result<AtomicFile> {
        self.progress.check().map_err(|error| error.in_path(&self.path))?;
        self.tensors().try_for_each(|tensor| tensor.check_complete())?;
        if let Some(options) = &self.digest_options {
            self.record_digests(options).map_err(|error| error.in_path(&self.path))?;
        }
        Ok(self.file)
    }

    /// Replaces the placeholders in the header.
    fn record_digests(&self, options: &SaveOptions) -> Result<()> {
        let file = self.file.file();
        let digests = in_parallel(&self.tensors, 0, |tensor, buffer| {
            lock(&tensor.running)
                .finish(file, tensor.place.clone(), buffer)
                .map_err(|error| error.in_tensor(&tensor.name))
        })?;
        let specs: Vec<_> = self.tensors.iter().map(Declared::spec).collect();
        write_all_at(file, &prefix_with_digests(&specs, options, digests)?, 0)?;
        Ok(())
    }

    pub(super) fn note_written(&self, range: Range<u64>) {
        if let Some(early) = &self.early {
            early.written(self.file.file(), range);
        }
    }

    /// Returns how much to write at a time.
    pub(super) fn piece(&self) -> usize {
        match &self.early {
            _ if self.progress.is_watched() => progress::PIECE,
            // The disk works at the same time.
            Some(early) => early.piece(),
            None => usize::MAX,
        }
    }
}
