//! [`Form`]: the forms of values.

use super::date::is_date;

pub(super) const SHA256_DIGITS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    /// Text that is not only white space.
    NonEmpty,
    Version,
    /// `WIDTHxHEIGHT`, in pixels.
    Resolution,
    Date,
    /// `0x` and lower-case hex digits.
    Hash,
    /// A [`Form::Hash`] of 64 digits.
    Sha256,
    /// Two unsigned integers, `MIN,MAX`.
    Range,
    Integer,
    Boolean,
    /// Items separated by commas.
    List,
    /// A base64 data URL.
    DataImage,
}

impl Form {
    pub(super) fn accepts(self, text: &str) -> bool {
        match self {
            Self::Text => true,
            Self::NonEmpty => !text.trim().is_empty(),
            Self::Version => major(text).is_some(),
            Self::Resolution => pair(text, 'x').is_some_and(|(width, height)| width * height > 0),
            Self::Date => is_date(text),
            Self::Hash => hash_digits(text).is_some_and(|count| count > 0),
            Self::Sha256 => hash_digits(text) == Some(SHA256_DIGITS),
            Self::Range => pair(text, ',').is_some_and(|(min, max)| min <= max),
            Self::Integer => integer(text).is_some(),
            Self::Boolean => matches!(text, "true" | "false"),
            Self::List => items(text).all(|item| !item.is_empty()),
            Self::DataImage => is_data_image(text),
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::NonEmpty => "text that is not empty",
            Self::Version => "a version such as 1.0.1",
            Self::Resolution => "a resolution such as 1024x1024",
            Self::Date => "an ISO 8601 date such as 2023-07-16 or 2023-07-16T18:13:38Z",
            Self::Hash => "0x and lower-case hex digits",
            Self::Sha256 => "0x and 64 lower-case hex digits",
            Self::Range => "a range such as 500,999",
            Self::Integer => "an unsigned integer",
            Self::Boolean => "true or false",
            Self::List => "a comma-separated list without empty items",
            Self::DataImage => "an image such as data:image/jpeg;base64, followed by base64 text",
        }
    }
}

/// Returns the major version of `major.minor.patch`.
pub(super) fn major(text: &str) -> Option<u32> {
    let (major, rest) = text.split_once('.')?;
    let (minor, patch) = rest.split_once('.')?;
    integer(minor).and(integer(patch)).and(integer(major))
}

/// Splits a list, and trims its items.
pub(super) fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim)
}

fn pair(text: &str, separator: char) -> Option<(u64, u64)> {
    let (first, second) = text.split_once(separator)?;
    Some((integer(first)?.into(), integer(second)?.into()))
}

/// No sign and no leading zeros, so that each number has one text.
fn integer(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|digit| digit.is_ascii_digit());
    let has_zeros = text != "0" && text.starts_with('0');
    text.parse().ok().filter(|_| is_plain && !has_zeros)
}

/// Returns the number of digits after `0x`, if all are lower-case hex digits.
fn hash_digits(text: &str) -> Option<usize> {
    let digits = text.strip_prefix("0x")?;
    digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')).then_some(digits.len())
}

fn is_data_image(text: &str) -> bool {
    let Some(image) = text.strip_prefix("data:image/") else { return false };
    let Some((kind, data)) = image.split_once(";base64,") else { return false };
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'+' | b'-');
    !kind.is_empty() && kind.bytes().all(is_plain) && is_base64(data)
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/');
    !digits.is_empty()
        && text.len() - digits.len() <= 2
        && text.len().is_multiple_of(4)
        && digits.bytes().all(is_digit)
}
