//! [`StreamWriter`]: a file whose tensors are declared first and then written in any order, from any thread.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::SaveOptions;
use super::atomic::AtomicFile;
use super::layout::Layout;
use super::ranges::Ranges;
use super::sequential::prefix_with_digests;
use super::spec::Spec;
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::Running;
use crate::header::NameTable;
use crate::io::FileSource;
use crate::io::positional::write_all_at;
use crate::io::reserve::reserve;
use crate::parallel::{Meter, in_parallel, progress};
use crate::tensor::{TensorSource, write_exactly};

/// Writes a file whose tensors come bit by bit: each is declared at the start, and then written
/// whole or in pieces, in any order, by any number of threads at once.
///
/// The layout follows from the declarations alone, so the file is the same, byte for byte, whatever
/// the order of writing, and the same as [`save`](super::save()) makes of these tensors. No byte
/// can be written twice, and none can be missing when [`finish`](StreamWriter::finish) gives the
/// file its name. Until then, or if the writer is dropped, the path has what it had before.
///
/// ```
/// use safetensors_core::{Checkpoint, Dtype, SaveOptions, StreamWriter};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let tensors = [("a", Dtype::U8, vec![4]), ("b", Dtype::U8, vec![2, 3])];
/// let writer = StreamWriter::create(&path, tensors, &SaveOptions::new())?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| writer.tensor("b")?.write_at(0, &[9; 6]));
///     scope.spawn(|| writer.tensor("a")?.write_at(2, &[3, 4]));
///     scope.spawn(|| writer.tensor("a")?.write_at(0, &[1, 2]));
/// });
/// writer.finish()?;
/// assert_eq!(Checkpoint::open(&path)?.tensor("a")?.read()?.into_vec::<u8>()?, [1, 2, 3, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StreamWriter {
    file: AtomicFile,
    path: PathBuf,
    progress: Meter,
    /// The options, if digests are to be recorded.
    recording: Option<SaveOptions>,
    /// In the order of their declaration.
    tensors: Vec<Declared>,
    names: NameTable,
    /// In the order of the file.
    order: Vec<usize>,
}

#[derive(Debug)]
struct Declared {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Where from the start of the file the bytes go.
    place: Range<u64>,
    /// What of it has been written, or is being written.
    written: Mutex<Ranges>,
    /// The digest of what has been written, if digests are to be recorded.
    running: Mutex<Running>,
}

impl Declared {
    fn byte_len(&self) -> u64 {
        self.place.end - self.place.start
    }

    fn spec(&self) -> Spec<'_> {
        Spec { name: &self.name, dtype: self.dtype, shape: &self.shape }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamWriter {
    /// Plans a file of tensors with these names, dtypes and shapes, creates it under a temporary
    /// name, reserves its space where the file system can, and writes the header.
    ///
    /// # Errors
    ///
    /// What could not be read back is refused: [`ErrorKind::ReservedName`],
    /// [`ErrorKind::DuplicateTensor`], [`ErrorKind::HeaderTooLarge`] and the errors of
    /// [`shape::byte_len`](crate::shape::byte_len). Also [`ErrorKind::BadAlignment`];
    /// [`ErrorKind::NotAFile`] if the path has something else than a regular file;
    /// [`ErrorKind::ReadOnlyFile`]; [`ErrorKind::Io`].
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

    /// [`create`](StreamWriter::create), for names and shapes that are borrowed.
    pub(super) fn create_for(
        path: &Path,
        specs: &[Spec<'_>],
        options: &SaveOptions,
    ) -> Result<Self> {
        let create = || {
            let layout = Layout::plan(specs, options)?;
            let file = AtomicFile::create_with(path, options)?;
            reserve(file.file(), layout.file_len()).map_err(ErrorKind::Io)?;
            write_all_at(file.file(), &layout.prefix, 0).map_err(ErrorKind::Io)?;
            Ok((layout, file))
        };
        let (layout, file) = create().map_err(|error: Error| error.in_path(path))?;
        let declared = |spec: &Spec<'_>| Declared {
            name: spec.name.into(),
            dtype: spec.dtype,
            shape: spec.shape.into(),
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
        let recording = options.digests.then(|| options.clone());
        let bytes = tensors.iter().map(Declared::byte_len).sum();
        let progress = options.progress.for_total(bytes);
        Ok(Self {
            file,
            path: path.into(),
            progress,
            recording,
            tensors,
            names: layout.names,
            order,
        })
    }

    /// The tensor of this name, to be written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`] if none was declared under this name.
    pub fn tensor(&self, name: &str) -> Result<TensorWriter<'_>> {
        match self.names.find(name, |i| &self.tensors[i].name) {
            Some(i) => Ok(self.at(i)),
            None => Err(Error::from(ErrorKind::TensorNotFound).in_tensor(name).in_path(&self.path)),
        }
    }

    /// The tensors in the order in which they lie in the file: written in this order, they make one
    /// sequential stream.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorWriter<'_>> {
        self.order.iter().map(|&i| self.at(i))
    }

