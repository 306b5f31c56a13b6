//! Displays the found part of a message.

use alloc::string::String;
use core::fmt;

use super::text::NameList;

pub(super) struct FoundByte(pub(super) Option<u8>);

impl fmt::Display for FoundByte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(byte) if byte.is_ascii_graphic() => write!(f, "{:?}", char::from(byte)),
            Some(byte) => write!(f, "the byte {byte:#04x}"),
            None => f.write_str("nothing"),
        }
    }
}

pub(super) struct Below<'a>(pub(super) &'a [String]);

impl fmt::Display for Below<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; below it: {}", NameList(self.0)) }
    }
}
