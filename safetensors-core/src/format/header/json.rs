//! A strict reader of a header's JSON, token by token, without recursion.
//! A header nests to a fixed depth.

use alloc::string::String;

use super::scan::plain_len;
use crate::format::error::{ErrorKind, JsonProblem};

pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn seek(&mut self, offset: usize) {
        self.at = offset;
    }

    /// Skips white space first.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.byte() {
            self.at += 1;
        }
        self.byte()
    }

    /// Skips white space first.
    pub(super) fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), ErrorKind> {
        if self.peek() == Some(byte) {
            self.at += 1;
            return Ok(());
        }
        Err(self.unexpected(expected))
    }

    pub(super) fn kind(&mut self, expected: &'static str) -> Result<&'static str, ErrorKind> {
        Ok(match self.peek() {
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            Some(b'"') => "a string",
            Some(b't' | b'f') => "a boolean",
            Some(b'n') => "null",
            Some(b'-' | b'0'..=b'9') => "a number",
            _ => return Err(self.unexpected(expected)),
        })
    }

    /// Reads `null` if it comes next, and returns whether it did.
    pub(super) fn skip_null(&mut self) -> bool {
        let is_there = self.peek() == Some(b'n') && self.text[self.at..].starts_with("null");
        self.at += if is_there { 4 } else { 0 };
        is_there
    }

    pub(super) fn at_byte_order_mark(&self) -> bool {
        self.text[self.at..].starts_with('\u{feff}')
    }

    /// Returns whether an item follows. If not, reads the closing bracket.
    pub(super) fn has_first(&mut self, close: u8) -> bool {
        if self.peek() == Some(close) {
            self.at += 1;
            return false;
        }
        true
    }

    /// Returns whether an item follows. If not, reads the closing bracket.
    #[inline]
    pub(super) fn has_next(
        &mut self,
        close: u8,
        expected: &'static str,
    ) -> Result<bool, ErrorKind> {
        match self.peek() {
            Some(b',') => {
                let comma = self.at;
                self.at += 1;
                if self.peek() == Some(close) {
                    return Err(ErrorKind::Json {
                        offset: comma,
                        problem: JsonProblem::TrailingComma,
                    });
                }
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.unexpected(expected)),
        }
    }

    /// Reads a comma before a quote, and returns whether it was there.
    #[inline(always)]
    pub(super) fn skip_comma_before_quote(&mut self) -> bool {
        let is_there = self.text.as_bytes()[self.at..].starts_with(b",\"");
        self.at += usize::from(is_there);
        is_there
    }

    /// Replaces escapes in `scratch`.
    pub(super) fn string<'s>(
        &mut self,
        scratch: &'s mut String,
        expected: &'static str,
    ) -> Result<&'s str, ErrorKind>
    where
        'a: 's,
    {
        self.expect(b'"', expected)?;
        let start = self.at;
        self.plain_run()?;
        if self.byte() == Some(b'"') {
            self.at += 1;
            return Ok(&self.text[start..self.at - 1]);
        }
        scratch.clear();
        scratch.push_str(&self.text[start..self.at]);
        while self.byte() == Some(b'\\') {
            scratch.push(self.escape()?);
            let start = self.at;
            self.plain_run()?;
            scratch.push_str(&self.text[start..self.at]);
        }
        self.at += 1;
        Ok(scratch)
    }

    /// Reads plain digits.
    pub(super) fn number(&mut self, field: &'static str) -> Result<u64, ErrorKind> {
        let first = self.peek();
        if matches!(first, Some(b'[' | b'{')) {
            return Err(ErrorKind::TooDeep { offset: self.at });
        }
        if !matches!(first, Some(b'-' | b'0'..=b'9')) {
            let found = self.kind("a number")?;
            return Err(ErrorKind::WrongType { field, expected: "unsigned integers", found });
        }
        let start = self.at;
        let mut value = Some(0_u64);
        while let Some(digit @ b'0'..=b'9') = self.byte() {
            value =
                value.and_then(|value| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
            self.at += 1;
        }
        let leading_zero = first == Some(b'0') && self.at - start > 1;
        match value {
            Some(value)
                if !leading_zero
                    && !matches!(self.byte(), Some(b'.' | b'e' | b'E' | b'-' | b'+')) =>
            {
                Ok(value)
            }
            _ => Err(ErrorKind::BadNumber { field, found: self.number_text(start) }),
        }
    }

    pub(super) fn unexpected(&self, expected: &'static str) -> ErrorKind {
        let problem = match self.byte() {
            None => JsonProblem::UnexpectedEnd { expected },
            Some(b'/') => JsonProblem::Comment,
            Some(found) => JsonProblem::Unexpected { expected, found },
        };
        ErrorKind::Json { offset: self.at, problem }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips to the next quote or backslash.
    fn plain_run(&mut self) -> Result<(), ErrorKind> {
        self.at += plain_len(&self.text.as_bytes()[self.at..]);
        match self.byte() {
            Some(b'"' | b'\\') => Ok(()),
            Some(byte) => Err(self.problem(JsonProblem::ControlCharacter(byte))),
            None => Err(self.unexpected("the closing quote of a string")),
        }
    }

    /// Reads from the backslash on.
    fn escape(&mut self) -> Result<char, ErrorKind> {
        let start = self.at;
        self.at += 2;
        let plain = match self.text.as_bytes().get(start + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(start),
            _ => return Err(ErrorKind::Json { offset: start, problem: JsonProblem::BadEscape }),
        };
        Ok(plain)
    }

    fn unicode_escape(&mut self, start: usize) -> Result<char, ErrorKind> {
        let fail = |problem| Err(ErrorKind::Json { offset: start, problem });
        let Some(first) = self.four_hex_digits() else { return fail(JsonProblem::BadEscape) };
        let code = match first {
            0xd800..0xdc00 => {
                if !self.text.as_bytes()[self.at..].starts_with(b"\\u") {
                    return fail(JsonProblem::LoneSurrogate);
                }
                self.at += 2;
                let Some(second) = self.four_hex_digits() else {
                    return fail(JsonProblem::BadEscape);
                };
                let (0xdc00..0xe000) = second else { return fail(JsonProblem::LoneSurrogate) };
                0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            code => code,
        };
        // The only other code without a character is a low surrogate without its high surrogate.
        char::from_u32(code).map_or_else(|| fail(JsonProblem::LoneSurrogate), Ok)
    }

    fn four_hex_digits(&mut self) -> Option<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4)?;
        self.at += 4;
        digits
            .iter()
            .try_fold(0, |value, &digit| Some(value << 4 | char::from(digit).to_digit(16)?))
    }

    fn problem(&self, problem: JsonProblem) -> ErrorKind {
        ErrorKind::Json { offset: self.at, problem }
    }

    fn number_text(&self, start: usize) -> String {
        const SHOWN: usize = 32;
        let is_part = |c: &char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        self.text[start..].chars().take_while(is_part).take(SHOWN).collect()
    }
}
