//! [`MaxShardSize`]: a number of bytes, also written as `5GB`.

use std::str::FromStr;

use crate::format::error::{Error, ErrorKind};

/// The largest size of a shard, in bytes of tensors.
///
/// As text it is a whole number of bytes, or a decimal number of KB, MB, GB or TB (powers of 1000).
/// Binary units such as KiB are an error.
///
/// ```
/// use safetensors_core::checkpoint::MaxShardSize;
///
/// assert_eq!(MaxShardSize::default(), "5GB".parse()?);
/// assert_eq!(MaxShardSize(1_500_000), " 1.5 mb ".parse()?);
/// assert_eq!(MaxShardSize(1_500_000), "1500000".parse()?);
/// assert!("1KiB".parse::<MaxShardSize>().is_err());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MaxShardSize(
    /// The number of bytes.
    pub u64,
);

impl Default for MaxShardSize {
    /// 5 GB.
    fn default() -> Self {
        Self(5_000_000_000)
    }
}

impl From<u64> for MaxShardSize {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl FromStr for MaxShardSize {
    type Err = Error;

    /// # Errors
    ///
    /// [`ErrorKind::BadShardSize`].
    fn from_str(text: &str) -> Result<Self, Error> {
        byte_count(text)
            .map(Self)
            .ok_or_else(|| ErrorKind::BadShardSize { found: text.into() }.into())
    }
}

fn byte_count(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(bytes) = text.parse() {
        return Some(bytes);
    }
    let (number, unit) = text.split_at_checked(text.len().checked_sub(2)?)?;
    let unit = match unit.to_ascii_uppercase().as_str() {
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return None,
    };
    // `huggingface_hub` computes in floating point, so this rounds fractions in the same way.
    let bytes = number.trim().parse::<f64>().ok()? * unit;
    // `contains` rejects infinities and NaN.
    (0.0..u64::MAX as f64).contains(&bytes).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_units() {
        let cases = [
            // The cases of huggingface_hub's own tests.
            ("1KB", 1_000),
            ("2MB", 2_000_000),
            ("3GB", 3_000_000_000),
            (" 10 KB ", 10_000),
            ("20mb", 20_000_000),
            // And more.
            ("1TB", 1_000_000_000_000),
            ("5gB", 5_000_000_000),
            ("\t7\tTb\n", 7_000_000_000_000),
            ("0KB", 0),
            ("1.5GB", 1_500_000_000),
            (".5KB", 500),
            ("5.KB", 5_000),
            ("+1e3KB", 1_000_000),
            // Rounded down, and 1.1 is not exactly 1.1.
            ("0.0019KB", 1),
            ("1.1KB", 1_100),
            // Without a unit, as bytes.
            ("5", 5),
            ("1500", 1_500),
            (" 42 ", 42),
            ("0", 0),
            ("+5", 5),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse::<MaxShardSize>().unwrap(), MaxShardSize(bytes), "{text:?}");
        }
    }

    #[test]
    fn bad_sizes_are_refused() {
        for text in [
            "",
            " ",
            "B",
            "KB",
            "5B",
            "1KiB",
            "1Kib",
            "1 K B",
            "1ooKB",
            "5PB",
            "5GBs",
            "-1KB",
            "infGB",
            "nanMB",
            "1e30TB",
            "0x10KB",
            "1,5GB",
            "5 5GB",
            "5é",
            "é",
            "5€B",
            "GB5",
            "18446744073709551616",
            "1.5",
            "1e3",
            "1_500",
            "0x10",
            "-5",
            "٣",
        ] {
            let error = text.parse::<MaxShardSize>().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::BadShardSize { found } if found == text),
                "{text:?}: {error}"
            );
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
