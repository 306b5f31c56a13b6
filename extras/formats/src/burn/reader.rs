//! [`Reader`]: the values of a MessagePack file, one after another, counted and limited.

use std::io::{self, BufReader, Read};

use rmp::Marker;
use safetensors_core::ReadAt;

use crate::error::{Error, ErrorKind, Result};
use crate::input::Cursor;

/// The beginning of a value in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing: a constant in a module.
    Nothing,
    /// A whole number from 0 on.
    Number(u64),
    /// Another number, or a boolean.
    Other,
    /// A text of this many bytes, which follow.
    Text(u64),
    /// This many bytes, which follow.
    Bytes(u64),
    /// This many values, which follow.
    List(u64),
    /// This many pairs of a key and a value, which follow.
    Map(u64),
}

/// Reads a file front to back.
pub(super) struct Reader<S: ReadAt> {
    inner: BufReader<Cursor<S>>,
    at: u64,
    len: u64,
    /// The number of bytes that may still be read, without the bytes of tensors.
    allowed: u64,
    limit: u64,
}

impl<S: ReadAt> Reader<S> {
    pub(super) fn new(cursor: Cursor<S>, limit: u64) -> Self {
        let len = cursor.left();
        Self { inner: BufReader::new(cursor), at: 0, len, allowed: limit, limit }
    }

    /// Returns the position in the file.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// Returns the number of bytes after it.
    pub(super) fn left(&self) -> u64 {
        self.len.saturating_sub(self.at)
    }

    /// Reads the next value, but not its following content.
    pub(super) fn value(&mut self) -> Result<Value> {
        self.count(1)?;
        let [marker] = self.array()?;
        let value = match Marker::from_u8(marker) {
            Marker::FixPos(value) => Value::Number(value.into()),
            Marker::Null => Value::Nothing,
            Marker::FixNeg(_) | Marker::False | Marker::True => Value::Other,
            Marker::U8 => Value::Number(self.number::<1>()?),
            Marker::U16 => Value::Number(self.number::<2>()?),
            Marker::U32 => Value::Number(self.number::<4>()?),
            Marker::U64 => Value::Number(self.number::<8>()?),
            Marker::I8 => self.other::<1>()?,
            Marker::I16 => self.other::<2>()?,
            Marker::I32 | Marker::F32 => self.other::<4>()?,
            Marker::I64 | Marker::F64 => self.other::<8>()?,
            Marker::FixStr(len) => Value::Text(len.into()),
            Marker::Str8 => Value::Text(self.number::<1>()?),
            Marker::Str16 => Value::Text(self.number::<2>()?),
            Marker::Str32 => Value::Text(self.number::<4>()?),
            Marker::Bin8 => Value::Bytes(self.number::<1>()?),
            Marker::Bin16 => Value::Bytes(self.number::<2>()?),
            Marker::Bin32 => Value::Bytes(self.number::<4>()?),
            Marker::FixArray(len) => Value::List(len.into()),
            Marker::Array16 => Value::List(self.number::<2>()?),
            Marker::Array32 => Value::List(self.number::<4>()?),
            Marker::FixMap(len) => Value::Map(len.into()),
            Marker::Map16 => Value::Map(self.number::<2>()?),
            Marker::Map32 => Value::Map(self.number::<4>()?),
            other => return Err(self.problem(format!("burn writes no {other:?}"))),
        };
        Ok(value)
    }

    /// Returns the text of a value.
    pub(super) fn text(&mut self, len: u64) -> Result<String> {
        self.count(len)?;
        self.check_left(len)?;
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| self.problem("a text is not UTF-8"))
    }

    /// Returns the next value, which must be a text.
    pub(super) fn expect_text(&mut self, what: &str) -> Result<String> {
        match self.value()? {
            Value::Text(len) => self.text(len),
            other => Err(self.problem(format!("expected {what}, found {}", other.kind()))),
        }
    }

    /// Passes over bytes of a tensor. They are not read.
    pub(super) fn pass(&mut self, len: u64) -> Result<()> {
        self.check_left(len)?;
        let by = i64::try_from(len).map_err(|_| self.problem("a length is too large"))?;
        self.inner.seek_relative(by)?;
        self.at += len;
        Ok(())
    }

    /// Reads the next byte of a tensor with bytes that are listed as numbers.
    pub(super) fn listed_byte(&mut self) -> Result<u8> {
        // As many bytes are allowed as the file has.
        self.allowed = self.allowed.saturating_add(3);
        match self.value()? {
            Value::Number(byte @ 0..=255) => Ok(byte as u8),
            other => Err(self.problem(format!("expected a byte, found {}", other.kind()))),
        }
    }

    fn other<const N: usize>(&mut self) -> Result<Value> {
        self.number::<N>().map(|_| Value::Other)
    }

    /// Reads a big-endian number of this many bytes.
    fn number<const N: usize>(&mut self) -> Result<u64> {
        self.count(N as u64)?;
        let bytes = self.array::<N>()?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.check_left(bytes.len() as u64)?;
        self.inner.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.problem("the file ends here"),
            _ => error.into(),
        })?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn check_left(&self, len: u64) -> Result<()> {
        let left = self.left();
        if len > left {
            let problem = format!("a value of {len} bytes, but only {left} are left of the file");
            return Err(self.problem(problem));
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        let left = self.allowed.checked_sub(bytes);
        self.allowed = left.ok_or(ErrorKind::DirectoryTooLong { limit: self.limit })?;
        Ok(())
    }

    pub(super) fn problem(&self, problem: impl Into<String>) -> Error {
        ErrorKind::BadRecord { offset: self.at, problem: problem.into() }.into()
    }
}

impl Value {
    /// Returns the kind of the value, for messages.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Number(_) => "a number",
            Self::Other => "another number",
            Self::Text(_) => "a text",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}