    /// The path that the file will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that every byte of every tensor has been written, and gives the file its name,
    /// replacing what had it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incomplete`], naming the first tensor in file order that lacks a byte;
    /// [`ErrorKind::Io`]; [`ErrorKind::Cancelled`] if the [progress](SaveOptions::progress)
    /// callback ended it. The path then has what it had before, and no temporary file stays behind.
    /// After [`ErrorKind::NotDurable`] it has the new file.
    pub fn finish(self) -> Result<()> {
        self.progress.check().map_err(|error| error.in_path(&self.path))?;
        self.tensors().try_for_each(|tensor| tensor.check_complete())?;
        if let Some(options) = &self.recording {
            self.record_digests(options).map_err(|error| error.in_path(&self.path))?;
        }
        self.file.commit()
    }

    /// Writes the header again, with the digests of what has been written.
    fn record_digests(&self, options: &SaveOptions) -> Result<()> {
        let file = self.file.file();
        let source = file
            .try_clone()
            .and_then(|file| FileSource::of(file, &self.path))
            .map_err(ErrorKind::Io)?;
        let digests = in_parallel(&self.tensors, 0, |tensor, buffer| {
            tensor
                .running()
                .finish(&source, tensor.place.clone(), buffer)
                .map_err(|error| error.in_tensor(&tensor.name))
        })?;
        let specs: Vec<_> = self.tensors.iter().map(Declared::spec).collect();
        write_all_at(file, &prefix_with_digests(&specs, options, digests)?, 0)
            .map_err(ErrorKind::Io)?;
        Ok(())
    }

    /// The positions among the declarations, in the order of the file.
    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }

    /// The tensor that was declared at this position.
    pub(super) fn at(&self, position: usize) -> TensorWriter<'_> {
        TensorWriter { writer: self, tensor: &self.tensors[position] }
    }
}

/// One tensor of a [`StreamWriter`]. It can be copied and sent to other threads; all copies write
/// to the one tensor.
///
/// As an [`io::Write`] it [appends](TensorWriter::append), so that a reader can be copied into it:
///
/// ```
/// use safetensors_core::{Dtype, SaveOptions, StreamWriter};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.safetensors");
/// let writer = StreamWriter::create(&path, [("text", Dtype::U8, [5])], &SaveOptions::new())?;
/// std::io::copy(&mut "hello".as_bytes(), &mut writer.tensor("text")?)?;
/// writer.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TensorWriter<'a> {
    writer: &'a StreamWriter,
    tensor: &'a Declared,
}

