//! The strict parser: from bytes to a [`Header`].

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use super::json::Cursor;
use super::looks_like::{explain, telling};
use super::model::{Header, MAX_TEXT, Metadata, ParsedEntry, Record, Span};
use super::{LENGTH_BYTES, Limits, METADATA_KEY, canonical, is_marked, validate};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, JsonProblem, Result, excerpt};
use crate::format::tensor::shape;

impl Header {
    /// Parses the header of an entire file, and checks that its data is complete.
    ///
    /// # Errors
    ///
    /// Every rule of the format has its own [`ErrorKind`].
    pub fn parse(file: &[u8], limits: &Limits) -> Result<Self> {
        Self::parse_file(file, limits).map_err(|error| {
            let at = telling(&error, file.len() as u64) as usize;
            explain(error, file.get(at..).unwrap_or_default())
        })
    }

    fn parse_file(file: &[u8], limits: &Limits) -> Result<Self> {
        let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
            return Err(ErrorKind::TooShort { found: file.len() as u64 }.into());
        };
        let json_len = Self::check_length(*length, rest.len() as u64, limits)?;
        let (json, data) = rest.split_at(json_len);
        let header = Self::parse_json(json, limits)?;
        header.check_data_len(data.len() as u64)?;
        Ok(header)
    }

    /// Checks against the limit and the bytes that follow.
    pub(crate) fn check_length(
        length: [u8; LENGTH_BYTES],
        available: u64,
        limits: &Limits,
    ) -> Result<usize> {
        if is_marked(length) {
            return Err(ErrorKind::TornHeader.into());
        }
        let found = u64::from_le_bytes(length);
        check_text_len(found, limits)?;
        if found > available {
            return Err(ErrorKind::HeaderPastEnd { expected: found, found: available }.into());
        }
        usize::try_from(found).map_err(|_| ErrorKind::TooLargeForMemory { bytes: found }.into())
    }

    pub(crate) fn check_data_len(&self, found: u64) -> Result<()> {
        let expected = self.data_len();
        if found > expected {
            return Err(ErrorKind::TrailingData { expected, found }.into());
        }
        // The error names the first tensor with incomplete data.
        match self.iter().find(|tensor| tensor.data_offsets().end > found) {
            Some(cut) => {
                Err(Error::from(ErrorKind::MissingData { expected, found }).in_tensor(cut.name()))
            }
            None => Ok(()),
        }
    }

    /// Parses the JSON text of a header, and does not check the length of the data.
    pub fn parse_json(json: &[u8], limits: &Limits) -> Result<Self> {
        Self::parse_by(json, limits, Way::FastFirst)
    }

    pub(super) fn parse_by(json: &[u8], limits: &Limits, way: Way) -> Result<Self> {
        let json_len = json.len() as u64;
        check_text_len(json_len, limits)?;
        let text = core::str::from_utf8(json)
            .map_err(|error| ErrorKind::NotUtf8 { offset: error.valid_up_to() })?;
        let mut parser = Parser {
            cursor: Cursor::new(text),
            scratch: String::new(),
            // These capacities suit a usual header. Unused capacity costs no memory, because it is
            // never touched.
            names: String::with_capacity(json.len() / 3),
            dims: Vec::with_capacity(json.len() / 64),
            records: Vec::with_capacity(json.len() / 100),
            metadata: None,
            max_tensors: limits.tensors,
            max_ndim: limits.ndim,
            max_metadata: limits.metadata_entries,
            before: canonical::Before::default(),
            // The fast path does not look at the limit of dimensions.
            max_fast: if limits.ndim < canonical::MAX_NDIM { 0 } else { limits.tensors },
            way,
        };
        parser.header()?;
        let Parser { names, dims, records, metadata, .. } = parser;
        validate::finish(Self {
            names,
            dims,
            records,
            table: Default::default(),
            metadata: metadata.unwrap_or_default(),
            json_len,
            data_len: 0,
        })
    }
}

