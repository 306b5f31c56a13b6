//! [`LazyTensor`]: a tensor of an open file, described now and read when asked.

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::convert::ConvertOptions;
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::header::{Header, LENGTH_BYTES, Limits, START, TensorInfo, explain};
use crate::io::{ReadAt, SafeTensors};
use crate::load::LoadOptions;
use crate::tensor::{Sink, TensorBuf, TensorSource, TensorView};

/// The most bytes that are held of a tensor that is streamed.
pub(crate) const PIECE: usize = 1 << 20;

/// One tensor of a file or checkpoint that is open: its description, and where to read it.
///
/// Asking for name, dtype or shape reads nothing.
///
/// ```
/// use safetensors_core::{Checkpoint, Dtype, LoadOptions, SaveOptions, TensorView, save};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.safetensors");
/// let values = [1.0_f32, 2.0, 3.0, 4.0];
/// save(&path, [("weight", TensorView::from_slice(&[2, 2], &values)?)], &SaveOptions::new())?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let weight = checkpoint.tensor("weight")?;
/// assert_eq!(
///     (weight.dtype(), weight.shape(), weight.byte_len()),
///     (Dtype::F32, &[2, 2][..], 16)
/// );
/// assert_eq!(weight.file(), Some(&*path));
///
/// // As it is, in part, or as another dtype.
/// assert_eq!(weight.read()?.into_vec::<f32>()?, values);
/// assert_eq!(weight.slice((1,))?.read()?.into_vec::<f32>()?, [3.0, 4.0]);
/// let wide = weight.read_with(&LoadOptions::new().floats_as(Dtype::F64))?;
/// assert_eq!(wide.into_vec::<f64>()?, [1.0, 2.0, 3.0, 4.0]);
///
/// // A tensor of a file is something to save, too: it streams from one file to the other.
/// save(dir.path().join("copy.safetensors"), [("copy", weight)], &SaveOptions::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LazyTensor<'a, S> {
    info: TensorInfo<'a>,
    archive: &'a SafeTensors<S>,
    file: Option<&'a Path>,
    file_index: usize,
}

impl<S> Clone for LazyTensor<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for LazyTensor<'_, S> {}

impl<'a, S> LazyTensor<'a, S> {
    /// A tensor of a file that belongs to no checkpoint, or to one of this file alone.
    pub(crate) fn new(
        info: TensorInfo<'a>,
        archive: &'a SafeTensors<S>,
        file: Option<&'a Path>,
    ) -> Self {
        Self { info, archive, file, file_index: 0 }
    }

    /// Says which of a checkpoint's files the tensor's is.
    pub(crate) fn in_file(self, file_index: usize) -> Self {
        Self { file_index, ..self }
    }

    /// The name.
    pub fn name(&self) -> &'a str {
        self.info.name()
    }

    /// The type of the elements in the file.
    pub fn dtype(&self) -> Dtype {
        self.info.dtype()
    }

    /// The dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'a [usize] {
        self.info.shape()
    }

    /// The number of elements.
    pub fn element_count(&self) -> u64 {
        self.info.element_count()
    }

    /// The number of bytes.
    pub fn byte_len(&self) -> u64 {
        self.info.byte_len()
    }

    /// What the header says of the tensor.
    pub fn info(&self) -> TensorInfo<'a> {
        self.info
    }

    /// The file that the tensor lies in, if it was opened by path.
    pub fn file(&self) -> Option<&'a Path> {
        self.file
    }

    /// The position of that file among [`Checkpoint::files`](crate::Checkpoint::files); 0 if it
    /// was opened without a checkpoint.
    pub fn file_index(&self) -> usize {
        self.file_index
    }

    /// Where the tensor's bytes begin, counted from the start of its file.
    pub fn file_offset(&self) -> u64 {
        self.archive.header().data_start() + self.info.data_offsets().start
    }

    /// What the tensor's bytes are read from.
    pub fn source(&self) -> &'a S {
        self.archive.source()
    }

    /// Says in an error that it is about this tensor and its file.
    pub fn locate(&self, error: Error) -> Error {
        let error = error.in_tensor(self.name());
        match self.file {
            Some(file) => error.in_path(file),
            None => error,
        }
    }
}

