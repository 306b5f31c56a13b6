//! [`JsonProblem`]: errors in the text of a header.

use super::found::FoundByte;

/// A problem of the JSON text of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a field is named for what it holds, and the message says the rest")]
pub enum JsonProblem {
    /// A byte-order mark at the start.
    #[error("a byte-order mark")]
    ByteOrderMark,
    /// A comma before a closing bracket.
    #[error("a trailing comma")]
    TrailingComma,
    /// `//` or `/*`.
    #[error("a comment")]
    Comment,
    /// An unescaped control character in a string.
    #[error("the unescaped control character U+{0:04X} inside a string")]
    ControlCharacter(u8),
    /// A `\u` escape of half a surrogate pair.
    #[error("half of a surrogate pair")]
    LoneSurrogate,
    /// A backslash before something that JSON does not define.
    #[error("an unknown or incomplete escape")]
    BadEscape,
    /// The text ends inside a value.
    #[error("the end of the header, expected {expected}")]
    UnexpectedEnd { expected: &'static str },
    /// A byte that is not allowed here.
    #[error("{}, expected {expected}", FoundByte(Some(*.found)))]
    Unexpected { expected: &'static str, found: u8 },
    /// Not white space after the header's closing brace.
    #[error("the byte {0:#04x} after the closing brace, where only white space is allowed")]
    AfterEnd(u8),
}