fn check_text_len(found: u64, limits: &Limits) -> Result<(), ErrorKind> {
    let limit = limits.header_bytes.min(MAX_TEXT);
    if found > limit { Err(ErrorKind::HeaderTooLarge { limit, found }) } else { Ok(()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    FastFirst,
    /// For comparison with the fast path.
    #[cfg(test)]
    Grammar,
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    scratch: String,
    names: String,
    dims: Vec<usize>,
    records: Vec<Record>,
    metadata: Option<Metadata>,
    max_tensors: usize,
    max_ndim: usize,
    max_metadata: usize,
    before: canonical::Before<'a>,
    /// Tensors for the fast path: 0 if only the grammar can check the limit of dimensions.
    max_fast: usize,
    way: Way,
}

impl<'a> Parser<'a> {
    fn header(&mut self) -> Result<()> {
        match self.cursor.peek() {
            Some(b'{') => {}
            Some(_) if self.cursor.at_byte_order_mark() => {
                let problem = JsonProblem::ByteOrderMark;
                return Err(ErrorKind::Json { offset: self.cursor.offset(), problem }.into());
            }
            found => return Err(ErrorKind::NotAnObject { found }.into()),
        }
        self.cursor.expect(b'{', "an object")?;
        let mut more = self.cursor.has_first(b'}');
        while more {
            self.member()?;
            more = self.cursor.has_next(b'}', "a comma or the closing brace of the header")?;
        }
        match self.cursor.peek() {
            None => Ok(()),
            Some(byte) => {
                let problem = JsonProblem::AfterEnd(byte);
                Err(ErrorKind::Json { offset: self.cursor.offset(), problem }.into())
            }
        }
    }

    /// Reads tensors by the fast path while it can, then a tensor or the metadata by the grammar.
    fn member(&mut self) -> Result<()> {
        let mut start = self.names.len();
        while let Some(entry) = self.canonical_entry() {
            self.add(start, entry).map_err(|kind| self.in_tensor(start, kind))?;
            if !self.cursor.skip_comma_before_quote() {
                return Ok(());
            }
            start = self.names.len();
        }
        let name = self.cursor.string(&mut self.scratch, "a name in quotes")?;
        if name == METADATA_KEY {
            self.cursor.expect(b':', "a colon")?;
            return Ok(self.metadata()?);
        }
        self.names.push_str(name);
        self.entry()
            .and_then(|entry| self.add(start, entry))
            .map_err(|kind| self.in_tensor(start, kind))
    }

    /// Adds the name that was stored last.
    fn in_tensor(&self, name_start: usize, kind: ErrorKind) -> Error {
        Error::from(kind).in_tensor(&self.names[name_start..])
    }

    /// Stores the name, or reads nothing.
    #[inline(always)]
    fn canonical_entry(&mut self) -> Option<ParsedEntry> {
        if self.way != Way::FastFirst || self.records.len() >= self.max_fast {
            return None;
        }
        let dims = self.dims.len();
        let text = self.cursor.text();
        let start = self.cursor.offset();
        let Some(canonical::CanonicalEntry { name, entry, next }) =
            canonical::entry(text.as_bytes(), start, &mut self.dims, &mut self.before)
        else {
            self.dims.truncate(dims);
            return None;
        };
        self.names.push_str(&text[name]);
        self.cursor.seek(next);
        Some(entry)
    }

    /// Checks that the fields agree, and adds the tensor with the last name, at `name`.
    #[inline(always)]
    fn add(&mut self, name: usize, entry: ParsedEntry) -> Result<(), ErrorKind> {
        let ParsedEntry { dtype, shape, begin, end } = entry;
        let dims = &self.dims[shape.clone()];
        let expected = shape::byte_len(dtype, dims)?;
        let Some(found) = end.checked_sub(begin) else {
            return Err(ErrorKind::ReversedOffsets { begin, end });
        };
        if expected != found {
            return Err(ErrorKind::WrongSize { dtype, shape: dims.into(), expected, found });
        }
        let name = Span::new(name..self.names.len());
        self.records.push(Record { name, shape: Span::new(shape), begin, end, dtype });
        Ok(())
    }

    fn metadata(&mut self) -> Result<(), ErrorKind> {
        if self.metadata.is_some() {
            return Err(ErrorKind::DuplicateMetadata);
        }
        // MLX writes null in files without metadata.
        if self.cursor.skip_null() {
            self.metadata = Some(Metadata::new());
            return Ok(());
        }
        if self.cursor.peek() != Some(b'{') {
            return Err(ErrorKind::MetadataNotAnObject { found: self.cursor.kind("an object")? });
        }
        self.cursor.expect(b'{', "an object")?;
        let mut metadata = Metadata::new();
        let mut more = self.cursor.has_first(b'}');
        while more {
            if metadata.len() == self.max_metadata {
                return Err(ErrorKind::TooManyMetadataEntries { limit: metadata.len() });
            }
            let key = String::from(self.cursor.string(&mut self.scratch, "a key in quotes")?);
            self.cursor.expect(b':', "a colon")?;
            if self.cursor.peek() != Some(b'"') {
                let found = self.cursor.kind("a string")?;
                return Err(ErrorKind::MetadataNotAString { key, found });
            }
            let value = String::from(self.cursor.string(&mut self.scratch, "a string")?);
            if metadata.contains_key(&key) {
                return Err(ErrorKind::DuplicateMetadataKey { key });
            }
            metadata.insert(key, value);
            more = self.cursor.has_next(b'}', "a comma or the closing brace of __metadata__")?;
        }
        self.metadata = Some(metadata);
        Ok(())
    }

    /// Reads from the end of the name on.
    fn entry(&mut self) -> Result<ParsedEntry, ErrorKind> {
        if self.records.len() == self.max_tensors {
            return Err(ErrorKind::TooManyTensors { limit: self.max_tensors });
        }
        self.cursor.expect(b':', "a colon")?;
        if self.cursor.peek() != Some(b'{') {
            return Err(ErrorKind::EntryNotAnObject { found: self.cursor.kind("an object")? });
        }
        self.cursor.expect(b'{', "an object")?;
        let mut dtype = None;
        let mut shape = None;
        let mut offsets = None;
        let mut more = self.cursor.has_first(b'}');
        while more {
            match self.cursor.string(&mut self.scratch, "a field in quotes")? {
                "dtype" => {
                    self.field("dtype", &dtype)?;
                    dtype = Some(self.dtype()?);
                }
                "shape" => {
                    self.field("shape", &shape)?;
                    shape = Some(self.shape()?);
                }
                "data_offsets" => {
                    self.field("data_offsets", &offsets)?;
                    offsets = Some(self.data_offsets()?);
                }
                unknown => return Err(ErrorKind::UnknownField { found: excerpt(unknown) }),
            }
            more = self.cursor.has_next(b'}', "a comma or the closing brace of an entry")?;
        }
        let dtype = dtype.ok_or(ErrorKind::MissingField { field: "dtype" })?;
        let shape = shape.ok_or(ErrorKind::MissingField { field: "shape" })?;
        let (begin, end) = offsets.ok_or(ErrorKind::MissingField { field: "data_offsets" })?;
        Ok(ParsedEntry { dtype, shape, begin, end })
    }

    /// Refuses a duplicate, and reads the colon.
    fn field<T>(&mut self, field: &'static str, earlier: &Option<T>) -> Result<(), ErrorKind> {
        if earlier.is_some() {
            return Err(ErrorKind::DuplicateField { field });
        }
        self.cursor.expect(b':', "a colon")
    }

    fn dtype(&mut self) -> Result<Dtype, ErrorKind> {
        if self.cursor.peek() != Some(b'"') {
            let found = self.cursor.kind("a string")?;
            return Err(ErrorKind::WrongType { field: "dtype", expected: "a string", found });
        }
        let name = self.cursor.string(&mut self.scratch, "a string")?;
        Dtype::from_name(name.as_bytes())
            .ok_or_else(|| ErrorKind::UnknownDtype { found: excerpt(name) })
    }

    fn shape(&mut self) -> Result<Range<usize>, ErrorKind> {
        let start = self.dims.len();
        self.open_array("shape")?;
        let mut more = self.cursor.has_first(b']');
        while more {
            if self.dims.len() - start == self.max_ndim {
                return Err(ErrorKind::TooManyDimensions { limit: self.max_ndim });
            }
            let dim = self.cursor.number("shape")?;
            let dim =
                usize::try_from(dim).map_err(|_| ErrorKind::TooLargeForMemory { bytes: dim })?;
            self.dims.push(dim);
            more = self.cursor.has_next(b']', "a comma or the closing bracket of shape")?;
        }
        Ok(start..self.dims.len())
    }

    fn data_offsets(&mut self) -> Result<(u64, u64), ErrorKind> {
        const EXPECTED: &str = "two unsigned integers";
        let wrong_count =
            |found| ErrorKind::WrongType { field: "data_offsets", expected: EXPECTED, found };
        self.open_array("data_offsets")?;
        if !self.cursor.has_first(b']') {
            return Err(wrong_count("none"));
        }
        let begin = self.cursor.number("data_offsets")?;
        if !self.cursor.has_next(b']', "a comma")? {
            return Err(wrong_count("one"));
        }
        let end = self.cursor.number("data_offsets")?;
        if self.cursor.has_next(b']', "the closing bracket of data_offsets")? {
            return Err(wrong_count("more"));
        }
        Ok((begin, end))
    }

    fn open_array(&mut self, field: &'static str) -> Result<(), ErrorKind> {
        if self.cursor.peek() != Some(b'[') {
            let found = self.cursor.kind("an array")?;
            return Err(ErrorKind::WrongType { field, expected: "an array", found });
        }
        self.cursor.expect(b'[', "an array")
    }
}
