//! [`Writer`]: tensors as a `.npz` archive.

use std::collections::HashSet;
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use safetensors_core::{ErrorKind as CoreKind, TensorSource};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::error::{Error, ErrorKind, Result};
use crate::input::sought;
use crate::{npy, zipped};

/// How an archive's members are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Not compressed, like `numpy.savez`: fast.
    #[default]
    Stored,
    /// Deflated, like `numpy.savez_compressed`.
    Deflated,
}

/// Writes tensors to a `.npz` archive, one after the other.
///
/// [`finish`](Writer::finish) writes the list of members, without which there is no archive. Equal
/// tensors give equal bytes.
///
/// ```
/// use safetensors_core::{SafeTensors, SaveOptions, TensorBuf, serialize};
/// use safetensors_formats::npz;
///
/// let bias = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0])?;
/// let model = serialize([("bias", &bias)], &SaveOptions::new())?;
/// let model = SafeTensors::from_source(model)?;
///
/// let mut writer = npz::Writer::new(std::io::Cursor::new(Vec::new()))
///     .compression(npz::Compression::Deflated);
/// for tensor in model.tensors() {
///     writer.add(tensor.name(), &model.tensor(tensor.name())?)?;
/// }
/// let archive = writer.finish()?.into_inner();
/// # let archive = npz::Archive::from_source(archive, "a.npz", &Default::default())?;
/// # assert_eq!(archive.array("bias")?.read()?.bytes(), bias.bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Writer<W: Write + Seek> {
    /// Before `zip`, because fields are dropped in order.
    gate: CloseOnDrop,
    zip: ZipWriter<Gate<W>>,
    compression: Compression,
    names: HashSet<String>,
    has_failed: bool,
}

impl<W: Write + Seek> Writer<W> {
    /// Begins an archive at the position of `out`.
    pub fn new(out: W) -> Self {
        let is_open = Arc::new(AtomicBool::new(true));
        let zip = ZipWriter::new(Gate { out, is_open: Arc::clone(&is_open), at: 0, end: 0 });
        let gate = CloseOnDrop(is_open);
        let compression = Compression::default();
        Self { gate, zip, compression, names: HashSet::new(), has_failed: false }
    }

    /// Sets how later members are written; [stored](Compression::Stored) by default.
    #[must_use]
    pub fn compression(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// Writes a tensor as the member `name` with `.npy`, piece by piece.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoNumpyType`], before anything of the tensor is written; errors of reading the
    /// tensor; [`DuplicateTensor`](CoreKind::DuplicateTensor); [`Io`](CoreKind::Io);
    /// [`ErrorKind::BadArchive`] for a name longer than 65,531 bytes.
    pub fn add(&mut self, name: &str, tensor: &dyn TensorSource) -> Result<()> {
        let header = npy::Header::new(tensor.dtype(), tensor.shape()).encode();
        let header = header.map_err(|error| error.in_tensor(name))?;
        if self.names.contains(name) {
            return Err(Error::from(CoreKind::DuplicateTensor).in_tensor(name));
        }
        let method = match self.compression {
            Compression::Stored => CompressionMethod::Stored,
            Compression::Deflated => CompressionMethod::Deflated,
        };
        // Whether a member is over 4 GiB must be known at its start; the room for that is small.
        let options = SimpleFileOptions::default().compression_method(method).large_file(true);
        let started = self.zip.start_file(format!("{name}.npy"), options);
        started.map_err(|error| zipped::failed(error).in_tensor(name))?;
        self.names.insert(name.into());
        let written = self.zip.write_all(&header).map_err(Error::from);
        let written = written.and_then(|()| npy::write_data(&mut self.zip, tensor));
        self.has_failed |= written.is_err();
        written.map_err(|error| error.in_tensor(name))
    }

    /// Writes the list of members, and returns the writer, not flushed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WriterFailed`] if an earlier tensor is incomplete;
    /// [`Io`](safetensors_core::ErrorKind::Io).
    pub fn finish(self) -> Result<W> {
        if self.has_failed || !self.gate.0.load(Ordering::Relaxed) {
            return Err(ErrorKind::WriterFailed.into());
        }
        let Self { zip, gate, .. } = self;
        let finished = zip.finish();
        drop(gate);
        Ok(finished.map_err(zipped::failed)?.out)
    }
}

#[derive(Debug)]
struct CloseOnDrop(Arc<AtomicBool>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Closes itself when writing fails, and then discards everything.
///
/// A dropped `ZipWriter` writes the end of its archive, so an abandoned one would look complete,
/// and prints to standard error if that fails.
#[derive(Debug)]
struct Gate<W> {
    out: W,
    is_open: Arc<AtomicBool>,
    /// The last position is the answer of a closed gate.
    at: u64,
    end: u64,
}

impl<W> Gate<W> {
    fn with<T>(&mut self, act: impl FnOnce(&mut W) -> io::Result<T>) -> Option<io::Result<T>> {
        if !self.is_open.load(Ordering::Relaxed) {
            return None;
        }
        let done = act(&mut self.out);
        let failed = |error: &io::Error| error.kind() != io::ErrorKind::Interrupted;
        if done.as_ref().is_err_and(failed) {
            self.is_open.store(false, Ordering::Relaxed);
        }
        Some(done)
    }

    fn move_to(&mut self, at: u64) -> u64 {
        (self.at, self.end) = (at, self.end.max(at));
        at
    }
}

impl<W: Write> Write for Gate<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.with(|out| out.write(buf)).unwrap_or(Ok(buf.len()))?;
        self.move_to(self.at + written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(Write::flush).unwrap_or(Ok(()))
    }
}

impl<W: Seek> Seek for Gate<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let reached = self.with(|out| out.seek(to));
        let reached = reached.unwrap_or_else(|| sought(to, self.at, self.end))?;
        Ok(self.move_to(reached))
    }
}
