//! [`TensorWriter`]: a tensor of a [`StreamWriter`].

use std::io;
use std::ops::Range;

use super::StreamWriter;
use super::gather::Gathered;
use super::pieces::Pieces;
use super::ranges::Ranges;
use super::stream::Declared;
use crate::file::io::positional::write_all_at;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::parallel::lock;
use crate::format::tensor::{Element, TensorSource, swap_on_big_endian, write_exactly};

/// A tensor of a [`StreamWriter`]. All its copies, also in other threads, write to the same tensor.
///
/// As an [`io::Write`] it appends bytes, so a reader can be copied into it:
///
/// ```
/// use safetensors_core::save::StreamWriter;
/// use safetensors_core::{Dtype, SaveOptions};
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
    pub(super) writer: &'a StreamWriter,
    pub(super) tensor: &'a Declared,
}

impl StreamWriter {
    /// Returns the writer of a declared tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`].
    pub fn tensor(&self, name: &str) -> Result<TensorWriter<'_>> {
        match self.names.find(name, |i| &self.tensors[i].name) {
            Some(i) => Ok(self.at(i)),
            None => Err(Error::from(ErrorKind::TensorNotFound).in_tensor(name).in_path(&self.path)),
        }
    }

    /// Returns the tensors in file order.
    pub(super) fn tensors(&self) -> impl ExactSizeIterator<Item = TensorWriter<'_>> {
        self.order.iter().map(|&i| self.at(i))
    }

    /// Returns a tensor by the position of its declaration.
    pub(super) fn at(&self, position: usize) -> TensorWriter<'_> {
        TensorWriter { writer: self, tensor: &self.tensors[position] }
    }
}

