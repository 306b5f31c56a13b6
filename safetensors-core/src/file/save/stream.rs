//! [`StreamWriter`]: a file with tensors that are declared first, and then written in any order,
//! from any thread.

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

/// Writes a file piece by piece. Each tensor is declared at the start, and then written at once or
/// in pieces, in any order, by any number of threads at once.
///
/// The layout follows from the declarations alone. So the file is the same, byte for byte, in any
/// order of writing, and the same as from [`save`](super::save()). Writing a byte twice is an
/// error. So is a missing byte when [`finish`](StreamWriter::finish) gives the file its name. Until
/// then, or if the writer is dropped, the path keeps the old file.
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
    /// The options to write the header again with, if digests are recorded.
    pub(super) digest_options: Option<SaveOptions>,
    /// The tensors in the order of their declaration.
    pub(super) tensors: Vec<Declared>,
    pub(super) names: NameTable,
    /// The positions in `tensors`, in file order.
    pub(super) order: Vec<usize>,
    _span: Span,
}

/// A declared tensor, and its bytes that have been written.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// The range of its bytes, counted from the start of the file.
    pub(super) place: Range<u64>,
    /// The bytes that have been written, or are being written, counted from the start of the
    /// tensor.
    pub(super) written: Mutex<Ranges>,
    /// The running digest of the tensor, if digests are to be recorded.
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
    /// Plans a file of tensors with these names, dtypes and shapes, creates it under a temporary
    /// name, reserves its space where the file system can, and writes the header.
    ///
    /// # Errors
    ///
    /// A file that could not be read back is refused: [`ErrorKind::ReservedName`],
    /// [`ErrorKind::DuplicateTensor`], [`ErrorKind::HeaderTooLarge`] and bad shapes (see
    /// [`shape::byte_len`](crate::shape::byte_len)). Also [`ErrorKind::BadAlignment`];
    /// [`ErrorKind::NotAFile`] if the path leads to something other than a regular file;
    /// [`ErrorKind::ReadOnlyFile`]; [`ErrorKind::FileExists`]; [`ErrorKind::Io`].
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

    /// Like [`create`](StreamWriter::create), for names and shapes that are borrowed.
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

    /// Checks that every byte of every tensor has been written, gives the file its name, and
    /// replaces the old file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incomplete`], naming the first tensor in file order that lacks a byte;
    /// [`ErrorKind::Io`]; [`ErrorKind::Cancelled`] if the [progress](SaveOptions::progress)
    /// callback cancelled the save. The path then still has the old file, and no temporary file
    /// stays behind. After [`ErrorKind::NotDurable`] it has the new file.
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

    /// Writes the header again, with digests instead of the placeholders. Its length is the same.
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

    /// Notes that a range of the file has been written.
    pub(super) fn note_written(&self, range: Range<u64>) {
        if let Some(early) = &self.early {
            early.written(self.file.file(), range);
        }
    }

    /// Returns the most bytes to write at a time.
    pub(super) fn piece(&self) -> usize {
        match &self.early {
            _ if self.progress.is_watched() => progress::PIECE,
            // The disk works at the same time.
            Some(early) => early.piece(),
            None => usize::MAX,
        }
    }
}
