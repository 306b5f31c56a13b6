//! [`LazyTensor`]: a tensor of an open file, read on request.

use std::ops::Range;
use std::path::Path;
use std::{fmt, io};

use crate::file::io::{ReadAt, SafeTensors};
use crate::file::load::LoadOptions;
use crate::file::load::catalog::{Catalog, CatalogPlace, CheckpointFile};
use crate::file::load::streaming::read_pieces;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::header::{Header, LENGTH_BYTES, Limits, START, TensorInfo, explain, telling};
use crate::format::tensor::{Sink, TensorBuf, TensorSource, TensorView};

/// A tensor of an open file or checkpoint. Name, dtype and shape come from the header; methods that
/// return data read the file.
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
pub struct LazyTensor<'a, S> {
    info: TensorInfo<'a>,
    pub(super) archive: &'a SafeTensors<S>,
    /// The other tensors; `None` if the file was opened without a checkpoint.
    pub(super) catalog: Option<&'a Catalog<S>>,
    file: Option<&'a Path>,
    file_index: usize,
}

impl<S> fmt::Debug for LazyTensor<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyTensor").field("info", &self.info).field("file", &self.file).finish()
    }
}

impl<S> Clone for LazyTensor<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for LazyTensor<'_, S> {}

impl<'a, S> LazyTensor<'a, S> {
    pub(crate) fn new(
        info: TensorInfo<'a>,
        archive: &'a SafeTensors<S>,
        file: Option<&'a Path>,
    ) -> Self {
        Self { info, archive, catalog: None, file, file_index: 0 }
    }

    /// Returns the name.
    pub fn name(&self) -> &'a str {
        self.info.name()
    }

    /// Returns the type of the elements in the file.
    pub fn dtype(&self) -> Dtype {
        self.info.dtype()
    }

    /// Returns the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'a [usize] {
        self.info.shape()
    }

    /// Returns the number of elements.
    pub fn element_count(&self) -> u64 {
        self.info.element_count()
    }

    /// Returns the number of bytes.
    pub fn byte_len(&self) -> u64 {
        self.info.byte_len()
    }

    /// Returns the header's entry.
    pub fn info(&self) -> TensorInfo<'a> {
        self.info
    }

    /// Returns the path by which the tensor's file was opened.
    pub fn file(&self) -> Option<&'a Path> {
        self.file
    }

    /// Returns the position among [`Checkpoint::files`](crate::Checkpoint::files); 0 without a
    /// checkpoint.
    #[doc(hidden)]
    pub fn file_index(&self) -> usize {
        self.file_index
    }

    /// Returns the offset of the tensor in its file.
    pub fn file_offset(&self) -> u64 {
        self.archive.header().data_start() + self.info.data_offsets().start
    }

    #[doc(hidden)]
    pub fn source(&self) -> &'a S {
        self.archive.source()
    }

    /// Adds the names of the tensor and its file.
    #[doc(hidden)]
    pub fn locate(&self, error: Error) -> Error {
        locate(error, self.name(), self.file)
    }
}

impl<S: ReadAt> LazyTensor<'_, S> {
    /// Reads the tensor into a new buffer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`], also if the file has changed since it was opened;
    /// [`ErrorKind::InvalidBool`]; [`ErrorKind::TooLargeForMemory`].
    pub fn read(&self) -> Result<TensorBuf> {
        let range = self.file_offset()..self.file_offset() + self.byte_len();
        TensorBuf::filled_by(self.dtype(), self.shape().to_vec(), |bytes| {
            self.source().will_read(&mut std::iter::once(range.clone()));
            self.source().read_exact_at(bytes, range.start)?;
            self.check_unchanged()
        })
        .map_err(|error| self.locate(error))
    }

    /// Reads the tensor with options: threads, a [conversion](crate::convert), progress. Memory
    /// also holds a small piece of the file for each thread.
    /// [`read_tensors`](crate::load::read_tensors) reads many tensors at once, with the same
    /// errors.
    ///
    /// ```
    /// use safetensors_core::{
    ///     Dtype, LoadOptions, SafeTensors, SaveOptions, TensorView, serialize,
    /// };
    ///
    /// let weights = TensorView::from_slice(&[2], &[1.0_f32, -2.5])?;
    /// let file = serialize([("w", weights)], &SaveOptions::new())?;
    /// let file = SafeTensors::from_source(file)?;
    /// let wide = file.tensor("w")?.read_with(&LoadOptions::new().all_as(Dtype::F64))?;
    /// assert_eq!(wide.into_vec::<f64>()?, [1.0, -2.5]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    pub fn read_with(&self, options: &LoadOptions) -> Result<TensorBuf> {
        super::read_tensor(self, options)
    }
}

/// Passes pieces of at most 1 MiB, so the tensor may be larger than memory.
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

    fn refuse_codes(&self) -> Result<()> {
        Self::refuse_codes(self)
    }
}

impl<'a, S: ReadAt> LazyTensor<'a, S> {
    pub(crate) fn place(&self) -> TensorPlace<'a> {
        let Self { info, file, .. } = *self;
        TensorPlace { info, source: self.source(), file, offset: self.file_offset() }
    }

    /// To be called after reading.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.place().check_unchanged()
    }

    /// Passes pieces of at most 1 MiB.
    pub(crate) fn read_pieces(
        &self,
        range: Range<u64>,
        scratch: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let failed = |error| self.locate(ErrorKind::Io(error).into());
        read_pieces(self.source(), range, scratch, &failed, sink)
    }
}

/// A [`LazyTensor`] of any source. What follows after it is compiled once, not for each source.
#[derive(Clone, Copy)]
pub(crate) struct TensorPlace<'a> {
    pub(crate) info: TensorInfo<'a>,
    pub(crate) source: &'a dyn ReadAt,
    pub(crate) file: Option<&'a Path>,
    /// The offset of the first byte in the file.
    pub(crate) offset: u64,
}