impl<'a> TensorWriter<'a> {
    /// The name.
    pub fn name(&self) -> &'a str {
        &self.tensor.name
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.tensor.dtype
    }

    /// The dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'a [usize] {
        &self.tensor.shape
    }

    /// The number of bytes that the tensor has when it is complete.
    pub fn byte_len(&self) -> u64 {
        self.tensor.byte_len()
    }

    /// The number of bytes written so far.
    pub fn written(&self) -> u64 {
        self.lock().byte_len()
    }

    /// Writes `bytes`, little-endian and in C order, at `offset` bytes from the tensor's beginning.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrittenPastEnd`]; [`ErrorKind::WrittenTwice`] if some of these bytes have been
    /// written already, or are just being written by another thread: two that disagree about a
    /// tensor are an error, not a race. Nothing is written then. [`ErrorKind::Io`] if the system
    /// fails; then the same bytes may be written again. [`ErrorKind::Cancelled`], here and from
    /// then on, if the [progress](SaveOptions::progress) callback ended it.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let write = || {
            let range = self.claim(&mut self.lock(), offset, bytes.len())?;
            self.write(range, bytes)
        };
        write().map_err(|error| self.locate(error))
    }

    /// Writes `bytes` after the last byte written so far, which is the beginning if nothing has
    /// been.
    ///
    /// # Errors
    ///
    /// Those of [`write_at`](TensorWriter::write_at).
    pub fn append(&self, bytes: &[u8]) -> Result<()> {
        let append = || {
            let mut written = self.lock();
            let end = written.end();
            let range = self.claim(&mut written, end, bytes.len())?;
            drop(written);
            self.write(range, bytes)
        };
        append().map_err(|error| self.locate(error))
    }

    /// Writes the whole tensor from a source. If that fails, none of its bytes count as written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] and [`ErrorKind::WrongShape`] if it is not the tensor that was
    /// declared; [`ErrorKind::SourceLength`]; those of [`write_at`](TensorWriter::write_at) and of
    /// the source.
    pub fn write_from(&self, source: &(impl TensorSource + ?Sized)) -> Result<()> {
        let (dtype, shape) = (self.dtype(), self.shape());
        if source.dtype() != dtype {
            let error =
                Error::from(ErrorKind::WrongDtype { expected: dtype, found: source.dtype() });
            return Err(self.locate(error));
        }
        if source.shape() != shape {
            let kind =
                ErrorKind::WrongShape { expected: shape.into(), found: source.shape().into() };
            return Err(self.locate(kind.into()));
        }
        let mut written = 0;
        let result = write_exactly(source, self.byte_len(), &mut |offset, bytes| {
            self.write_at(offset, bytes)?;
            written = offset + bytes.len() as u64;
            Ok(())
        });
        result.map_err(|error| {
            self.tensor.running().restart();
            self.lock().remove(0..written);
            self.writer.progress.take_back(written);
            self.locate(error)
        })
    }

    /// Marks a range as written, if none of it is.
    fn claim(&self, written: &mut Ranges, offset: u64, len: usize) -> Result<Range<u64>> {
        let end = offset.saturating_add(len as u64);
        if end > self.byte_len() {
            return Err(ErrorKind::WrittenPastEnd { expected: self.byte_len(), found: end }.into());
        }
        written
            .insert(offset..end)
            .map_err(|twice| ErrorKind::WrittenTwice { begin: twice.start, end: twice.end })?;
        Ok(offset..end)
    }

    /// Writes to a range that has been claimed.
    fn write(&self, range: Range<u64>, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let claim = Claim { tensor: self, range: Some(range.clone()) };
        self.write_pieces(range.start, bytes)?;
        claim.keep();
        if self.writer.recording.is_some() {
            self.tensor.running().take(range.start, bytes, self.byte_len());
        }
        Ok(())
    }

    /// Writes at an offset of the tensor, in one piece unless somebody wants to know of the
    /// progress.
    fn write_pieces(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.writer.file.file();
        let start = self.tensor.place.start + offset;
        let meter = &self.writer.progress;
        let piece = if meter.is_watched() { progress::PIECE } else { bytes.len() };
        let mut written = 0;
        for piece in bytes.chunks(piece) {
            let done = write_all_at(file, piece, start + written)
                .map_err(|error| ErrorKind::Io(error).into());
            done.and_then(|()| meter.add(piece.len() as u64, self.name()))
                .inspect_err(|_| meter.take_back(written))?;
            written += piece.len() as u64;
        }
        Ok(())
    }

    fn check_complete(&self) -> Result<()> {
        let written = self.lock();
        match written.first_gap(self.byte_len()) {
            None => Ok(()),
            Some(gap) => {
                let (expected, found) = (self.byte_len(), written.byte_len());
                Err(self.locate(
                    ErrorKind::Incomplete { expected, found, begin: gap.start, end: gap.end }
                        .into(),
                ))
            }
        }
    }

    fn locate(&self, error: Error) -> Error {
        error.in_tensor(self.name()).in_path(&self.writer.path)
    }

    fn lock(&self) -> MutexGuard<'a, Ranges> {
        // Nothing that can panic happens under the lock.
        self.tensor.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl io::Write for TensorWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A range that is being written. It counts as not written again if that fails, or if the caller's
/// progress callback panics.
struct Claim<'a> {
    tensor: &'a TensorWriter<'a>,
    range: Option<Range<u64>>,
}

impl Claim<'_> {
    fn keep(mut self) {
        self.range = None;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(range) = self.range.take() {
            self.tensor.lock().remove(range);
        }
    }
}
