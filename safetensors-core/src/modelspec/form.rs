//! [`Form`]: the forms that the values of keys can have.

use super::date::is_date;
use super::value::{List, Resolution, Sha256, TimestepRange, Value, Version};
use crate::hash::SHA256_FORM;

/// The form of a value's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Any text.
    Text,
    /// Text with at least one character that is not white space.
    NonEmpty,
    /// `major.minor.patch`.
    Version,
    /// `WIDTHxHEIGHT`, in pixels.
    Resolution,
    /// An ISO 8601 date, with or without a time.
    Date,
    /// `0x` and lower-case hex digits.
    Hash,
    /// A [`Form::Hash`] of 64 digits.
    Sha256,
    /// Two unsigned integers, `MIN,MAX`.
    Range,
    /// An unsigned 32-bit integer.
    Integer,
    /// `true` or `false`.
    Boolean,
    /// Items separated by commas.
    List,
    /// An image as a base64 data URL.
    DataImage,
}

impl Form {
    /// Whether this text has the form.
    pub(super) fn accepts(self, text: &str) -> bool {
        match self {
            Self::Text => true,
            Self::NonEmpty => !text.trim().is_empty(),
            Self::Version => Version::from_text(text).is_some(),
            Self::Resolution => Resolution::from_text(text).is_some(),
            Self::Date => is_date(text),
            Self::Hash => text
                .strip_prefix("0x")
                .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(is_hex)),
            Self::Sha256 => <Sha256 as Value>::from_text(text).is_some(),
            Self::Range => TimestepRange::from_text(text).is_some(),
            Self::Integer => u32::from_text(text).is_some(),
            Self::Boolean => bool::from_text(text).is_some(),
            Self::List => List::from_text(text).is_some(),
            Self::DataImage => is_data_image(text),
        }
    }

    /// The form in words, for messages.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::NonEmpty => "text that is not empty",
            Self::Version => "a version such as 1.0.1",
            Self::Resolution => "a resolution such as 1024x1024",
            Self::Date => "an ISO 8601 date such as 2023-07-16 or 2023-07-16T18:13:38Z",
            Self::Hash => "0x and lower-case hex digits",
            Self::Sha256 => SHA256_FORM,
            Self::Range => "a range such as 500,999",
            Self::Integer => "an unsigned integer",
            Self::Boolean => "true or false",
            Self::List => "a comma-separated list without empty items",
            Self::DataImage => "an image such as data:image/jpeg;base64, followed by base64 text",
        }
    }
}

fn is_hex(digit: u8) -> bool {
    matches!(digit, b'0'..=b'9' | b'a'..=b'f')
}

fn is_data_image(text: &str) -> bool {
    let image = || {
        let (kind, data) = text.strip_prefix("data:image/")?.split_once(";base64,")?;
        let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'+' | b'-');
        Some(!kind.is_empty() && kind.bytes().all(plain) && is_base64(data))
    };
    image().unwrap_or(false)
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/');
    !digits.is_empty()
        && text.len() - digits.len() <= 2
        && text.len().is_multiple_of(4)
        && digits.bytes().all(plain)
}
