//! [`Header`]: a parsed header, in one string of names and one vector of dimensions.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use super::LENGTH_BYTES;
use crate::format::dtype::Dtype;
use crate::format::header::NameTable;

/// The `__metadata__` of a file.
pub type Metadata = BTreeMap<String, String>;

// Positions in the text fit 32 bits.
pub(super) const MAX_TEXT: u64 = u32::MAX as u64;

/// A parsed and valid header.
///
/// The size of each tensor fits its shape. In file order, the tensors cover the data without holes
/// or overlaps.
///
/// ```
/// use safetensors_core::header::Header;
/// use safetensors_core::{Dtype, Limits};
///
/// let json = br#"{"a":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}}"#;
/// let header = Header::parse_json(json, &Limits::default())?;
/// let a = header.get("a").unwrap();
/// assert_eq!((a.dtype(), a.shape(), a.byte_len()), (Dtype::F16, &[2, 3][..], 12));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Header {
    pub(super) names: String,
    pub(super) dims: Vec<usize>,
    pub(super) records: Vec<Record>,
    pub(super) table: NameTable,
    pub(super) metadata: Metadata,
    pub(super) json_len: u64,
    pub(super) data_len: u64,
}

/// Ranges of the shared names and dimensions.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) name: Span,
    pub(super) shape: Span,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) dtype: Dtype,
}

/// Valid fields that may contradict each other.
pub(super) struct ParsedEntry {
    pub(super) dtype: Dtype,
    /// In the dimensions of all entries.
    pub(super) shape: Range<usize>,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// Below 2³².
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// The range is within [`MAX_TEXT`].
    pub(super) fn new(range: Range<usize>) -> Self {
        debug_assert!(range.end as u64 <= MAX_TEXT);
        Self { start: range.start as u32, end: range.end as u32 }
    }

    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl Header {
    /// Iterates over the tensors in file order.
    pub fn iter(
        &self,
    ) -> impl ExactSizeIterator<Item = TensorInfo<'_>> + DoubleEndedIterator + Clone {
        (0..self.records.len()).map(|position| TensorInfo { header: self, position })
    }

    pub(crate) fn tensor_at(&self, position: usize) -> Option<TensorInfo<'_>> {
        (position < self.records.len()).then_some(TensorInfo { header: self, position })
    }

    /// Finds a tensor by name, with one hash and one comparison.
    pub fn get(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.position(name).and_then(|position| self.tensor_at(position))
    }

    /// Returns the position in file order.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.table.find(name, |position| self.name_at(position))
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the `__metadata__`, or an empty map.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the number in the file's first 8 bytes.
    pub(crate) fn json_len(&self) -> u64 {
        self.json_len
    }

    /// Returns the offset of the data in the file.
    pub fn data_start(&self) -> u64 {
        LENGTH_BYTES as u64 + self.json_len
    }

    /// Returns the bytes of all tensors.
    pub fn data_len(&self) -> u64 {
        self.data_len
    }

    pub(super) fn name_at(&self, position: usize) -> &str {
        &self.names[self.records[position].name.range()]
    }
}

/// The header's entry of a tensor, borrowed.
#[derive(Clone, Copy)]
pub struct TensorInfo<'a> {
    header: &'a Header,
    position: usize,
}

impl<'a> TensorInfo<'a> {
    /// Returns the name, without JSON escapes. May be empty, and may hold any character.
    pub fn name(&self) -> &'a str {
        self.header.name_at(self.position)
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.record().dtype
    }

    /// Returns the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'a [usize] {
        &self.header.dims[self.record().shape.range()]
    }

    /// Returns the range of the tensor's bytes, from the first byte after the header.
    pub fn data_offsets(&self) -> Range<u64> {
        self.record().begin..self.record().end
    }

    // The parser has checked that the product fits 64 bits.
    pub(crate) fn element_count(&self) -> u64 {
        self.shape().iter().map(|&dim| dim as u64).product()
    }

    /// Returns the number of bytes.
    pub fn byte_len(&self) -> u64 {
        let Range { start, end } = self.data_offsets();
        end - start
    }

    fn record(&self) -> &'a Record {
        &self.header.records[self.position]
    }

    fn fields(&self) -> (&'a str, Dtype, &'a [usize], Range<u64>) {
        (self.name(), self.dtype(), self.shape(), self.data_offsets())
    }
}

impl PartialEq for TensorInfo<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.fields() == other.fields()
    }
}

impl Eq for TensorInfo<'_> {}

impl fmt::Debug for TensorInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorInfo")
            .field("name", &self.name())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .field("data_offsets", &self.data_offsets())
            .finish()
    }
}