impl<S: ReadAt> LazyTensor<'_, S> {
    /// Reads the tensor into a buffer of its own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] if the source fails, or has changed since it was opened;
    /// [`ErrorKind::InvalidBool`]; [`ErrorKind::TooLargeForMemory`].
    pub fn read(&self) -> Result<TensorBuf> {
        TensorBuf::filled_by(self.dtype(), self.shape().to_vec(), |bytes| {
            self.source().read_exact_at(bytes, self.file_offset()).map_err(ErrorKind::Io)?;
            self.check_unchanged()
        })
        .map_err(|error| self.locate(error))
    }

    /// [`read`](LazyTensor::read) with options: a large tensor in several threads, converted while
    /// it is read, and cancelled if the caller says so. Many tensors,
    /// [`read_tensors`](crate::load::read_tensors) reads at once.
    ///
    /// # Errors
    ///
    /// Those of [`read_tensors`](crate::load::read_tensors).
    pub fn read_with(&self, options: &LoadOptions) -> Result<TensorBuf> {
        super::read_tensor(self, options)
    }

    /// Reads the tensor and converts it, whatever its dtype: see [the table](crate::convert). A
    /// large one is read and converted by [several threads](ConvertOptions::threads). Never more
    /// than a piece of it for each of them is in memory in its own dtype.
    ///
    /// ```
    /// use safetensors_core::{
    ///     ConvertOptions, Dtype, SafeTensors, SaveOptions, TensorView, serialize,
    /// };
    ///
    /// let weights = TensorView::from_slice(&[2], &[1.0_f32, -2.5])?;
    /// let file = serialize([("w", weights)], &SaveOptions::new())?;
    /// let file = SafeTensors::from_source(file)?;
    /// let wide = file.tensor("w")?.read_as(Dtype::F64, &ConvertOptions::new())?;
    /// assert_eq!(wide.into_vec::<f64>()?, [1.0, -2.5]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`LazyTensor::read`] and of [`TensorBuf::convert`].
    pub fn read_as(&self, to: Dtype, options: &ConvertOptions) -> Result<TensorBuf> {
        super::read_tensor_as(self, to, options)
    }
}

/// Reads and gives the tensor in pieces of at most 1 MiB, so that one larger than memory can be
/// saved.
impl<S: ReadAt> TensorSource for LazyTensor<'_, S> {
    fn dtype(&self) -> Dtype {
        Self::dtype(self)
    }

    fn shape(&self) -> &[usize] {
        Self::shape(self)
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let start = self.file_offset();
        self.read_pieces(start..start + self.byte_len(), &mut Vec::new(), sink)?;
        self.check_unchanged()
    }
}

impl<S: ReadAt> LazyTensor<'_, S> {
    /// Checks, after reading, that the file is what it was when it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.source().check_unchanged().map_err(|error| self.locate(ErrorKind::Io(error).into()))
    }

    /// Reads a range of the file through `scratch`, in pieces of at most 1 MiB.
    pub(crate) fn read_pieces(
        &self,
        range: Range<u64>,
        scratch: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        for start in range.clone().step_by(PIECE) {
            scratch.resize((range.end - start).min(PIECE as u64) as usize, 0);
            let read = self.source().read_exact_at(scratch, start);
            read.map_err(|error| self.locate(ErrorKind::Io(error).into()))?;
            sink(scratch)?;
        }
        Ok(())
    }
}

impl<'a, S: AsRef<[u8]>> LazyTensor<'a, S> {
    /// The tensor as a view of the bytes that hold the file. Nothing is copied.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingData`] if the bytes are no longer those that were parsed, which only an
    /// `AsRef` that lends something else at each call can bring about.
    pub fn view(&self) -> Result<TensorView<'a>> {
        self.archive.view_of(&self.info).map_err(|error| self.locate(error))
    }
}