impl TensorWriter<'_> {
    pub(super) fn byte_len(&self) -> u64 {
        self.tensor.byte_len()
    }

    /// Returns the number of bytes written so far.
    pub fn written(&self) -> u64 {
        lock(&self.tensor.written).byte_len()
    }

    /// Writes little-endian bytes in C order at a byte offset of the tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrittenPastEnd`] and [`ErrorKind::WrittenTwice`], also if another thread is
    /// writing the bytes, before anything is written. [`ErrorKind::Io`], after which the bytes may
    /// be written again. [`ErrorKind::Cancelled`], from then on.
    pub fn write_bytes_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let write = || {
            let range = self.claim(&mut lock(&self.tensor.written), offset, bytes.len())?;
            self.write(range, bytes)
        };
        write().map_err(|error| self.locate(error))
    }

    /// Writes values after the last written byte, or at the start. For packed dtypes a value is
    /// [one byte](Element).
    ///
    /// ```
    /// use safetensors_core::save::StreamWriter;
    /// use safetensors_core::{Dtype, ErrorKind, SaveOptions};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// let writer = StreamWriter::create(&path, [("w", Dtype::F32, [3])], &SaveOptions::new())?;
    /// let w = writer.tensor("w")?;
    /// w.append(&[1.0_f32, 2.0])?;
    /// let error = w.append(&[3.0_f64]).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::WrongDtype { expected: Dtype::F32, .. }));
    /// w.append(&[3.0_f32])?;
    /// writer.finish()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] if the dtype is not `T`'s; as for
    /// [`write_bytes_at`](TensorWriter::write_bytes_at).
    pub fn append<T: Element>(&self, values: &[T]) -> Result<()> {
        if T::DTYPE != self.tensor.dtype {
            let expected = self.tensor.dtype;
            let found = T::DTYPE;
            return Err(self.locate(ErrorKind::WrongDtype { expected, found }.into()));
        }
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if cfg!(target_endian = "little") {
            return self.append_bytes(bytes);
        }
        // All values are appended by one call, so that the values of several threads are never
        // mixed.
        let mut file_bytes = bytes.to_vec();
        swap_on_big_endian(T::DTYPE, &mut file_bytes);
        self.append_bytes(&file_bytes)
    }

    /// Writes after the last written byte, or at the start.
    fn append_bytes(&self, bytes: &[u8]) -> Result<()> {
        let range = self.claim_end(bytes.len()).map_err(|error| self.locate(error))?;
        self.write(range, bytes).map_err(|error| self.locate(error))
    }

    fn claim_end(&self, len: usize) -> Result<Range<u64>> {
        let mut written = lock(&self.tensor.written);
        let end = written.end();
        self.claim(&mut written, end, len)
    }

    /// Writes the entire tensor from a source. After a failure none of its bytes count as written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`], [`ErrorKind::WrongShape`] and [`ErrorKind::SourceLength`] if the
    /// source does not fit the declaration; errors of the source; as for
    /// [`write_bytes_at`](TensorWriter::write_bytes_at).
    pub fn write_from(&self, source: &dyn TensorSource) -> Result<()> {
        self.check_source(source).map_err(|error| self.locate(error))?;
        let mut pieces = Pieces::new(self.byte_len());
        let mut sink = |offset, bytes: &[u8]| self.write_bytes_at(offset, bytes);
        // A digest is taken of the bytes in order, while they are at hand.
        let result = match self.writer.digest_options {
            Some(_) => pieces.write_in_order(source, &mut sink),
            None => pieces.write(source, &mut sink),
        };
        result.map_err(|error| {
            lock(&self.tensor.running).restart();
            let mut all = lock(&self.tensor.written);
            pieces.written.iter().for_each(|range| all.remove(range));
            drop(all);
            self.writer.progress.take_back(pieces.written.byte_len());
            self.locate(error)
        })
    }

    fn check_source(&self, source: &dyn TensorSource) -> Result<()> {
        let Declared { dtype, ref shape, .. } = *self.tensor;
        if source.dtype() != dtype {
            return Err(ErrorKind::WrongDtype { expected: dtype, found: source.dtype() }.into());
        }
        if source.shape() != *shape {
            let expected = shape.clone();
            let found = source.shape().into();
            return Err(ErrorKind::WrongShape { expected, found }.into());
        }
        Ok(())
    }

    /// Writes the tensor with its neighbours.
    pub(super) fn gather(&self, source: &dyn TensorSource, gathered: &mut Gathered) -> Result<()> {
        let mut done = 0;
        let mut take = |bytes: &[u8]| {
            let file = self.writer.file.file();
            let start = self.tensor.place.start + done;
            gathered.add(file, bytes, start)?;
            self.claim(&mut lock(&self.tensor.written), done, bytes.len())?;
            self.writer.progress.add(bytes.len() as u64, &self.tensor.name)?;
            if self.writer.digest_options.is_some() {
                lock(&self.tensor.running).take(done, bytes, self.byte_len());
            }
            done += bytes.len() as u64;
            Ok(())
        };
        self.check_source(source)
            .and_then(|()| write_exactly(source, self.byte_len(), &mut take))
            .map_err(|error| self.locate(error))
    }

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

    /// Writes a claimed range.
    fn write(&self, range: Range<u64>, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let claim = Claim { tensor: self, range: Some(range.clone()) };
        self.write_pieces(range.start, bytes)?;
        claim.keep();
        if self.writer.digest_options.is_some() {
            lock(&self.tensor.running).take(range.start, bytes, self.byte_len());
        }
        Ok(())
    }

    /// Writes in pieces for a progress callback, or for the disk to begin.
    fn write_pieces(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.writer.file.file();
        let start = self.tensor.place.start + offset;
        let meter = &self.writer.progress;
        let mut written = 0;
        for piece in bytes.chunks(self.writer.piece()) {
            let at = start + written;
            let done = write_all_at(file, piece, at).map_err(|error| ErrorKind::Io(error).into());
            done.and_then(|()| meter.add(piece.len() as u64, &self.tensor.name))
                .inspect_err(|_| meter.take_back(written))?;
            self.writer.note_written(at..at + piece.len() as u64);
            written += piece.len() as u64;
        }
        Ok(())
    }

    pub(super) fn check_complete(&self) -> Result<()> {
        let written = lock(&self.tensor.written);
        match written.first_gap(self.byte_len()) {
            None => Ok(()),
            Some(gap) => {
                let expected = self.byte_len();
                let found = written.byte_len();
                Err(self.locate(
                    ErrorKind::Incomplete { expected, found, begin: gap.start, end: gap.end }
                        .into(),
                ))
            }
        }
    }

    pub(super) fn locate(&self, error: Error) -> Error {
        error.in_tensor(&self.tensor.name).in_path(&self.writer.path)
    }
}

impl io::Write for TensorWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append_bytes(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A range that is being written. Dropped without [`keep`](Claim::keep), it counts as not written.
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
            lock(&self.tensor.tensor.written).remove(range);
        }
    }
}
