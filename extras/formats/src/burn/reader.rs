//! [`RecordReader`]: the values of a MessagePack file, in order, counted and limited.

use std::io::BufReader;

use rmp::Marker;

use crate::counted::{Counted, Wording};
use crate::error::{ErrorKind, Result};
use crate::input::Cursor;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A constant in a module.
    Nothing,
    Number(u64),
    /// Another number, or a boolean.
    Other,
    /// In bytes, which follow.
    Text(u64),
    /// In bytes, which follow.
    Bytes(u64),
    /// Of values, which follow.
    List(u64),
    Map(u64),
}

/// Does not count the bytes of tensors.
pub(super) type RecordReader = Counted<BufReader<Cursor<'static>>>;

pub(super) fn open(cursor: Cursor<'static>, limit: u64) -> RecordReader {
    let kind = |offset, problem| ErrorKind::BadRecord { offset, problem };
    Counted::limited(BufReader::new(cursor), limit, Wording { kind, ended: "the file ends here" })
}

impl RecordReader {
    pub(super) fn left(&self) -> u64 {
        self.inner.get_ref().input.source.byte_len().saturating_sub(self.position())
    }

    /// Leaves its content for later calls.
    pub(super) fn value(&mut self) -> Result<Value> {
        let value = match Marker::from_u8(self.byte()?) {
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

    pub(super) fn expect_text(&mut self, what: &str) -> Result<String> {
        match self.value()? {
            Value::Text(len) => self.text(len),
            other => Err(self.problem(format!("expected {what}, found {}", other.kind()))),
        }
    }

    pub(super) fn pass(&mut self, len: u64) -> Result<()> {
        let left = self.left();
        if len > left {
            let problem = format!("a value of {len} bytes, but only {left} are left of the file");
            return Err(self.problem(problem));
        }
        let by = i64::try_from(len).map_err(|_| self.problem("a length is too large"))?;
        self.inner.seek_relative(by)?;
        self.at += len;
        Ok(())
    }

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

    fn number<const N: usize>(&mut self) -> Result<u64> {
        let bytes = self.array::<N>()?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

impl Value {
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