impl TensorPlace<'_> {
    pub(crate) fn dtype(&self) -> Dtype {
        self.info.dtype()
    }

    pub(crate) fn locate(&self, error: Error) -> Error {
        locate(error, self.info.name(), self.file)
    }

    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.source.check_unchanged().map_err(|error| self.locate(ErrorKind::Io(error).into()))
    }
}

fn locate(error: Error, tensor: &str, file: Option<&Path>) -> Error {
    let error = error.in_tensor(tensor);
    match file {
        Some(file) => error.in_path(file),
        None => error,
    }
}

impl<'a, S: AsRef<[u8]>> LazyTensor<'a, S> {
    /// Views the tensor in the bytes of the file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingData`] if an `AsRef` returns other bytes than before.
    pub fn view(&self) -> Result<TensorView<'a>> {
        self.archive.view_of(&self.info).map_err(|error| self.locate(error))
    }
}

impl<S: ReadAt> SafeTensors<S> {
    /// Reads the header of a source, with the default [`Limits`], and tensors on request.
    ///
    /// # Errors
    ///
    /// As for [`Header::parse`]; [`ErrorKind::Io`], also if the source changes at the same time.
    pub fn from_source(source: S) -> Result<Self> {
        Self::from_source_with(source, &Limits::default())
    }

    pub(crate) fn from_source_with(source: S, limits: &Limits) -> Result<Self> {
        match read_header(&source, limits) {
            Ok(header) => Ok(Self::from_parts(header, source)),
            Err(error) => {
                let at = telling(&error, source.byte_len());
                let len = source.byte_len().saturating_sub(at).min(START as u64);
                let mut bytes = vec![0; len as usize];
                match source.read_exact_at(&mut bytes, at) {
                    Ok(()) => Err(explain(error, &bytes)),
                    Err(_) => Err(error),
                }
            }
        }
    }
}

impl<S> SafeTensors<S> {
    /// Returns the tensors in file order, without their data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = LazyTensor<'_, S>> + Clone {
        self.header().iter().map(|info| LazyTensor::new(info, self, None))
    }

    pub(crate) fn get(&self, name: &str) -> Option<LazyTensor<'_, S>> {
        self.header().get(name).map(|info| LazyTensor::new(info, self, None))
    }

    /// Returns a tensor by name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`], with [similar names](Error::similar).
    pub fn tensor(&self, name: &str) -> Result<LazyTensor<'_, S>> {
        self.get(name)
            .ok_or_else(|| Error::not_found(name, self.header().iter().map(|info| info.name())))
    }
}

impl<S> Catalog<S> {
    pub(crate) fn tensors(&self) -> impl Iterator<Item = LazyTensor<'_, S>> + Clone {
        self.table.places.iter().filter_map(|&place| self.lazy(place))
    }

    /// Returns sorted aliases.
    pub(crate) fn aliases(&self) -> impl Iterator<Item = (&str, LazyTensor<'_, S>)> {
        self.table.aliases.iter().filter_map(|(name, &place)| Some((&**name, self.lazy(place)?)))
    }

    pub(crate) fn get(&self, name: &str) -> Option<LazyTensor<'_, S>> {
        self.tensor_at(self.position(name)?)
    }

    pub(crate) fn tensor_at(&self, position: usize) -> Option<LazyTensor<'_, S>> {
        self.table.places.get(position).and_then(|&place| self.lazy(place))
    }

    fn lazy(&self, place: CatalogPlace) -> Option<LazyTensor<'_, S>> {
        let (CheckpointFile { path, archive }, info) = self.info(place)?;
        let catalog = Some(self);
        let file = Some(path.as_path());
        Some(LazyTensor { info, archive, catalog, file, file_index: place.file })
    }
}

fn read_header(source: &dyn ReadAt, limits: &Limits) -> Result<Header> {
    let file_len = source.byte_len();
    let Some(available) = file_len.checked_sub(LENGTH_BYTES as u64) else {
        return Err(ErrorKind::TooShort { found: file_len }.into());
    };
    let mut length = [0; LENGTH_BYTES];
    source.read_exact_at(&mut length, 0)?;
    let mut json = vec![0; Header::check_length(length, available, limits)?];
    source.read_exact_at(&mut json, LENGTH_BYTES as u64)?;
    let header = Header::parse_json(&json, limits)?;
    header.check_data_len(available - json.len() as u64)?;
    source.check_unchanged()?;
    if source.may_change_unseen() {
        look_again(source, length, &json)?;
    }
    Ok(header)
}

/// Compares a header with the present bytes.
// An edit in place makes the length invalid first and valid last. So the length is compared first:
// if it is the same, no edit was writing, or it is done and the text differs.
fn look_again(source: &dyn ReadAt, length: [u8; LENGTH_BYTES], json: &[u8]) -> io::Result<()> {
    /// The most bytes in memory in addition to the header.
    const COMPARED: usize = 1 << 20;
    let mut found_length = [0; LENGTH_BYTES];
    source.read_exact_at(&mut found_length, 0)?;
    let mut is_same = found_length == length;
    let mut found = vec![0; json.len().min(COMPARED)];
    let mut offset = LENGTH_BYTES as u64;
    for piece in json.chunks(COMPARED) {
        let found = &mut found[..piece.len()];
        source.read_exact_at(found, offset)?;
        is_same &= found == piece;
        offset += piece.len() as u64;
    }
    source.check_unchanged()?;
    if is_same { Ok(()) } else { Err(io::Error::other("the header changed while it was read")) }
}
