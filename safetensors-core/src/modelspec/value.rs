//! Values that are not plain text, and their conversion from and to text.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

pub(super) use crate::hash::Sha256;

/// A value that a text of a certain form stands for.
pub(super) trait Value: Sized {
    /// Parses a text; `None` if it does not have the form.
    fn from_text(text: &str) -> Option<Self>;

    /// The value as text.
    fn text(&self) -> String;
}

/// A version of the standard: `major.minor.patch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Changes with a version of the standard that older files do not follow.
    pub major: u32,
    /// Changes with a version that older readers do not understand.
    pub minor: u32,
    /// Changes with every other version.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The size of an image in pixels. `Display` gives `WIDTHxHEIGHT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resolution {
    /// Pixels from left to right, 1 or more.
    pub width: u32,
    /// Pixels from top to bottom, 1 or more.
    pub height: u32,
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// The timesteps that a model was tuned on, including both ends. `Display` gives `MIN,MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimestepRange {
    /// The first timestep.
    pub min: u32,
    /// The last timestep, not below `min`.
    pub max: u32,
}

impl fmt::Display for TimestepRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.min, self.max)
    }
}

/// Items separated by commas. White space around an item does not belong to it.
pub(super) type List = Vec<String>;

impl Value for String {
    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_string())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl Value for Version {
    fn from_text(text: &str) -> Option<Self> {
        let (major, rest) = text.split_once('.')?;
        let (minor, patch) = rest.split_once('.')?;
        Some(Self {
            major: u32::from_text(major)?,
            minor: u32::from_text(minor)?,
            patch: u32::from_text(patch)?,
        })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for Resolution {
    fn from_text(text: &str) -> Option<Self> {
        let (width, height) = text.split_once('x')?;
        let resolution = Self { width: u32::from_text(width)?, height: u32::from_text(height)? };
        (resolution.width > 0 && resolution.height > 0).then_some(resolution)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for TimestepRange {
    fn from_text(text: &str) -> Option<Self> {
        let (min, max) = text.split_once(',')?;
        let range = Self { min: u32::from_text(min)?, max: u32::from_text(max)? };
        (range.min <= range.max).then_some(range)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for u32 {
    /// Plain digits: no sign and no leading zeros, so that each number has one text.
    fn from_text(text: &str) -> Option<Self> {
        let plain = text.bytes().all(|digit| digit.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'));
        if plain { text.parse().ok() } else { None }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    fn from_text(text: &str) -> Option<Self> {
        match text {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// Written as `0x` and 64 lower-case hex digits.
impl Value for Sha256 {
    fn from_text(text: &str) -> Option<Self> {
        Self::from_metadata(text)
    }

    fn text(&self) -> String {
        self.to_metadata()
    }
}

impl Value for List {
    fn from_text(text: &str) -> Option<Self> {
        text.split(',')
            .map(|item| Some(item.trim().to_string()).filter(|item| !item.is_empty()))
            .collect()
    }

    fn text(&self) -> String {
        self.join(",")
    }
}