impl<S: ReadAt> SafeTensors<S> {
    /// Reads and parses the header of a source, with the default [`Limits`]; tensors are read
    /// later, when asked for.
    ///
    /// # Errors
    ///
    /// Those of [`Header::parse`], and [`ErrorKind::Io`], also if the source has changed while its
    /// header was read.
    pub fn from_source(source: S) -> Result<Self> {
        Self::from_source_with(source, &Limits::default())
    }

    /// [`from_source`](SafeTensors::from_source) with limits for the header.
    ///
    /// # Errors
    ///
    /// Those of [`from_source`](SafeTensors::from_source).
    pub fn from_source_with(source: S, limits: &Limits) -> Result<Self> {
        match read_header(&source, limits) {
            Ok(header) => Ok(Self::from_parts(header, source)),
            Err(error) => {
                let mut start = vec![0; source.byte_len().min(START as u64) as usize];
                match source.read_exact_at(&mut start, 0) {
                    Ok(()) => Err(explain(error, &start)),
                    Err(_) => Err(error),
                }
            }
        }
    }
}

impl<S> SafeTensors<S> {
    /// The tensors in file order, to be read when asked for.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = LazyTensor<'_, S>> + Clone {
        self.header().iter().map(|info| LazyTensor::new(info, self, None))
    }

    /// The tensor of this name, if there is one. One hash and one comparison; nothing is read or
    /// allocated.
    pub fn get(&self, name: &str) -> Option<LazyTensor<'_, S>> {
        self.header().get(name).map(|info| LazyTensor::new(info, self, None))
    }

    /// The tensor of this name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`].
    pub fn tensor(&self, name: &str) -> Result<LazyTensor<'_, S>> {
        self.get(name).ok_or_else(|| Error::from(ErrorKind::TensorNotFound).in_tensor(name))
    }
}

/// Reads, parses and checks the header of a source.
fn read_header(source: &impl ReadAt, limits: &Limits) -> Result<Header> {
    let file_len = source.byte_len();
    let Some(available) = file_len.checked_sub(LENGTH_BYTES as u64) else {
        return Err(ErrorKind::TooShort { found: file_len }.into());
    };
    let mut length = [0; LENGTH_BYTES];
    source.read_exact_at(&mut length, 0).map_err(ErrorKind::Io)?;
    let mut json = vec![0; Header::check_length(length, available, limits)?];
    source.read_exact_at(&mut json, LENGTH_BYTES as u64).map_err(ErrorKind::Io)?;
    let header = Header::parse_json(&json, limits)?;
    header.check_data_len(available - json.len() as u64)?;
    source.check_unchanged().map_err(ErrorKind::Io)?;
    if source.may_change_unseen() {
        look_again(source, length, &json).map_err(ErrorKind::Io)?;
    }
    Ok(header)
}

/// Compares a header with what the source has now. An edit that writes over it makes the length
/// invalid first, so the length is looked at first: if it is as before, the edit had not begun when
/// the header was read, or is done by now.
fn look_again(source: &impl ReadAt, length: [u8; LENGTH_BYTES], json: &[u8]) -> io::Result<()> {
    let mut found_length = [0; LENGTH_BYTES];
    source.read_exact_at(&mut found_length, 0)?;
    let mut is_same = found_length == length;
    let mut found = vec![0; json.len().min(PIECE)];
    let mut offset = LENGTH_BYTES as u64;
    for piece in json.chunks(PIECE) {
        let found = &mut found[..piece.len()];
        source.read_exact_at(found, offset)?;
        is_same &= found == piece;
        offset += piece.len() as u64;
    }
    source.check_unchanged()?;
    if is_same { Ok(()) } else { Err(io::Error::other("the header changed while it was read")) }
}
