//! [`SafeTensors`]: a parsed file in any source.

#[cfg(feature = "std")]
use std::any::Any;
#[cfg(feature = "std")]
use std::sync::{Arc, OnceLock};

use crate::format::error::{ErrorKind, Result};
use crate::format::header::{Header, Limits, Metadata, TensorInfo};
use crate::format::tensor::TensorView;

/// A parsed file: its header, and its bytes or source.
///
/// A `B` that lends its bytes (`&[u8]`, `Vec<u8>`, `Mmap`, `bytes::Bytes`) lends tensors as
/// [views](SafeTensors::view). From a [`ReadAt`](crate::ReadAt), such as an open file, they are
/// [read](crate::LazyTensor::read).
///
/// ```
/// use safetensors_core::{SafeTensors, SaveOptions, TensorView, serialize};
///
/// let weights = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
/// let file: Vec<u8> = serialize([("weights", weights)], &SaveOptions::new())?;
///
/// let archive = SafeTensors::parse(file)?;
/// assert_eq!(archive.view("weights")?.as_slice::<f32>()?, [1.0, 2.0]);
/// assert!(archive.view("bias").is_err());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SafeTensors<B> {
    header: Header,
    bytes: B,
    /// Facts about all tensors, found when one of them is first asked about.
    #[cfg(feature = "std")]
    found: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl<B> SafeTensors<B> {
    /// Changes to another type with the same bytes.
    #[cfg(feature = "std")]
    pub(crate) fn map_source<T, E>(
        self,
        change: impl FnOnce(B) -> core::result::Result<T, E>,
    ) -> core::result::Result<SafeTensors<T>, E> {
        Ok(SafeTensors { header: self.header, bytes: change(self.bytes)?, found: self.found })
    }
}

impl<B: AsRef<[u8]>> SafeTensors<B> {
    /// Parses an entire file in memory, with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// Every rule of the format has its own [`ErrorKind`](crate::ErrorKind).
    pub fn parse(bytes: B) -> Result<Self> {
        let header = Header::parse(bytes.as_ref(), &Limits::default())?;
        Ok(Self::from_parts(header, bytes))
    }

    /// Borrows a tensor by name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TensorNotFound`].
    pub fn view(&self, name: &str) -> Result<TensorView<'_>> {
        let info = self.header.get(name).ok_or(ErrorKind::TensorNotFound);
        let info = info.map_err(|kind| crate::format::error::Error::from(kind).in_tensor(name))?;
        self.view_of(&info)
    }

    /// Borrows all tensors in file order.
    pub fn views(&self) -> impl Iterator<Item = (&str, TensorView<'_>)> {
        self.header.iter().filter_map(|info| Some((info.name(), self.view_of(&info).ok()?)))
    }

    pub(crate) fn view_of<'a>(&'a self, info: &TensorInfo<'a>) -> Result<TensorView<'a>> {
        let offsets = info.data_offsets();
        let start = self.header.data_start();
        let range = to_usize(start + offsets.start)?..to_usize(start + offsets.end)?;
        // The header was checked against these bytes, but a foreign `AsRef` may return different
        // bytes at each call.
        let data = self.bytes.as_ref();
        let found = (data.len() as u64).saturating_sub(start);
        let missing = || ErrorKind::MissingData { expected: self.header.data_len(), found }.into();
        let view = data
            .get(range)
            .ok_or_else(missing)
            .and_then(|data| TensorView::new(info.dtype(), info.shape(), data));
        view.map_err(|error| error.in_tensor(info.name()))
    }
}

impl<B> SafeTensors<B> {
    pub(crate) fn from_parts(header: Header, bytes: B) -> Self {
        Self {
            header,
            bytes,
            #[cfg(feature = "std")]
            found: OnceLock::new(),
        }
    }

    /// Calls `find` when first asked.
    #[cfg(feature = "std")]
    pub(crate) fn found<T: Any + Send + Sync>(&self, find: impl FnOnce() -> T) -> Option<&T> {
        self.found.get_or_init(|| Arc::new(find())).downcast_ref()
    }

    /// Returns the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the `__metadata__`, or an empty map.
    pub fn metadata(&self) -> &Metadata {
        self.header.metadata()
    }

    /// Returns the bytes or the source of the file.
    pub fn source(&self) -> &B {
        &self.bytes
    }

    /// A change must not affect the header.
    pub(crate) fn source_mut(&mut self) -> &mut B {
        &mut self.bytes
    }

    pub(crate) fn into_source(self) -> B {
        self.bytes
    }
}

fn to_usize(offset: u64) -> Result<usize> {
    usize::try_from(offset).map_err(|_| ErrorKind::TooLargeForMemory { bytes: offset }.into())
}
